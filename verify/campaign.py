"""The only place that executes: jobs in, records out, through an executor, with what is done never lost.

Jobs are independent, so any ``concurrent.futures.Executor`` will do; the default is one process a core,
each with one thread. Records are appended to a file as they come; a resumed campaign skips the jobs whose
records are there already and were made from the same sources.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from linattest.verify import registry
from linattest.verify.environment import environment, source_hash
from linattest.verify.examine import examine, planned
from linattest.verify.grids import Job
from linattest.verify.records import Record, append, read


@dataclass
class Campaign:
    """What a campaign found so far. ``complete``: the full grid ran, so that absence says something."""

    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
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
            for limitation in operator.limitations:
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


@contextmanager
def local_executor(workers: int) -> Iterator[Executor]:
    """One process a worker, one thread each. Leaving it by an exception drops what has not started."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _one_thread() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)


def default_workers() -> int:
    """One for each core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_campaign(
    jobs: Iterable[Job],
    executor: Executor,
    *,
    variants: tuple[str, ...] = (),
    bundles: Path | None = None,
    output: Path | None = None,
    progress: Callable[[list[Record]], None] = lambda _: None,
    campaign: Campaign | None = None,
) -> Campaign:
    """Run every job; the campaign is complete, or marked interrupted with everything done so far.

    When a worker process dies, the jobs it took down run again in a process each; one that dies there too
    gives an ``error`` record.
    """
    done = campaign or Campaign()

    def keep(records: list[Record]) -> None:
        done.records += records
        if output is not None:
            append(output, records)
        progress(records)

    futures: dict[Future[list[Record]], Job] = {executor.submit(examine, job, variants, bundles): job for job in jobs}
    try:
        for future in as_completed(futures):
            job = futures[future]
            try:
                keep(_result(future, lambda job=job: _retry(job, variants, bundles)))
            except Exception as error:
                keep([_lost(job, f"{type(error).__name__}: {error}")])
    except KeyboardInterrupt:
        done.interrupted = True
        _abandon(executor)
    done.seconds = time.perf_counter() - done.started
    return done


def _abandon(executor: Executor) -> None:
    """Stop now: what runs is not waited for, since its records are lost either way."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _retry(job: Job, variants: tuple[str, ...], bundles: Path | None) -> list[Record]:
    """A job whose pool broke, in a process of its own."""
    with local_executor(1) as executor:
        return _result(executor.submit(examine, job, variants, bundles), lambda: [_lost(job, "its process died")])


def _result(future: Future[list[Record]], broken: Callable[[], list[Record]]) -> list[Record]:
    try:
        return future.result()
    except BrokenProcessPool:
        return broken()


def _lost(job: Job, why: str) -> Record:
    return Record(
        case=job.case, variant="*", direction="forward", what="harness", status="error", ratio=None,
        message=why, environment=environment(),
    )  # fmt: skip


def resume(output: Path, jobs: list[Job], variants: tuple[str, ...] = ()) -> tuple[Campaign, list[Job]]:
    """The records of an earlier run with the same sources, and the jobs that remain.

    A job is done when every record it would make is there and none is an error; otherwise it runs again whole.
    """
    campaign, left = Campaign(), list[Job]()
    found = {r.key: r for r in (read(output) if output.exists() else ()) if _fresh(r)}
    for job in jobs:
        keys = [
            (job.case.key, variant.name, direction, tried.name if tried else "")
            for variant, direction, tried in planned(
                registry.operator(job.case.operator), job.case, variants, job.properties
            )
        ]
        records = [found[key] for key in keys if key in found]
        if len(records) == len(keys) and not any(r.status == "error" for r in records):
            campaign.records += records
        else:
            left.append(job)
    return campaign, left


def _fresh(record: Record) -> bool:
    return record.environment is not None and record.environment.source_hash == source_hash()
