"""Figures of experiments: which a result has is read off it, every number is that of its runs, drawings repeat."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments import results
from linattest.verify.experiments.figures import QUICK, figures, learned
from linattest.verify.experiments.judging import judge, wilson
from linattest.verify.experiments.plotted import Dot, Figure, Line
from linattest.verify.experiments.recipe import Recipe, Trained
from linattest.verify.experiments.results import Result
from linattest.verify.experiments.running import Outcome
from linattest.verify.experiments.training import Point, Progress, Score
from linattest.verify.report.experiment_figures import describe, element, picture, tables

ASKED = 100
HEAT = [[0.5, 1.0], [0.25, -2.0], None, [0.0, 4.0]]
"""By role (none is a filler) and level."""


def ran(model: str, task: str, seed: int, recipe: Trained, right: int, **changes: Any) -> Outcome:
    """A whole run with so many right answers of a hundred on its task, half of them on every other test."""
    names = {task: right, **dict.fromkeys(recipe.tests, right // 2)}
    scores = {name: Score(right=n, asked=ASKED, exact=n // 10, rows=10) for name, n in names.items()}
    curve = tuple(Point(step=step, loss=None, accuracy=right / ASKED * step / 2) for step in (0, 1, 2))
    probes = {"heat_map": HEAT, "roles": ["key", "value", "filler", "query"]} if recipe.probe else {}
    made: dict[str, Any] = {"step": 2, "done": True, "curve": curve, "seconds": 1.0, "scores": scores, "probes": probes}
    rate = recipe.training.learning_rates[0]
    return Outcome(model=model, task=task, learning_rate=rate, seed=seed, progress=Progress(**(made | changes)))


def made(recipe: Recipe, quick: bool = False, without: tuple[str, str] | None = None, **given: Any) -> Result:
    """A result of two seeds: model m on task t has 90 - 10 m - 5 t + seed right answers. ``without``: a run failed."""
    runs: list[Outcome] = []
    if isinstance(recipe, Trained):
        for m, model in enumerate(recipe.models):
            for t, task in enumerate(recipe.tasks):
                runs += [ran(model.name, task, seed, recipe, 90 - 10 * m - 5 * t + seed) for seed in range(2)]
    failed = [msgspec.structs.replace(o, progress=None, error="planted") for o in runs]
    runs = [f if (o.model, o.task) == without else o for o, f in zip(runs, failed, strict=True)]
    verdict = judge(recipe, runs, given.get("series"), quick=quick)
    return results.result(recipe, verdict, quick=quick, seeds=2, device="cpu", seconds=1.0, runs=runs, **given)


def of(name: str, **given: Any) -> Result:
    return made(recipes.read(name), **given)


def norms() -> Result:
    """A simulation: |S| is T and 2 T in two seeds for one layer, 1 for the other."""
    recipe = recipes.read("vla.state-norm-table")
    lengths = (250, 500, 1000)
    series: dict[str, list[float]] = {f"linear, T {T}": [float(T), 2.0 * T] for T in lengths}
    series |= {f"vla, T {T}": [1.0, 1.0] for T in lengths}
    series |= {"linear over vla": [100.0, 110.0], "delta_net, growth since T 250": [1.0, 1.1]}
    return made(recipe, series=series)


def named(found: Result, name: str) -> Figure:
    return {figure.name: figure for figure in figures(found)}[name]


def lines(found: Result, name: str, panel: int = 0) -> dict[str, Line]:
    return {line.name: line for line in named(found, name).panels[panel].lines}


# --- which figures, and their numbers ----------------------------------------------------------------------------

EXPECTED = {
    "vla.mqar-overload": ["pairs", "learning"],
    "vla.mqar-length": ["length", "learning"],
    "vla.mqar-capacity": ["models", "learning"],
    "ccq.sniah-small": ["length", "learning"],
    "lam.mqar": ["pairs", "length", "weights-k32", "weights-k8", "learning"],
    "lam.lm-small": ["times", "learning"],
    "lam.heatmap": ["weights-k32", "weights-k8", "pairs", "length", "learning"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_which_figures_there_are_is_read_off_the_recipe(name: str, learnable: Trained):
    """The names of claim, tasks and tests say nothing: another recipe of the same settings has the same figures."""
    recipe = recipes.read(name)
    assert [figure.name for figure in figures(made(recipe))] == EXPECTED[name]
    assert isinstance(recipe, Trained)
    own = msgspec.structs.replace(recipe, claim="mine", about="mine")
    assert [figure.name for figure in figures(made(own))] == EXPECTED[name]
    assert [figure.name for figure in figures(made(learnable))] == ["models", "learning"]


def test_a_capacity_curve_has_every_models_share_with_wilsons_interval_and_the_range_of_seeds():
    found = of("vla.mqar-overload")
    curve = lines(found, "pairs")
    assert list(curve) == ["vla", "linear"] and named(found, "pairs").share
    assert [dot.x for dot in curve["vla"].dots] == [16, 32, 48, 64]
    assert [dot.y for dot in curve["vla"].dots] == [0.905, 0.855, 0.805, 0.755]
    assert curve["linear"].dots[1] == Dot(32.0, *wilson(75 + 76, 200), 0.75, 0.76)
    assert wilson(151, 200)[1] == pytest.approx(0.6910, abs=1e-4)  # the closed form: (p + z^2/2n -+ ..)/(1 + z^2/n)
    assert curve["vla"].paper == [(32.0, 0.62)] and curve["linear"].paper == []


def test_a_length_curve_is_of_one_training_tried_on_longer_rows_or_of_one_for_each():
    tried = of("ccq.sniah-small")
    assert named(tried, "length").y == "rows all right" and named(tried, "length").panels[0].title == "trained on x1"
    assert [(dot.x, dot.y) for dot in lines(tried, "length")["ccq_gla"].dots] == [(256, 0.8), (512, 0.4), (1024, 0.4)]
    each = of("vla.mqar-length")
    assert [(dot.x, dot.y) for dot in lines(each, "length")["linear"].dots] == [
        (64, 0.805), (128, 0.755), (256, 0.705), (512, 0.655),
    ]  # fmt: skip
    assert [panel.title for panel in named(of("lam.mqar"), "length").panels] == ["trained on k32", "trained on k8"]
    assert [(dot.x, dot.y) for dot in lines(of("lam.mqar"), "length", 1)["linear"].dots] == [(128, 0.855), (256, 0.425)]


def test_a_text_has_perplexities_the_mean_over_seeds():
    recipe = recipes.read("lam.lm-small")
    assert isinstance(recipe, Trained)
    found = made(recipe)
    scores = {
        name: Score(right=1, asked=10, exact=0, rows=1, loss=10 * math.log(4.0)) for name in ("x1", *recipe.tests)
    }
    curve = tuple(Point(step=n, loss=None, accuracy=0.1, nats=math.log(256.0 / (n + 1))) for n in (0, 1))
    runs = [ran("linear", "x1", seed, recipe, 0, scores=scores, curve=curve) for seed in range(2)]
    found = msgspec.structs.replace(found, runs=tuple(runs))
    dots = lines(found, "times")["linear"].dots
    assert [dot.x for dot in dots] == [1, 2, 3, 4, 5] and [dot.y for dot in dots] == pytest.approx([4.0] * 5)
    assert named(found, "times").y == "perplexity" and not named(found, "times").share
    assert [dot.y for dot in lines(found, "learning")["linear"].dots] == pytest.approx([256.0, 128.0])


def test_a_simulations_series_are_a_curve_with_the_intervals_of_their_means():
    curve = lines(norms(), "T")
    assert list(curve) == ["linear", "vla"] and [dot.x for dot in curve["vla"].dots] == [250, 500, 1000]
    last = curve["linear"].dots[-1]
    assert (last.y, last.least, last.most) == (1500.0, 1000.0, 2000.0)
    assert last.high - last.y == pytest.approx(12.7062 * 500, rel=1e-4)  # t at 0.975 with one degree of freedom
    assert curve["linear"].paper == [(1000.0, 1633.9)] and not named(norms(), "T").share


def test_series_that_differ_in_two_settings_have_a_figure_of_each():
    recipe = recipes.read("ccq.dense-directions")
    places = [(x, spread, lam) for x in ("isolated", "dense") for spread in (0.5, 1) for lam in (0.5, 0.9)]
    found = made(recipe, series={f"{x}, spread {s}, lam {lam}": [1.0, s + lam] for x, s, lam in places})
    assert [figure.name for figure in figures(found)] == ["spread", "lam"]
    curve = lines(found, "lam")
    assert list(curve) == ["isolated, spread 0.5", "isolated, spread 1", "dense, spread 0.5", "dense, spread 1"]
    assert [(dot.x, dot.y) for dot in curve["dense, spread 1"].dots] == [(0.5, 1.25), (0.9, pytest.approx(1.45))]


def test_a_map_is_the_mean_over_seeds_by_level_and_role():
    panels = named(of("lam.heatmap"), "weights-k32").panels
    assert len(panels) == 6 and panels[0].map and panels[0].title == "linear"
    assert panels[0].map.values == [[0.5, 0.25, None, 0.0], [1.0, -2.0, None, 4.0]]


def test_a_learning_curve_keeps_the_last_of_a_run_that_ended_early(learnable: Trained):
    early = (Point(step=0, loss=None, accuracy=0.0), Point(step=1, loss=1.0, accuracy=1.0))
    own = [ran("softmax", "one", 0, learnable, 50), ran("softmax", "one", 1, learnable, 100, curve=early, step=1)]
    assert [(dot.x, dot.y, dot.least, dot.most) for dot in learned(own)] == [
        (0, 0.0, 0.0, 0.0), (1, 0.625, 0.25, 1.0), (2, 0.75, 0.5, 1.0),
    ]  # fmt: skip
    found = msgspec.structs.replace(made(learnable), runs=tuple(own))
    assert any("ended early" in note for note in named(found, "learning").notes)


def test_what_has_no_whole_run_is_not_drawn_and_said():
    found = of("vla.mqar-overload", without=("vla", "n48"))
    curve = named(found, "pairs")
    assert [dot.x for dot in lines(found, "pairs")["vla"].dots] == [16, 32, 64]
    assert curve.notes == ["no whole run, so not drawn: vla on n48"]
    fewer = msgspec.structs.replace(found, runs=tuple(o for o in found.runs if o.seed == 0))
    assert "vla on n16 (1 of 2)" in named(fewer, "pairs").notes[1]
    assert figures(msgspec.structs.replace(found, runs=())) == []


# --- drawings ----------------------------------------------------------------------------------------------------


DRAWN = [
    ("vla.mqar-capacity", "models"), ("vla.mqar-overload", "pairs"), ("lam.mqar", "length"), ("lam.mqar", "weights-k8"),
    ("vla.copy", "learning"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "which"), DRAWN)
def test_a_drawing_is_xml_with_a_title_and_every_number_and_the_same_each_time(name: str, which: str):
    figure = named(of(name), which)
    svg, inside = picture(figure, "<about>"), element(figure, "a")
    root = ElementTree.fromstring(svg)
    said = {child.tag.rpartition("}")[2]: child.text or "" for child in root}
    assert said["title"].startswith("<about>") and said["desc"] == describe(figure) and root.get("role") == "img"
    assert svg == picture(figure, "<about>") and inside == element(figure, "a") and "currentColor" in inside
    for line in (line for panel in figure.panels for line in panel.lines):
        assert f"{line.dots[-1].y:.4g}" in said["desc"] and line.name in svg
    assert len(tables(figure)) == len(figure.panels) and QUICK not in svg


def test_swapped_models_or_another_interval_change_the_drawing_and_its_words():
    """Planted: what a reader sees is what the numbers say."""
    figure = named(of("vla.mqar-overload"), "pairs")
    first, second = figure.panels[0].lines
    swapped = [dataclasses.replace(first, name=second.name), dataclasses.replace(second, name=first.name)]
    wide = [dataclasses.replace(first, dots=[dataclasses.replace(dot, low=0.1) for dot in first.dots]), second]
    for planted in (swapped, wide):
        other = dataclasses.replace(figure, panels=[dataclasses.replace(figure.panels[0], lines=planted)])
        assert picture(other, "") != picture(figure, "") and describe(other) != describe(figure)
        assert tables(other)[0].rows != tables(figure)[0].rows or tables(other)[0].heads != tables(figure)[0].heads


def test_a_quick_form_says_so_across_its_drawing_and_has_no_figure_of_the_paper():
    found = of("vla.mqar-overload", quick=True)
    for figure in figures(found):
        assert figure.notes[0] == QUICK and picture(figure, "").count(f">{QUICK}<") == 2
        assert not any(line.paper for panel in figure.panels for line in panel.lines)
