"""The bank of planted source faults: one-line edits of implementations and kernels, as data (``*.toml`` beside this).

A file of the bank belongs to one module; its top-level ``file`` names that module ("impls/vla.py") and each
``[[fault]]`` (or ``[[neutral]]``: an edit that must *not* be caught) gives an id, what to find, what to put there, and
why a person could have written it. ``find`` occurs exactly once, on one line, in today's source: an entry whose text
is gone is an error that names the entry, not a fault that silently no longer exists.
"""

from __future__ import annotations

import ast
import threading
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from linattest.verify.environment import ROOT

FOLDER = Path(__file__).parent

_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of a syntax tree for all threads together. Where a collector's callback (Hypothesis has
one) lets another thread parse in between, the count is off and ``ast.parse`` ends in SystemError."""


class BankError(ValueError):
    """An entry of the bank that is wrong, or whose text is no longer in the source; the message names it."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One edit of one source file.

    ``file`` is relative to the package ("impls/vla.py"). ``find`` is a line or a part of one and occurs once;
    ``replace`` takes its place. ``operators`` are the operators whose cases can show it (none given: all that reach
    the file by imports); ``dtypes`` those in which it shows, if not in all. ``checks`` are test files of the
    repository that can show what no operator's case does: an argument check, a layer.
    """

    id: str
    file: str
    find: str
    replace: str
    why: str
    kind: Literal["fault", "neutral"] = "fault"
    operators: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def source(self) -> str:
        """Today's source of the file. Raises ``BankError`` if there is none."""
        try:
            return (ROOT / self.file).read_text(encoding="utf-8")
        except OSError as error:
            raise BankError(f"fault {self.id!r}: file={self.file!r} cannot be read: {error}") from error

    def applied(self) -> str:
        """The source with the edit.

        Raises:
            BankError: ``find`` is not there exactly once, the result does not parse, or it says the same.
        """
        source = self.source()
        found = source.count(self.find)
        if found != 1 or "\n" in self.find:
            raise BankError(
                f"fault {self.id!r}: find={self.find!r} occurs {found} times in {self.file}, expected once and on one "
                "line; the source has changed: mend the entry"
            )
        edited = source.replace(self.find, self.replace)
        try:
            with _PARSING:
                same = ast.dump(ast.parse(edited)) == ast.dump(ast.parse(source))
        except SyntaxError as error:
            raise BankError(f"fault {self.id!r}: {self.file} no longer parses with replace={self.replace!r}") from error
        if same:
            raise BankError(f"fault {self.id!r}: replace={self.replace!r} leaves {self.file} the same program")
        return edited

    @property
    def line(self) -> int:
        """Number of the line that is edited."""
        return self.source().partition(self.find)[0].count("\n") + 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """One file of the bank: defaults of its entries, then the entries."""

    file: str
    operators: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    fault: list[dict[str, Any]] = []
    neutral: list[dict[str, Any]] = []


def read(path: Path) -> list[Fault]:
    """The entries of one file of the bank.

    Raises:
        BankError: not TOML, an unknown or missing key, or a value of the wrong type.
    """
    try:
        page = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
        shared = {"file": page.file, "operators": page.operators, "checks": page.checks}
        entries = [(shared | entry | {"kind": kind}) for kind in ("fault", "neutral") for entry in getattr(page, kind)]
        return [msgspec.convert(entry, Fault) for entry in entries]
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BankError(f"{path.name}: {error}") from error


@cache
def bank() -> tuple[Fault, ...]:
    """Every entry, faults and neutral edits, in the order of the files.

    Raises:
        BankError: a file is wrong, or two entries share an id.
    """
    entries = [entry for path in sorted(FOLDER.glob("*.toml")) for entry in read(path)]
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise BankError(f"fault {entry.id!r}: there are two of this id")
        seen.add(entry.id)
    return tuple(entries)


def chosen(entries: Iterable[Fault], ids: Iterable[str] = (), file: str = "") -> list[Fault]:
    """The entries with these ids, or in this file ("impls/vla.py" or "vla"), or all.

    Raises:
        KeyError: no entry has one of the ids, or none is of this file; the message lists what there is.
    """
    known = {entry.id: entry for entry in entries}
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise KeyError(f"no fault {unknown}; `linattest selftest --list` prints the {len(known)} there are")
    kept = [known[name] for name in ids] or list(known.values())
    if not file:
        return kept
    kept = [entry for entry in kept if file in (entry.file, Path(entry.file).stem)]
    if not kept:
        raise KeyError(f"no fault in {file!r}; there are some in {sorted({entry.file for entry in known.values()})}")
    return kept
