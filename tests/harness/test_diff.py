"""``linattest diff``: growth fails on this class of machine and advises on another; every way to name a baseline."""

import dataclasses
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import typer
from typer.testing import CliRunner

from linattest.impls import linear
from linattest.verify import baselines, registry
from linattest.verify.campaign import Campaign
from linattest.verify.commands import diff as command
from linattest.verify.executors import InProcess
from linattest.verify.records import Record
from linattest.verify.snapshots import FLOOR, Entry, Snapshot, decode, encode

LINEAR = registry.operator("linear")
SMALL = ("--operator", "linear", "--dtype", "float32", "--family", "random", "--seed", "0", "--seed", "4")
APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(command.diff)


def coarse(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, Any]:
    """Some roundings too many: within the threshold, and no longer what it was."""
    o, state = linear.chunk(*x, **given)
    return o * (1 + 24 * 2.0**-24), state


def wrong(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, Any]:
    o, state = linear.chunk(*x, **given)
    return 1.01 * o, state


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """One process, a wide terminal, and a package whose snapshots are in a folder of the test's own."""

    @contextmanager
    def inline(workers: int) -> Iterator[Executor]:
        yield InProcess()

    monkeypatch.setattr(command, "local_executor", inline)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(baselines, "FOLDER", tmp_path / "verify" / "data" / "snapshots")
    yield tmp_path


