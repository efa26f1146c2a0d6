"""Ctrl-C ends a campaign now, keeps what is done, and what was left gives the records of an unbroken run.

Nobody waits for the jobs that run when it comes, since their results are lost anyway.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from linattest.verify import campaign as campaigns
from linattest.verify import registry
from linattest.verify.campaign import interruptions, run_campaign
from linattest.verify.executors import local_executor
from linattest.verify.grids import Job, grid
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record, canonical, read

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


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_does_not_wait_for_what_runs(monkeypatch: pytest.MonkeyPatch, number: signal.Signals):
    monkeypatch.syspath_prepend(ROOT)  # a worker imports this module by its name
    monkeypatch.setattr(campaigns, "examine", quick_then_long)
    jobs = [Job(Case(operator="linear", structure=Structure(T=1, K=1, V=1), seed=seed)) for seed in range(2)]
    interrupted: list[float] = []
    main = threading.get_ident()

    def interrupt() -> None:
        interrupted.append(time.perf_counter())
        signal.pthread_kill(main, number)

    def first_done(records: list[Record]) -> None:
        after(0.2, interrupt)

    with local_executor(1) as executor:
        campaign = run_campaign(jobs, executor, progress=first_done)
    assert campaign.interrupted and [r.case.seed for r in campaign.records] == [0]
    assert time.perf_counter() - interrupted[0] < SOON


def test_second_interruption_acts_at_once():
    # A shell without job control starts what runs in the background with SIGINT ignored.
    before = signal.default_int_handler
    outside = signal.signal(signal.SIGINT, before)
    with interruptions() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, outside)


# --- the command line, killed -----------------------------------------------------------------------------------

COMMAND = ["verify", "linear", "--quick", "--variant", "recurrent", "--dtype", "bfloat16", "--workers", "1"]


@contextmanager
def linattest(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own, with nothing but an import path."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]), "COLUMNS": "200"
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "linattest", *arguments],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else -1


def test_killed_twice_and_resumed_gives_the_records_of_an_unbroken_run(tmp_path: Path):
    path, more = tmp_path / "records.jsonl", [*COMMAND, "--records", "records.jsonl"]
    jobs = [job for job in grid(registry.operator("linear"), quick=True) if job.case.dtype == "bfloat16"]
    for number, enough in ((signal.SIGTERM, 0), (signal.SIGINT, 1)):  # before the first job is done, and after it
        with linattest(*more, folder=tmp_path) as process:
            until(lambda enough=enough: lines(path) >= enough)
            process.send_signal(number)
            output, errors = process.communicate(timeout=120)
            assert process.returncode == 130, output + errors
            assert "Traceback" not in errors and "interrupted after" in output
            more = more if "--resume" in more else [*more, "--resume"]
            assert output.rstrip().endswith("linattest " + shlex.join(more))
    done = list(read(path))
    assert 0 < len({record.case.key for record in done}) < len(jobs)
    with linattest(*more, folder=tmp_path) as process:
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, output + errors
    unbroken = [record for job in jobs for record in campaigns.examine(job, ("recurrent",))]
    resumed = list(read(path))
    assert canonical(resumed) == canonical(unbroken) and len({r.key for r in resumed}) == len(resumed)
    assert [r for r in resumed if r.key in {x.key for x in done}] == done  # kept, not made again


def test_worker_of_a_killed_campaign_ends(tmp_path: Path):
    """Nobody can tell it: it waits for its parent's end."""
    with linattest(*COMMAND, "--records", "records.jsonl", folder=tmp_path) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            pytest.skip("no list of child processes on this system")
        until(lambda: lines(tmp_path / "records.jsonl") >= 1)
        workers = [int(child) for child in children.read_text().split()]
        assert workers
        process.kill()
        process.communicate(timeout=60)
    until(lambda: not any(_runs(worker) for worker in workers), seconds=30)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
