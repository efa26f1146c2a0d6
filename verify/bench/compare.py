"""Whether a commit is faster or slower than another, from the records of two runs.

Two runs differ also by what is no change: clocks, neighbours, the host. How much, is measured: softmax attention and
other rivals were timed in turn with the kernels in both runs and did not change, so their ratios have the common shift,
which is taken out, and the spread beyond the scatter of repetitions, which widens every interval. The intervals hold
together (Bonferroni), so that a comparison of hundreds of timings gives a false alarm as rarely as one of a single
timing. A verdict is where an interval lies: beyond the threshold (slower, faster), within it (same), or ambiguous.

Errors and peaks of memory repeat exactly on one machine and are compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats

from linattest.verify.bench import losses
from linattest.verify.bench.sides import Key, Row, Side
from linattest.verify.crossover import DIRECTIONS, OURS, SOFTMAX
from linattest.verify.snapshots import FLOOR, GROWTH
from linattest.verify.tolerance import THRESHOLD

ALPHA = 0.05
"""Chance that any interval of a comparison misses."""

FACTOR = 1.1
"""A ratio of times up to this is no change that matters; asv's own factor."""

DRAWS, LEAST = 2000, 3
"""Bootstrap draws of a median; rivals without which a shift of the machine cannot be told from a change."""

LEAST_ERROR = FLOOR / THRESHOLD
"""Errors below this part of the limit are alike: the floor of snapshots, in parts of their threshold."""

RIVALS = (SOFTMAX, "fla:")

Verdict = Literal["faster", "slower", "same", "ambiguous"]


HOST = 1.15
"""A plain timing so many times as long as its graph is the host's in part, which drifts by itself: it is judged by
rivals of which the same is true."""

Kind = Literal["graphed", "plain", "plain, by the host"]

KINDS: tuple[Kind, ...] = ("graphed", "plain", "plain, by the host")


@dataclass(frozen=True)
class Control:
    """What did not change between two runs, of one kind: factor common to all, its spread (of logarithms)."""

    kind: Kind
    count: int
    shift: float
    spread: float


@dataclass(frozen=True)
class Timing:
    """One timing of ours: ``ratio`` of B to A without the common shift, its interval, what that says.

    ``low`` and ``high`` are None where too few rivals were timed to know.
    """

    operator: str
    variant: str
    direction: str
    tokens: int
    graphed: bool
    l2: str
    verdict: Verdict
    ratio: float
    low: float | None
    high: float | None
    ms: tuple[float, float]


@dataclass(frozen=True)
class Growth:
    """An error ("of the limit") or a peak of memory (bytes) in A and B; ``grew`` beyond what is allowed."""

    operator: str
    variant: str
    direction: str
    tokens: int
    a: float | None
    b: float | None
    grew: bool
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """Everything about one pair.

    ``broken``: what passed in A and not in B; ``gone``: not tried in B; ``slow_starts``: first calls that take longer.
    ``environment``: what differs.
    """

    a: Side
    b: Side
    factor: float
    controls: list[Control]
    timings: list[Timing]
    errors: list[Growth]
    memory: list[Growth]
    broken: list[str]
    gone: list[str]
    slow_starts: list[str]
    environment: dict[str, tuple[Any, Any]]

    @property
    def slower(self) -> list[Timing]:
        """Timings that became worse for certain."""
        return [row for row in self.timings if row.verdict == "slower"]

    @property
    def grown(self) -> list[Growth]:
        """Errors and peaks of memory that grew."""
        return [row for row in [*self.errors, *self.memory] if row.grew]

    @property
    def told(self) -> bool:
        """Whether anything can be said: one timing at least that is not ambiguous, or errors where there are none."""
        timed = any(key[2] == OURS for key in self.a.timings)
        return any(row.verdict != "ambiguous" for row in self.timings) if timed else bool(self.errors)

    @property
    def seen(self) -> list[tuple[float, Timing]]:
        """By timing, the ratio from which on a slowdown would be called one, smallest first."""
        known = [(row.high / row.ratio * self.factor, row) for row in self.timings if row.high is not None]
        return sorted(known, key=lambda pair: pair[0])

    @property
    def failed(self) -> bool:
        """Whether anything became worse."""
        return bool(self.slower or self.grown or self.broken)


def compare(a: Side, b: Side, factor: float = FACTOR, seed: int = 0) -> Comparison:
    """B against A.

    Args:
        factor: ratio of times, > 1, from which on a change matters; also that of memory.
        seed: of the bootstrap.

    Raises:
        ValueError: ``factor`` is not above 1.
    """
    if not factor > 1:
        raise ValueError(f"factor={factor}, expected a ratio above 1")
    random = np.random.default_rng(seed)
    keys = [key for key in a.timings if key in b.timings]
    found = {key: _log_ratio(a.timings[key], b.timings[key], random) for key in keys}
    kinds: dict[Key, Kind] = {key: _kind(key, a, b) for key in keys}
    controls = [control(found, kinds, kind) for kind in KINDS if kind in kinds.values()]
    ours = [key for key in keys if key[2] == OURS]
    by = {c.kind: c for c in controls}
    names = sorted(set(a.environment) | set(b.environment))
    judged = {key: _timing(key, a, b, found[key], by[kinds[key]], len(ours), factor) for key in ours}
    return Comparison(
        a, b, factor, controls, sorted(_confirmed(judged, kinds, factor), key=_order),
        _errors(a, b), _memory(a, b, factor), losses.broken(a, b), losses.gone(a, b), losses.slow_starts(a, b),
        {n: pair for n in names if (pair := (a.environment.get(n), b.environment.get(n)))[0] != pair[1]},
    )  # fmt: skip


