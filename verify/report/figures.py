"""The drawings of the page: drift as a small chart an operator, in colours that follow the page's."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattest.verify.drift import Row
from linattest.verify.spec import DTYPES

INK = "#010203"
"""Stands for the colour of the text around the figure, which the page knows and the figure does not."""

COLOURS = {"float64": "#0072b2", "float32": "#d55e00", "bfloat16": "#009e73", "float16": "#cc79a7"}
"""By dtype; the palette of Okabe and Ito, told apart under every common colour blindness."""

STYLES = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."), ("v", (0, (5, 1, 1, 1, 1, 1))))
"""Marker and line of an operator's variants, in their order."""

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip

LEAST = 0.05
"""Errors are drawn from here: none at all has no place on a logarithmic axis."""


def drift_figure(operator: str, rows: Sequence[Row], most: float) -> Markup:
    """One operator's error against the length, as an SVG element; ``most`` is the top of the axis."""
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": operator}):
        figure = Figure(figsize=(4.0, 2.9))
        axes: Axes = figure.add_axes((0.17, 0.18, 0.8, 0.77))
        variants = list(dict.fromkeys(row.variant for row in rows))
        for place, variant in enumerate(variants):
            marker, line = STYLES[place % len(STYLES)]
            for dtype in dict.fromkeys(row.dtype for row in rows if row.variant == variant):
                points = [(r.tokens, r.error) for r in rows if (r.variant, r.dtype) == (variant, dtype)]
                ys = [math.nan if y is None else max(y, LEAST) for _, y in points]
                colour, lost = COLOURS.get(dtype, INK), [x for x, y in points if y is None]
                axes.plot(
                    [x for x, _ in points], ys, color=colour, marker=marker, linestyle=line, markersize=5, linewidth=1.6
                )
                axes.plot(lost, [most] * len(lost), color=colour, marker="x", linestyle="", clip_on=False)
        axes.set(xscale="log", yscale="log", xlabel="T", ylabel="roundoffs", ylim=(LEAST, most))
        axes.minorticks_off()  # with them a figure takes three times as long
        axes.grid(color=INK, alpha=0.15, linewidth=0.6)
        return inline(figure, f"drift-{operator}", describe(operator, rows))


def top(rows: Sequence[Row]) -> float:
    """The top of every figure's axis: a power of ten above the largest error."""
    largest = max((row.error for row in rows if row.error is not None), default=1.0)
    return max(10.0, 10.0 ** math.ceil(math.log10(max(largest, 1.0)) + 0.05))


def describe(operator: str, rows: Sequence[Row]) -> str:
    """The figure in words, for those who do not see it."""
    longest = max(row.tokens for row in rows)
    ends = (
        f"{row.variant} {row.dtype} {'not finite' if row.error is None else f'{row.error:.2g}'}"
        for row in sorted(rows, key=lambda r: DTYPES.index(r.dtype) if r.dtype in DTYPES else len(DTYPES))
        if row.tokens == longest
    )
    return f"{operator}: error in roundoffs at T = {longest:,}: {', '.join(ends)}"


def inline(figure: Figure, name: str, description: str) -> Markup:
    """A drawing as an SVG element (under ``SETTINGS``): ids of its own, the page's ink, a title."""
    drawing = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(drawing, format="svg", transparent=True, metadata=nothing)
    svg = drawing.getvalue()
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{re.escape(name)}-", body).replace(INK, "currentColor")
    title = f'<title id="{escape(name)}">{escape(description)}</title>'
    head, _, rest = body.partition(">")
    return Markup(f'{head} role="img" aria-labelledby="{escape(name)}">{title}{rest}')
