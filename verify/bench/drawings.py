"""The charts of the dashboard, each with words and a table that say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from linattest.verify.bench.charts import (
    MARKERS,
    PAGE,
    PALETTE,
    Chart,
    Workload,
    around,
    chart,
    commits_axis,
    mark,
    name_of,
    style,
    thousand,
)
from linattest.verify.bench.history import Place, Setting, curve, floor, graphed
from linattest.verify.bench.sides import Side
from linattest.verify.crossover import OURS, SOFTMAX
from linattest.verify.report.figures import COLOURS, INK

COLOUR = {OURS: COLOURS["float64"], SOFTMAX: COLOURS["float32"], "fla:": COLOURS["bfloat16"]}
NAMES = {OURS: "linattest", SOFTMAX: "fastest softmax", "fla:": "flash-linear-attention"}
"""Implementations in the charts of latency."""

# --- crossover over commits ----------------------------------------------------------------------------------------


AT_MOST, SLOWER = (mark(PAGE, "v"), "at most"), (mark(PAGE, "x"), "slower still")


def crossover_chart(setting: Setting, direction: str, graph: bool) -> Chart | None:
    """Tokens over the commits, one line an operator with its interval; None without any."""
    at = {place.commit: i for i, place in enumerate(setting.places)}
    rows = [row for row in [*setting.crossed, *setting.uncrossed] if _shown(row, direction, graph)]
    if not rows:
        return None
    workloads, there = sorted(setting.newest), {(row["operator"], row["variant"]) for row in rows}

    def draw(axes: Axes) -> None:
        for workload in workloads:
            colour, marker = style(workloads, workload)
            points = [row for row in rows if (row["operator"], row["variant"]) == workload]
            yes, no = [r for r in points if "tokens" in r], [r for r in points if "tokens" not in r]
            axes.plot([at[r["commit"]] for r in yes], [r["tokens"] for r in yes], color=colour)
            for r in yes:  # what is faster at the shortest length already lies somewhere below
                shape, face = ("v", "white") if r["at_most"] else (marker, colour)
                axes.plot([at[r["commit"]]], [r["tokens"]], color=colour, marker=shape, markersize=5,
                          markerfacecolor=face)  # fmt: skip
                high = r["high"] or 2 * r["tokens"]
                axes.plot([at[r["commit"]]] * 2, [r["low"], high], color=colour, linewidth=3, alpha=0.4)
            axes.plot([at[r["commit"]] for r in no], [r["longest"] for r in no], color=colour, marker="x", linestyle="")
        commits_axis(axes, setting.places)
        axes.set(yscale="log", ylabel="tokens")
        ticks = [2**n for n in range(10, 19)]
        axes.set_yticks(ticks, [thousand(n) for n in ticks])

    how = "as CUDA graphs" if graph else "launches included"
    legend = [(mark(*style(workloads, w), dashes=""), name_of(w)) for w in workloads if w in there]
    in_order = sorted(rows, key=lambda row: at[row["commit"]])
    return chart(
        f"crossover-{direction}-{graph}", f"{direction}, {how}", draw, _crossover_says(rows, setting),
        [*legend, AT_MOST, SLOWER], ("commit", "operator", "tokens", "95 %", "softmax"),
        [_crossover_cells(row) for row in in_order],
    )  # fmt: skip


def _shown(row: Mapping[str, Any], direction: str, graph: bool) -> bool:
    return row["direction"] == direction and row["graphed"] == graph and row["l2"] == "warm"


def _crossover_says(rows: Sequence[Mapping[str, Any]], setting: Setting) -> str:
    """The newest figure of each operator."""
    said: list[str] = []
    for workload, side in sorted(setting.newest.items()):
        here = [r for r in rows if (r["operator"], r["variant"]) == workload and r["commit"] == side.commit]
        said += [f"{name_of(workload)} {_tokens(row)}" for row in here]
    return f"Newest: {', '.join(said)}." if said else "No operator's newest record has it."


def _tokens(row: Mapping[str, Any]) -> str:
    if "tokens" not in row:
        return f"beyond {row['longest']:,}"
    return f"{'at most ' if row['at_most'] else ''}{row['tokens']:,}"


def _crossover_cells(row: Mapping[str, Any]) -> list[str]:
    if "tokens" in row:
        interval = f"{row['low']:,} to {'?' if row['high'] is None else format(row['high'], ',')}"
    else:
        interval = f"{row['ratio']:g} times as slow there"
    return [row["commit"][:12], name_of((row["operator"], row["variant"])), _tokens(row), interval, row["softmax"]]


# --- latency -------------------------------------------------------------------------------------------------------


def latency_chart(side: Side, workload: Workload) -> Chart | None:
    """Milliseconds against tokens, forward whole and forward+backward dashed; the floor dotted. None without any."""
    graph = graphed(side)
    lines = {
        (who, direction): curve(side, workload, who, direction, graphed=graph)
        for who in COLOUR for direction in ("forward", "forward+backward")
    }  # fmt: skip
    lines = {key: points for key, points in lines.items() if points}
    if not any(who == OURS for who, _ in lines):
        return None
    floors = floor(side, workload, "forward")

    def draw(axes: Axes) -> None:
        for (who, direction), points in lines.items():
            dashes = "-" if direction == "forward" else "--"
            axes.plot(
                list(points), list(points.values()), color=COLOUR[who], linestyle=dashes, marker="o", markersize=3.5
            )
        axes.plot(list(floors), list(floors.values()), color=INK, linestyle=":", linewidth=1.2)
        ticks = sorted({n for points in lines.values() for n in points})
        axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms")
        axes.set_xticks(ticks, [thousand(n) for n in ticks])

    who_is_there = [who for who in COLOUR if any(key[0] == who for key in lines)]
    legend = [(mark(COLOUR[who], dashes=""), NAMES[who]) for who in who_is_there]
    legend += [(mark(PAGE, dashes="5 4"), "forward+backward"), (mark(PAGE, dashes="2 3"), "memory floor, forward")]
    lengths = sorted({n for points in lines.values() for n in points})
    heads = ["tokens", *(f"{NAMES[who]}, {direction}" for who, direction in lines)]
    rows = [[f"{n:,}", *(f"{p[n]:.4g}" if n in p else "" for p in lines.values())] for n in lengths]
    return chart(
        f"latency-{name_of(workload)}", name_of(workload), draw, _latency_says(lines), legend, heads, rows
    )  # fmt: skip


def _latency_says(lines: Mapping[tuple[str, str], Mapping[int, float]]) -> str:
    """The longest length at which both were timed."""
    said: list[str] = []
    for direction in ("forward", "forward+backward"):
        ours, theirs = lines.get((OURS, direction), {}), lines.get((SOFTMAX, direction), {})
        both = sorted(set(ours) & set(theirs))
        if both:
            n = both[-1]
            said.append(f"{direction} at {n:,} tokens {ours[n]:.3g} ms, softmax {theirs[n]:.3g} ms")
    return "; ".join(said) + "." if said else "No softmax beside it."


# --- error against latency -----------------------------------------------------------------------------------------


def error_chart(setting: Setting, direction: str) -> Chart | None:
    """The gate's error against the time, each operator at the length nearest to 16K that has both; peers hollow."""
    workloads = sorted(setting.newest)
    ours = {w: p for w, side in setting.newest.items() if (p := _error(side, w, OURS, direction))}
    theirs = {w: p for w, side in setting.newest.items() if (p := _error(side, w, "fla:", direction))}
    if not ours:
        return None

    def draw(axes: Axes) -> None:
        for points, face in ((ours, None), (theirs, "none")):
            for workload, (_, ms, worst) in points.items():
                colour, marker = style(workloads, workload)
                axes.plot(
                    [ms], [max(worst, 1e-3)], color=colour, marker=marker, markersize=7, linestyle="",
                    markerfacecolor=face or colour,
                )  # fmt: skip
        axes.axhline(1, color=INK, linestyle=":", linewidth=1.2)
        axes.set(xscale="log", yscale="log", xlabel="ms", ylabel="error, of the limit")
        every = [*ours.values(), *theirs.values()]
        for axis, values in ((axes.xaxis, [x[1] for x in every]), (axes.yaxis, [1, *(x[2] for x in every)])):
            axis.set_ticks(ticks := around(values), [f"{x:g}" for x in ticks])

    worst = max(ours, key=lambda w: ours[w][2])
    rows = [
        [name_of(w), who, f"{n:,}", f"{ms:.4g}", f"{x:.3g}"]
        for who, points in (("linattest", ours), ("fla", theirs)) for w, (n, ms, x) in sorted(points.items())
    ]  # fmt: skip
    return chart(
        f"error-{direction}", direction, draw,
        f"Above the dotted line a gate is red and there is no time. Largest: {name_of(worst)}, {ours[worst][2]:.3g}."
        + (" Hollow: flash-linear-attention's function on the same inputs." if theirs else ""),
        [(mark(*style(workloads, w)), name_of(w)) for w in sorted(ours)],
        ("operator", "whose", "tokens", "ms", "error, of the limit"), rows,
    )  # fmt: skip