@dataclass(frozen=True)
class Ratio:
    """Logarithm of a ratio of medians, its standard error, and the repetitions of the side that has fewer."""

    log: float
    error: float
    count: int


def _log_ratio(a: Row, b: Row, random: np.random.Generator) -> Ratio:
    error = math.hypot(*(_scatter(row["samples"], random) for row in (a, b)))
    logs = [math.log(float(np.median(row["samples"]))) for row in (a, b)]
    return Ratio(logs[1] - logs[0], error, min(len(a["samples"]), len(b["samples"])))


def _scatter(samples: Sequence[float], random: np.random.Generator) -> float:
    """Standard error of the logarithm of a median, by the bootstrap."""
    times = np.asarray(samples, dtype=np.float64)
    drawn = times[random.integers(0, len(times), (DRAWS, len(times)))]
    return float(np.log(np.median(drawn, axis=1)).std())


def _kind(key: Key, a: Side, b: Side) -> Kind:
    """Whether a timing is a graph's, or a plain one that in either run took much longer than its graph."""
    *place, graphed, _ = key
    if graphed:
        return "graphed"
    for side in (a, b):
        graph = side.timings.get((*place, True, key[6]))
        if graph is not None and side.timings[key]["ms"] > HOST * graph["ms"]:
            return "plain, by the host"
    return "plain"


def control(found: Mapping[Key, Ratio], kinds: Mapping[Key, Kind], kind: Kind) -> Control:
    """The shift and the spread of the rivals' ratios: outliers count, since the kernels' may be such."""
    logs = [r.log for key, r in found.items() if kinds[key] == kind and key[2].startswith(RIVALS)]
    if len(logs) < LEAST:
        return Control(kind, len(logs), 1.0, math.inf)
    shift = float(np.median(logs))
    return Control(kind, len(logs), math.exp(shift), float(np.sqrt(np.mean((np.array(logs) - shift) ** 2))))


def _timing(key: Key, a: Side, b: Side, ratio: Ratio, known: Control, tests: int, factor: float) -> Timing:
    log = ratio.log - math.log(known.shift)
    ms = (a.timings[key]["ms"], b.timings[key]["ms"])
    operator, variant, _, direction, tokens, graphed, l2 = key
    place = (operator, variant, direction, tokens, graphed, l2)
    if math.isinf(known.spread):
        return Timing(*place, "ambiguous", math.exp(log), None, None, ms)
    half = _half_width(ratio, known, tests)
    low, high = log - half, log + half
    limit = math.log(factor)
    verdict: Verdict = (
        "slower" if low > limit else "faster" if high < -limit else "same" if -limit <= low <= high <= limit
        else "ambiguous"
    )  # fmt: skip
    return Timing(*place, verdict, math.exp(log), math.exp(low), math.exp(min(high, 700.0)), ms)


def _confirmed(judged: Mapping[Key, Timing], kinds: Mapping[Key, Kind], factor: float) -> list[Timing]:
    """What a call costs the host it costs at every length: a timing by the host alone is slower or faster only if half
    of those of its operator and direction are."""
    ratios: dict[Key, list[float]] = {}
    for key, row in judged.items():
        if kinds[key] == "plain, by the host":
            ratios.setdefault(key[:4], []).append(row.ratio)
    found: list[Timing] = []
    for key, row in judged.items():
        others = ratios.get(key[:4]) if kinds[key] == "plain, by the host" else None
        typical = float(np.median(others)) if others else None
        alone = typical is not None and (
            (row.verdict == "slower" and typical <= factor) or (row.verdict == "faster" and typical >= 1 / factor)
        )
        found.append(replace(row, verdict="ambiguous") if alone else row)
    return found


def _half_width(ratio: Ratio, known: Control, tests: int) -> float:
    """Of an interval: Student's t at the level that all intervals share, degrees of freedom by Welch and
    Satterthwaite."""
    within, between = ratio.error**2, known.spread**2
    variance = within + between
    if variance == 0:
        return 0.0
    freedom = variance**2 / (within**2 / max(ratio.count - 1, 1) + between**2 / (known.count - 1))
    return float(stats.t.ppf(1 - ALPHA / (2 * tests), freedom)) * math.sqrt(variance)


def _order(row: Timing) -> tuple[Any, ...]:
    return (row.operator, row.variant, DIRECTIONS.index(row.direction), row.tokens, row.graphed, row.l2)


def _errors(a: Side, b: Side) -> list[Growth]:
    """Errors of the gates on the timed inputs: more than twice as large, or a gate that turned red."""
    rows: list[Growth] = []
    for (operator, variant, direction, tokens), after in b.gates.items():
        before = a.gates.get((operator, variant, direction, tokens))
        red = not after["ok"] and (before is None or before["ok"])
        was, now = None if before is None else before["worst"], after["worst"]
        grew = was is not None and now is not None and max(now, LEAST_ERROR) > GROWTH * max(was, LEAST_ERROR)
        why = f"the gate is red: {after['message']}" if red else "the error grew" if grew else ""
        rows.append(Growth(operator, variant, direction, tokens, was, now, grew or red, why))
    return rows


def _memory(a: Side, b: Side, factor: float) -> list[Growth]:
    rows: list[Growth] = []
    for (operator, variant, direction, tokens), after in b.memory.items():
        before = a.memory.get((operator, variant, direction, tokens))
        if before is not None:
            was, now = (float(row["value"]["peak"]) for row in (before, after))
            grew = now > factor * was
            why = "the peak of memory grew" if grew else ""
            rows.append(Growth(operator, variant, direction, tokens, was, now, grew, why))
    return rows
