"""The ledger: rows of claims from TOML files or decorated functions, and computing each one's verdict anew.

A row has an id, the statement in our words, where it is made, what it assumes (``scope``), and either a ``check``
("module:function", no arguments, returns a ``Verdict``) or a ``reason`` why nothing was computed (the verdict is then
``untested``). ``expected`` is the verdict of the last release; another one is a difference. ``without`` gives the
expected verdict where a tool is not installed. ``sources`` are the files, from the package's root (a user's: or
from the ledger's folder), on which the verdict depends beside what ``dependence`` finds; ``files`` are files of
evidence with the hash they had: another hash is stale.
``figure`` ("module:function", no arguments) returns the data of the claim's figure.
"""

from __future__ import annotations

import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from linattest.verify.claims import dependence, own
from linattest.verify.claims.record import Figure, Outcome
from linattest.verify.claims.row import Row
from linattest.verify.claims.verdicts import WORDS, Verdict, Word, untested
from linattest.verify.environment import ROOT
from linattest.verify.executors import local_executor

FOLDER = ROOT / "verify" / "claims"


class LedgerError(ValueError):
    """A ledger that cannot be read; the message names the file, the row, the key and what was expected."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{path}{text}")
        self.path = path


# --- reading -----------------------------------------------------------------------------------------------------


def ledgers() -> list[Path]:
    """The files that come with the package, one a paper; VLA first, whose checks take longest."""
    return sorted(FOLDER.glob("*.toml"), reverse=True)


def read(paths: Iterable[Path] | None = None) -> list[Row]:
    """The rows of these ledgers (ours, if none are given), in order.

    Raises:
        LedgerError: no file, no TOML, a row that is none, an id that occurs twice, or that is one of ours.
    """
    rows: list[Row] = []
    wanted = ledgers() if paths is None else list(paths)
    ours = (path for path in ledgers() if not all(_is_ours(x) for x in wanted))
    seen = {row.id: f"a claim of the papers ({path.name})" for path in ours for row in _rows(path)}
    for path in wanted:
        for row in _decorated(path) if path.suffix == ".py" else _rows(path):
            if (before := seen.get(row.id)) is not None:
                raise LedgerError(path, f": claim {row.id!r} is {before} already; give it another id")
            seen[row.id] = f"in {path}"
            rows.append(row)
    return rows


def _is_ours(path: Path) -> bool:
    return path.parent.resolve() == FOLDER.resolve()


def _rows(path: Path) -> Iterator[Row]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(path, f": {error}") from error
    strangers = sorted(set(table) - {"paper", "claim"})
    if strangers or not isinstance(table.get("claim"), list):
        raise LedgerError(path, f": has {sorted(table)}, expected `paper` and at least one [[claim]]")
    common = {"paper": table.get("paper", path.stem)}
    if not _is_ours(path):
        common |= {"home": str(path.parent.resolve()), "ledger": str(path)}
    for n, entry in enumerate(table["claim"], start=1):
        try:
            yield msgspec.convert(common | entry, Row)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            name = entry.get("id", "without an id") if isinstance(entry, dict) else "no table"
            raise LedgerError(path, f", claim {n} ({name}): {_explained(error)}") from error


def _explained(error: Exception) -> str:
    """What is wrong with a row, its key first."""
    what, _, where = str(error).partition(" - at `$.")
    words = f", expected one of {', '.join(WORDS)}" if what.startswith("Invalid enum value") else ""
    return f"key `{where.removesuffix('`')}`: {what}{words}" if where else what


def _decorated(path: Path) -> list[Row]:
    if not path.is_file():
        raise LedgerError(path, ": no such file")
    with own.importable(str(path.parent.resolve())):
        try:
            module = own.load(path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() in a ledger is no reason to say nothing
            raise LedgerError(path, f": {_raised(error)}") from error
    found = [x.claim for x in vars(module).values() if isinstance(getattr(x, "claim", None), Row)]
    found = [_by_file(row, module.__name__, path) for row in found]
    whose: dict[str, str] = {"home": str(path.parent.resolve()), "ledger": str(path), "paper": path.stem}
    rows = [msgspec.structs.replace(r, **whose) for r in found]
    if not rows:
        raise LedgerError(path, ": no function is decorated with @claim(...)")
    return rows


def _by_file(row: Row, module: str, path: Path) -> Row:
    """The row of a function of that file, which is found by the file's name."""
    own_check = row.function[0] == module
    return msgspec.structs.replace(row, check=f"{path.stem}:{row.function[1]}") if own_check else row


def _raised(error: BaseException) -> str:
    """An exception in words; ``sys.exit()`` says that it ended the process."""
    ended = " (a check may not end the process)" if isinstance(error, SystemExit) else ""
    return f"{type(error).__name__}: {error}{ended}"


Check = TypeVar("Check", bound=Callable[[], Verdict])


