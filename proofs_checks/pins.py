"""What each tool was asked when the words beside it were read last: one readable file, ``pins.toml``.

A formula that was turned round is proved just as well as the right one, so a proof alone does not show that it is of
the statement. ``linattest prove`` compares; ``linattest prove --update-pins`` writes the file anew, whose difference is
then read, words beside formula, like any other. A long question is pinned by its beginning and its hash.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
import json
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("pins.toml")
LONGEST = 1200
"""Characters of a question that are kept as they are."""

HEAD = """\
# What each tool was asked, beside the words that say so: written by `linattest prove --update-pins`, read by people.
# `linattest prove` calls a statement `changed` whose words or questions are others. Coq's are in coq/types.toml.
"""


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A statement's words, what its tool was asked, and the same of its falsified twin."""

    statement: str
    assumptions: str
    asked: str
    twin: str
    twin_asked: str


def read(path: Path = FILE) -> dict[str, Pin]:
    """The pins by the statements' ids. Raises ``ValueError`` for a file that is none; without one there are no pins."""
    return _read(path.read_text(encoding="utf-8"), path.name) if path.exists() else {}


@cache
def _read(text: str, name: str) -> dict[str, Pin]:
    try:
        return msgspec.convert(tomllib.loads(text), dict[str, Pin])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{name}: {error}") from error


def difference(identity: str, found: Pin, pinned: Mapping[str, Pin]) -> str:
    """What is not as it is pinned, in words; empty if nothing."""
    pin = pinned.get(identity)
    if pin is None:
        return f"{FILE.name} has no {identity!r}"
    fields = ((name, getattr(found, name), getattr(pin, name)) for name in Pin.__struct_fields__)
    return "; ".join(f"{name} {_apart(now, before)}" for name, now, before in fields if now != before)


def _apart(now: str, before: str) -> str:
    """The first line that is another."""
    pairs = itertools.zip_longest(now.splitlines(), before.splitlines(), fillvalue="")
    line, pinned = next((x, y) for x, y in pairs if x != y)
    return f"is {line.strip()!r}, but {FILE.name} has {pinned.strip()!r}"


def write(pins: Mapping[str, Pin], path: Path = FILE) -> None:
    """The file anew, in the order given."""
    tables = (f'\n["{identity}"]\n' + "".join(_lines(pin)) for identity, pin in pins.items())
    path.write_text(HEAD + "".join(tables), encoding="utf-8")


def _lines(pin: Pin) -> Iterable[str]:
    for name in Pin.__struct_fields__:
        text = getattr(pin, name)
        literal = name.endswith("asked") and "'''" not in text
        yield f"{name} = '''\n{text}'''\n" if literal else f"{name} = {json.dumps(text, ensure_ascii=False)}\n"


def shortened(text: str) -> str:
    """A question as it is pinned: whole, or its beginning with the hash of all of it."""
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: LONGEST // 2]} ... ({len(text)} characters, sha256 {digest[:32]})"


@cache
def code(*parts: Callable[..., Any] | type) -> str:
    """The names of functions and classes and of what they call in their module, with a hash of their source.

    For what no formula says: how a question is made, or what is computed. Docstrings and layout are not hashed.
    """
    found = dict[str, Any]()
    for part in parts:
        _called(part, found)
    digest = hashlib.sha256("\0".join(_source(found[name]) for name in sorted(found)).encode())
    return f"{', '.join(sorted(found))} (code {digest.hexdigest()[:16]})"


def _called(part: Any, found: dict[str, Any]) -> None:
    part = inspect.unwrap(part)
    if part.__qualname__ in found:
        return
    found[part.__qualname__] = part
    methods = [x for x in vars(part).values() if inspect.isfunction(x)] if inspect.isclass(part) else [part]
    todo = [x.__code__ for x in methods]
    while todo:
        block = todo.pop()
        todo += [x for x in block.co_consts if inspect.iscode(x)]
        for name in block.co_names:
            known = inspect.unwrap(vars(sys.modules[part.__module__]).get(name))
            if (inspect.isfunction(known) or inspect.isclass(known)) and known.__module__ == part.__module__:
                _called(known, found)


def _source(part: Any) -> str:
    source = textwrap.dedent(inspect.getsource(part))
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
            lines[first - 1 : last] = [""] * (last - first + 1)
    return " ".join(" ".join(lines).split())
