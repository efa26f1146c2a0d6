"""Where a user's function is: what can be said of ``module:function`` before anything is imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path

DYNAMIC = frozenset({"globals", "vars", "locals", "exec", "setattr", "__getattr__"})
"""Names by which a module may come to have attributes that its text does not show."""


def misplaced(path: str) -> str:
    """Why nothing can be at "module:function" or "FILE.py:function"; empty if something may be."""
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name:
        return f"{path!r}, expected 'module:function' or 'path/to/file.py:function'"
    if place.endswith(".py"):
        file = Path(place).expanduser()
        return _absent(file, place, name) if file.is_file() else f"no file {file.absolute()}"
    here, package = str(Path.cwd()), place.partition(".")[0]
    if here not in sys.path:
        sys.path.insert(0, here)
    if package in sys.modules:
        return ""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return f"no module {package!r} on the path, which starts at {here}"
    file = Path(spec.origin or "")
    alone = package == place and not spec.submodule_search_locations
    return _absent(file, place, name) if alone and file.suffix in SOURCE_SUFFIXES else ""


def _absent(file: Path, place: str, name: str) -> str:
    """Whether a file defines no such name anywhere, in words; empty if it may, or if its text does not say."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""  # the import says what it is
    nodes = list(ast.walk(tree))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = {(x.asname or x.name).partition(".")[0] for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)
                for x in n.names}  # fmt: skip
    made = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    known = used | imported | {node.name for node in made}
    if name.partition(".")[0] in known or "*" in known or known & DYNAMIC:
        return ""
    public = sorted(node.name for node in made if node in tree.body and not node.name.startswith("_"))
    return f"{place} has no {name!r}; it has {', '.join(public) or 'no public callable'}"
