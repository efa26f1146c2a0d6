"""The ledger: rows of claims from TOML files or decorated functions, and computing each one's verdict anew.

A row has an id, the statement in our words, where it is made, what it assumes (``scope``), and either a ``check``
("module:function", no arguments, returns a ``Verdict``) or a ``reason`` why nothing was computed (the verdict is then
``untested``). ``expected`` is the verdict of the last release; another one is a difference. ``without`` gives the
expected verdict where a tool is not installed. ``sources`` are the files, from the package's root, on which the verdict
depends beside the check's own; ``files`` are files of evidence with the hash they had: another hash is stale.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import torch

from linattest.verify.claims.verdicts import Evidence, Verdict, Word, untested
from linattest.verify.environment import ROOT
from linattest.verify.executors import local_executor

FOLDER = ROOT / "verify" / "claims"
WORDS: tuple[Word, ...] = get_args(Word)
HERE = "linattest.verify.claims."
"""Prefix of a check without a dot in its module: "ccq_reads:cost" is linattest.verify.claims.ccq_reads:cost."""


class LedgerError(ValueError):
    """A ledger that cannot be read; the message names the file, the row and what was expected."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim as the ledger has it. ``home`` is the folder from which a user's check is imported."""

    id: str
    statement: str
    expected: Word
    where: str = ""
    scope: str = ""
    check: str | None = None
    reason: str | None = None
    sources: tuple[str, ...] = ()
    files: dict[str, str] = {}
    without: dict[str, Word] = {}
    paper: str = ""
    home: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "statement"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")
        if (self.check is None) == (self.reason is None):
            raise ValueError(f"check={self.check!r} and reason={self.reason!r}, expected exactly one")
        if self.check is not None and self.check.count(":") != 1:
            raise ValueError(f"check={self.check!r}, expected 'module:function'")

    @property
    def function(self) -> tuple[str, str]:
        """Module and name of the check."""
        module, _, name = (self.check or ":").partition(":")
        return (module if "." in module or self.home is not None else HERE + module), name


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A row with its verdict; ``verdict`` is ``None`` where the check raised (``error``). ``hash`` is of ``sources``.

    ``excused``: tools that it needs are not installed (``lacks``), and the ledger does not say what holds without them.
    """

    id: str
    paper: str
    statement: str
    where: str
    scope: str
    verdict: Word | None
    expected: Word
    evidence: tuple[Evidence, ...]
    sources: tuple[str, ...]
    hash: str
    stale: tuple[str, ...] = ()
    error: str | None = None
    lacks: tuple[str, ...] = ()
    excused: bool = False
    seconds: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether it is not what the ledger expects: another verdict, stale files, evidence that does not stand."""
        fallen = any(not e.stands and not e.lacks for e in self.evidence)
        return self.verdict != self.expected or bool(self.stale) or fallen


# --- reading -----------------------------------------------------------------------------------------------------


def ledgers() -> list[Path]:
    """The files that come with the package, one a paper; VLA first, whose checks take longest."""
    return sorted(FOLDER.glob("*.toml"), reverse=True)


def read(paths: Iterable[Path] | None = None) -> list[Row]:
    """The rows of these ledgers (ours, if none are given), in order.

    Raises:
        LedgerError: no file, no TOML, a row that is none, or an id that occurs twice.
    """
    rows: list[Row] = []
    seen: dict[str, Path] = {}
    for path in ledgers() if paths is None else paths:
        for row in _decorated(path) if path.suffix == ".py" else _rows(path):
            if row.id in seen:
                raise LedgerError(f"{path}: claim {row.id!r} is in {seen[row.id]} already")
            seen[row.id] = path
            rows.append(row)
    return rows


def _rows(path: Path) -> Iterator[Row]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{path}: {error}") from error
    strangers = sorted(set(table) - {"paper", "claim"})
    if strangers or not isinstance(table.get("claim"), list):
        raise LedgerError(f"{path}: has {sorted(table)}, expected `paper` and at least one [[claim]]")
    common = {"paper": table.get("paper", path.stem)}
    if path.parent.resolve() != FOLDER.resolve():
        common["home"] = str(path.parent.resolve())
    for n, entry in enumerate(table["claim"], start=1):
        try:
            yield msgspec.convert(common | entry, Row)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            name = entry.get("id", "without an id") if isinstance(entry, dict) else "no table"
            raise LedgerError(f"{path}, claim {n} ({name}): {error}") from error


def _decorated(path: Path) -> list[Row]:
    if not path.is_file():
        raise LedgerError(f"{path}: no such file")
    with _importable(str(path.parent.resolve())):
        try:
            module = importlib.import_module(path.stem)
        except Exception as error:
            raise LedgerError(f"{path}: {type(error).__name__}: {error}") from error
    found = [x.claim for x in vars(module).values() if isinstance(getattr(x, "claim", None), Row)]
    rows = [msgspec.structs.replace(r, home=str(path.parent.resolve()), paper=path.stem) for r in found]
    if not rows:
        raise LedgerError(f"{path}: no function is decorated with @claim(...)")
    return rows


