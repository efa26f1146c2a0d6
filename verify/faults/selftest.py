"""The self-test: every planted fault must be caught, every neutral edit pass, and the code as it is too.

A process with the whole harness loaded, but no implementation, is forked for every edit; it imports the edited tree and
looks for a failing check, the cheapest first. Afterwards every check that caught something runs on the code as it is:
one that fails there too has caught nothing.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from typing import Literal, TypeVar

import msgspec

from linattest.verify import devices
from linattest.verify.faults.aim import operators_of
from linattest.verify.faults.bank import BankError, Fault
from linattest.verify.faults.judge import Evidence, Judgement, Task, serve
from linattest.verify.faults.scratch import planted

LIMIT = 120.0
"""Seconds an edit may take before it is given up as an ``error``."""

X = TypeVar("X")
Y = TypeVar("Y")

PRELOADED = ["linattest.verify.faults.judge", "torch._dynamo", "numpy.random"]
"""What the process that forks has loaded: the harness, and what torch would load on first use, a second a time."""

Status = Literal["caught", "missed", "green", "red", "error"]


class Trial(msgspec.Struct, kw_only=True):
    """What became of one edit.

    A fault is caught or missed, a neutral edit green or red. ``error``: nothing can be said, because the edited code
    could not be run (it does not import, raises, hangs, or its text is gone); that is not a catch. ``by`` is the
    check that failed, ``checks`` how many were looked at, ``seconds`` processor time, ``growth`` of a neutral edit
    its worst error ratio over that of the code as it is.
    """

    id: str
    file: str
    line: int
    kind: str
    edit: str
    why: str
    status: Status
    by: Evidence | None = None
    message: str = ""
    checks: int = 0
    seconds: float = 0.0
    worst: float | None = None
    growth: float | None = None


class Control(msgspec.Struct, kw_only=True):
    """The code as it is, under the same checks: how many, and which are red (then no catch can be believed)."""

    checks: int = 0
    red: list[str] = []
    worst: dict[str, float] = {}


class Selftest(msgspec.Struct, kw_only=True):
    """What a self-test has found so far."""

    trials: list[Trial] = []
    control: Control = msgspec.field(default_factory=Control)
    seconds: float = 0.0
    interrupted: bool = False

    def having(self, *statuses: Status, kind: str = "fault") -> list[Trial]:
        """The trials of a kind that came out so."""
        return [trial for trial in self.trials if trial.kind == kind and trial.status in statuses]

    @property
    def failed(self) -> bool:
        """Whether a fault was not caught, a neutral edit not left green, or the code as it is is red."""
        bad = self.having("missed", "error") or self.having("red", "error", kind="neutral")
        return bool(bad or self.control.red)


Progress = Callable[[str, Trial | None], None]
"""Called when something is done: what it was, and the trial if it was one."""


def run_selftest(
    entries: list[Fault], workers: int, progress: Progress = lambda *_: None, limit: float = LIMIT
) -> Selftest:
    """Try every edit, ``workers`` at a time; Ctrl-C keeps what is done.

    Args:
        limit: seconds an edit may take.
    """
    done, started = Selftest(), time.perf_counter()
    pool = _Pool(workers, limit)
    try:
        _controls(done, entries, pool, progress)
        for trial in pool.each(lambda fault: _try(fault, pool, done.control), entries):
            done.trials.append(trial)
            progress(f"{trial.id}: {trial.status}", trial)
        _confirm(done, entries, pool, progress)
    except KeyboardInterrupt:
        done.interrupted = True
        pool.stop()
    order = {fault.id: place for place, fault in enumerate(entries)}
    done.trials.sort(key=lambda trial: order[trial.id])
    done.seconds = round(time.perf_counter() - started, 2)
    return done


def _controls(done: Selftest, entries: list[Fault], pool: _Pool, progress: Progress) -> None:
    """The quick grid of every operator that a neutral edit touches, as the code is."""
    names = dict.fromkeys(name for fault in entries if fault.kind == "neutral" for name in operators_of(fault))

    def run(name: str) -> tuple[str, Judgement | str]:
        return name, pool.judge(None, "neutral", operators=(name,))

    for name, found in pool.each(run, list(names)):
        _note(done.control, name, found)
        if isinstance(found, Judgement):
            done.control.worst[name] = round(found.worst, 3)
        progress(f"as it is: {name}", None)


def _note(control: Control, what: str, found: Judgement | str) -> None:
    """Add what a run of the code as it is found."""
    if isinstance(found, str):
        control.red.append(f"{what}: {found}")
        return
    control.checks += found.checks
    if found.by is not None:
        control.red.append(f"{found.by.name}: {found.by.message}")
    elif found.raised:
        control.red.append(f"{what}: {found.raised}")


def _confirm(done: Selftest, entries: list[Fault], pool: _Pool, progress: Progress) -> None:
    """Run the checks that caught something on the code as it is, those of one operator together."""
    groups: dict[str, list[Evidence]] = {}
    for trial in done.having("caught"):
        assert trial.by is not None
        groups.setdefault(trial.by.operator or trial.by.test.partition("::")[0], []).append(trial.by)

    def run(what: str) -> tuple[str, Judgement | str]:
        return what, pool.judge(None, "confirm", evidence=tuple(groups[what]))

    for what, found in pool.each(run, list(groups)):
        _note(done.control, what, found)
        progress(f"as it is: {what}", None)


def _try(fault: Fault, pool: _Pool, control: Control) -> Trial:
    """One edit, judged."""
    trial = Trial(
        id=fault.id, file=fault.file, line=0, kind=fault.kind, edit=f"{fault.find}  ->  {fault.replace}",
        why=fault.why, status="error",
    )  # fmt: skip
    operators = operators_of(fault)
    try:
        trial.line = fault.line
        found = pool.judge(fault, "catch" if fault.kind == "fault" else "neutral", operators=operators)
    except BankError as error:
        found = str(error)
    if isinstance(found, str):
        trial.message = found
        return trial
    trial.checks, trial.seconds, trial.by = found.checks, found.seconds, found.by
    if fault.kind == "neutral":
        trial.status = "red" if found.by else "error" if found.raised else "green"
        trial.worst = round(found.worst, 3)
        before = max((control.worst.get(name, 0.0) for name in operators), default=0.0)
        trial.growth = round(found.worst / before, 3) if before else None
    else:
        trial.status = "caught" if found.by else "error" if found.raised else "missed"
    trial.message = found.by.message if found.by else found.raised
    return trial


class _Pool:
    """Judging processes, a few at a time, each forked from one that has everything loaded."""

    def __init__(self, workers: int, limit: float) -> None:
        self.workers, self.limit = workers, limit
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        if devices.missing("cuda"):  # before the preloading imports Triton: tests of kernels are among what may catch
            devices.interpret()
        self.stopped = threading.Event()

    def each(self, work: Callable[[X], Y], items: list[X]) -> Iterator[Y]:
        """``work`` of every item, as they come; a thread a worker, since each only waits for its process."""
        with ThreadPoolExecutor(self.workers) as threads:
            try:
                for future in as_completed([threads.submit(work, item) for item in items]):
                    yield future.result()
            except BaseException:
                self.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def stop(self) -> None:
        """End the processes that run, and start no more."""
        self.stopped.set()

    def judge(
        self, fault: Fault | None, purpose: Literal["catch", "neutral", "confirm"],
        operators: tuple[str, ...] = (), evidence: tuple[Evidence, ...] = (),
    ) -> Judgement | str:  # fmt: skip
        """A tree with the edit, a process that judges it; the words for why there is no judgement."""
        with planted(fault) as tree:
            task = Task(tree=str(tree), purpose=purpose, fault=fault, operators=operators, evidence=evidence)
            ours, theirs = self.context.Pipe(duplex=False)
            process = self.context.Process(target=serve, args=(task, theirs), daemon=True)
            process.start()
            theirs.close()
            try:
                return self._answer(ours)
            finally:
                process.kill()
                process.join()

    def _answer(self, ours: Connection) -> Judgement | str:
        """What the process sends, as long as nobody stops it and it is in time."""
        end = time.monotonic() + self.limit
        while time.monotonic() < end and not self.stopped.is_set():
            if ours.poll(0.2):
                try:
                    return ours.recv()
                except EOFError:
                    return "its process died without an answer"
        return "interrupted" if self.stopped.is_set() else f"no answer within {self.limit:g} s"
