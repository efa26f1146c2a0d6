"""The crossover figure of README: a file of its own, drawn from the newest record of every operator.

The rows that it shows are in it as JSON, so that a test can say whether it is that of the committed records.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from html import escape, unescape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattest.verify.bench.charts import PALETTE, name_of, thousand
from linattest.verify.crossover import DIRECTIONS
from linattest.verify.report.figures import SETTINGS

Row = Mapping[str, Any]

MARKS = dict(zip(DIRECTIONS, zip(PALETTE, ("o", "s", "^"), strict=False), strict=False))
"""Colour and marker of a direction."""

INK = "#1b1f24"

TOLD = ("operator", "variant", "direction", "graphed", "tokens", "low", "high", "at_most", "longest", "commit")
"""What of a row the file holds."""


def shown(crossed: Sequence[Row], uncrossed: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows that the figure shows: inputs in the L2 cache, one GPU and dtype, that of most rows."""
    rows = [row for row in [*crossed, *uncrossed] if row["l2"] == "warm"]
    settings = [(row["gpu"], row["dtype"], row["B"], row["H"], row["D"]) for row in rows]
    if not rows:
        return []
    most = max(sorted(set(settings)), key=settings.count)
    kept = [row for row, setting in zip(rows, settings, strict=True) if setting == most]
    return [{name: row[name] for name in TOLD if name in row} | {"gpu": most[0], "dtype": most[1]} for row in kept]


def picture(rows: Sequence[Row]) -> str:
    """An SVG document.

    Args:
        rows: of ``shown``, at least one.
    """
    names = sorted({name_of((row["operator"], row["variant"])) for row in rows}, reverse=True)
    ink: dict[Any, Any] = {
        name: INK for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    }
    with matplotlib.rc_context({**SETTINGS, **ink, "svg.hashsalt": "crossover"}):
        height = 1.6 + 0.34 * len(names)
        figure = Figure(figsize=(7.6, height), facecolor="white")
        axes: Axes = figure.add_axes((0.25, 0.62 / height, 0.72, 1 - 1.22 / height))
        for row in rows:
            _mark(axes, row, names.index(name_of((row["operator"], row["variant"]))))
        _axes(axes, rows, names)
        drawing = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(drawing, format="svg", metadata=nothing)
    svg = drawing.getvalue()
    about = json.dumps(list(rows), allow_nan=False, sort_keys=True)
    title = "<title>Tokens from which on an operator is faster than softmax attention</title>"
    return re.sub(r"(<svg[^>]*>)", lambda m: f"{m[1]}{title}<desc>{escape(about)}</desc>", svg, count=1)


def rows_in(svg: str) -> list[dict[str, Any]]:
    """The rows that a file holds. Raises ``ValueError`` where it holds none."""
    found = re.search(r"<desc>(.*?)</desc>", svg, re.DOTALL)
    if found is None:
        raise ValueError("no <desc> with the rows of a crossover figure")
    return json.loads(unescape(found[1]))


def _mark(axes: Axes, row: Row, place: int) -> None:
    """A marker with its interval: filled for graphs, hollow for plain calls; "<" is at most, a cross slower still."""
    colour, marker = MARKS[row["direction"]]
    y = place + 0.2 - 0.2 * DIRECTIONS.index(row["direction"])
    face = colour if row["graphed"] else "white"
    if "tokens" not in row:
        axes.plot([row["longest"]], [y], marker="x", color=colour, markersize=6, linestyle="")
        return
    axes.plot([row["low"], row["high"] or 2 * row["tokens"]], [y, y], color=colour, linewidth=2.5, alpha=0.45)
    marker = "<" if row["at_most"] else marker
    axes.plot([row["tokens"]], [y], marker=marker, color=colour, markerfacecolor=face, markersize=6, linestyle="")


def _axes(axes: Axes, rows: Sequence[Row], names: Sequence[str]) -> None:
    ends = [row.get("tokens", row.get("longest")) for row in rows]
    ticks = [2**n for n in range(9, 20) if min(ends) / 2 < 2**n < 2 * max(ends)]
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlabel="tokens", ylim=(-0.6, len(names) - 0.4))
    axes.set_xticks(ticks, [thousand(n) for n in ticks])
    axes.minorticks_off()
    axes.grid(color=INK, alpha=0.15, linewidth=0.6)
    for direction, (colour, marker) in MARKS.items():
        axes.plot([], [], marker=marker, color=colour, linestyle="", label=direction)
    axes.plot([], [], marker="o", color=INK, markerfacecolor="white", linestyle="", label="launches included")
    axes.plot([], [], marker="<", color=INK, linestyle="", label="at most")
    axes.plot([], [], marker="x", color=INK, linestyle="", label="slower still")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=6, frameon=False, fontsize=8, handletextpad=0.2,
                columnspacing=1.2)  # fmt: skip
    gpu, dtype = rows[0]["gpu"], rows[0]["dtype"]
    axes.annotate(f"{gpu}, {dtype}", (1, 0), xycoords="axes fraction", xytext=(0, -32), textcoords="offset points",
                  ha="right", fontsize=8)  # fmt: skip
