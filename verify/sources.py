"""What a result depends on, of our own sources: the modules that made it, and all that these import of the package."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "linattest"
ROOT = Path(__file__).parents[1]
"""The package's folder."""


@cache
def hash_of(*modules: str, root: Path = ROOT) -> str:
    """Hash of the sources of modules ("linattest.impls.gla") and of every one that they import, wherever in the file.

    What is imported by a name made at run time is not seen: name it too. Raises ``ImportError`` for a module that is
    not there.
    """
    seen: dict[str, Path] = {}
    waiting = list(modules)
    for name in modules:
        if _file(name, root) is None:
            raise ImportError(f"no module {name} in {root}")
    while waiting:
        name = waiting.pop()
        if name in seen or (path := _file(name, root)) is None:
            continue
        seen[name] = path
        waiting += imported(path)
    digest = hashlib.sha256()
    for name in sorted(seen):
        digest.update(name.encode() + b"\0" + hashlib.sha256(seen[name].read_bytes()).digest())
    return digest.hexdigest()[:16]


def imported(path: Path) -> Iterator[str]:
    """Names in the package that a file's import statements may mean: a module, or something in one."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == PACKAGE:
                yield from (".".join(parts[: n + 1]) for n in range(1, len(parts)))


def _file(name: str, root: Path) -> Path | None:
    """The source of a module or package; ``None`` where the name is of something else."""
    path = root.joinpath(*name.split(".")[1:])
    return next((x for x in (path.with_suffix(".py"), path / "__init__.py") if x.is_file()), None)
