"""From runs (or series) to a verdict, by the rules that the recipe had before the run.

The figure of a rule is the test accuracy (or perplexity, ..) of a model at the learning rate with the best accuracy on
validation rows; of a text, with the fewest nats.
Wilson intervals count answers as if each were drawn by itself; what differs between seeds is in the rule: it holds of
every seed, or of the t-interval of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest, chi2

from linattest.verify.claims.verdicts import (
    CONFIDENCE,
    Evidence,
    Verdict,
    interval,
    not_reproduced,
    supported,
    untested,
)
from linattest.verify.experiments.recipe import LEAST_SEEDS, Recipe, Rule, Simulated, Trained
from linattest.verify.experiments.running import Outcome
from linattest.verify.experiments.training import Score
from linattest.verify.report.summary import plural


def wilson(right: int, asked: int) -> tuple[float, float, float]:
    """Share of right answers and its interval. Raises ``ValueError`` if nothing was asked."""
    if asked < 1:
        raise ValueError(f"asked is {asked}, expected at least 1")
    found = binomtest(right, asked)
    ends = found.proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return right / asked, float(ends.low), float(ends.high)


# --- figures -----------------------------------------------------------------------------------------------------


def best(outcomes: Sequence[Outcome], model: str, task: str) -> list[Outcome]:
    """A model's whole runs on a task at its best learning rate by validation, in the order of seeds."""
    rates: dict[float, list[Outcome]] = {}
    for o in outcomes:
        if o.model == model and o.task == task and o.whole:
            rates.setdefault(o.learning_rate, []).append(o)
    found = max(rates.values(), key=_validation, default=[])
    return sorted(found, key=lambda o: o.seed)


def _validation(found: list[Outcome]) -> float:
    last = [o.progress.curve[-1] for o in found if o.progress]
    return float(np.mean([point.accuracy if point.nats is None else -point.nats for point in last]))


def nats(o: Outcome, test: str) -> float:
    """Mean negative log likelihood of what was asked, NaN in a result that has none; perplexity is its exponential."""
    assert o.progress is not None
    return o.progress.scores[test].nats


def counts(o: Outcome, test: str, measure: str) -> tuple[int, int]:
    """Right and asked, answers or whole rows."""
    assert o.progress is not None
    score: Score = o.progress.scores[test]
    return (score.exact, score.rows) if measure == "exact" else (score.right, score.asked)


def _value(o: Outcome, test: str, measure: str) -> float:
    if measure in ("accuracy", "exact"):
        right, asked = counts(o, test, measure)
        return right / asked
    if measure in ("nats", "perplexity"):
        found = nats(o, test)
        return float(np.exp(found)) if measure == "perplexity" else found
    assert o.progress is not None
    return float(o.progress.probes.get(measure, 0.0))  # a model without level weights has none that depend on anything


# --- conditions --------------------------------------------------------------------------------------------------


def judge(
    recipe: Recipe,
    outcomes: Sequence[Outcome] = (),
    series: dict[str, list[float]] | None = None,
    *,
    quick: bool = False,
) -> Verdict:
    """The verdict of the rules. Quick forms, failed runs and fewer than three seeds give none ("untested")."""
    found = _conditions(recipe, outcomes, series)
    evidence = [e for e, _ in found]
    states = [state for _, state in found]
    if quick:
        return untested("quick form: it checks the machinery, not the claim", *evidence)
    if trouble := [o.trouble for o in outcomes if o.trouble]:
        return untested(f"{len(trouble)} of {len(outcomes)} runs have no result; the first: {trouble[0]}", *evidence)
    if (seeds := min((e.values["seeds"] for e in evidence), default=0)) < LEAST_SEEDS:
        return untested(f"{plural(seeds, 'seed')}, expected at least {LEAST_SEEDS}", *evidence)
    if "fails" in states:
        return not_reproduced(*evidence)
    if "open" in states:
        reached = "; ".join(e.text for e, state in found if state == "open")
        return untested(f"an interval reaches over a limit, more rows or seeds would tell: {reached}", *evidence)
    return supported(*evidence)


def states(recipe: Recipe, outcomes: Sequence[Outcome] = (), series: dict[str, list[float]] | None = None) -> list[str]:
    """Of every rule: "holds", "fails" (an interval lies outside its limits), or "open", which is neither."""
    return [state for _, state in _conditions(recipe, outcomes, series)]


