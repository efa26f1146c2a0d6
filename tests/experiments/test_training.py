"""The trainer: one seed, one curve, bit for bit, however often it is interrupted; what went wrong is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from linattest.verify import sources
from linattest.verify.executors import InProcess
from linattest.verify.experiments import recipe, running, tasks, training
from linattest.verify.experiments.advancing import advance, advance_all
from linattest.verify.experiments.recipe import Trained, Training
from linattest.verify.experiments.running import runs_of, train_all
from linattest.verify.experiments.tasks import Copy
from linattest.verify.experiments.training import Progress, Run, factor

FOREVER = 1e9
SmallRun = Callable[..., Run]


def in_slices(run: Run, folder: Path) -> Progress:
    """One step at a time, each from the checkpoint of the last."""
    slices = 1
    while not (found := advance(run, folder, 0.0)).done:
        assert found.step == slices and (folder / f"{run.key}.pt").exists()
        slices += 1
    assert slices == run.training.steps
    return found


def outcome_of(found: Progress) -> Any:
    """All but how long it took."""
    return msgspec.structs.replace(found, seconds=0.0)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("vla", {}),
    ("delta_net", {"options": {"conv_size": 4}}),
    ("log_linear", {"options": {"max_length": 7}, "training": {"optimiser": "adam", "sequences": 12}}),
]


@pytest.mark.parametrize(("layer", "fields"), CASES, ids=[layer for layer, _ in CASES])
def test_a_curve_has_the_same_bits_in_one_go_and_step_by_step(
    small_run: SmallRun, tmp_path: Path, layer: str, fields: dict[str, Any]
):
    run = small_run(layer, **fields)
    whole, again = (advance(run, tmp_path / name, FOREVER) for name in ("whole", "again"))
    pieces = in_slices(run, tmp_path / "pieces")
    assert outcome_of(whole) == outcome_of(again) == outcome_of(pieces)
    assert [point.step for point in whole.curve] == [0, 2, 4, 6] and whole.curve[0].loss is None
    assert sorted(path.suffix for path in (tmp_path / "pieces").iterdir()) == [".json"]
    other = advance(msgspec.structs.replace(run, seed=1), tmp_path / "whole", FOREVER)
    assert [p.loss for p in other.curve] != [p.loss for p in whole.curve]


def test_an_interruption_loses_no_more_than_its_slice(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, real = small_run(), torch.optim.AdamW.step
    whole = advance(run, tmp_path / "whole", FOREVER)
    advance(run, tmp_path / "cut", 0.0)

    def interrupted(self: Any, *given: Any) -> Any:
        real(self, *given)
        raise KeyboardInterrupt  # parameters have moved, the step's number has not: this must not be kept

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        advance(run, tmp_path / "cut", FOREVER)
    monkeypatch.undo()
    assert outcome_of(advance(run, tmp_path / "cut", FOREVER)) == outcome_of(whole)


FORGOTTEN = ["optimiser", "place", "sum"]


@pytest.mark.parametrize("part", FORGOTTEN)
def test_a_part_that_a_checkpoint_forgets_is_seen(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    """The planted fault: what the optimiser knew, the place in the schedule, or the losses since the last point."""
    run, real = small_run(training={"evaluate_every": 3}), torch.load
    whole = advance(run, tmp_path / "whole", FOREVER)

    def forgetful(*given: Any, **options: Any) -> Any:
        state = real(*given, **options)
        if part == "optimiser":
            state["optimiser"]["state"] = {}
        elif part == "place":
            monkeypatch.setattr(training, "factor", lambda step, given: factor(0, given))
        else:
            state["sum"] = 0.0
        return state

    monkeypatch.setattr(torch, "load", forgetful)
    assert outcome_of(in_slices(run, tmp_path / "pieces")).curve != whole.curve


def test_other_settings_and_other_sources_begin_anew(small_run: SmallRun, monkeypatch: pytest.MonkeyPatch):
    run = small_run()
    others = [small_run(steps=7), small_run("linear"), msgspec.structs.replace(run, seed=1, learning_rate=0.1)]
    monkeypatch.setattr(training, "hash_of", lambda *modules: "others")
    assert len({run.key, *(x.key for x in others)}) == 4
    there = run.key
    monkeypatch.undo()
    assert run.key != there


@pytest.mark.parametrize(("changed", "anew"), [("vla_rule", {"vla"}), ("delta_rule", {"vla", "delta_net"})])
def test_another_operators_sources_do_not(monkeypatch: pytest.MonkeyPatch, changed: str, anew: set[str]):
    capacity = recipe.read("vla.mqar-capacity")
    assert isinstance(capacity, Trained)
    runs = runs_of(capacity, 1, device="cuda", backend="triton")

    def keys() -> dict[str, str]:
        sources.hash_of.cache_clear()
        return {run.model.name: run.key for run in runs}

    before, read = keys(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + (b"#" if self.stem == changed else b""))
    after = keys()
    monkeypatch.undo()
    sources.hash_of.cache_clear()
    assert {name for name in before if before[name] != after[name]} == anew


def test_recipes_alike_share_their_runs():
    first, second = (recipe.read(name) for name in ("lam.mqar", "lam.heatmap"))
    assert isinstance(first, Trained) and isinstance(second, Trained) and first.rules != second.rules
    assert [run.key for run in runs_of(first, 2)] == [run.key for run in runs_of(second, 2)]
    fair, capacity = (recipe.read(f"vla.mqar-{name}") for name in ("deltanet-fair", "capacity"))
    assert isinstance(fair, Trained) and isinstance(capacity, Trained)
    shared = {run.key for run in runs_of(fair, 1)} & {run.key for run in runs_of(capacity, 1)}
    assert len(shared) == len({"vla", "delta_net", "channel_gate"})  # whatever is said about them


# --- how a run ends ----------------------------------------------------------------------------------------------


def test_an_early_stop_is_recorded(small_run: SmallRun, tmp_path: Path):
    """One id to copy: right after the first steps."""
    run = small_run(
        "softmax", steps=50, training={"stop_at": 0.999}, task="one", tests={"one": Copy(length=2, vocab_size=2)}
    )
    found = advance(run, tmp_path, FOREVER)
    assert found.done and 0 < found.step < 50 and found.curve[-1].step == found.step
    assert found.stopped == f"accuracy 1.0000 at step {found.step}, to be reached: 0.999"
    assert found.scores["one"].right == found.scores["one"].asked == 8
    assert advance(run, tmp_path, FOREVER) == found  # a run that is done is not begun again


def test_a_loss_that_is_not_finite_ends_the_run_without_a_score(small_run: SmallRun, tmp_path: Path):
    found = advance(small_run(steps=20, learning_rate=1e30), tmp_path, FOREVER)
    assert found.failed and found.done and found.step < 20 and not found.scores
    assert found.stopped.startswith("the loss is nan at step") and found.curve[-1].loss is None


def test_a_task_that_cannot_be_answered_is_not_trained(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The reported fault (R43) planted in the generator: fillers that repeat the row's keys."""

    def from_all_ids(rng: np.random.Generator, _unused: Any, values: np.ndarray, count: int) -> np.ndarray:
        return rng.integers(0, values.max() + 1, (len(_unused), count))

    monkeypatch.setattr(tasks, "fillers", from_all_ids)
    task = tasks.Mqar(pairs=2, vocab_size=16, length=20)
    with pytest.raises(ValueError, match="cannot be derived from the input"):
        advance(small_run(tests={"n2": task}, longest=20), tmp_path, FOREVER)


