"""The only place that executes: jobs in, records out, through an executor, with what is done never lost.

Jobs are independent, so any ``concurrent.futures.Executor`` will do (executors.py). They may come from an endless
iterator: as many are under way as the executor is wide. Records are on disk as soon as their job is done; a resumed
campaign takes from there what the same sources made, and runs the rest.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from linattest.verify import registry
from linattest.verify.current import current
from linattest.verify.devices import surroundings
from linattest.verify.environment import environment, source_hash
from linattest.verify.examine import examine, planned
from linattest.verify.executors import Cluster, abandon, local_executor
from linattest.verify.given import operator_of
from linattest.verify.grids import Job
from linattest.verify.records import LOST, Journal, Key, Record
from linattest.verify.work import Answer, come_home, work

TICK_SECONDS = 0.25
"""How long an interruption may go unnoticed."""


@dataclass
class Campaign:
    """What a campaign found so far. ``complete``: the full grid ran, so that absence says something.

    ``interrupted``: somebody stopped it; ``stopped``: what else did (a full disk, a lost cluster), "" for nothing.
    """

    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    stopped: str = ""
    complete: bool = False
    started: float = field(default_factory=time.perf_counter)

    @property
    def failed(self) -> list[Record]:
        """Records that make it fail."""
        return [record for record in self.records if record.failed]

    @property
    def stale_limitations(self) -> list[str]:
        """Known failures that no longer fail, though cases they cover ran: the record must be mended."""
        stale: list[str] = []
        if not self.complete:
            return stale
        for operator in registry.OPERATORS:
            for limitation in (x for x in operator.limitations if not (x.rare or x.local)):
                covered = [
                    r for r in self.records
                    if r.case.operator == operator.name
                    and limitation.covers(r.variant, r.case.dtype, r.case.family, r.direction, r.what)
                ]  # fmt: skip
                if covered and not any(r.status == "known" for r in covered):
                    stale.append(f"{operator.name} {limitation.variant}: {limitation.why}")
        return stale

    @property
    def oracle_radius(self) -> float | None:
        """The worst proved radius of an oracle value as a fraction of its budget."""
        return max((r.oracle_radius for r in self.records if r.oracle_radius is not None), default=None)


def run_campaign(
    jobs: Iterable[Job],
    executor: Executor,
    *,
    variants: tuple[str, ...] = (),
    bundles: Path | None = None,
    output: Path | None = None,
    resume: bool = False,
    progress: Callable[[list[Record]], None] = lambda _: None,
    campaign: Campaign | None = None,
) -> Campaign:
    """Run every job; the campaign ends, or is marked interrupted or stopped with everything done so far.

    When a worker process dies, the jobs it took down run again in a process each; one that dies there too
    gives an ``error`` record.

    Args:
        jobs: drawn one at a time, in order, when there is room for another.
        output: the file that gets every record; with ``resume``, what it holds of these jobs is not run again.

    Raises:
        OSError: ``output`` cannot be opened, or another campaign writes to it (``InUse``); nothing has run.
        ValueError: ``resume``, and ``output`` is no file of records.
    """
    done = campaign or Campaign()
    try:
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(output, unique=resume)) if output is not None else None
            earlier = Earlier(journal.held if journal else {}, variants)
            runner = _Runner(executor, done, variants, bundles, journal, progress)
            with interruptions() as asked:
                runner.run(jobs, earlier, asked)
    finally:
        done.seconds = time.perf_counter() - done.started
    return done


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Note SIGINT and SIGTERM instead of raising, so that no record is torn; a second one acts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(*_: object) -> None:
        asked.set()
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield asked.is_set
    finally:
        restore()


# --- what an earlier run left ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Earlier:
    """The records of an earlier run, by key: a job is done when every record it would make is there."""

    records: Mapping[Key, Record]
    variants: tuple[str, ...] = ()

    def of(self, job: Job) -> list[Record] | None:
        """The job's records, ``None`` where it must run: one is missing, an error, or made in another environment."""
        if not self.records:
            return None
        operator = registry.operator(job.case.operator) if job.subject is None else operator_of(job.subject)
        found = [
            self.records.get((job.case.key, variant.name, direction, tried.name if tried else ""))
            for variant, direction, tried in planned(operator, job.case, self.variants, job.properties, job.device)
        ]
        good = [r for r in found if r is not None and r.status != "error" and fresh(r, job.device)]
        return good if len(good) == len(found) else None


