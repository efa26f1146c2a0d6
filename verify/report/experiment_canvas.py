"""How the figures of experiments are drawn: heading, legend, panels in columns, notes, each as high as it needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from linattest.verify.bench.charts import PALETTE
from linattest.verify.experiments.figures import QUICK
from linattest.verify.experiments.plotted import Figure, Line, Map, Panel
from linattest.verify.report.figures import STYLES

PLUS, MINUS = PALETTE[0], PALETTE[1]
"""Cells of a map: a weight above zero, and one below (whose sign stands in the cell too)."""

DEEPEST = 0.6
"""Opacity of a map's largest weight: ink is read on it, dark on a light page and light on a dark one."""

TITLE, NOTE, LEGEND = 11, 8.5, 9
"""Sizes of type."""

PANEL, CELL, ROW, LETTER = 2.4, 0.24, 0.3, 0.085
"""Inches: the height of a curve, of a level and of a row; the width of a letter in a legend."""

UNEVEN, STEEP = 2.0, 30.0
"""An axis is logarithmic where its widest gap is so many times the narrowest, or its largest value the least."""


@dataclass(frozen=True)
class Layout:
    """Inches across, panels side by side at most, and lines of text above and below."""

    width: float
    columns: int
    heading: Sequence[str] = ()
    notes: Sequence[str] = ()


def canvas(figure: Figure, layout: Layout, ink: str) -> Canvas:
    """The whole figure, under ``SETTINGS``."""
    panels = [panel for panel in figure.panels if panel.lines or panel.map]
    names = figure.names if figure.form == "curve" else []
    beside = _beside(names, layout.width)
    columns = min(layout.columns, len(panels))
    inside = _height(figure, panels)
    above = 0.32 if any(panel.title for panel in panels) else 0.12
    one = above + inside + 0.55  # an axis has its numbers and its name below
    heading = 0.24 * len(layout.heading) + 0.1 * bool(layout.heading)
    top = heading + (0.2 * math.ceil(len(names) / beside) + 0.1 if names else 0.0)
    height = top + one * math.ceil(len(panels) / columns) + 0.19 * len(layout.notes) + 0.05
    made = Canvas(figsize=(layout.width, height), facecolor="white")
    left, wide = _left(figure, panels), (layout.width - 0.25) / columns
    for n, panel in enumerate(panels):
        x, y = n % columns * wide + left, height - top - n // columns * one - above - inside
        box = (x / layout.width, y / height, (wide - left) / layout.width, inside / height)
        axes: Axes = made.add_axes(box)
        _fill(axes, figure, panel, ink)
        axes.set_title(panel.title, fontsize=10, loc="left")
    _words(made, layout, height)
    if names:
        made.legend(
            [_handle(figure.place(name)) for name in names], names, loc="upper left", ncols=beside, frameon=False,
            bbox_to_anchor=(0.0, 1 - heading / height), fontsize=LEGEND, handlelength=2.6, columnspacing=1.2,
        )  # fmt: skip
    if QUICK in figure.notes:
        made.text(0.5, 0.5, QUICK, fontsize=4 * layout.width, alpha=0.3, rotation=15, ha="center", va="center")
    return made


def _words(made: Canvas, layout: Layout, height: float) -> None:
    for n, line in enumerate(layout.heading):
        made.text(0.1 / layout.width, 1 - (0.22 + 0.24 * n) / height, line, fontsize=TITLE, fontweight="bold")
    for n, line in enumerate(reversed(layout.notes)):
        made.text(0.1 / layout.width, (0.1 + 0.19 * n) / height, line, fontsize=NOTE)


def _beside(names: Sequence[str], width: float) -> int:
    """Names on a line of the legend."""
    longest = max(map(len, names), default=0)
    return max(1, min(len(names), int(width / (0.65 + LETTER * longest))))


def _height(figure: Figure, panels: Sequence[Panel]) -> float:
    """Inches from the top of a panel's axes to their bottom."""
    if figure.form == "map":
        return CELL * max(len(panel.map.values) for panel in panels if panel.map)
    return ROW * max(len(panel.lines) for panel in panels) if figure.form == "rows" else PANEL


def _left(figure: Figure, panels: Sequence[Panel]) -> float:
    """Inches for what stands left of the axes."""
    if figure.form == "rows":
        return 0.2 + 0.09 * max(len(line.name) for panel in panels for line in panel.lines)
    return 0.62 if figure.form == "map" else 0.8


# --- one panel ---------------------------------------------------------------------------------------------------


def _fill(axes: Axes, figure: Figure, panel: Panel, ink: str) -> None:
    if panel.map is not None:
        _map(axes, panel.map)
    elif figure.form == "rows":
        _rows(axes, figure, panel.lines)
        axes.grid(color=ink, alpha=0.15, linewidth=0.6, axis="x")
    else:
        for line in panel.lines:
            _curve(axes, figure, line, figure.place(line.name))
        _scales(axes, figure, panel.lines)
        axes.grid(color=ink, alpha=0.15, linewidth=0.6)
    axes.set_xlabel(figure.y if figure.form == "rows" else figure.x)
    axes.set_ylabel("" if figure.form == "rows" else figure.y)