def claim(id: str, *, statement: str, expected: Word, where: str = "", scope: str = "") -> Callable[[Check], Check]:
    """Make a function that returns a ``Verdict`` a claim: its row is the function's attribute ``claim``.

    ``linattest claims --ledger FILE.py`` computes every such function of a file. Raises ``ValueError`` for a word
    that is no verdict, an empty id or statement, or a second claim of the same function name in a file.
    """
    if expected not in WORDS:
        raise ValueError(f"claim {id!r}: expected={expected!r}, expected one of {WORDS}")

    def decorate(function: Check) -> Check:
        check = f"{function.__module__}:{function.__name__}"
        before = getattr(function.__globals__.get(function.__name__), "claim", None)
        if isinstance(before, Row):  # the check is found by its name, which the second would take
            raise ValueError(f"claims {before.id!r} and {id!r} are both functions named {function.__name__!r}")
        row = Row(id=id, statement=statement, expected=expected, where=where, scope=scope, check=check, home=".")
        function.claim = row  # type: ignore[attr-defined]
        return function

    return decorate


# --- computing ---------------------------------------------------------------------------------------------------


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
    """The verdict of one row, computed now.

    A check that raises, calls ``sys.exit()`` or returns no verdict is an error and no verdict.
    """
    start = time.perf_counter()
    verdict, figure, error = None, None, None
    try:
        with own.importable(row.home), _one_thread():
            verdict = _judge(row)
            figure = _figure(row)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # SystemExit would end the command without a word, as if all were well
        last = traceback.extract_tb(raised.__traceback__)[-1]
        error = f"{_raised(raised)} ({Path(last.filename).name}:{last.lineno})"
    return _outcome(row, verdict, figure, error, time.perf_counter() - start)


def _outcome(row: Row, verdict: Verdict | None, figure: Figure | None, error: str | None, seconds: float) -> Outcome:
    expected = row.expected
    lacks = sorted(verdict.lacks) if verdict else []
    evidence = verdict.evidence if verdict else ()
    sources = dependence.sources(row, evidence)
    for tool in lacks:
        expected = row.without.get(tool, expected)
    return Outcome(
        id=row.id, paper=row.paper, ledger=row.ledger, statement=row.statement, where=row.where, scope=row.scope,
        verdict=verdict.word if verdict else None, expected=expected, evidence=evidence,
        sources=sources, hash=dependence.row_hash(row, sources), figure=figure, stale=tuple(dependence.stale(row)),
        error=error, lacks=tuple(lacks), excused=bool(lacks) and not any(tool in row.without for tool in lacks),
        seconds=round(seconds, 3),
    )  # fmt: skip


def _judge(row: Row) -> Verdict:
    if row.reason is not None:
        return untested(row.reason)
    verdict = _call(row, row.function)
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{row.check} returned {type(verdict).__name__}, expected a Verdict")
    if verdict.word not in WORDS:
        raise ValueError(f"{row.check} returned the word {verdict.word!r}, expected one of {WORDS}")
    return verdict


def _figure(row: Row) -> Figure | None:
    figure = None if row.figure is None else _call(row, row.names(row.figure))
    if not isinstance(figure, Figure | None):
        raise TypeError(f"{row.figure} returned {type(figure).__name__}, expected a Figure")
    return figure


def _call(row: Row, function: tuple[str, str]) -> Any:
    module, name = function
    return getattr(own.module(module, row.home), name)()


def outdated(outcomes: Iterable[Outcome]) -> list[str]:
    """Ids of outcomes whose row, or a file that they depend on, is another now, or gone. Raises ``LedgerError``."""
    rows = {row.id: row for row in read()}
    return [o.id for o in outcomes if _hash_now(o, rows.get(o.id)) != o.hash]


def _hash_now(o: Outcome, row: Row | None) -> str | None:
    if o.ledger:
        return dependence.fingerprint(o.id.encode(), o.sources)
    return None if row is None else dependence.row_hash(row, o.sources)


def run(rows: list[Row], workers: int, progress: Callable[[Outcome], Any] = lambda _: None) -> list[Outcome]:
    """Compute every row in ``workers`` other processes; the outcomes are in the order of the rows.

    A check that takes its process down takes others with it: each of them runs again in a process of its own, and one
    that ends that too is an error. As many are under way as there are processes, so that few are lost.
    """
    found: dict[str, Outcome] = {}

    def keep(outcome: Outcome) -> None:
        found[outcome.id] = outcome
        progress(outcome)

    todo, lost, waiting = list(reversed(rows)), list[Row](), dict[Future[Outcome], Row]()
    with local_executor(workers) as pool:
        while todo or waiting:
            while todo and len(waiting) < workers:
                row = todo.pop()
                waiting[pool.submit(compute, row)] = row
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                row = waiting.pop(future)
                outcome = _received(future, row)
                if outcome is None:
                    lost.append(row)
                else:
                    keep(outcome)
    for row in lost:
        start = time.perf_counter()
        with local_executor(1) as alone:
            outcome = _received(alone.submit(compute, row), row)
        died = "no answer: its process ended, alone too (os._exit, a crash of native code, or killed)"
        keep(outcome or _outcome(row, None, None, died, time.perf_counter() - start))
    return [found[row.id] for row in rows]


def _received(future: Future[Outcome], row: Row) -> Outcome | None:
    """What a process answered, an error if that cannot be sent; ``None`` if the process died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # compute() raises none: this is of the way here, as for what cannot be pickled
        return _outcome(row, None, None, f"no answer: {_raised(error)}", 0.0)
