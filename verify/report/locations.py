"""Where an implementation lives: file and line, found without importing it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import msgspec

from linattest.verify import registry
from linattest.verify.environment import ROOT
from linattest.verify.records import LOST, Record

PACKAGE = "linattest."


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A path with forward slashes, relative to the repository's root (or absolute), and a line from 1."""

    path: str
    line: int


def location(record: Record) -> Location | None:
    """The function that a record judges, the one that is called; the operator's page where no variant is to blame.

    ``None`` for an operator or variant that is unknown here, or one that lives outside of linattest.
    """
    path, _, line = record.source.rpartition(":")
    if path:
        return Location(path=path, line=int(line))
    try:
        operator = registry.operator(record.case.operator)
        if record.variant == LOST:
            return find(f"{operator.oracle.__module__}:OPERATOR")
        return find(operator.variant(record.variant).function)
    except KeyError:
        return None


@cache
def find(function: str) -> Location | None:
    """Where "module:name" is defined; ``None`` where there is no such file in linattest."""
    module, _, name = function.partition(":")
    if not module.startswith(PACKAGE):
        return None
    path = Path(*module.removeprefix(PACKAGE).split(".")).with_suffix(".py")
    try:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    return Location(path=path.as_posix(), line=next((n.lineno for n in tree.body if name in _names(n)), 1))


def _names(node: ast.stmt) -> list[str]:
    """What a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