def _conditions(
    recipe: Recipe, outcomes: Sequence[Outcome], series: dict[str, list[float]] | None
) -> list[tuple[Evidence, str]]:
    if isinstance(recipe, Trained):
        return [_of_runs(rule, recipe, outcomes) for rule in recipe.rules]
    return [_of_series(rule, recipe, series or {}) for rule in recipe.rules]


def _of_runs(rule: Rule, recipe: Trained, outcomes: Sequence[Outcome]) -> tuple[Evidence, str]:
    task = rule.task or next(iter(recipe.tasks))
    test = rule.test or task
    own = best(outcomes, rule.model, task)
    text = f"{rule.model}{f' less {rule.minus}' if rule.minus else ''}, {rule.measure} on {test}"
    if not own:
        return _evidence(rule, text, [], []), "open"
    if rule.over == "seeds":
        found = [wilson(*counts(o, test, rule.measure)) for o in own]
        text += f", every seed, lr {own[0].learning_rate:g}"
        return _evidence(rule, text, [x[0] for x in found], found), _state(rule, found)
    values = {o.seed: _value(o, test, rule.measure) for o in own}
    if rule.minus:
        others = {o.seed: _value(o, test, rule.measure) for o in best(outcomes, rule.minus, task)}
        values = {seed: x - others[seed] for seed, x in values.items() if seed in others}
    return _of_mean(rule, f"{text}, mean over seeds", list(values.values()))


def _of_series(rule: Rule, recipe: Simulated, series: dict[str, list[float]]) -> tuple[Evidence, str]:
    for name in (rule.model, rule.minus):
        if name and name not in series:
            raise ValueError(f"recipe {recipe.claim}: rule on {name!r}, expected one of {', '.join(series)}")
    values = np.array(series[rule.model])
    if rule.minus:
        values = values - np.array(series[rule.minus])
    return _of_mean(rule, f"{rule.model}{f' less {rule.minus}' if rule.minus else ''}, mean over seeds", list(values))


def _of_mean(rule: Rule, text: str, values: list[float]) -> tuple[Evidence, str]:
    if not values:
        return _evidence(rule, text, [], []), "open"
    found = [interval(values)]
    if rule.over == "another":
        mean, low, _ = found[0]
        half = (mean - low) * math.sqrt(len(values) + 1)  # one more seed scatters as these did
        found = [(mean, mean - half, mean + half)]
        text = text.replace("mean over seeds", "where one more seed falls")
    elif rule.over == "spread":
        found = [spread(values)]
        text = text.replace("mean", "standard deviation")
    return _evidence(rule, text, values, found), _state(rule, found)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Standard deviation of normal samples and its interval, by chi-squared; of one sample nothing is known."""
    n = len(values)
    if n < 2:
        return math.nan, 0.0, math.inf
    s = float(np.std(values, ddof=1))
    low, high = (s * math.sqrt((n - 1) / chi2.ppf(p, n - 1)) for p in ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2))
    return s, float(low), float(high)


def _state(rule: Rule, found: Sequence[tuple[float, float, float]]) -> str:
    """Whether every interval lies within the limits ("holds"), one lies outside ("fails"), or neither ("open")."""
    if rule.over == "another" and rule.paper is not None:
        return "holds" if all(low <= rule.paper <= high for _, low, high in found) else "fails"
    least = -np.inf if rule.at_least is None else rule.at_least
    most = np.inf if rule.at_most is None else rule.at_most
    if any(high < least or low > most for _, low, high in found):
        return "fails"
    return "holds" if all(least <= low and high <= most for _, low, high in found) else "open"


def _evidence(rule: Rule, text: str, values: Sequence[float], found: Sequence[tuple[float, float, float]]) -> Evidence:
    """What a rule found: mean, outermost ends of its intervals, every seed's figure, the limits, the paper's."""
    shown: dict[str, Any] = {"seeds": len(values), "by_seed": [round(float(x), 6) for x in values]}
    if found:
        shown |= {"mean": float(np.mean([x[0] for x in found]))}
        shown |= {"low": min(x[1] for x in found), "high": max(x[2] for x in found)}
    limits = {"at_least": rule.at_least, "at_most": rule.at_most, "paper": rule.paper}
    shown |= {name: x for name, x in limits.items() if x is not None}
    return Evidence(kind="measurement", text=text, values=shown, stands=bool(found) and _state(rule, found) == "holds")
