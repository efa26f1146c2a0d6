"""The command line: exit codes, names listed for a typo, one JSON object, a way back from every failure."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import cli, registry
from linattest.verify.campaign import Campaign
from linattest.verify.commands import verify as command
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Journal, Record
from linattest.verify.report.pages import reading_list
from linattest.verify.spec import DTYPES

ROOT = Path(__file__).parents[2]
KEYS = {"cases", "failed", "worst", "oracle_radius", "seconds"}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch):
    """Messages and tables are wrapped to the terminal: make it wide enough to read whole words from."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def record(status: str = "pass", ratio: float | None = 0.5) -> Record:
    """One record of linear attention, with the status wanted."""
    (found,) = examine(Job(Case(operator="linear", structure=Structure(T=2, K=2, V=2), gradient=False)), ("chunk",))
    return msgspec.structs.replace(found, status=status, ratio=ratio, message="planted", replay="linattest replay it")


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Campaign]:
    """The campaign that ``verify`` will find it has run, without running anything."""
    made = Campaign()

    @contextmanager
    def no_executor(address: str | None, workers: int) -> Iterator[None]:
        yield None

    def answer(*_: Any, **__: Any) -> Campaign:
        return made

    monkeypatch.setattr(command, "open_executor", no_executor)
    monkeypatch.setattr(command, "run_campaign", answer)
    yield made


# --- usage errors -----------------------------------------------------------------------------------------------

TYPOS = [
    (["verify", "vlaa"], ["vlaa", *registry.BY_NAME]),
    (["show", "vlaa"], ["vlaa", *registry.BY_NAME]),
    (["verify", "vla", "--variant", "chunked"], ["chunked", "chunk", "recurrent", "scan", "step"]),
    (["verify", "--dtype", "float8"], ["float8", *DTYPES]),
    (["verify", "--resume"], ["--resume", "--records"]),
    (["verify", "--workers", "0"], ["--workers"]),
    (["verify", "--quick", "--full"], ["--quick", "contradicts --full"]),
    (["verify", "--executor", "localhost"], ["--executor", "localhost", "tcp://host:8786"]),
    (["verify", "--executor", "tcp://a:1", "--workers", "2"], ["--executor", "contradicts --workers"]),
    (["verify", "--records", "/nonexistent/records"], ["--records", "no folder /nonexistent", "make it first"]),
    (["verify", "--records", "/"], ["--records", "/ is a folder"]),
    (["verify", "--records", "/dev/null"], ["--records", "/dev/null is no regular file"]),
    (["verify", "--failures", "/dev/null/x"], ["--failures", "/dev/null is no folder"]),
    (["verify", "--replay", "/nonexistent/bundle"], ["--replay", "/nonexistent/bundle"]),
    (["verfy"], ["verfy"]),
]


@pytest.mark.parametrize(("arguments", "named"), TYPOS, ids=[" ".join(arguments) for arguments, _ in TYPOS])
def test_usage_error_exits_2_and_lists_what_is_known(arguments: list[str], named: list[str]):
    result = run(*arguments)
    assert result.exit_code == 2
    assert [word for word in named if word not in result.stderr] == []
    assert "Traceback" not in result.output


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\x00" * 100])
def test_garbage_is_no_bundle(tmp_path: Path, garbage: bytes):
    path = tmp_path / "garbage"
    path.write_bytes(garbage)
    result = run("verify", "--replay", str(path))
    assert result.exit_code == 2 and "not a replay bundle" in result.stderr


# --- what verify finds ------------------------------------------------------------------------------------------


def test_verify_prints_one_json_object():
    """The real thing, in a process of its own with nothing but an import path."""
    command = [sys.executable, "-m", "linattest", "verify", "linear", "--quick", "--json"]
    command += ["--variant", "chunk", "--dtype", "float32", "--workers", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert set(found) >= KEYS
    assert found["failed"] == 0 and found["cases"] > 10 and found["seconds"] > 0
    assert 0 <= found["oracle_radius"] <= 2.0**-20
    assert {(row["operator"], row["variant"], row["dtype"]) for row in found["worst"]} == {
        ("linear", "chunk", "float32")
    }
    assert {row["what"] for row in found["worst"]} == {"forward", "gradient", "property"}
    assert all(row["ratio"] <= 30 for row in found["worst"])


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    ("records", "interrupted", "code"),
    [
        ([("pass", 0.5)], False, 0),
        ([("pass", 0.5), ("known", 99.0)], False, 0),
        ([("pass", 0.5), ("fail", 31.0)], False, 1),
        ([("fail", None)], False, 1),
        ([("error", None)], False, 1),
        ([], False, 3),
        ([("pass", 0.5)], True, 130),
        ([("fail", 31.0)], True, 130),
    ],
)
def test_exit_code_says_how_it_ended(
    records: list[tuple[str, float | None]], interrupted: bool, code: int, flags: list[str], campaign: Campaign
):
    campaign.records = [record(status, ratio) for status, ratio in records]
    campaign.interrupted = interrupted
    result = run("verify", "linear", *flags)
    assert result.exit_code == code, result.output
    if flags:
        found = json.loads(result.stdout)
        assert found["cases"] == len(records) and found["interrupted"] == interrupted
        assert found["failed"] == sum(status in ("fail", "error") for status, _ in records)
    elif code == 1:
        assert "planted" in result.stdout and "linattest replay it" in result.stdout
        assert "1 failed" in result.stdout


