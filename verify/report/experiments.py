"""Experiments on the page: verdict, every model's accuracy, every rule with the paper's figure beside ours, figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linattest.verify.claims.verdicts import Evidence
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments.figures import figures
from linattest.verify.experiments.judging import best
from linattest.verify.experiments.plotted import dot
from linattest.verify.experiments.recipe import Trained
from linattest.verify.experiments.results import Result
from linattest.verify.report.experiment_figures import element, footnotes, tables, text_of
from linattest.verify.report.summary import plural


@dataclass(frozen=True)
class Rule:
    """A rule as the table shows it: what is asked, what was found, what is expected, what the paper says."""

    text: str
    found: str
    expected: str
    paper: str
    stands: bool


@dataclass(frozen=True)
class Section:
    """What the template needs of a result; ``anchor`` is no other's on the page."""

    result: Result
    anchor: str

    @property
    def about(self) -> str:
        """When, by what and with how many seeds it was made."""
        made = self.result.environment
        read = f", text {self.result.text.name}, sha256 {self.result.text.sha256[:12]}" if self.result.text else ""
        return (
            f"{self.result.form} form, {plural(self.result.seeds, 'seed')}, {self.result.date}, {made.device}, "
            f"commit {made.commit}, torch {made.torch}{read}"
        )

    @property
    def reasons(self) -> list[str]:
        """Why there is no verdict, or one that is not the claim's."""
        said = [e.text for e in self.result.evidence if e.kind == "reason"]
        if self.result.form == "full" and _differs(self.result):
            said.append("made by another recipe than there is now, or in another size: no verdict on the claim")
        return said

    @property
    def troubles(self) -> list[str]:
        """The runs without a result, and why."""
        return [o.trouble for o in self.result.runs if o.trouble]

    @property
    def rules(self) -> list[Rule]:
        """Every rule; none of a quick form, since limits are of the full form's sizes."""
        if self.result.form == "quick":
            return []
        return [_rule(e) for e in self.result.evidence if e.kind == "measurement"]

    @property
    def heads(self) -> list[str]:
        """Columns of ``rows``."""
        if isinstance(self.result.recipe, Trained):
            return [
                "model",
                "trained on",
                "tried on",
                "learning rate",
                *_measures(self.result.recipe).values(),
                "seeds",
            ]
        return ["series", "mean", "least", "most", "seeds"]

    @property
    def rows(self) -> list[list[str]]:
        """A row a model, task and test, with 95 % intervals; or a row a series."""
        if isinstance(self.result.recipe, Trained):
            return _accuracies(self.result, self.result.recipe)
        return [
            [name, *(f"{x:.4g}" for x in (math.fsum(values) / len(values), min(values), max(values))), str(len(values))]
            for name, values in self.result.series.items()
        ]

    @property
    def charts(self) -> list[dict[str, Any]]:
        """The figures, drawn, in words and as tables."""
        return [
            {
                "title": figure.title, "svg": element(figure, f"{self.anchor}-{figure.name}"),
                "says": "; ".join(footnotes(figure)), "tables": tables(figure),
            }
            for figure in figures(self.result)
        ]  # fmt: skip


def _differs(found: Result) -> bool:
    """Whether the package has a recipe of this name, and it is another."""
    return found.experiment in recipes.names() and found.recipe != recipes.read(found.experiment)


def _measures(recipe: Trained) -> dict[str, str]:
    """What is measured of a model, by its name, with the words for it."""
    if recipe.reads_text:
        return {"perplexity": "perplexity", "accuracy": "accuracy"}
    return {"accuracy": "accuracy", "exact": "rows all right"}


def _accuracies(found: Result, recipe: Trained) -> list[list[str]]:
    rows: list[list[str]] = []
    for task in recipe.tasks:
        for model in recipe.models:
            own = best(found.runs, model.name, task)
            if not own:
                rows.append([model.name, task, "", "", "no whole run", "", "0"])
            for test in (task, *recipe.tests) if own else ():
                measured = (text_of(dot(own, test, measure)) for measure in _measures(recipe))
                rows.append([model.name, task, test, f"{own[0].learning_rate:g}", *measured, str(len(own))])
    return rows


def _rule(e: Evidence) -> Rule:
    values: dict[str, Any] = e.values
    limits = " and ".join(f"{name.replace('_', ' ')} {x:g}" for name, x in e.limits.items())
    found = f"{values['mean']:.4g} ({values['low']:.4g} to {values['high']:.4g})" if "mean" in values else "nothing"
    paper = f"{values['paper']:g}" if "paper" in values else ""
    return Rule(e.text, found, limits or "the paper's figure there", paper, e.stands)


def sections(found: Sequence[Result]) -> list[Section]:
    """A section a result; a second one of an experiment has an anchor of its own."""
    seen: Counter[str] = Counter()
    made: list[Section] = []
    for result in found:
        seen[result.experiment] += 1
        again = f"-{seen[result.experiment]}" if seen[result.experiment] > 1 else ""
        made.append(Section(result, f"experiment-{result.experiment}{again}"))
    return made


def verdict(found: Sequence[Result]) -> str:
    """The experiments of a page in a line."""
    counts = Counter(f"{x.verdict}" if x.form == "full" else "quick" for x in found)
    return f"{plural(len(found), 'experiment')}: {', '.join(f'{n} {word}' for word, n in counts.items())}"
