"""What a command finds before it runs anything: no place for checkpoints, nothing to run, or runs to go on with."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from linattest.verify.commands import experiment as command
from linattest.verify.experiments import running
from linattest.verify.experiments.advancing import advance
from linattest.verify.experiments.before import Kept, kept
from linattest.verify.experiments.training import Run

Experiment = Callable[..., Any]
FOREVER = 1e9


def none_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train_all", lambda *_, **__: pytest.fail("a run began"))


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_place_that_takes_no_checkpoint_is_refused_before_any_run(
    experiment: Experiment, planted: Callable[..., str], monkeypatch: pytest.MonkeyPatch, where: str
):
    none_begins(monkeypatch)
    Path("file").write_text("not a folder")
    done = experiment(planted(), "--checkpoints", where)
    why = "it is a file, expected a folder" if where == "file" else "Not a directory"
    assert done.exit_code == 2 and f"cannot write in {where}: {why}" in done.stderr and "--checkpoints" in done.stderr


def test_a_folder_that_may_not_be_written_is_refused_too(
    experiment: Experiment, planted: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    """Planted, since who may do everything is refused nothing."""

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    none_begins(monkeypatch)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", refused)
    done = experiment(planted(), "--checkpoints", "there")
    assert done.exit_code == 2 and "cannot write in there: Permission denied" in done.stderr


def test_what_writes_no_checkpoint_does_not_look_for_a_place(experiment: Experiment, planted: Callable[..., str]):
    Path("file").write_text("not a folder")
    assert experiment("vla.capacity", "--checkpoints", "file").exit_code == 0
    assert experiment(planted(steps=1), "--quick", "--checkpoints", "file").exit_code == 0


@pytest.mark.parametrize("option", [("--quick",), ("--set", "training.steps=1"), ("--output", "x.json"), ("--json",)])
def test_options_of_a_run_without_a_name_are_wrong_usage(experiment: Experiment, option: tuple[str, ...]):
    done = experiment(*option)
    assert done.exit_code == 2 and option[0] in done.stderr and "without NAME there is nothing to run" in done.stderr


# --- going on ----------------------------------------------------------------------------------------------------


def ended_by(number: int, *, after: int) -> Callable[..., Any]:
    """A training that gets a signal when its first run is done and the second has so many steps."""

    def train(runs: Sequence[Run], folder: Path, *_: Any, **__: Any) -> Any:
        if after:
            advance(runs[0], folder, FOREVER)
            advance(runs[1], folder, 0.0)
        os.kill(os.getpid(), number)
        time.sleep(60)

    return train


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_what_is_kept_and_the_next_command_what_goes_on(
    experiment: Experiment, planted: Callable[..., str], monkeypatch: pytest.MonkeyPatch, number: int
):
    name, before = planted(steps=2), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "train_all", ended_by(number, after=1))
    done = experiment(name)
    assert done.exit_code == 130 and signal.getsignal(signal.SIGTERM) is before
    again = f"`linattest experiment {name}` with the same options goes on"
    assert f"interrupted: 1 of 3 runs done, 1 kept to the last slice; {again}" in done.stdout
    monkeypatch.setattr(command, "train_all", running.train_all)
    done = experiment(name, "--workers", "1")
    said = ".cache/experiments: 1 of 3 runs done, 1 to go on from a checkpoint, 1 to begin"
    assert done.exit_code == 0 and done.stderr.count(said) == 1


def test_what_was_interrupted_before_its_first_checkpoint_keeps_nothing(
    experiment: Experiment, planted: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    name = planted()
    monkeypatch.setattr(command, "train_all", ended_by(signal.SIGTERM, after=0))
    done = experiment(name)
    assert done.exit_code == 130 and "nothing is kept yet: no run had a checkpoint" in done.stdout
    assert "goes on" not in done.stdout and "begins anew" in done.stdout and "runs done" not in done.stderr
    done = experiment(name, "--quick")
    assert done.exit_code == 130 and done.stdout == "interrupted: nothing is kept\n"


def test_a_simulation_is_ended_by_sigterm_as_well(experiment: Experiment, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "simulated", lambda *_: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(60)))
    done = experiment("vla.capacity")
    assert done.exit_code == 130 and done.stdout == "interrupted: nothing is kept\n"


# --- what is damaged ---------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"", "cut off": lambda x: x[: len(x) // 2], "other bytes": lambda _: bytes(range(256)) * 8,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", [".json", ".pt"])
def test_a_run_begins_anew_where_what_it_left_cannot_be_decoded(
    small_run: Callable[..., Run], tmp_path: Path, kind: str, damage: str
):
    run = small_run("linear")
    whole = advance(run, tmp_path, FOREVER if kind == ".json" else 0.0)
    path = tmp_path / f"{run.key}{kind}"
    assert kept([run], tmp_path) == Kept(1, whole.done, not whole.done)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert kept([run], tmp_path) == Kept(1, 0, 0)
    again, untouched = (advance(run, folder, FOREVER) for folder in (tmp_path, tmp_path / "other"))
    assert again.done and (again.curve, again.scores) == (untouched.curve, untouched.scores)
    assert kept([run], tmp_path) == Kept(1, 1, 0)


def test_a_checkpoint_that_cannot_be_read_is_not_thrown_away(small_run: Callable[..., Run], tmp_path: Path):
    """It may be whole: what says nothing of its content ends the run instead."""
    run = small_run("linear")
    (tmp_path / f"{run.key}.pt").mkdir()
    with pytest.raises(OSError):
        advance(run, tmp_path, FOREVER)
    assert not kept([run], tmp_path)
