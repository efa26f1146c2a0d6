"""Verdicts follow the recipe's rules: what is untrained, wrong, unfinished or undecided never gets "supported"."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from scipy.stats import binomtest

from linattest.impls.layers import Softmax
from linattest.verify.experiments import recipe, results
from linattest.verify.experiments.judging import best, judge, spread, states, wilson
from linattest.verify.experiments.recipe import Model, Rule, Simulated, Trained
from linattest.verify.experiments.running import Outcome, runs_of, train_all
from linattest.verify.experiments.training import Point, Progress, Score

ASKED = 1000


def ran(model: str, right: int, seed: int, *, rate: float = 0.02, validation: float = 0.5, **fields: Any) -> Outcome:
    """A run that is done, with so many right answers of a thousand."""
    curve = (Point(step=100, loss=0.1, accuracy=validation),)
    scores = {"one": Score(right=right, asked=ASKED, exact=right // 10, rows=ASKED // 10)}
    given: dict[str, Any] = {"step": 100, "done": True, "curve": curve, "seconds": 1.0, "scores": scores}
    return Outcome(model=model, task="one", learning_rate=rate, seed=seed, progress=Progress(**(given | fields)))


def with_rules(recipe: Trained, *rules: Rule) -> Trained:
    """The recipe with a second model and other rules."""
    models = (*recipe.models, Model(name="linear", layer="linear"))
    return msgspec.structs.replace(recipe, models=models, rules=rules)


BOTH = (Rule(model="softmax", at_least=0.9), Rule(model="linear", at_most=0.2))
CASES: list[tuple[str, list[int], list[int], str]] = [
    ("all seeds reach it, none of the other does", [990, 1000, 950], [50, 100, 0], "supported"),
    ("one seed does not reach it", [990, 800, 950], [50, 100, 0], "not reproduced"),
    ("one seed's interval reaches over the limit", [990, 905, 950], [50, 100, 0], "untested"),
    ("the other model learns it too", [990, 1000, 950], [50, 400, 0], "not reproduced"),
    ("neither learns it", [10, 20, 0], [10, 20, 0], "not reproduced"),
    ("two seeds", [990, 1000], [50, 100], "untested"),
    ("no run", [], [], "untested"),
]


@pytest.mark.parametrize(("what", "first", "second", "word"), CASES, ids=[case[0] for case in CASES])
def test_a_verdict_is_that_of_the_rules(learnable: Trained, what: str, first: list[int], second: list[int], word: str):
    runs = [ran(m, n, seed) for m, x in (("softmax", first), ("linear", second)) for seed, n in enumerate(x)]
    assert judge(with_rules(learnable, *BOTH), runs).word == word
    assert judge(with_rules(learnable, *BOTH), runs, quick=True).word == "untested"


SPOILT = [
    {"failed": True, "stopped": "the loss is nan at step 7", "scores": {}},
    {"done": False, "scores": {}},
]


@pytest.mark.parametrize("fields", SPOILT, ids=["diverged", "not done"])
def test_a_model_that_has_no_result_is_not_one_that_cannot(learnable: Trained, fields: dict[str, Any]):
    """At most so much is what a run that diverged would reach, too."""
    runs = [ran("softmax", 1000, seed) for seed in range(4)] + [ran("linear", 0, seed) for seed in range(3)]
    assert judge(with_rules(learnable, *BOTH), runs).word == "supported"
    verdict = judge(with_rules(learnable, *BOTH), [*runs, ran("linear", 0, 3, **fields)])
    assert verdict.word == "untested" and "1 of 8 runs have no result" in verdict.evidence[0].text
    crashed = Outcome(model="linear", task="one", learning_rate=0.02, seed=3, error="ValueError: planted")
    assert "ValueError: planted" in judge(with_rules(learnable, *BOTH), [*runs, crashed]).evidence[0].text


def test_the_rate_is_chosen_by_validation_never_by_the_test(learnable: Trained):
    runs = [ran("softmax", 100, seed, rate=0.02, validation=0.9) for seed in range(3)]
    runs += [ran("softmax", 1000, seed, rate=0.5, validation=0.8) for seed in range(3)]
    assert {o.learning_rate for o in best(runs, "softmax", "one")} == {0.02}
    assert judge(learnable, runs).word == "not reproduced"


def test_a_difference_is_taken_seed_by_seed(learnable: Trained):
    """Seeds differ by much more than the models: pairs tell what means would not."""
    runs = [ran("softmax", n + 50 + n % 3, seed) for seed, n in enumerate((100, 500, 900))]
    runs += [ran("linear", n, seed) for seed, n in enumerate((100, 500, 900))]
    rule = Rule(model="softmax", minus="linear", over="mean", at_least=0.04)
    verdict = judge(with_rules(learnable, rule), runs)
    assert verdict.word == "supported" and verdict.evidence[0].values["by_seed"] == [0.051, 0.052, 0.05]
    swapped = Rule(model="linear", minus="softmax", over="mean", at_least=0.04)
    assert judge(with_rules(learnable, swapped), runs).word == "not reproduced"
    wide = Rule(model="softmax", over="mean", at_least=0.3)  # 0.15, 0.55, 0.95: the interval reaches below
    assert judge(with_rules(learnable, wide), runs).word == "untested"


def test_evidence_has_every_seed_the_limits_and_the_papers_figure(learnable: Trained):
    rule = Rule(model="softmax", at_least=0.9, paper=1.0)
    (found,) = judge(
        with_rules(learnable, rule), [ran("softmax", n, s) for s, n in enumerate((990, 980, 960))]
    ).evidence
    assert found.values["by_seed"] == [0.99, 0.98, 0.96] and found.values["paper"] == 1.0
    assert (found.values["low"], found.values["high"]) == (wilson(960, ASKED)[1], wilson(990, ASKED)[2])
    rows = judge(with_rules(learnable, Rule(model="softmax", measure="exact", at_least=0.9)), [ran("softmax", 950, 0)])
    assert rows.evidence[1].values["low"] == wilson(95, 100)[1]  # of rows there are fewer


def test_a_condition_is_open_where_its_interval_reaches_over_the_limit(learnable: Trained):
    for first, state in (([990, 1000, 950], "holds"), ([990, 905, 950], "open"), ([1000, 800, 905], "fails")):
        runs = [ran("softmax", n, seed) for seed, n in enumerate(first)]
        assert states(with_rules(learnable, *BOTH), runs) == [state, "open"]  # of the second there is no run


def test_what_is_open_is_called_undecided_and_not_that_it_does_not_hold(learnable: Trained):
    runs = [ran("softmax", n, seed) for seed, n in enumerate((990, 905, 950))]
    runs += [ran("linear", 400, seed) for seed in range(3)]
    rules = (*BOTH, Rule(model="softmax", over="mean", at_least=0.5))
    made = with_rules(learnable, *rules)
    found = results.result(made, judge(made, runs), quick=False, seeds=3, device="cpu", seconds=1.0, runs=runs)
    results.show(Console(file=(said := io.StringIO()), width=400), found)
    first, second, third = [line for line in said.getvalue().splitlines() if ", expected " in line]
    assert first.startswith("undecided: softmax, accuracy on one, every seed, lr 0.02: 0.9483 (0.8852 to 0.9946)")
    assert second.startswith("does not hold: linear") and third.startswith("holds: softmax")


def test_an_interval_is_wilsons():
    share, low, high = wilson(7, 10)
    ends = binomtest(7, 10).proportion_ci(method="wilson")
    assert (share, low, high) == (0.7, ends.low, ends.high) and low != binomtest(7, 10).proportion_ci().low
    with pytest.raises(ValueError, match="asked is 0, expected at least 1"):
        wilson(0, 0)


def test_series_are_judged_by_name():
    recipe = Simulated(
        claim="planted", about="planted", function="recall",
        rules=(Rule(model="a", minus="b", over="mean", measure="series", at_least=0.5),),
    )  # fmt: skip
    assert judge(recipe, series={"a": [3.0, 4.0, 5.0], "b": [1.0, 2.0, 3.0]}).word == "supported"
    assert judge(recipe, series={"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]}).word == "not reproduced"
    with pytest.raises(ValueError, match="recipe planted: rule on 'b', expected one of a, c"):
        judge(recipe, series={"a": [1.0], "c": [1.0]})


def test_a_papers_figure_lies_where_one_more_seed_falls_or_does_not():
    """Four seeds of mean 10 and deviation 1: one more falls within 10 +- t(3) sqrt(1 + 1/4), about 6.4 to 13.6."""
    values = [10 - 1.5**0.5, 10.0, 10.0, 10 + 1.5**0.5]
    for paper, word in ((13.0, "supported"), (14.0, "not reproduced"), (6.0, "not reproduced")):
        rule = Rule(model="a", over="another", measure="series", paper=paper)
        recipe = Simulated(claim="planted", about="planted", function="recall", rules=(ABOVE, rule))
        verdict = judge(recipe, series={"a": values})
        assert verdict.word == word and 6.4 < verdict.evidence[1].values["low"] < 6.5


ABOVE = Rule(model="a", over="mean", measure="series", at_least=1.0)


def test_a_spread_has_an_interval_and_one_seed_has_none(learnable: Trained):
    s, low, high = spread([0.1, 0.2, 0.3, 0.4, 0.5])
    assert s == pytest.approx(0.025**0.5) and (low / s, high / s) == pytest.approx((0.599, 2.874), abs=1e-3)
    assert spread([0.5]) == (pytest.approx(float("nan"), nan_ok=True), 0.0, float("inf"))
    far, near = ([ran(m, n, seed) for seed, n in enumerate(x)] for m, x in (("linear", FAR), ("softmax", NEAR)))
    rules = (
        BOTH[0],
        Rule(model="linear", over="spread", at_least=0.1),
        Rule(model="softmax", over="spread", at_most=0.1),
    )
    assert judge(with_rules(learnable, *rules), far + near).word == "supported"
    swapped = (BOTH[0], Rule(model="softmax", over="spread", at_least=0.1))
    assert judge(with_rules(learnable, *swapped), far + near).word == "not reproduced"


FAR, NEAR = [0, 300, 1000, 700, 100], [990, 1000, 985, 995, 990]


@pytest.mark.parametrize("name", [n for n in recipe.names() if isinstance(recipe.read(n), Trained)])
@pytest.mark.parametrize("right", [0, 8, ASKED], ids=["nothing right", "chance", "all right"])
def test_no_recipe_is_met_by_models_that_are_all_alike(name: str, right: int):
    """Untrained models, or a test whose answers leak: either way every model has the same score."""
    made = recipe.read(name)
    assert isinstance(made, Trained)
    score = Score(right=right, asked=ASKED, exact=right // 10, rows=ASKED // 10, loss=float(ASKED - right))
    seen = {"input_spread": 0.0, "role_information": 0.0}
    runs = [
        Outcome(
            model=run.model.name, task=run.task, learning_rate=run.learning_rate, seed=run.seed,
            progress=Progress(
                step=1, done=True, seconds=1.0, curve=(Point(step=1, loss=1.0, accuracy=right / ASKED),),
                scores=dict.fromkeys(run.tests, score), probes=seen,
            ),
        )
        for run in runs_of(made, made.seeds)
    ]  # fmt: skip
    everyone_copies = name == "vla.copy" and right == ASKED  # the only claim that all models do it
    assert (judge(made, runs).word == "supported") == everyone_copies


# --- real runs ---------------------------------------------------------------------------------------------------


def test_a_model_that_learns_is_supported(learnable: Trained, tmp_path: Path):
    assert judge(learnable, train_all(runs_of(learnable, 3), tmp_path, 1)).word == "supported"


def test_an_untrained_model_is_not(learnable: Trained, tmp_path: Path):
    untrained = msgspec.structs.replace(learnable, training=msgspec.structs.replace(learnable.training, steps=0))
    assert judge(untrained, train_all(runs_of(untrained, 3), tmp_path, 1)).word == "not reproduced"


def test_a_wrong_model_is_not(learnable: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The planted fault: a layer that hands nothing on from token to token."""

    def nothing(_self: Softmax, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None

    monkeypatch.setattr(Softmax, "forward", nothing)
    assert judge(learnable, train_all(runs_of(learnable, 3), tmp_path, 1)).word == "not reproduced"
