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
import os
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent
FILE = FOLDER / "pins.toml"
LONGEST = 1200
"""Characters of a question that are kept as they are."""

HEAD = """\
# What each tool was asked, beside the words that say so: written by `linattest prove --update-pins`, read by people.
# `linattest prove` calls a statement `changed` whose words or questions are others. Coq's theorems are here by their
# words and names; what they say is in coq/types.toml and coq/sentences.toml.
"""


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A statement's method and words, what its tool was asked, and the same of its falsified twin."""

    method: str
    statement: str
    assumptions: str
    asked: str
    twin: str
    twin_asked: str


def read(path: Path = FILE) -> dict[str, Pin]:
    """The pins by the statements' ids. Raises ``ValueError`` for a file that is none; without one there are no pins."""
    try:
        return _read(path.read_text(encoding="utf-8"), path.name)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}, expected a file of pins") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


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
        lost = "" if FILE.is_file() else f"there is no {FILE.name} (restore it, for instance with git); "
        return f"{lost}{FILE.name} has no {identity!r}"
    fields = ((name, getattr(found, name), getattr(pin, name)) for name in Pin.__struct_fields__)
    return "; ".join(f"{name} {apart(now, before, FILE.name)}" for name, now, before in fields if now != before)


def gone(identity: str) -> str:
    """What is said of a pinned statement that no module has."""
    return f"gone: {FILE.name} has {identity!r}, but no module of catalogue.py has it{meant(identity)}"


def meant(identity: str) -> str:
    """What to do about a difference that is meant."""
    return f"; if that is meant: linattest prove --update-pins {identity}"


SHOWN = 24
"""Characters on each side of a difference."""


def apart(now: str, before: str, file: str) -> str:
    """The first lines that differ, with what differs in [brackets] and little around it."""
    pairs = itertools.zip_longest(now.splitlines(), before.splitlines(), fillvalue="")
    line, pinned = next(((x.strip(), y.strip()) for x, y in pairs if x != y), (now, before))
    begin = len(os.path.commonprefix([line, pinned]))
    end = len(os.path.commonprefix([line[begin:][::-1], pinned[begin:][::-1]]))
    return f"is {_marked(line, begin, end)!r}, but {file} has {_marked(pinned, begin, end)!r}"


def _marked(text: str, begin: int, end: int) -> str:
    """A text with what lies between two places in brackets; the rest is shortened."""
    head, span, tail = text[:begin], text[begin : len(text) - end], text[len(text) - end :]
    head = head if len(head) <= SHOWN else f"...{head[-SHOWN:]}"
    tail = tail if len(tail) <= SHOWN else f"{tail[:SHOWN]}..."
    return f"{head}[{span}]{tail}"


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


@cache
def tools(part: Callable[..., Any]) -> str:
    """The modules of this package that a function's module imports, with a hash of all their code.

    They judge what was asked: one that takes -0.001 for 0 is another tool.
    """
    found = dict[str, str]()
    todo = [part.__module__]
    while todo:
        for name in _imported(_text(todo.pop())):
            if name not in found and name != part.__module__:
                found[name] = _text(name)
                todo.append(name)
    if not found:
        return ""
    digest = hashlib.sha256("\0".join(_stripped(found[name]) for name in sorted(found)).encode())
    names = ", ".join(name.removeprefix(f"{PACKAGE}.") for name in sorted(found))
    return f"{names} (code {digest.hexdigest()[:16]})"


PACKAGE = "linattest.proofs_checks"
MACHINERY = ("proof", "pins", "catalogue")
"""Modules that ask and compare, and judge nothing."""


def _imported(text: str) -> list[str]:
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module)
    names = (name for node in nodes for name in (node.module, *(f"{node.module}.{x.name}" for x in node.names)))
    ours = (name for name in names if name and name.startswith(f"{PACKAGE}."))
    return [name for name in ours if name.split(".")[2] not in MACHINERY and _file(name).is_file()]


def _file(module: str) -> Path:
    return FOLDER.joinpath(*module.split(".")[2:]).with_suffix(".py")


def _text(module: str) -> str:
    """The source of a module of this package; of another (a test's) nothing."""
    file = _file(module) if module.startswith(f"{PACKAGE}.") else None
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""


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
    return _stripped(textwrap.dedent(inspect.getsource(part)))


def _stripped(source: str) -> str:
    """Source without docstrings and layout."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
            lines[first - 1 : last] = [""] * (last - first + 1)
    return " ".join(" ".join(lines).split())