def test_the_rate_warms_up_and_falls_to_nothing():
    given = Training(steps=10, warmup=4)
    assert [factor(n, given) for n in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factor(7, given) == pytest.approx(0.5) and factor(10, given) == 0.0
    assert factor(9, Training(steps=10, warmup=4, schedule="constant")) == 1.0


# --- side by side ------------------------------------------------------------------------------------------------


def test_two_workers_get_what_one_gets_and_an_error_stops_no_other_run(small_run: SmallRun, tmp_path: Path):
    runs = [small_run(steps=2), small_run("vla", steps=2, options={"lam0": -1.0}), small_run("linear", steps=2, seed=1)]
    alone, both = (train_all(runs, tmp_path / str(n), n, seconds=0.0) for n in (1, 2))
    for one, other in zip(alone, both, strict=True):
        assert one.error == other.error and (one.model, one.seed) == (other.model, other.seed)
        assert (one.progress is None) == (other.progress is None)
        if one.progress and other.progress:
            assert outcome_of(one.progress) == outcome_of(other.progress)
    assert [o.whole for o in alone] == [True, False, True]
    assert "lam0 is -1.0" in alone[1].error and alone[1].trouble.startswith("vla on n2, lr 0.01, seed 0: ValueError")


def test_runs_end_in_their_order_and_every_slice_is_told(small_run: SmallRun, tmp_path: Path):
    heard: list[tuple[int, int]] = []
    runs = [small_run("softmax", steps=2, seed=seed) for seed in range(2)]
    train_all(runs, tmp_path, 1, lambda run, found: heard.append((run.seed, found.step)), seconds=0.0)
    assert heard == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_run_that_takes_its_process_down_is_an_error(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Dying(InProcess):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if any(run.seed == 1 for run in args[0]):
                future: Future[Any] = Future()
                future.set_exception(BrokenProcessPool("planted"))
                return future
            return super().submit(fn, *args, **kwargs)

    monkeypatch.setattr(running, "local_executor", lambda _: nullcontext(Dying()))
    runs = [small_run("softmax", steps=1, seed=seed) for seed in range(3)]
    for lanes in (1, 3):  # beside others at first, then alone
        found = train_all(runs, tmp_path / str(lanes), 2, lanes=lanes)
        assert [o.whole for o in found] == [True, False, True] and "its process ended" in found[1].error


def test_runs_in_turn_are_what_each_is_alone_and_an_error_ends_its_run_only(small_run: SmallRun, tmp_path: Path):
    runs = [small_run("softmax", steps=5), small_run("vla", options={"lam0": -1.0}), small_run("linear", steps=2)]
    *_, last = [advance_all(runs, tmp_path / "both", 0.0) for _ in range(5)]
    assert isinstance(last[1], str) and last[1].startswith("ValueError: lam0 is -1.0")
    for n in (0, 2):
        found = last[n]
        assert isinstance(found, Progress) and found.done
        assert outcome_of(found) == outcome_of(advance(runs[n], tmp_path / "alone", FOREVER))
