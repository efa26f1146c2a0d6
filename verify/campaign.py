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
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.records import Record, append, read


@dataclass
class Campaign:
    """What a campaign found so far. ``complete``: the whole grid ran, so that absence says something."""

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

    A job whose process dies gives an ``error`` record; the others go on where the executor can.
    """
    done = campaign or Campaign()
    futures: dict[Future[list[Record]], Job] = {executor.submit(examine, job, variants, bundles): job for job in jobs}
    try:
        for future in as_completed(futures):
            records = _result(future, futures[future])
            done.records += records
            if output is not None:
                append(output, records)
            progress(records)
    except KeyboardInterrupt:
        done.interrupted = True
        for future in futures:
            future.cancel()
    done.seconds = time.perf_counter() - done.started
    return done


def _result(future: Future[list[Record]], job: Job) -> list[Record]:
    try:
        return future.result()
    except (BrokenProcessPool, Exception) as error:
        return [
            Record(
                case=job.case, variant="*", direction="forward", what="harness", status="error", ratio=None,
                message=f"{type(error).__name__}: {error}", environment=environment(),
            )
        ]  # fmt: skip


def resume(output: Path, jobs: list[Job]) -> tuple[Campaign, list[Job]]:
    """The records of an earlier run with the same sources, and the jobs that remain.

    A job counts as done when its case has records: they are written together.
    """
    campaign = Campaign()
    if not output.exists():
        return campaign, jobs
    keys = {job.case.key for job in jobs}
    for record in read(output):
        fresh = record.environment is not None and record.environment.source_hash == source_hash()
        if fresh and record.case.key in keys and record.status != "error":
            campaign.records.append(record)
    done = {record.case.key for record in campaign.records}
    return campaign, [job for job in jobs if job.case.key not in done]
