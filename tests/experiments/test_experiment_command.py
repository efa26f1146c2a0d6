"""``linattest experiment``: every quick form runs, results are strict JSON with curves, exit codes say how it went."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.commands import experiment as command
from linattest.verify.experiments import recipe, results, tasks
from linattest.verify.experiments.recipe import Simulated, Trained
from linattest.verify.experiments.results import Result

NAME = "vla.mqar-capacity"


pytestmark = pytest.mark.usefixtures("elsewhere")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["experiment", *arguments])


def unlike() -> list[str]:
    """One recipe of each set that differs in rules alone: the others' quick forms are the same runs."""
    found: dict[bytes, str] = {}
    for name in recipe.names():
        table = msgspec.to_builtins(recipe.read(name, quick=True))
        words = ("claim", "about", "scope", "rules")
        found.setdefault(msgspec.json.encode({key: x for key, x in table.items() if key not in words}), name)
    return list(found.values())


@pytest.mark.parametrize("name", unlike())
def test_every_quick_form_runs_to_its_end_and_claims_nothing(name: str, tmp_path: Path):
    done = run(name, "--quick", "--output", str(tmp_path / "result.json"))
    assert done.exit_code == 0, done.output
    found = results.read(tmp_path / "result.json")
    assert found.verdict == "untested" and "quick form" in found.evidence[0].text and found.form == "quick"
    assert found.seconds < 60
    if isinstance(found.recipe, Simulated):
        assert found.series and all(len(x) == found.seeds for x in found.series.values())
        return
    assert len(found.runs) == len(found.recipe.models) * len(found.recipe.tasks) * len(
        found.recipe.training.learning_rates
    )
    for o in found.runs:
        assert o.whole and o.progress and len(o.progress.curve) == 3 and o.progress.parameters > 0
        assert all(point.loss is not None for point in o.progress.curve[1:])
        assert set(o.progress.scores) == {o.task, *found.recipe.tests}
    assert not Path(".cache").exists()  # a quick form leaves no checkpoint for the next to go on from


def test_the_result_is_one_strict_json_object_with_its_environment():
    done = run("vla.copy", "--quick", "--json", "--seeds", "2")
    found = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert done.exit_code == 0 and found["schema"] == results.SCHEMA and found["seeds"] == 2
    assert {run["seed"] for run in found["runs"]} == {0, 1} and found["recipe"]["kind"] == "training"
    assert found["environment"]["torch"] == torch.__version__ and found["environment"]["device"] == "cpu"
    assert found["environment"]["commit"] and found["date"].endswith("+00:00")
    assert found["runs"][0]["progress"]["curve"][0]["step"] == 0


def test_without_a_name_the_recipes_are_listed():
    done = run()
    assert done.exit_code == 0 and all(name in done.stdout for name in recipe.names())


BAD = [
    (["vla.mqar-capacty"], ["NAME", "vla.mqar-capacty", "close: vla.mqar-capacity"]),
    ([NAME, "--quick", "--full"], ["--quick", "contradicts --full"]),
    ([NAME, "--device", "tpu"], ["--device", "'tpu'", "expected cpu, cuda or cuda:N"]),
    ([NAME, "--backend", "fast"], ["--backend", "'fast'", "expected chunk or triton"]),
    ([NAME, "--seeds", "0"], ["--seeds"]),
    ([NAME, "--output", "/nonexistent/x.json"], ["--output", "no folder /nonexistent"]),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_wrong_usage_exits_2_and_says_what_was_expected(arguments: list[str], named: list[str]):
    done = run(*arguments)
    assert done.exit_code == 2 and [word for word in named if word not in done.stderr] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_exits_3():
    assert run(NAME, "--quick", "--device", "cuda").exit_code == 3


def test_a_full_form_is_judged_and_a_second_goes_on_from_the_first(planted: Callable[..., str], tmp_path: Path):
    planted()
    first, second = (run(NAME, "--workers", "1", "--output", str(tmp_path / f"{n}.json")) for n in range(2))
    found, again = (results.read(tmp_path / f"{n}.json") for n in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0) and found.verdict == "supported"
    assert "holds: softmax, accuracy on one, every seed" in first.stdout and "supported (full form" in first.stdout
    assert again.runs == found.runs and again.seconds < found.seconds  # nothing was trained again


def test_an_untrained_model_is_not_supported(planted: Callable[..., str]):
    planted(steps=0)
    done = run(NAME, "--workers", "1")
    assert done.exit_code == 0 and "not reproduced (full form" in done.stdout and "does not hold" in done.stdout


def test_too_few_seeds_are_no_verdict(planted: Callable[..., str]):
    planted(steps=1)
    done = run(NAME, "--seeds", "1", "--workers", "1")
    assert done.exit_code == 3 and "1 seed, expected at least 3" in done.stdout


def test_a_run_without_a_result_exits_1_in_either_form(planted: Callable[..., str]):
    planted(learning_rates=(1e30,), evaluate_every=2)
    for form in ("--quick", "--full"):
        done = run(NAME, form, "--workers", "1")
        assert done.exit_code == 1 and "no result: softmax on one" in done.stdout and "the loss is nan" in done.stdout


def test_a_generator_that_repeats_keys_turns_the_quick_form_red(monkeypatch: pytest.MonkeyPatch):
    """The reported fault (R43), planted: no run begins, and which target cannot be derived is said."""
    monkeypatch.setattr(tasks, "fillers", lambda rng, unused, values, count: rng.integers(0, 8, (len(unused), count)))
    done = run("lam.mqar", "--quick")
    assert done.exit_code == 1 and "targets cannot be derived from the input" in done.stdout


def test_a_broken_recipe_is_no_mistake_of_who_asks(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str, quick: bool = False) -> Trained:
        raise recipe.RecipeError(f"{name}.toml: planted")

    monkeypatch.setattr(recipe, "read", broken)
    done = run(NAME, "--quick")
    assert done.exit_code == 1 and f"the recipe is broken: {NAME}.toml: planted" in done.stderr
    assert run().exit_code == 1


def test_what_is_no_result_is_refused(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"schema": 1}')
    with pytest.raises(ValueError, match="x.json is no result of an experiment"):
        results.read(tmp_path / "x.json")
    assert Result.__struct_config__.frozen


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 5), (60.0, 0)])
def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, seconds: float, lines: int):
    monkeypatch.setattr(command, "LOG_SECONDS", seconds)
    done = run(NAME, "--quick")
    assert done.exit_code == 0, done.output
    said = [line for line in done.stderr.splitlines() if " runs; " in line]
    assert len(said) == lines
    assert not lines or said[-1].startswith(
        "100%, 5 of 5 runs; delta_net on n24, lr 0.0003, seed 0: step 2, accuracy 0."
    )
