"""What a result shows, as numbers: curves, dots and maps, each of which a report draws and tabulates.

Which figures a result has is read off it, so that a recipe of a user has them too:

    a setting of the tasks differs, such as ``pairs`` or ``length``    accuracy against it, a line a model
    no setting does                                                    accuracy by model
    level weights were looked at                                       mean weight by level and role, a map a model
    anything was trained                                               accuracy against steps
    the task is text                                                   all of these with perplexity for accuracy
    a simulation's series end in ", T 16", ", T 32", ..                mean against that, a line a name

A model without a whole run is in no figure, and in the notes of all. Runs are those of the best learning rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from linattest.verify.experiments.judging import best
from linattest.verify.experiments.plotted import Dot, Figure, Line, Map, Panel, dot
from linattest.verify.experiments.recipe import Trained
from linattest.verify.experiments.results import Result
from linattest.verify.experiments.running import Outcome
from linattest.verify.experiments.series import of_series
from linattest.verify.experiments.tasks import Task
from linattest.verify.experiments.training import Point

QUICK = "quick form: machinery only"
"""What stands on every figure of a quick form, across it and below."""

AXES = {"length": "T", "accuracy": "accuracy", "exact": "rows all right", "times": "times the length"}
"""Words for an axis, where a setting's or a measure's own name is none."""


def figures(found: Result) -> list[Figure]:
    """All that a result shows, the most telling first; none of a result without a whole run."""
    recipe = found.recipe
    made = _trained(found, recipe) if isinstance(recipe, Trained) else of_series(recipe, found.series)
    if found.settings:  # a drawing is handed on without the page that says so
        said = f"in another size than the recipe's: {', '.join(found.settings)}"
        made = [dataclasses.replace(figure, notes=[said, *figure.notes]) for figure in made]
    return [_quick(figure) for figure in made] if found.form == "quick" else made


def _quick(figure: Figure) -> Figure:
    """Said to be one, and without the paper's figures, which are of the full form's sizes."""
    panels = [
        dataclasses.replace(panel, lines=[dataclasses.replace(line, paper=()) for line in panel.lines])
        for panel in figure.panels
    ]
    return dataclasses.replace(figure, panels=panels, notes=[QUICK, *figure.notes])


# --- of a training -----------------------------------------------------------------------------------------------

Trial = tuple[float, str, str]
"""(x, the task that was trained on, the test)."""


def _trained(found: Result, recipe: Trained) -> list[Figure]:
    measure = _measure(recipe)
    made = [_curve(found, recipe, measure, setting) for setting in _settings(recipe)]
    if not made:
        made = [_by_model(found, recipe, measure)]
    weights = _weights(found, recipe)
    asked = any(rule.measure in ("role_information", "input_spread") for rule in recipe.rules)
    made = [*weights, *made] if asked else [*made, *weights]
    made.append(_learning(found, recipe))
    order = [model.name for model in recipe.models]
    shown = [figure for figure in made if any(panel.lines or panel.map for panel in figure.panels)]
    return [dataclasses.replace(figure, order=order) for figure in shown]


def _measure(recipe: Trained) -> str:
    """What y is: perplexity of a text, else the share that the first rule on one asks for."""
    if recipe.reads_text:
        return "perplexity"
    return next((rule.measure for rule in recipe.rules if rule.measure in ("accuracy", "exact")), "accuracy")


def _settings(recipe: Trained) -> list[str]:
    """The settings of tasks that differ where nothing else does."""
    names = dict.fromkeys(name for task in recipe.tasks.values() for name in _numbers(task))
    return [name for name in names if _trials(recipe, name)]


def _numbers(task: Task) -> list[str]:
    """Settings of a task that are numbers; ``length`` is one without a value too: as many tokens as are needed."""
    found = msgspec.structs.asdict(task)
    numeric = (name for name, x in found.items() if isinstance(x, int | float) and not isinstance(x, bool))
    return list(dict.fromkeys([*numeric, *(["length"] if "length" in found else [])]))


def _trials(recipe: Trained, setting: str) -> dict[str, list[Trial]]:
    """By panel: tasks that differ in this setting alone, each trained on by itself, or tried after one training."""
    panels: dict[str, list[Trial]] = {}
    groups: dict[bytes, list[Trial]] = {}
    for name, task in recipe.tasks.items():
        if setting in _numbers(task):
            groups.setdefault(_others(task, setting), []).append((_at(task, setting), name, name))
    for n, group in enumerate(groups.values()):
        panels["a training for each" + (f" ({n + 1})" if n else "")] = group
    for name, task in recipe.tasks.items():
        alike = {
            test: other for test, other in recipe.tests.items() if _others(other, setting) == _others(task, setting)
        }
        panels[f"trained on {name}"] = [(_at(x, setting), name, test) for test, x in ({name: task} | alike).items()]
    return {title: sorted(trials) for title, trials in panels.items() if len({x for x, _, _ in trials}) > 1}


def _at(task: Task, setting: str) -> float:
    return float(task.tokens if setting == "length" else getattr(task, setting))


def _others(task: Task, setting: str) -> bytes:
    """All of a task but one setting."""
    table: dict[str, Any] = msgspec.to_builtins(task)
    return msgspec.json.encode({name: x for name, x in table.items() if name != setting}, order="sorted")


def _curve(found: Result, recipe: Trained, measure: str, setting: str) -> Figure:
    panels = _trials(recipe, setting)
    lines = {title: [_line(found, recipe, m.name, measure, t) for m in recipe.models] for title, t in panels.items()}
    x, y = AXES.get(setting, setting), AXES.get(measure, measure)
    return Figure(
        setting, f"{y} against {x}", "curve", x, y,
        [Panel(title, [line for line in lines[title] if line.dots]) for title in panels],
        share=measure != "perplexity",
        notes=_absent(found, recipe, (task for trials in panels.values() for _, task, _ in trials)),
    )  # fmt: skip


def _line(found: Result, recipe: Trained, model: str, measure: str, trials: Sequence[Trial]) -> Line:
    runs = [(x, best(found.runs, model, task), test) for x, task, test in trials]
    paper = [(x, said) for x, task, test in trials for said in _papers(recipe, model, measure, task, test)]
    return Line(model, [dot(own, test, measure, x) for x, own, test in runs if own], paper)


def _papers(recipe: Trained, model: str, measure: str, task: str, test: str) -> Iterator[float]:
    """What rules say that the paper found there."""
    for rule in recipe.rules:
        trained = rule.task or next(iter(recipe.tasks))
        asked = (rule.model, rule.minus, rule.measure, trained, rule.test or trained)
        if rule.paper is not None and rule.over != "spread" and asked == (model, "", measure, task, test):
            yield rule.paper


def _by_model(found: Result, recipe: Trained, measure: str) -> Figure:
    """For want of a setting that differs: a row a model, a panel each task and test."""
    panels: list[Panel] = []
    for task in recipe.tasks:
        for test in (task, *recipe.tests):
            lines = [_line(found, recipe, model.name, measure, [(0.0, task, test)]) for model in recipe.models]
            title = task if test == task else f"trained on {task}, tried on {test}"
            panels.append(Panel(title, [line for line in lines if line.dots]))
    y = AXES.get(measure, measure)
    return Figure(
        "models", y, "rows", "", y, panels, share=measure != "perplexity",
        notes=_absent(found, recipe, recipe.tasks),
    )  # fmt: skip


def _absent(found: Result, recipe: Trained, tasks: Iterable[str]) -> list[str]:
    """Which models have no whole run, and which fewer than there are seeds."""
    none: list[str] = []
    fewer: list[str] = []
    for task in dict.fromkeys(tasks):
        for model in recipe.models:
            count = len(best(found.runs, model.name, task))
            if not count:
                none.append(f"{model.name} on {task}")
            elif count < found.seeds:
                fewer.append(f"{model.name} on {task} ({count} of {found.seeds})")
    said = [f"no whole run, so not drawn: {', '.join(none)}"] if none else []
    return said + ([f"not every seed has a whole run: {', '.join(fewer)}"] if fewer else [])


# --- learning, level weights -------------------------------------------------------------------------------------


def _learning(found: Result, recipe: Trained) -> Figure:
    y = "perplexity" if recipe.reads_text else "accuracy"
    panels: list[Panel] = []
    early = False
    for task in recipe.tasks:
        runs = {model.name: best(found.runs, model.name, task) for model in recipe.models}
        lines = [Line(name, learned(own)) for name, own in runs.items() if own]
        panels.append(Panel(task, [line for line in lines if len(line.dots) > 1]))
        early |= any(len({o.progress.step for o in own if o.progress}) > 1 for own in runs.values())
    notes = ["where a seed ended early, its last accuracy counts from there on"] if early else []
    return Figure(
        "learning", f"{y} on validation rows against steps", "curve", "steps", y, panels,
        share=not recipe.reads_text, bars=False, notes=[*_absent(found, recipe, recipe.tasks), *notes],
    )  # fmt: skip


def learned(own: Sequence[Outcome]) -> list[Dot]:
    """Mean accuracy (or perplexity) on validation rows, and the range of seeds, at every step that one has a point at.

    A run that ended before the others (at the accuracy it was to reach) keeps its last.
    """
    curves = [o.progress.curve for o in own if o.progress]
    dots: list[Dot] = []
    for step in sorted({point.step for curve in curves for point in curve}):
        at = [[_reached(point) for point in curve if point.step <= step][-1] for curve in curves]
        dots.append(Dot(step, float(np.mean(at)), min(at), max(at), min(at), max(at)))
    return dots


def _reached(point: Point) -> float:
    return point.accuracy if point.nats is None else math.exp(point.nats)


def _weights(found: Result, recipe: Trained) -> list[Figure]:
    """A figure a task, a map a model that has level weights."""
    made: list[Figure] = []
    for task in recipe.tasks:
        maps = {model.name: level_weights(best(found.runs, model.name, task)) for model in recipe.models}
        made.append(
            Figure(
                "weights" if len(recipe.tasks) == 1 else f"weights-{task}",
                f"mean level weight by the token's role, trained on {task}", "map", "role", "level",
                [Panel(name, map=m) for name, m in maps.items() if m], share=False,
                notes=_absent(found, recipe, [task]),
            )
        )  # fmt: skip
    return made


def level_weights(own: Sequence[Outcome]) -> Map | None:
    """Mean over seeds of the probe's map, ``None`` where no run has one."""
    probes = [o.progress.probes for o in own if o.progress and "heat_map" in o.progress.probes]
    if not probes:
        return None
    roles: list[str] = probes[0]["roles"]
    by_role = [[p["heat_map"][n] for p in probes if p["heat_map"][n] is not None] for n in range(len(roles))]
    means = [np.mean(x, axis=0).tolist() if x else None for x in by_role]
    levels = max((len(x) for x in means if x), default=0)
    return Map(roles, [[x[level] if x else None for x in means] for level in range(levels)])