def style(place: int) -> tuple[str, str, Any]:
    """Colour, marker and dashes of a line among all: no two (of thirty) differ in colour alone."""
    marker, dashes = STYLES[place % len(STYLES)]
    return PALETTE[place % len(PALETTE)], marker, dashes


def _handle(place: int) -> Line2D:
    colour, marker, dashes = style(place)
    return Line2D([], [], color=colour, marker=marker, linestyle=dashes, markersize=5, linewidth=1.6)


def _curve(axes: Axes, figure: Figure, line: Line, place: int) -> None:
    """A band of seeds, bars of intervals, the line, and the paper's figures as hollow marks."""
    colour, marker, dashes = style(place)
    xs, ys = [dot.x for dot in line.dots], [dot.y for dot in line.dots]
    least, most = [dot.least for dot in line.dots], [dot.most for dot in line.dots]
    axes.fill_between(xs, least, most, color=colour, alpha=0.18, linewidth=0)
    for dot in line.dots if figure.bars else ():
        axes.plot([dot.x, dot.x], [dot.low, dot.high], color=colour, linewidth=1.2, solid_capstyle="butt")
    often = max(1, len(xs) // 12)  # a marker at every evaluation of a training hides the line
    axes.plot(xs, ys, color=colour, marker=marker, linestyle=dashes, markersize=5, linewidth=1.6, markevery=often)
    for x, y in line.paper:
        axes.plot([x], [y], color=colour, marker=marker, fillstyle="none", markersize=9, markeredgewidth=1.4, zorder=4)


def _scales(axes: Axes, figure: Figure, lines: Sequence[Line]) -> None:
    xs = sorted({dot.x for line in lines for dot in line.dots})
    if figure.bars:  # few, and each of them was chosen: they are the ticks
        gaps = [b - a for a, b in itertools.pairwise(xs)]
        if xs[0] > 0 and max(gaps, default=0.0) >= UNEVEN * min(gaps, default=1.0):
            axes.set_xscale("log")
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.minorticks_off()
    if figure.share:
        axes.set_ylim(-0.04, 1.04)
        return
    ends = [y for line in lines for dot in line.dots for y in (dot.low, dot.high, dot.least, dot.most)]
    if min(ends) > 0 and max(ends) >= STEEP * min(ends):
        axes.set_yscale("log")
    axes.minorticks_off()


def _rows(axes: Axes, figure: Figure, lines: Sequence[Line]) -> None:
    """A row a line, the first on top: seeds as a wide bar, the interval as a thin one, the paper's figure hollow."""
    for place, line in enumerate(reversed(lines)):
        dot = line.dots[0]
        axes.plot([dot.least, dot.most], [place] * 2, color=PLUS, linewidth=7, alpha=0.25, solid_capstyle="butt")
        axes.plot([dot.low, dot.high], [place] * 2, color=PLUS, linewidth=1.6)
        axes.plot([dot.y], [place], color=PLUS, marker="o", markersize=6)
        for _, y in line.paper:
            axes.plot([y], [place], color=MINUS, marker="D", fillstyle="none", markersize=8, markeredgewidth=1.4)
    axes.set_yticks(range(len(lines)), [line.name for line in reversed(lines)])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    if figure.share:
        axes.set_xlim(-0.04, 1.04)


def _map(axes: Axes, shown: Map) -> None:
    """A cell a level and role, level 0 on top: its number, and a shade of the map's largest."""
    largest = max((abs(x) for row in shown.values for x in row if x is not None), default=0.0) or 1.0
    for level, row in enumerate(shown.values):
        for role, x in enumerate(row):
            if x is None:
                continue
            shade = DEEPEST * min(1.0, abs(x) / largest)
            box = Rectangle((role - 0.5, level - 0.5), 1, 1, color=MINUS if x < 0 else PLUS, alpha=shade, linewidth=0)
            axes.add_patch(box)
            axes.text(role, level, cell(x), ha="center", va="center_baseline", fontsize=NOTE)
    axes.set_xlim(-0.5, len(shown.roles) - 0.5)
    axes.set_ylim(len(shown.values) - 0.5, -0.5)
    axes.set_xticks(range(len(shown.roles)), shown.roles, fontsize=LEGEND)
    axes.set_yticks(range(len(shown.values)), [str(n) for n in range(len(shown.values))], fontsize=LEGEND)
    axes.tick_params(length=0)


def cell(x: float | None) -> str:
    """A weight as a map has it."""
    return "" if x is None else f"{x:.2f}" if abs(x) < 100 else f"{x:.0f}"