def test_interruption_while_running_exits_130(monkeypatch: pytest.MonkeyPatch, campaign: Campaign):
    def interrupt(*_: Any, **__: Any) -> Campaign:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_campaign", interrupt)
    assert run("verify", "linear").exit_code == 130


def test_what_ended_early_says_what_is_kept_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch, campaign: Campaign):
    monkeypatch.setattr(sys, "argv", ["linattest", "verify", "--records", "my records"])
    campaign.records, campaign.stopped = [record()], "cannot write records: No space left on device"
    result = run("verify")
    assert result.exit_code == 1 and "kept nowhere" in result.stdout
    result = run("verify", "--records", "my records")
    assert result.exit_code == 1 and campaign.stopped in result.stdout and "after 1 inputs" in result.stdout
    assert result.stdout.endswith("linattest verify --records 'my records' --resume\n")
    found = json.loads(run("verify", "--json").stdout)
    assert found["stopped"] == campaign.stopped and found["cases"] == 1


def test_file_of_another_campaign_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def examined(*_: Any) -> None:
        pytest.fail("something ran")

    monkeypatch.setattr("linattest.verify.campaign.examine", examined)
    path = tmp_path / "records.jsonl"
    with Journal(path):
        result = run("verify", "linear", "--quick", "--records", str(path))
    assert result.exit_code == 2 and "another campaign is writing" in result.stderr and str(path) in result.stderr
    path.write_text("{}\n{}\n")
    result = run("verify", "linear", "--quick", "--records", str(path), "--resume")
    assert result.exit_code == 2 and "records.jsonl, line 1" in result.stderr


def test_failures_print_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, campaign: Campaign):
    """The command that replays a failure is never folded: it is there to be copied."""
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/very/long/folder/name/that/no/terminal/of/forty/columns/shows.safetensors"
    campaign.records = [msgspec.structs.replace(record("fail", 99.0), replay=f"linattest verify --replay {path}")]
    assert f"linattest verify --replay {path}\n" in run("verify").stdout


def test_replay_of_a_real_failure_says_whether_it_still_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linattest.verify.examine.THRESHOLD", -1.0)  # everything fails
    case = Case(operator="linear", structure=Structure(T=2, K=2, V=2), gradient=False)
    (failed,) = examine(Job(case), ("chunk",), tmp_path)
    path = failed.replay.removeprefix("linattest verify --replay ")
    result = run("verify", "--replay", path)
    assert result.exit_code == 1 and "linear" in result.stdout
    assert json.loads(run("verify", "--replay", path, "--json").stdout)["failed"] == 1
    monkeypatch.undo()
    result = run("verify", "--replay", path)
    assert result.exit_code == 0 and "passes now" in result.stdout


# --- what is known ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.BY_NAME)
def test_show_prints_the_page_and_files_that_exist(name: str):
    result, operator = run("show", name), registry.operator(name)
    assert result.exit_code == 0
    for _, path in reading_list(operator):
        assert path in result.stdout
        assert (ROOT / path).is_file(), path
    listed = [word for line in result.stdout.split("Reading list")[1].splitlines() for word in line.split()[:1]]
    assert [path for path in listed if path.endswith(".py") and not (ROOT / path).is_file()] == []
    for shown in (*operator.variants, *registry.properties(operator)):
        assert shown.name in result.stdout
    assert (operator.oracle.__doc__ or "").strip() and operator.title in result.stdout


def test_info_markdown_is_a_table_with_a_row_for_each_operator_and_what_all_have():
    result = run("info", "--markdown")
    assert result.exit_code == 0
    header, rule, *rows, _, shared = result.stdout.splitlines()
    assert all(tried.name in shared for tried in registry.GENERAL)
    assert [row.split("`")[1] for row in rows] == list(registry.BY_NAME)
    assert {line.count("|") for line in (header, rule, *rows)} == {7}


def test_info_names_operators_and_environment():
    found = json.loads(run("info", "--json").stdout)
    assert set(found["operators"]) == set(registry.BY_NAME)
    assert {"torch", "commit", "source_hash"} <= set(found["environment"])
    table = run("info").stdout
    assert all(name in table for name in registry.BY_NAME)
