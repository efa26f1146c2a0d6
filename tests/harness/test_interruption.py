"""Ctrl-C ends a campaign now: nobody waits for the jobs that run, whose results are lost anyway."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from linattest.verify import campaign as campaigns
from linattest.verify.campaign import local_executor, run_campaign
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record

ROOT = Path(__file__).parents[2]
LONG, SOON = 8.0, 4.0


def quick_then_long(job: Job, *_: object) -> list[Record]:
    """What a worker runs: the first job at once, the others for a long time."""
    time.sleep(LONG if job.case.seed else 0)
    return [Record(case=job.case, variant="chunk", direction="forward", what="o", status="pass", ratio=0.0)]


def after(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def test_interruption_does_not_wait_for_what_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT)  # a worker imports this module by its name
    monkeypatch.setattr(campaigns, "examine", quick_then_long)
    jobs = [Job(Case(operator="linear", structure=Structure(T=1, K=1, V=1), seed=seed)) for seed in range(2)]
    interrupted: list[float] = []
    main = threading.get_ident()

    def interrupt() -> None:
        interrupted.append(time.perf_counter())
        signal.pthread_kill(main, signal.SIGINT)

    def first_done(records: list[Record]) -> None:
        after(0.2, interrupt)

    with local_executor(1) as executor:
        campaign = run_campaign(jobs, executor, progress=first_done)
    assert campaign.interrupted and [r.case.seed for r in campaign.records] == [0]
    assert time.perf_counter() - interrupted[0] < SOON
