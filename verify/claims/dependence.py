"""What a verdict depends on, found by reading the files: its check, all that this imports, the proofs it names.

Nothing is listed by hand that an ``import`` says already. A row's ``sources`` add what no import says: an operator's
page, which is found by its name. The registry of operators is one such place, where reading stops.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from linattest.verify.claims.row import Row
from linattest.verify.claims.verdicts import Evidence
from linattest.verify.environment import ROOT

COMPUTING = tuple(f"verify/claims/{name}.py" for name in ("ledger", "verdicts", "record"))
"""What every verdict is computed by, beside its check."""

PACKAGE, COQ = "linattest", "proofs_checks/coq"
AROUND = {
    "proofs_checks": ("proofs_checks/pins.toml",),
    COQ: (f"{COQ}/theorems.py", f"{COQ}/types.toml", f"{COQ}/sentences.toml"),
}
"""What belongs to every file of a folder."""

ENDS = ("verify/registry.py",)
IMPORTS = re.compile(r"From Linattest Require Import ([\w ]+)\.")


def content(name: str) -> bytes | None:
    """A file by its name from the package's root (a user's: its whole path); ``None`` if there is none."""
    try:
        return (ROOT / name).read_bytes()
    except OSError:
        return None


def closure(names: Iterable[str], home: str | None = None) -> list[str]:
    """These files and all that they import of this package; of a user's folder, ``home``, also what lies in it."""
    found: dict[str, None] = {}
    todo = list(names)
    while todo:
        name = todo.pop(0)
        if name in found or (text := content(name)) is None:
            continue
        found[name] = None
        if name not in ENDS:
            todo += [x for x in _next(name, text, home) if x not in found]
    return list(found)


@cache
def _next(name: str, text: bytes, home: str | None = None) -> tuple[str, ...]:
    folder = name.rpartition("/")[0]
    around = [
        x for place, belonging in AROUND.items() if folder == place or folder.startswith(f"{place}/") for x in belonging
    ]
    if name.endswith(".v"):
        imported = (x for line in IMPORTS.findall(text.decode()) for x in line.split())
        return (*around, *(f"{folder}/{x}.v" for x in imported))
    if not name.endswith(".py"):
        return ()
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return tuple(around)
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            begin = "." * node.level + (node.module or "")
            whole = begin if begin.endswith(".") else f"{begin}."
            modules += [begin, *(f"{whole}{alias.name}" for alias in node.names)]
    return (*around, *(x for module in modules for x in _files(module, folder, home)))


def _files(module: str, folder: str, home: str | None) -> list[str]:
    """The files that a module may be, with its packages': one of this package, or in a user's folder.

    A user's module is looked for from the ledger's folder, where a check is imported, and from the file's own.
    """
    first, _, rest = module.partition(".")
    if first == PACKAGE:
        return [f"{rest.replace('.', '/')}.py"] if rest else []
    if not Path(folder).is_absolute():
        return []
    bare = module.lstrip(".")
    if level := len(module) - len(bare):
        above = Path(folder).joinpath(*[".."] * (level - 1)).resolve()
        return [str(above / "__init__.py"), *_candidates(bare, above)]
    places = [Path(folder), *([Path(home)] if home else [])]
    return [x for place in dict.fromkeys(places) for x in _candidates(bare, place)]


def _candidates(module: str, folder: Path) -> list[str]:
    """Each package on the way to a module, and the module, as files of a folder."""
    parts = module.split(".") if module else []
    packages = [folder.joinpath(*parts[:n], "__init__.py") for n in range(1, len(parts) + 1)]
    return [str(x) for x in (*packages, *([folder.joinpath(*parts).with_suffix(".py")] if parts else []))]


def fingerprint(row: bytes, names: Iterable[str]) -> str:
    """The hash of a row and of these files' contents."""
    digest = hashlib.sha256(row)
    for name in names:
        digest.update(name.encode() + b"\0" + (content(name) or b""))
    return digest.hexdigest()[:16]


# --- of a row --------------------------------------------------------------------------------------------------------


def sources(row: Row, evidence: Iterable[Evidence] = ()) -> tuple[str, ...]:
    """The files a verdict depends on: its check's and figure's own with all they import, the row's, its evidence's."""
    listed = [_place(row, name) for name in (*row.sources, *row.files)]
    listed += [str(Path(row.ledger).resolve())] if row.ledger else []
    if row.check is None:
        return tuple(dict.fromkeys(listed))
    found = [e.where for e in evidence if e.where]
    return tuple(dict.fromkeys((*closure((*_modules(row), *listed, *found, *COMPUTING), row.home), *listed)))


def _modules(row: Row) -> list[str]:
    found: list[str] = []
    for module in (row.names(text)[0] for text in (row.check, row.figure) if text is not None):
        if row.home is not None and module.partition(".")[0] != PACKAGE:
            found += [x for x in _candidates(module, Path(row.home).resolve()) if Path(x).is_file()]
        else:
            found.append(module.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py")
    return found


def _place(row: Row, name: str) -> str:
    """A file's name from the package's root; the whole path of one in a user's folder."""
    there = None if row.home is None else Path(row.home) / name
    return name if there is None or not there.is_file() else str(there)


def row_hash(row: Row, sources: Iterable[str]) -> str:
    """The hash of the row and of the contents of these files, one of which has a user's row."""
    return fingerprint(row.id.encode() if row.home is not None else msgspec.json.encode(row), sources)


def stale(row: Row) -> Iterator[str]:
    """What is not as the row says: sources that are gone, evidence that is another."""
    yield from (f"{name} is gone" for name in (*row.sources, *row.files) if content(_place(row, name)) is None)
    for name, wanted in row.files.items():
        text = content(_place(row, name))
        if text is not None and (found := hashlib.sha256(text).hexdigest()[:16]) != wanted:
            yield f"{name} has hash {found}, the ledger {wanted}"