def plant(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    name = f"{__name__}:{function.__name__}"
    variants = tuple(dataclasses.replace(v, function=name) if v.name == "chunk" else v for v in LINEAR.variants)
    monkeypatch.setitem(registry.BY_NAME, "linear", dataclasses.replace(LINEAR, variants=variants))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(APP, list(arguments))


def measured(path: Path) -> Snapshot:
    """A snapshot of the small selection, written to the path."""
    assert run(*SMALL, "--output", str(path)).exit_code == 0
    return decode(path.read_bytes(), path.name)


def scaled(snapshot: Snapshot, factor: float) -> Snapshot:
    """The same with every ratio this many times the floored one."""

    def times(entry: Entry) -> Entry:
        return msgspec.structs.replace(entry, ratio=max(FLOOR, factor * entry.ratio), measured=factor * entry.ratio)

    return msgspec.structs.replace(snapshot, entries=[times(entry) for entry in snapshot.entries])


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_unchanged_sources_pass(here: Path):
    measured(here / "before.json")
    result = run(*SMALL, "before.json")
    assert result.exit_code == 0 and "6 entries compared: 0 grew, 0 shrank" in result.output


def test_planted_growth_fails_and_its_command_repeats_it(here: Path, monkeypatch: pytest.MonkeyPatch):
    measured(here / "before.json")
    with monkeypatch.context() as patch:
        plant(patch, coarse)
        result = run(*SMALL, "before.json", "--json")
        found = json.loads(result.stdout)
        assert result.exit_code == 1 and found["failed"] == 0, result.output
        assert {(x["variant"], x["what"]) for x in found["grew"]} >= {("chunk", "forward")}
        assert {x["variant"] for x in found["grew"]} == {"chunk"}
        again = shlex.split(found["grew"][0]["again"])
        assert again[:3] == ["linattest", "diff", "before.json"]
        repeated = json.loads(run(*again[2:], "--json").stdout)["grew"]
        assert found["grew"][0] in repeated
    assert run(*again[2:]).exit_code == 0


def test_growth_on_another_class_of_machine_advises(here: Path, monkeypatch: pytest.MonkeyPatch):
    before = measured(here / "before.json")
    other = msgspec.structs.replace(before.fingerprint, cpu="SVE256")
    (here / "other.json").write_text(encode(msgspec.structs.replace(before, fingerprint=other)))
    plant(monkeypatch, coarse)
    result = run(*SMALL, "other.json")
    assert result.exit_code == 0, result.output
    assert f"advice only: other.json is of class {other.name}" in result.output and "grew" in result.output


def test_failure_fails_on_any_machine_and_has_a_bundle(here: Path, monkeypatch: pytest.MonkeyPatch):
    before = measured(here / "before.json")
    other = msgspec.structs.replace(before.fingerprint, cpu="SVE256")
    (here / "other.json").write_text(encode(msgspec.structs.replace(before, fingerprint=other)))
    plant(monkeypatch, wrong)
    result = run(*SMALL, "other.json")
    assert result.exit_code == 1 and "replay: linattest verify --replay" in result.output
    assert list((here / "linattest-failures").glob("linear-chunk-*"))


def test_shrinkage_is_offered_for_update(here: Path):
    before = scaled(measured(here / "before.json"), 2.5)
    (here / "large.json").write_text(encode(before))
    result = run(*SMALL, "large.json")
    assert result.exit_code == 0 and "6 shrank" in result.output and "linattest diff --update" in result.output
    assert "0 shrank" in run(*SMALL[:-2], "large.json").output  # one seed of two says nothing of the worst


def test_json_is_strict_and_names_new_and_gone(here: Path):
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    before = measured(here / "before.json")
    gone = msgspec.structs.replace(before.entries[0], variant="forgotten")
    (here / "odd.json").write_text(encode(msgspec.structs.replace(before, entries=[gone, *before.entries[1:]])))
    found = json.loads(run(*SMALL, "odd.json", "--json").stdout, parse_constant=refuse)
    assert [x["variant"] for x in found["gone"]] == ["forgotten"]
    assert [x["variant"] for x in found["new"]] == [before.entries[0].variant]
    assert found["schema"] == 1 and found["compared"] == 5 and found["advice"] is False and found["grew"] == []


# --- baselines ----------------------------------------------------------------------------------------------------


def test_no_snapshot_at_all_is_not_a_pass():
    result = run(*SMALL)
    assert result.exit_code == 3 and "linattest diff --update" in result.output


def test_snapshot_that_has_nothing_of_the_selection_is_not_a_pass(here: Path):
    before = measured(here / "before.json")
    (here / "empty.json").write_text(encode(msgspec.structs.replace(before, entries=[])))
    assert run(*SMALL, "empty.json").exit_code == 3


@pytest.mark.parametrize("unknown", ["nosuch", "--all"])
def test_unknown_revision_is_a_usage_error_that_names_it(here: Path, unknown: str):
    baselines.FOLDER.mkdir(parents=True)
    subprocess.run(["git", "init", str(here)], check=True, capture_output=True)
    result = run(*SMALL, "--", unknown)
    assert result.exit_code == 2 and f"'{unknown}' is neither a file nor a revision" in result.output


def test_revision_outside_a_checkout_is_not_a_pass():
    baselines.FOLDER.mkdir(parents=True)
    result = run(*SMALL, "HEAD")
    assert result.exit_code == 3 and "need git and a checkout" in result.output


def test_file_that_is_no_snapshot_is_a_usage_error(here: Path):
    (here / "bad.json").write_text("{}")
    result = run(*SMALL, "bad.json")
    assert result.exit_code == 2 and "bad.json is not a snapshot of schema 1" in result.output


# --- update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [("--seed", "1"), ("--quick",), ("--dtype", "float32"), ("--variant", "chunk")])
def test_update_from_a_part_of_an_operator_is_refused(part: tuple[str, ...]):
    result = run("--operator", "linear", *part, "--update")
    assert result.exit_code == 2 and part[0] in result.output and not baselines.FOLDER.exists()


def whole(monkeypatch: pytest.MonkeyPatch, interrupted: bool = False) -> list[Record]:
    """The campaign will have found two seeds, which are all there are; returns what it will say it found."""
    records = command.run_campaign(
        [job for seed in (0, 4) for job in command.jobs(LINEAR, ["float32"], ["random"], [seed])], InProcess()
    ).records
    monkeypatch.setattr(command, "SEEDS", 2)

    def answer(*_: Any, **__: Any) -> Campaign:
        return Campaign(records=list(records), interrupted=interrupted)

    monkeypatch.setattr(command, "run_campaign", answer)
    return records


def test_update_writes_the_file_of_this_class_and_the_next_run_agrees(monkeypatch: pytest.MonkeyPatch):
    whole(monkeypatch)
    result = run("--operator", "linear", "--update")
    (path,) = baselines.FOLDER.glob("*.json")
    held = decode(path.read_bytes(), path.name)
    assert result.exit_code == 0 and f"written to {path}" in result.output
    assert path.stem == held.fingerprint.name and len(held.entries) == 6 and list(held.made) == ["linear"]
    assert run("--operator", "linear").exit_code == 0


def test_interrupted_run_keeps_what_is_done_but_updates_nothing(here: Path, monkeypatch: pytest.MonkeyPatch):
    whole(monkeypatch, interrupted=True)
    result = run("--operator", "linear", "--update", "--output", "part.json")
    assert result.exit_code == 130 and "not updated" in result.output and not baselines.FOLDER.exists()
    assert len(decode((here / "part.json").read_bytes(), "part.json").entries) == 6


def test_failing_entry_keeps_its_old_standard(monkeypatch: pytest.MonkeyPatch):
    records = whole(monkeypatch)
    assert run("--operator", "linear", "--update").exit_code == 0
    (path,) = baselines.FOLDER.glob("*.json")
    before = decode(path.read_bytes(), path.name)
    failed = [msgspec.structs.replace(r, status="fail", ratio=99.0) if r.variant == "chunk" else r for r in records]
    monkeypatch.setattr(command, "run_campaign", lambda *_, **__: Campaign(records=failed))  # type: ignore[misc]
    assert run("--operator", "linear", "--update").exit_code == 1
    assert decode(path.read_bytes(), path.name).entries == before.entries
