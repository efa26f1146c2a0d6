"""The words of Coq's files outside proofs: definitions, notations, hypotheses, what theorems and lemmas state.

A theorem's type names what it is about; what these names mean is in the files. Without this a certificate that was made
1000 larger by its definition would be proved under the same type. The text is compared, so nothing is compiled.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from linattest.proofs_checks import pins

PINS = "sentences.toml"
HEAD = """\
# Every sentence of Coq's files outside proofs, by file: what the names in types.toml mean. Compared as text.
# Written by `linattest prove --update-pins ID`, read by people beside the words in theorems.py.
"""
RENEW = "restore it (for instance with git), or delete it and run `linattest prove --method coq --update-pins`"
MARK = re.compile(r'"(?:[^"]|"")*"|\(\*|\*\)')
SENTENCE = re.compile(r'(?:"(?:[^"]|"")*"|[^".]|\.(?!\s|\Z))+\.?')
TACTIC = re.compile(r"[\s{}+*-]*(?:\w+\s*:\s*)?[\s{}+*-]*(?![\s{}+*-])[^A-Z#]")
"""A sentence of a proof: Coq's commands begin with a capital, or with an attribute in #[...]."""
IMPORTS = re.compile(r"^From Linattest Require Import ([\w ]+)\.$", re.MULTILINE)
HEADING = re.compile(r"(?:#\[[^]]*\] ?|Local |Global |Program )*(\w+ [\w']+)")
PUT = 3
"""How many sentences that differ are shown; the others are counted."""


def without_comments(text: str) -> str:
    """Code alone. Comments are nested, and what opens one inside a string is none."""
    parts, depth, at = list[str](), 0, 0
    for mark in MARK.finditer(text):
        if not depth:
            parts.append(text[at : mark.start()])
        at, sign = mark.end(), mark.group()
        if sign == "(*":
            depth += 1
        elif sign == "*)" and depth:
            depth -= 1
            parts.append("" if depth else " ")
        elif not depth:
            parts.append(sign)
    return "".join(parts) + ("" if depth else text[at:])


@cache
def outside_proofs(text: str) -> tuple[str, ...]:
    """The sentences of a file, layout apart, without those of proofs. What ends in ``Defined`` is a definition."""
    kept, tactics = list[str](), list[str]()
    for found in SENTENCE.findall(without_comments(text)):
        sentence = " ".join(found.split())
        if not sentence:
            continue
        if TACTIC.match(sentence):
            tactics.append(sentence)
            continue
        command = sentence.lstrip("{}+*- ")
        if command.startswith("Defined"):
            kept += tactics
        if command not in ("Proof.", "Qed."):
            kept.append(command)
        if command.startswith(("Qed", "Defined", "Theorem", "Lemma")):
            tactics.clear()
    return tuple(kept)


def needed(file: str, room: Path) -> dict[str, tuple[str, ...]]:
    """The sentences of a file and of all that it imports, by file. Raises ``OSError``."""
    found, todo = dict[str, tuple[str, ...]](), [file]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = outside_proofs((room / f"{name}.v").read_text(encoding="utf-8"))
            todo += " ".join(IMPORTS.findall("\n".join(found[name]))).split()
    return found


def read(file: Path) -> dict[str, tuple[str, ...]]:
    """What is pinned, by file. Raises ``ValueError``, which says what to do."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"coq/{file.name}: {error}; {RENEW}") from error
    if wrong := [name for name, text in table.items() if not isinstance(text, str)]:
        raise ValueError(f"coq/{file.name}: {wrong[0]} is no text; {RENEW}")
    return {name: tuple(text.splitlines()) for name, text in table.items()}


def difference(file: str, room: Path) -> str:
    """What is defined or stated otherwise than is pinned, in this file or in what it imports; empty if nothing.

    Raises ``OSError`` and ``ValueError``.
    """
    pinned = read(room / PINS)
    found = ((name, now, pinned.get(name, ())) for name, now in sorted(needed(file, room).items()))
    said = [text for name, now, before in found if now != before for text in _apart(f"{name}.v", now, before)]
    return "; ".join([*said[:PUT], *([f"and {len(said) - PUT} more sentences"] if len(said) > PUT else [])])


def _apart(file: str, now: tuple[str, ...], before: tuple[str, ...]) -> Iterable[str]:
    for _, i, j, k, n in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        old, new = list(before[i:j]), list(now[k:n])
        if old == new:
            continue
        for was, is_ in zip(old, new, strict=False):
            yield f"{file}: {_heading(is_)} {pins.apart(is_, was, PINS)}"
        yield from (f"{file}: {_heading(x)} is not in {PINS}" for x in new[len(old) :])
        yield from (f"{file}: {_heading(x)} is gone, but {PINS} has it" for x in old[len(new) :])


def _heading(sentence: str) -> str:
    found = HEADING.match(sentence)
    return found.group(1) if found else sentence[: pins.SHOWN]


def write(files: Iterable[str], room: Path) -> list[str]:
    """Pin these files and what they import as they are now, and drop files that are gone; which are others than before.

    Raises ``OSError`` and ``ValueError``.
    """
    path = room / PINS
    before = read(path) if path.exists() else {}
    now = {name: text for file in files for name, text in needed(file, room).items()}
    after = {x: text for x, text in sorted((before | now).items()) if (room / f"{x}.v").exists()}
    lines = {name: "".join(f"{sentence}\n" for sentence in text) for name, text in after.items()}
    if wrong := [name for name, text in lines.items() if "'''" in text]:
        raise ValueError(f"{wrong[0]}.v has three quotes in a row outside proofs, expected none")
    if after != before:
        tables = "".join(f"\n{name} = '''\n{text}'''\n" for name, text in lines.items())
        path.write_text(HEAD + tables, encoding="utf-8")
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]
