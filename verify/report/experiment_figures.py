"""The figures of experiments: a file of its own for README, or an element of the page; in words and in numbers too."""

from __future__ import annotations

import io
import re
import textwrap
from html import escape
from typing import Any

import matplotlib
from markupsafe import Markup

from linattest.verify.experiments.plotted import Dot, Figure, Line, Panel
from linattest.verify.report.experiment_canvas import NOTE, TITLE, Layout, canvas, cell
from linattest.verify.report.figures import INK, SETTINGS, inline
from linattest.verify.report.ledger_figures import Table

PRINTED = "#1b1f24"
"""Ink of a file, on white, as it is on a light page and on a dark one."""

WIDTH, NARROW = 7.4, 4.6
"""Inches: a file, an element of the page."""

LETTERS = {TITLE: 10.5, NOTE: 16.0}
"""Letters to an inch, by size of type: fewer than there are, so that no line is cut."""


def picture(figure: Figure, about: str) -> str:
    """An SVG document: what the experiment is about above, notes below, the numbers in its description."""
    heading = textwrap.wrap(f"{about}: {figure.title}", int(WIDTH * LETTERS[TITLE]))
    notes = [line for note in footnotes(figure) for line in textwrap.wrap(note, int(WIDTH * LETTERS[NOTE]))]
    layout = Layout(WIDTH, 3 if figure.form == "map" else 2, heading, notes)
    ink: dict[Any, Any] = {key: PRINTED for key, value in SETTINGS.items() if value == INK}
    with matplotlib.rc_context({**SETTINGS, **ink, "svg.hashsalt": figure.name}):
        drawing = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas(figure, layout, PRINTED).savefig(drawing, format="svg", metadata=nothing)
    named = f"<title>{escape(' '.join(heading))}</title><desc>{escape(describe(figure))}</desc>"
    return re.sub(r"<svg([^>]*)>", lambda m: f'<svg{m[1]} role="img">{named}', drawing.getvalue(), count=1)


def element(figure: Figure, name: str) -> Markup:
    """An SVG element for the page, narrow and in the page's ink; ``name`` is no other's there."""
    layout = Layout(NARROW, 2 if figure.form == "map" else 1)
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        return inline(canvas(figure, layout, INK), name, describe(figure))


# --- words -------------------------------------------------------------------------------------------------------


def footnotes(figure: Figure) -> list[str]:
    """What bars, bands and hollow marks are; then what has to be said of this figure."""
    if figure.form == "map":
        return ["mean over seeds, rows, heads and layers; shades are of each map's largest weight", *figure.notes]
    interval = "Wilson interval over the answers of all seeds" if figure.share else "t-interval of the mean"
    marks = [f"bars: 95 % {interval}"] if figure.bars else []
    marks.append(f"{'wide bars' if figure.form == 'rows' else 'bands'}: least to most of the seeds")
    if any(line.paper for panel in figure.panels for line in panel.lines):
        marks.append("hollow: the paper's figure")
    return ["; ".join(marks), *figure.notes]


def describe(figure: Figure) -> str:
    """The figure in words: every number of it, and of curves over steps their ends."""
    panels = [f"{panel.title + ': ' if panel.title else ''}{_said(figure, panel)}." for panel in figure.panels]
    notes = [f"{note[0].upper()}{note[1:]}." for note in footnotes(figure)]
    return " ".join([f"{figure.title}.", *panels, *notes])


def _said(figure: Figure, panel: Panel) -> str:
    if panel.map is None:
        return "; ".join(f"{line.name} {_numbers(figure, line)}" for line in panel.lines)
    rows = [f"level {n} {', '.join(cell(x) or 'none' for x in row)}" for n, row in enumerate(panel.map.values)]
    return f"by {', '.join(panel.map.roles)}: {'; '.join(rows)}"


def _numbers(figure: Figure, line: Line) -> str:
    """The dots of a line, and what the paper says there."""
    said: list[str] = []
    for dot in line.dots if figure.bars else line.dots[-1:]:
        at = "" if figure.form == "rows" else f"at {dot.x:g} "
        said.append(f"{at}{text_of(dot)}{''.join(f', the paper {y:g}' for x, y in line.paper if x == dot.x)}")
    return ", ".join(said)


def text_of(dot: Dot) -> str:
    """A dot as tables have it: its value and its interval."""
    return f"{dot.y:.4g} ({dot.low:.4g} to {dot.high:.4g})"


def tables(figure: Figure) -> list[Table]:
    """The numbers, a table a panel: a column a line, or a row where each line is one dot."""
    return [_map_table(figure, x) if x.map else _line_table(figure, x) for x in figure.panels if x.map or x.lines]


def _map_table(figure: Figure, panel: Panel) -> Table:
    assert panel.map is not None
    rows = [[str(n), *map(cell, row)] for n, row in enumerate(panel.map.values)]
    return Table(panel.title or figure.title, [figure.y, *panel.map.roles], rows)


def _line_table(figure: Figure, panel: Panel) -> Table:
    caption = panel.title or figure.title
    if figure.form == "rows":
        return Table(
            caption,
            ["", figure.y, "the paper"],
            [[x.name, text_of(x.dots[0]), ", ".join(f"{y:g}" for _, y in x.paper)] for x in panel.lines],
        )
    by = {line.name: {dot.x: text_of(dot) for dot in line.dots} for line in panel.lines}
    xs = sorted({x for dots in by.values() for x in dots})
    return Table(caption, [figure.x, *by], [[f"{x:g}", *(dots.get(x, "") for dots in by.values())] for x in xs])
