"""Where an operator becomes faster than softmax attention, from timings of both at a row of lengths.

The ratio of the times (the operator's over that of the fastest softmax backend at that length) is interpolated on a
doubly logarithmic scale. The crossover is the last point where it falls below 1: from there on, as far as was
measured, the operator is faster. A bootstrap over the repeated timings gives the interval; where timings were
interleaved, a draw takes the same repetitions of both.

This module needs nothing but numpy, so that it runs beside the timings on a GPU machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = 1

DRAWS, CONFIDENCE = 1000, 0.95
"""Bootstrap draws, and the part of them that the interval holds."""

OURS, SOFTMAX = "linattest", "softmax:"
"""The implementation that is judged, and the prefix of those it is compared with."""

Times = Mapping[int, Sequence[float]]
"""Length in tokens -> repeated timings in milliseconds."""

DIRECTIONS = ("forward", "forward+backward", "decode")


@dataclass(frozen=True)
class Crossing:
    """``tokens`` with its interval; ``high`` is None where it may lie beyond what was measured.

    ``at_most``: the operator was faster at the shortest length already. ``crossings`` counts how often the ratio
    passes 1 in either direction. ``softmax`` is the backend that is fastest there. ``between``: the measured lengths
    on either side; the interval is of the timings' scatter, and knows nothing of what lies between them.
    """

    tokens: int
    low: int
    high: int | None
    softmax: str
    at_most: bool
    crossings: int
    between: tuple[int, int]


@dataclass(frozen=True)
class Uncrossed:
    """Slower than softmax at the longest length that was measured: ``ratio`` times as slow."""

    longest: int
    ratio: float
    softmax: str


def crossing(ours: Times, softmax: Mapping[str, Times], *, draws: int = DRAWS, seed: int = 0) -> Crossing | Uncrossed:
    """Where the operator becomes faster than the fastest softmax backend.

    Args:
        ours: timings of the operator.
        softmax: timings of each backend; a backend may lack lengths.
        draws: bootstrap draws.
        seed: of the draws.

    Raises:
        ValueError: no common length, or a time that is not finite and positive.
    """
    lengths = sorted(length for length in ours if any(length in times for times in softmax.values()))
    if not lengths:
        raise ValueError("no length at which both the operator and a softmax backend were timed")
    _check([*ours.values(), *(x for times in softmax.values() for x in times.values())])
    measured = [_ratio(ours[n], {b: t[n] for b, t in softmax.items() if n in t}) for n in lengths]
    ratios = [ratio for ratio, _ in measured]
    signs = [ratio < 0 for ratio in ratios]
    place = _place(lengths, ratios)
    if math.isinf(place):
        return Uncrossed(lengths[-1], float(f"{math.exp(ratios[-1]):.3g}"), measured[-1][1])
    low, high = _interval(lengths, ours, softmax, draws, seed)
    nearest = min(range(len(lengths)), key=lambda i: abs(math.log(lengths[i] / place)))
    return Crossing(
        tokens=round(place), low=round(min(low, place)), high=None if math.isinf(high) else round(max(high, place)),
        softmax=measured[nearest][1], at_most=signs[0] and all(signs),
        crossings=sum(a != b for a, b in zip(signs, signs[1:], strict=False)),
        between=(max((n for n in lengths if n <= place), default=lengths[0]), min(n for n in lengths if n >= place)),
    )  # fmt: skip


def _check(rows: Iterable[Sequence[float]]) -> None:
    for times in rows:
        if not times or not all(math.isfinite(t) and t > 0 for t in times):
            raise ValueError(f"timings {list(times)}, expected finite numbers > 0, at least one")


def _ratio(ours: Sequence[float], softmax: Mapping[str, Sequence[float]]) -> tuple[float, str]:
    """Log of the ratio of medians, and the fastest backend."""
    fastest, backend = min((float(np.median(times)), name) for name, times in softmax.items())
    return math.log(float(np.median(ours)) / fastest), backend


def _drawn(
    ours: Sequence[float], softmax: Iterable[Sequence[float]], draws: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """The same of bootstrap draws [draws]: each takes repetitions of one place from all implementations."""
    rivals = list(softmax)
    places = random.random((draws, max(len(ours), *map(len, rivals))))

    def medians(times: Sequence[float]) -> NDArray[np.float64]:
        index = (places[:, : len(times)] * len(times)).astype(int)
        return np.median(np.asarray(times, dtype=np.float64)[index], axis=1)

    return np.log(medians(ours) / np.min([medians(times) for times in rivals], axis=0))


def _place(lengths: Sequence[int], ratios: Sequence[float]) -> float:
    """The last length where the ratio falls below 1: the first if it always is, infinite if it never stays."""
    slower = [i for i, ratio in enumerate(ratios) if ratio >= 0]
    if not slower:
        return float(lengths[0])
    i = slower[-1]
    if i == len(lengths) - 1:
        return math.inf
    part = ratios[i] / (ratios[i] - ratios[i + 1])
    return math.exp((1 - part) * math.log(lengths[i]) + part * math.log(lengths[i + 1]))


def _interval(
    lengths: Sequence[int], ours: Times, softmax: Mapping[str, Times], draws: int, seed: int
) -> tuple[float, float]:
    random = np.random.default_rng(seed)
    drawn = [_drawn(ours[n], (t[n] for t in softmax.values() if n in t), draws, random) for n in lengths]
    places = sorted(_place(lengths, ratios) for ratios in np.stack(drawn, 1).tolist())
    tail = (1 - CONFIDENCE) / 2
    return places[math.floor(tail * draws)], places[min(draws - 1, math.ceil((1 - tail) * draws) - 1)]


# --- records -------------------------------------------------------------------------------------------------------


def crossovers(record: Mapping[str, Any], draws: int = DRAWS) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The crossovers of one record and the pairs that do not cross, as the command prints them.

    ``committed`` is when the commit was made, which a record says once it is filed; before that when it was measured.
    L2 "warm" is repeated calls on one set of inputs, "cold" a new set each call; lengths whose inputs exceed the cache
    anyway count for both.
    """
    crossed, uncrossed = list[dict[str, Any]](), list[dict[str, Any]]()
    for key, (ours, softmax) in _series(record["timings"]).items():
        if not ours or not softmax or not set(ours) & {n for times in softmax.values() for n in times}:
            continue
        answer = crossing(ours, softmax, draws=draws)
        operator, variant, direction, graphed, l2 = key
        row = {
            "operator": operator, "variant": variant, "direction": direction, **asdict(answer),
            "gpu": record["environment"]["gpu"], **{x: record["settings"][x] for x in ("dtype", "B", "H", "D")},
            "graphed": graphed, "l2": l2, "commit": record["commit"], "measured": record["started"],
            "committed": record.get("committed", record["started"]),
        }  # fmt: skip
        (crossed if isinstance(answer, Crossing) else uncrossed).append(row)
    return crossed, uncrossed


Key = tuple[str, str, str, bool, str]


def _series(timings: Iterable[Mapping[str, Any]]) -> dict[Key, tuple[dict[int, Any], dict[str, dict[int, Any]]]]:
    """By operator, variant, direction, graphed and cache: our times, and those of each softmax backend."""
    found: dict[Key, tuple[dict[int, Any], dict[str, dict[int, Any]]]] = {}
    for row in timings:
        if not row.get("samples"):
            continue
        for l2 in ("warm", "cold") if row["l2"] == "exceeded" else (row["l2"],):
            key = (row["operator"], row["variant"], row["direction"], row["graphed"], l2)
            ours, softmax = found.setdefault(key, ({}, {}))
            name = str(row["implementation"])
            if name == OURS:
                ours[row["tokens"]] = row["samples"]
            elif name.startswith(SOFTMAX):
                softmax.setdefault(name.removeprefix(SOFTMAX), {})[row["tokens"]] = row["samples"]
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1], DIRECTIONS.index(item[0][2]), item[0])))
