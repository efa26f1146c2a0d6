"""The drawings of the ledger's figures, each with the words and the tables that say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattest.verify.claims.record import Columns
from linattest.verify.claims.record import Figure as Data
from linattest.verify.report.figures import COLOURS, INK, SETTINGS, inline

BLUE, RED, GREEN = COLOURS["float64"], COLOURS["float32"], COLOURS["bfloat16"]
Tables = dict[str, Columns]


@dataclass(frozen=True)
class Table:
    """Numbers of a figure, as text."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """How a figure is drawn: its title, its axes, the marks in the legend, the words, the tables."""

    title: str
    draw: Callable[[Axes, Tables], None]
    legend: Sequence[tuple[Markup, str]]
    says: Callable[[Tables], str]
    tables: Callable[[Tables], list[Table]]


def chart(data: Data) -> dict[str, Any]:
    """What the template needs of a figure. One of an unknown name has its tables alone."""
    made = CHARTS.get(data.name)
    if made is None:
        plain = [_table(name, columns, dict.fromkeys(columns, "")) for name, columns in data.tables.items()]
        return {"title": data.name, "svg": "", "legend": [], "says": "", "tables": plain}
    says = made.says(data.tables)
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": data.name}):
        figure = Figure(figsize=(4.0, 2.9))
        axes = figure.add_axes((0.15, 0.18, 0.82, 0.77))
        made.draw(axes, data.tables)
        axes.grid(color=INK, alpha=0.15, linewidth=0.6)
        svg = inline(figure, f"figure-{data.name}", f"{made.title}. {says}")
    return {"title": made.title, "svg": svg, "legend": made.legend, "says": says, "tables": made.tables(data.tables)}


# --- marks -------------------------------------------------------------------------------------------------------


def _line(colour: str, dashes: str = "") -> Markup:
    pattern = f' stroke-dasharray="{dashes}"' if dashes else ""
    return Markup(
        f'<svg width="26" height="12" aria-hidden="true"><line x1="0" y1="6" x2="26" y2="6" stroke="{colour}" '
        f'stroke-width="2"{pattern}/></svg>'
    )


def _mark(shape: str, colour: str) -> Markup:
    inside = {
        "o": f'<circle cx="7" cy="6" r="4" fill="{colour}"/>',
        "s": f'<rect x="3" y="2" width="8" height="8" fill="{colour}"/>',
        "^": f'<path d="M7 1 L12 11 H2 Z" fill="{colour}"/>',
        "x": f'<path d="M3 2 L11 10 M11 2 L3 10" stroke="{colour}" stroke-width="2"/>',
    }
    return Markup(f'<svg width="14" height="12" aria-hidden="true">{inside[shape]}</svg>')


def _area(colour: str, opacity: float) -> Markup:
    return Markup(
        f'<svg width="22" height="14" aria-hidden="true"><rect width="22" height="14" fill="{colour}" '
        f'fill-opacity="{opacity}"/></svg>'
    )


# --- numbers -----------------------------------------------------------------------------------------------------


def _table(caption: str, columns: Columns, heads: dict[str, str], every: int = 1) -> Table:
    """These columns, every so many rows, under their heads (an empty head: the column's name)."""
    rows = list(zip(*(columns[name] for name in heads), strict=True))[::every]
    return Table(caption, [head or name for name, head in heads.items()], [[_text(x) for x in row] for row in rows])


def _text(x: float | None) -> str:
    return "" if x is None else f"{x:,.0f}" if x == round(x) and abs(x) >= 10 else f"{x:.4g}"


def _known(columns: Columns, *names: str) -> list[tuple[float, ...]]:
    """The rows of these columns in which nothing is missing."""
    rows = zip(*(columns[name] for name in names), strict=True)
    return [tuple(x for x in row if x is not None) for row in rows if None not in row]


# --- sigma(c) ----------------------------------------------------------------------------------------------------


def _sigma(c: float) -> float:
    return (1 + math.sqrt(5 - 4 * c)) / 2


def _draw_sigma(axes: Axes, t: Tables) -> None:
    axes.axhline(1, color=INK, linestyle=":", linewidth=1.2)
    axes.plot(*zip(*_known(t["curve"], "c", "sigma"), strict=True), color=INK, linewidth=1.4)
    axes.plot(
        *zip(*_known(t["random"], "c", "norm"), strict=True), color=BLUE, marker="o", markersize=3.5, linestyle=""
    )
    axes.plot(
        *zip(*_known(t["searched"], "c", "norm"), strict=True), color=RED, marker="x", markersize=4.5, linestyle=""
    )
    axes.set(xlabel="c = a . k", ylabel="spectral norm", xlim=(-0.02, 1.02), ylim=(0.95, 1.68))


def _sigma_says(t: Tables) -> str:
    largest = {name: max(_known(t[name], "norm", "c")) for name in ("random", "searched")}
    off = max(abs(norm - _sigma(c)) for name in largest for norm, c in _known(t[name], "norm", "c"))
    return (
        f"Measured norms are within {off:.1e} of (1 + sqrt(5 - 4c))/2, which is 1 at c = 1 alone: at most "
        f"{largest['random'][0]:.3f} on random inputs, {largest['searched'][0]:.3f} on searched ones."
    )


def _sigma_tables(t: Tables) -> list[Table]:
    """The points by tenths of c: hundreds of them tell no more."""
    rows: list[list[str]] = []
    for tenth in range(10):
        cells: list[str] = []
        for name in ("random", "searched"):
            inside = [x for c, x in _known(t[name], "c", "norm") if tenth == min(int(10 * c), 9)]
            cells += [str(len(inside)), _text(max(inside, default=None))]
        rows.append([f"{tenth / 10:g} to {(tenth + 1) / 10:g}", _text(_sigma(tenth / 10)), *cells])
    heads = ("c", "sigma at its lower end", "random inputs", "their largest norm", "searched", "their largest norm")
    return [Table("Norms of one-token Jacobians by their cosine", heads, rows)]


# --- state norms -------------------------------------------------------------------------------------------------


def _draw_norms(axes: Axes, t: Tables) -> None:
    columns = t["norms"]
    axes.plot(*zip(*_known(columns, "T", "linear"), strict=True), color=INK, linestyle="--", linewidth=1.4)
    for name, colour, marker in (("searched", RED, "o"), ("random", BLUE, "s")):
        axes.plot(*zip(*_known(columns, "T", name), strict=True), color=colour, marker=marker, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="T", ylabel="|S| at T")
    axes.minorticks_off()


def _norms_say(t: Tables) -> str:
    columns = t["norms"]
    searched, random = _known(columns, "T", "searched"), _known(columns, "T", "random")
    (T, worst), (longest, typical) = searched[-1], random[-1]
    return (
        f"Bounded inputs that a search found reach {worst:,.0f} at T = {T:,.0f}, beyond the {T:,.0f} that linear "
        f"attention reaches at most; random ones stay near {typical:.2g} up to T = {longest:,.0f}."
    )


def _norm_tables(t: Tables) -> list[Table]:
    heads = {"T": "T", "searched": "searched", "random": "random, mean", "linear": "linear attention, at most"}
    return [_table("|S_T|_F at width 4", t["norms"], heads)]


# --- contraction -------------------------------------------------------------------------------------------------

KINDS = (
    ("o", BLUE, "measured: shrinks", lambda factor: factor >= 0),
    ("^", GREEN, "measured: turns round", lambda factor: -1 <= factor < 0),
    ("x", RED, "measured: grows", lambda factor: factor < -1),
)
AREAS = ((BLUE, 0.2, "shrinks"), (GREEN, 0.25, "shrinks and turns round"), (RED, 0.2, "grows"))


def _draw_contraction(axes: Axes, t: Tables) -> None:
    points = _known(t["measured"], "lam", "sigma", "factor")
    top = math.ceil(max(sigma for _, sigma, _ in points) + 1)
    bounds = _known(t["bounds"], "lam", "turns_from", "shrinks_up_to")
    lam = [0.0, *(row[0] for row in bounds)]
    turns, grows = ([float(top), *(min(row[i], top) for row in bounds)] for i in (1, 2))
    edges = ([0.0] * len(lam), turns, grows, [float(top)] * len(lam))
    for (colour, opacity, _), low, high in zip(AREAS, edges, edges[1:], strict=False):
        axes.fill_between(lam, low, high, color=colour, alpha=opacity, linewidth=0)
    axes.plot(lam, grows, color=INK, linewidth=1.4)
    for marker, colour, _, belongs in KINDS:
        mine = [(x, y) for x, y, factor in points if belongs(factor)]
        if mine:
            axes.plot(*zip(*mine, strict=True), color=colour, marker=marker, markersize=5, linestyle="")
    axes.set(xlabel="lam", ylabel="largest eigenvalue of Sigma", xlim=(0, 1), ylim=(0, top))


def _contraction_says(t: Tables) -> str:
    factors = [factor for factor, _ in _known(t["measured"], "factor", "lam")]
    grew, turned = sum(x < -1 for x in factors), sum(-1 <= x < 0 for x in factors)
    return (
        f"The line is lam sigma = 2: beyond it a query grows. Of {len(factors)} random streams {grew} made theirs "
        f"grow, {turned} turned it round, and every point lies on its side."
        if all((x < -1) == (lam * sigma > 2) for lam, sigma, x in _known(t["measured"], "lam", "sigma", "factor"))
        else f"The line is lam sigma = 2; of {len(factors)} random streams some lie on the wrong side of it."
    )


def _contraction_tables(t: Tables) -> list[Table]:
    bounds = {"lam": "lam", "turns_from": "turns round from sigma =", "shrinks_up_to": "grows from sigma ="}
    measured = {"lam": "lam", "sigma": "largest eigenvalue", "factor": "factor of the query"}
    return [
        _table("Bounds on the largest eigenvalue of Sigma", t["bounds"], bounds, every=4),
        _table("Random streams", t["measured"], measured),
    ]


CHARTS = {
    "sigma": Chart(
        "Spectral norm of VLA's one-token Jacobian",
        _draw_sigma,
        (
            (_line("currentColor"), "sigma(c)"), (_line("currentColor", "2 3"), "1, as proposition 2 says"),
            (_mark("o", BLUE), "random inputs"), (_mark("x", RED), "searched inputs"),
        ),
        _sigma_says,
        _sigma_tables,
    ),
    "state-norms": Chart(
        "VLA's memory: worst case against typical case",
        _draw_norms,
        (
            (_mark("o", RED), "searched: the largest found"), (_mark("s", BLUE), "random inputs, mean"),
            (_line("currentColor", "6 3"), "linear attention's T"),
        ),
        _norms_say,
        _norm_tables,
    ),
    "contraction": Chart(
        "Where CCQ's contraction contracts",
        _draw_contraction,
        (
            *((_area(colour, opacity), text) for colour, opacity, text in AREAS),
            *((_mark(marker, colour), text) for marker, colour, text, _ in KINDS),
        ),
        _contraction_says,
        _contraction_tables,
    ),
}  # fmt: skip
"""By the figure's name."""
