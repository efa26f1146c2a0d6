"""The figures of a simulation: its series in lines, where their names differ in a setting alone.

A series' name ends in its settings: "vla, T 16" and "vla, T 32" are one line over T.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from linattest.verify.experiments.plotted import Figure, Line, Panel, mean
from linattest.verify.experiments.recipe import Rule, Simulated

FUNCTIONS = {
    "state_norms": "norm of the state |S|_F",
    "recall": "recall",
    "needle_margin": "margin with CCQ over without",
}
"""What a simulation's series are of."""

ENDING = re.compile(r"(\w+) (-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
"""A part of a series' name that is a setting: "T 16", "lam 0.9"."""


def of_series(recipe: Simulated, series: Mapping[str, Sequence[float]]) -> list[Figure]:
    """A figure a setting in which series differ; a row a series where there is none."""
    y = FUNCTIONS.get(recipe.function, "value")
    made: list[Figure] = []
    for setting in dict.fromkeys(x for name in series for x in _parts(name)[1]):
        curves = _along(series, setting)
        if curves:
            lines = [_drawn(name, along, series, recipe.rules) for name, along in curves.items()]
            made.append(
                Figure(setting, f"{y} against {setting}", "curve", setting, y, [Panel("", lines)],
                       share=False)
            )  # fmt: skip
    if not made and series:
        lines = [_drawn(name, {0.0: name}, series, recipe.rules) for name in series]
        made = [Figure("series", y, "rows", "", y, [Panel("", lines)], share=False)]
    return made


def _parts(series: str) -> tuple[str, dict[str, float]]:
    """A series' name without its settings, and these: "dense, lam 0.9" is ("dense", {"lam": 0.9})."""
    words: list[str] = []
    settings: dict[str, float] = {}
    for part in series.split(", "):
        if match := ENDING.fullmatch(part):
            settings[match[1]] = float(match[2])
        else:
            words.append(part)
    return ", ".join(words), settings


def _along(series: Iterable[str], setting: str) -> dict[str, dict[float, str]]:
    """By line: the series that differ in this setting alone, by its value; lines of one value are none."""
    lines: dict[str, dict[float, str]] = {}
    for name in series:
        words, settings = _parts(name)
        if setting in settings:
            others = [words, *(f"{key} {x:g}" for key, x in settings.items() if key != setting)]
            lines.setdefault(", ".join(others), {})[settings[setting]] = name
    return {name: dict(sorted(along.items())) for name, along in lines.items() if len(along) > 1}


def _drawn(
    name: str, along: Mapping[float, str], series: Mapping[str, Sequence[float]], rules: Sequence[Rule]
) -> Line:  # fmt: skip
    of_means = [rule for rule in rules if not rule.minus and rule.over != "spread"]
    said = {rule.model: rule.paper for rule in of_means if rule.paper is not None}
    paper = [(x, said[own]) for x, own in along.items() if own in said]
    return Line(name, [mean(series[own], x) for x, own in along.items()], paper)