def fresh(record: Record, device: str = "cpu") -> bool:
    """Whether a record would be the same if it were made now on a device: sources and versions are those."""
    now, made_in = surroundings(device, False), record.environment
    names = ("torch", "triton", "numpy", "mpmath", "flint", "device")
    return (
        made_in is not None and current(record) and all(getattr(made_in, name) == getattr(now, name) for name in names)
    )


# --- all of them -------------------------------------------------------------------------------------------------


@dataclass
class _Runner:
    """A campaign under way. ``waiting`` has the jobs under way, and the processes of those on their second attempt."""

    executor: Executor
    done: Campaign
    variants: tuple[str, ...]
    bundles: Path | None
    journal: Journal | None
    progress: Callable[[list[Record]], None]
    waiting: dict[Future[Answer], tuple[Job, ExitStack | None]] = field(default_factory=dict)

    def run(self, jobs: Iterable[Job], earlier: Earlier, asked: Callable[[], bool]) -> None:
        """Until no job is left, or something stops it."""
        source = iter(jobs)
        try:
            while not asked() and not self.done.stopped:
                self._fill(source, earlier)
                if not self.waiting:
                    return
                finished, _ = wait(self.waiting, TICK_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    self._collect(future)
                if isinstance(self.executor, Cluster):
                    self.done.stopped = self.done.stopped or self.executor.trouble()
            self.done.interrupted = asked()
        except KeyboardInterrupt:
            self.done.interrupted = True
        if self.done.interrupted or self.done.stopped:
            self._abandon()

    def _fill(self, source: Iterator[Job], earlier: Earlier) -> None:
        while len(self.waiting) < getattr(self.executor, "width", float("inf")):
            job = next(source, None)
            if job is None:
                return
            if (records := earlier.of(job)) is None:
                self._submit(job, self.executor)
            elif records:
                self.done.records += records
                self.progress(records)

    def _submit(self, job: Job, executor: Executor, alone: ExitStack | None = None) -> None:
        sources = source_hash() if isinstance(executor, Cluster) else None
        try:
            future = executor.submit(work, examine, job, self.variants, self.bundles is not None, sources)
        except BrokenProcessPool as error:
            future = Future[Answer]()
            future.set_exception(error)
        self.waiting[future] = (job, alone)

    def _collect(self, future: Future[Answer]) -> None:
        job, alone = self.waiting.pop(future)
        if alone is not None:
            alone.close()
        try:
            answer = future.result()
        except BrokenProcessPool:
            if alone is None:
                alone = ExitStack()
                self._submit(job, alone.enter_context(local_executor(1)), alone)
                return
            answer = Answer([_lost(job, "its process died")])
        except CancelledError:
            self.done.stopped = self.done.stopped or "the cluster gave up its jobs: is the scheduler still there?"
            return
        except Exception as error:
            answer = Answer([_lost(job, f"{type(error).__name__}: {error}")])
        self._keep(come_home(answer, self.bundles))

    def _keep(self, records: list[Record]) -> None:
        if not records:
            return
        self.done.records += records
        if self.journal is not None:
            try:
                self.journal.append(records)
            except OSError as error:
                self.done.stopped = f"cannot write records: {error}"
        self.progress(records)

    def _abandon(self) -> None:
        for _, alone in self.waiting.values():
            if alone is not None:
                alone.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        abandon(self.executor)


def _lost(job: Job, why: str) -> Record:
    return Record(
        case=job.case, variant=LOST, direction="forward", what="harness", status="error", ratio=None,
        message=why, environment=environment(),
    )  # fmt: skip