Check = TypeVar("Check", bound=Callable[[], Verdict])


def claim(id: str, *, statement: str, expected: Word, where: str = "", scope: str = "") -> Callable[[Check], Check]:
    """Make a function that returns a ``Verdict`` a claim: its row is the function's attribute ``claim``.

    ``linattest claims --ledger FILE.py`` computes every such function of a file. Raises ``ValueError`` for a word
    that is no verdict or an empty id or statement.
    """
    if expected not in WORDS:
        raise ValueError(f"expected={expected!r}, expected one of {WORDS}")

    def decorate(function: Check) -> Check:
        check = f"{function.__module__}:{function.__name__}"
        row = Row(id=id, statement=statement, expected=expected, where=where, scope=scope, check=check, home=".")
        function.claim = row  # type: ignore[attr-defined]
        return function

    return decorate


# --- computing ---------------------------------------------------------------------------------------------------


@contextmanager
def _importable(home: str | None) -> Iterator[None]:
    if home is not None:
        sys.path.insert(0, home)
    try:
        yield
    finally:
        if home is not None:
            sys.path.remove(home)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A figure does not depend on how many threads computed it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compute(row: Row) -> Outcome:
    """The verdict of one row, computed now. A check that raises, or returns no verdict, is an error and no verdict."""
    start = time.perf_counter()
    verdict, error = None, None
    sources, digest = _sources(row)
    try:
        with _importable(row.home), _one_thread():
            verdict = _judge(row)
    except Exception as raised:
        last = traceback.extract_tb(raised.__traceback__)[-1]
        error = f"{type(raised).__name__}: {raised} ({Path(last.filename).name}:{last.lineno})"
    expected = row.expected
    lacks = sorted(verdict.lacks) if verdict else []
    for tool in lacks:
        expected = row.without.get(tool, expected)
    return Outcome(
        id=row.id, paper=row.paper, statement=row.statement, where=row.where, scope=row.scope,
        verdict=verdict.word if verdict else None, expected=expected, evidence=verdict.evidence if verdict else (),
        sources=sources, hash=digest, stale=tuple(_stale(row)), error=error, lacks=tuple(lacks),
        excused=bool(lacks) and not any(tool in row.without for tool in lacks),
        seconds=round(time.perf_counter() - start, 3),
    )  # fmt: skip


def _judge(row: Row) -> Verdict:
    if row.reason is not None:
        return untested(row.reason)
    module, name = row.function
    verdict = getattr(importlib.import_module(module), name)()
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{row.check} returned {type(verdict).__name__}, expected a Verdict")
    if verdict.word not in WORDS:
        raise ValueError(f"{row.check} returned the word {verdict.word!r}, expected one of {WORDS}")
    return verdict


def _sources(row: Row) -> tuple[tuple[str, ...], str]:
    """The files a verdict depends on, and the hash of their contents and of the row."""
    module, _ = row.function
    own = module.removeprefix("linattest.").replace(".", "/") + ".py"
    names = (*((own,) if row.check and row.home is None else ()), *row.sources, *row.files)
    digest = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(row, home=None)))
    for name in names:
        digest.update(name.encode() + (_content(name) or b""))
    if row.home is not None:
        digest.update(_content(f"{row.home}/{module.replace('.', '/')}.py") or b"")
    return names, digest.hexdigest()[:16]


def _content(name: str) -> bytes | None:
    try:
        return (ROOT / name).read_bytes()
    except OSError:
        return None


def _stale(row: Row) -> Iterator[str]:
    """What is not as the row says: sources that are gone, evidence that is another."""
    yield from (f"{name} is gone" for name in (*row.sources, *row.files) if _content(name) is None)
    for name, wanted in row.files.items():
        content = _content(name)
        if content is not None and (found := hashlib.sha256(content).hexdigest()[:16]) != wanted:
            yield f"{name} has hash {found}, the ledger {wanted}"


def run(rows: list[Row], workers: int, progress: Callable[[Outcome], Any] = lambda _: None) -> list[Outcome]:
    """Compute every row, in this process or in ``workers`` others; the outcomes are in the order of the rows."""
    found: dict[str, Outcome] = {}

    def keep(outcome: Outcome) -> None:
        found[outcome.id] = outcome
        progress(outcome)

    if workers == 1:
        for row in rows:
            keep(compute(row))
    else:
        with local_executor(workers) as pool:
            for future in as_completed([pool.submit(compute, row) for row in rows]):
                keep(future.result())
    return [found[row.id] for row in rows]
