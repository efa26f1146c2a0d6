"""Where a job runs changes nothing but its time; a cluster that cannot do it, or no longer, says so."""

import builtins
import logging
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.verify import cli, executors
from linattest.verify.campaign import run_campaign
from linattest.verify.environment import source_hash
from linattest.verify.examine import examine, replay
from linattest.verify.executors import Cluster, Unavailable, cluster_executor, local_executor, open_executor
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import canonical, read
from linattest.verify.work import work

NOWHERE = "tcp://127.0.0.1:9"  # the discard port: nobody answers


def job(seed: int = 0, **sizes: Any) -> Job:
    knobs: dict[str, Any] = {"T": 4, "K": 2, "V": 2, **sizes}
    return Job(Case(operator="linear", structure=Structure(**knobs), seed=seed, gradient=True))


JOBS = [job(), job(1, initial_state=True), job(2, T=9, cu_seqlens=(0, 3, 3, 8)), job(3, H=2, group=2, V=3)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A dask scheduler with one worker process."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=logging.CRITICAL
    ) as cluster:
        yield cluster.scheduler_address


def test_cluster_gives_the_records_of_this_machine(address: str, tmp_path: Path):
    """By the same road: progress, a file of records, resumption of what another executor began."""
    path, shown = tmp_path / "records.jsonl", list[Any]()
    with local_executor(1) as executor:
        here = run_campaign(JOBS, executor)
        run_campaign(JOBS[:2], executor, output=path)
    with open_executor(address, 1) as executor:
        assert isinstance(executor, Cluster) and executor.width == 2
        there = run_campaign(JOBS, executor, output=path, resume=True, progress=shown.extend)
    assert len(here.records) == 2 * 3 * len(JOBS) and not (there.stopped or there.interrupted)
    assert canonical(here.records) == canonical(there.records) == canonical(shown) == canonical(read(path))


def test_command_line_runs_on_a_cluster(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linattest.verify.commands.verify.grid", lambda *_, **__: JOBS)
    path = tmp_path / "records.jsonl"
    result = CliRunner().invoke(cli.app, ["verify", "linear", "--executor", address, "--records", str(path)])
    assert result.exit_code == 0, result.output
    assert {r.case.key for r in read(path)} == {job.case.key for job in JOBS}


# --- a cluster that cannot do it --------------------------------------------------------------------------------


def test_nobody_at_the_address_is_said_soon():
    start = time.perf_counter()
    with pytest.raises(Unavailable, match=f"no dask scheduler answers at {NOWHERE} within 1 s"):
        cluster_executor(NOWHERE, timeout=1).__enter__()
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("name", ["localhost", "8786", "host:8786"])
def test_what_is_no_address_is_wrong_usage(name: str):
    with pytest.raises(ValueError, match="is no address, expected one such as tcp://host:8786"):
        cluster_executor(name).__enter__()


def test_missing_extra_is_named_and_exits_3(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "distributed":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    result = CliRunner().invoke(cli.app, ["verify", "linear", "--executor", NOWHERE])
    assert result.exit_code == 3 and "pip install 'linattest[cluster]'" in result.stdout


class Client:
    """What a campaign asks of a dask client, with the answers wanted."""

    def __init__(self, threads: dict[str, int] | None = None, answer: Any = None, status: str = "running") -> None:
        self.threads, self.answer, self.status = threads or {}, answer, status

    def wait_for_workers(self, number: int, timeout: float) -> None:
        if not self.threads:
            raise TimeoutError

    def nthreads(self) -> dict[str, int]:
        return self.threads

    def run(self, function: Any, on_error: str) -> dict[str, Any]:
        return dict.fromkeys(self.threads, self.answer)

    def get_executor(self, pure: bool) -> Executor:
        return Silent()


class Silent(Executor):
    """Takes jobs and never answers."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Client(), "the scheduler at tcp://x:1 has no workers: dask worker tcp://x:1 --nthreads 1"),
        (Client({"a": 1, "b": 4}, source_hash()), "worker b has 4 threads, expected 1 .* --nthreads 1 --nworkers 4"),
        (Client({"a": 1}, "0123"), f"worker a runs other sources .hash 0123. than this process .hash {source_hash()}"),
        (Client({"a": 1}, ModuleNotFoundError("linattest")), "worker a has no linattest: ModuleNotFoundError"),
    ],
)
def test_unfit_workers_are_refused(client: Client, message: str):
    with pytest.raises(Unavailable, match=message):
        executors._check_workers(client, "tcp://x:1", 1.0)


def test_worker_that_joins_later_with_other_sources_makes_no_record():
    with pytest.raises(Unavailable, match="a worker runs other sources"):
        work(examine, job(), (), False, "0123")
    assert work(examine, job(), (), False, source_hash()).records


@pytest.mark.parametrize(
    ("status", "lost"), [("closed", "scheduler"), ("connecting", "scheduler"), ("running", "workers")]
)
def test_lost_cluster_stops_the_campaign(monkeypatch: pytest.MonkeyPatch, status: str, lost: str):
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(executors, "LOST_SECONDS", 0.5)
    campaign = run_campaign(JOBS, Cluster(Client(status=status), "tcp://x:1"))
    assert campaign.stopped == f"tcp://x:1 has lost its {lost}" and not campaign.records


class Failing(Silent):
    """A job's future fails by this error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(self.error)
        return future


def test_job_that_a_cluster_gives_up_is_an_error_and_jobs_it_cancels_stop_the_campaign():
    campaign = run_campaign(JOBS, Failing(RuntimeError("attempted on 3 different workers")))
    assert [(r.status, r.message) for r in campaign.records] == [
        ("error", "RuntimeError: attempted on 3 different workers")
    ] * len(JOBS)
    campaign = run_campaign(JOBS, Failing(CancelledError()))
    assert "the cluster gave up its jobs" in campaign.stopped and not campaign.records


# --- bundles ----------------------------------------------------------------------------------------------------


def test_bundles_of_failures_come_home(tmp_path: Path):
    """A worker's folder is gone, or on another machine, when somebody replays what it found."""
    folder = tmp_path / "a folder"
    answer = work(failing, job(), ("chunk",), True)
    campaign = run_campaign([job()], Answering(answer), variants=("chunk",), bundles=folder)
    assert len(campaign.failed) == len(list(folder.iterdir())) == 2
    for record in campaign.failed:
        *command, path = shlex.split(record.replay)
        assert command == ["linattest", "verify", "--replay"] and Path(path).parent == folder
        (again,) = replay(Path(path))
        assert (again.direction, again.status) == (record.direction, "pass")  # nothing is wrong with it here
    (tmp_path / "file").touch()
    campaign = run_campaign([job()], Answering(answer), bundles=tmp_path / "file")
    assert [r.replay[:12] for r in campaign.failed] == ["(no bundle: "] * 2


def failing(job: Job, variants: tuple[str, ...], bundles: Path | None) -> list[Any]:
    """As ``examine``, where everything fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linattest.verify.examine.THRESHOLD", -1.0)
        return examine(job, variants, bundles)


class Answering(Silent):
    """Gives one answer to every job."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.answer)
        return future
