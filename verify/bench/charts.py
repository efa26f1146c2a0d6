"""What the charts of the dashboard are made of: marks, axes, and a figure as its template takes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattest.verify.bench.history import Place
from linattest.verify.report.figures import INK, SETTINGS, inline

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D")
"""Workloads in the other charts: a colour and a marker each; the palette of Okabe and Ito."""

PAGE = "currentColor"
"""The page's ink, in legends."""

SHAPES = {
    "o": '<circle cx="13" cy="6" r="4" fill="{c}"/>', "s": '<rect x="9" y="2" width="8" height="8" fill="{c}"/>',
    "^": '<path d="M13 1 L18 11 H8 Z" fill="{c}"/>', "D": '<path d="M13 1 L18 6 L13 11 L8 6 Z" fill="{c}"/>',
    "v": '<path d="M13 11 L18 1 H8 Z" fill="white" stroke="{c}"/>',
    "x": '<path d="M9 2 L17 10 M17 2 L9 10" stroke="{c}" stroke-width="2"/>', "": "",
}  # fmt: skip

Workload = tuple[str, str]
Chart = dict[str, Any]


def name_of(workload: Workload) -> str:
    """As parameters and tables name it."""
    return "-".join(filter(None, workload))


def style(workloads: Sequence[Workload], workload: Workload) -> tuple[str, str]:
    """Colour and marker of a workload among all."""
    place = list(workloads).index(workload)
    return PALETTE[place % len(PALETTE)], MARKERS[place // len(PALETTE) % len(MARKERS)]


def mark(colour: str, shape: str = "", dashes: str | None = None) -> Markup:
    """One entry of a legend: a line (``dashes`` "" for a whole one) with a marker."""
    line = "" if dashes is None else f'<line x1="0" y1="6" x2="26" y2="6" stroke="{colour}" stroke-width="2" '
    line += "" if dashes is None else f'stroke-dasharray="{dashes or "none"}"/>'
    shapes = SHAPES[shape].format(c=colour)
    return Markup(f'<svg width="26" height="12" aria-hidden="true">{line}{shapes}</svg>')


def chart(
    name: str, title: str, draw: Callable[[Axes], None], says: str, legend: Sequence[tuple[Markup, str]],
    heads: Sequence[str], rows: Sequence[Sequence[str]],
) -> Chart:  # fmt: skip
    """A figure as the template takes it."""
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=(4.4, 3.1))
        axes: Axes = figure.add_axes((0.17, 0.2, 0.8, 0.75))
        draw(axes)
        axes.minorticks_off()
        axes.grid(color=INK, alpha=0.15, linewidth=0.6)
        svg = inline(figure, f"chart-{name}", f"{title}. {says}")
    return {"title": title, "svg": svg, "legend": list(legend), "says": says, "heads": heads, "rows": rows}


def commits_axis(axes: Axes, places: Sequence[Place]) -> None:
    """Short names of at most a dozen commits, slanted."""
    every = math.ceil(len(places) / 12)
    shown = range(len(places) - 1, -1, -every)
    axes.set_xticks(list(shown), [places[i].label for i in shown], rotation=30, ha="right", fontsize=8)
    axes.set_xlim(-0.5, len(places) - 0.5)


def around(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from below the smallest to above the largest."""
    ticks = [m * 10.0**n for n in range(-5, 7) for m in (1, 2, 5)]
    low = max((x for x in ticks if x <= min(values)), default=ticks[0])
    high = min((x for x in ticks if x >= max(values)), default=ticks[-1])
    return [x for x in ticks if low <= x <= high]


def thousand(n: int) -> str:
    """2048 as 2K."""
    return f"{n // 1024}K" if n >= 1024 else str(n)
