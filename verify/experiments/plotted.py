"""What a figure of an experiment is, as data: lines of dots with their intervals, or maps, in panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from linattest.verify.claims.verdicts import interval
from linattest.verify.experiments.judging import counts, nats, wilson
from linattest.verify.experiments.running import Outcome


@dataclass(frozen=True)
class Dot:
    """``y`` at ``x``; ``low`` to ``high`` is its 95 % interval, ``least`` to ``most`` what single seeds reached."""

    x: float
    y: float
    low: float
    high: float
    least: float
    most: float


@dataclass(frozen=True)
class Line:
    """A model's dots, by ``x``; ``paper``: what the paper says, where a rule has it, as (x, y)."""

    name: str
    dots: Sequence[Dot]
    paper: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Map:
    """Mean weight by level and role: ``values`` [level][role], ``None`` for a role that no token has."""

    roles: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines, or a map. ``title`` says which of several it is."""

    title: str = ""
    lines: Sequence[Line] = ()
    map: Map | None = None


@dataclass(frozen=True)
class Figure:
    """``name`` tells a result's figures apart. ``form``: lines over x; a row a line, y to the right; or maps.

    ``share``: y is a share, from 0 to 1. ``bars``: dots have an interval of their own, beside the range of seeds.
    ``notes``: what has to be said below. ``order``: all lines that there could be, so that a model looks the same in
    all figures of a result, whichever are missing.
    """

    name: str
    title: str
    form: Literal["curve", "rows", "map"]
    x: str
    y: str
    panels: Sequence[Panel]
    share: bool = True
    bars: bool = True
    notes: Sequence[str] = ()
    order: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The lines that there are, in their order."""
        found = dict.fromkeys(line.name for panel in self.panels for line in panel.lines)
        return sorted(found, key=self.order.index) if self.order else list(found)

    def place(self, name: str) -> int:
        """The place of a line among all that there could be, by which it has its colour and its marker."""
        return list(self.order or self.names).index(name)


def dot(own: Sequence[Outcome], test: str, measure: str, x: float = 0.0) -> Dot:
    """The figure of these runs: "perplexity" as a mean over seeds, else as ``share``, which see for what is raised."""
    if measure == "perplexity":
        return mean([math.exp(nats(o, test)) for o in own], x)
    return share(own, test, measure, x)


def share(own: Sequence[Outcome], test: str, measure: str, x: float = 0.0) -> Dot:
    """Share of right answers ("accuracy") or rows ("exact") of these runs, with Wilson's interval over all of them.

    Raises ``ValueError`` if nothing was asked, ``KeyError`` if there was no such test.
    """
    found = [counts(o, test, measure) for o in own]
    y, low, high = wilson(sum(right for right, _ in found), sum(asked for _, asked in found))
    by_seed = [right / asked for right, asked in found]
    return Dot(x, y, low, high, min(by_seed), max(by_seed))


def mean(values: Sequence[float], x: float = 0.0) -> Dot:
    """Mean over seeds with its t-interval. Raises ``ValueError`` for no values."""
    y, low, high = interval(values)
    return Dot(x, y, low, high, min(values), max(values))