def _error(side: Side, workload: Workload, who: str, direction: str) -> tuple[int, float, float] | None:
    """Length, milliseconds and error, at the length nearest to 16K that has both."""
    times = curve(side, workload, who, direction, graphed=graphed(side))
    gates = side.gates if who == OURS else side.peers
    worst = {key[3]: row["worst"] for key, row in gates.items() if key[:3] == (*workload, direction)}
    both = [n for n in times if worst.get(n) is not None]
    if not both:
        return None
    n = min(both, key=lambda n: abs(math.log(n / 16384)))
    return n, times[n], worst[n]


# --- registers -----------------------------------------------------------------------------------------------------


def register_chart(builds: Sequence[Any]) -> Chart:
    """The most registers of a thread in any kernel of a function, by architecture; what spills is marked."""
    most: dict[tuple[str, int], int] = {}
    spills: dict[tuple[str, int], int] = {}
    for build in builds:
        key = (build.call.partition(" ")[0], build.arch)
        most[key] = max(most.get(key, 0), build.registers)
        spills[key] = spills.get(key, 0) + build.spills
    names, arches = sorted({name for name, _ in most}, reverse=True), sorted({arch for _, arch in most})

    def draw(axes: Axes) -> None:
        axes.set_position((0.4, 0.16, 0.57, 0.8))
        for i, arch in enumerate(arches):
            part = 0.8 / len(arches)
            here = [(y, most[name, arch]) for y, name in enumerate(names) if (name, arch) in most]
            axes.barh([y + (i + 0.5) * part - 0.4 for y, _ in here], [x for _, x in here], part * 0.9, color=PALETTE[i])
        for y, name in enumerate(names):
            if any(spills.get((name, arch)) for arch in arches):
                axes.plot([266], [y], color=PALETTE[1], marker="x", markersize=6, linestyle="")
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set(xlabel="registers a thread", xlim=(0, 275))

    total = sum(bool(x) for x in spills.values())
    return chart(
        "registers", "registers", draw, f"{total} of {len(most)} functions have a kernel that spills.",
        [*((mark(PALETTE[i], "s"), f"sm_{arch}") for i, arch in enumerate(arches)), (mark(PALETTE[1], "x"), "spills")],
        ("function", "arch", "registers", "bytes spilled"),
        [[name, f"sm_{arch}", str(most[name, arch]), str(spills[name, arch])] for name, arch in sorted(most)],
    )  # fmt: skip


def register_history(found: Sequence[tuple[str, Mapping[str, float]]]) -> Chart | None:
    """The same over the commits whose compile record was filed; None for fewer than two."""
    if len(found) < 2:
        return None
    names = sorted({name for _, at in found for name in at})

    def draw(axes: Axes) -> None:
        for i, name in enumerate(names):
            points = [(x, at[name]) for x, (_, at) in enumerate(found) if name in at]
            colour, marker = PALETTE[i % len(PALETTE)], MARKERS[i // len(PALETTE) % len(MARKERS)]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4)
        commits_axis(axes, [Place(commit, commit[:8], 0) for commit, _ in found])
        axes.set(ylabel="registers a thread", ylim=(0, 260))

    changed = [n for n in names if len({at[n] for _, at in found if n in at}) > 1]
    legend = [
        (mark(PALETTE[i % len(PALETTE)], MARKERS[i // len(PALETTE) % len(MARKERS)], ""), n) for i, n in enumerate(names)
    ]
    return chart(
        "register-history", "registers over commits", draw, f"Changed: {', '.join(changed) or 'none'}.", legend,
        ("commit", *names), [[c[:12], *(f"{at[n]:g}" if n in at else "" for n in names)] for c, at in found],
    )  # fmt: skip
