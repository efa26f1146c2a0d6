"""A comparison as a table for a terminal, as Markdown for a pull request, and as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.bench.compare import Comparison, Growth, Timing
from linattest.verify.bench.sides import Side
from linattest.verify.crossover import SCHEMA

VERDICTS = ("slower", "faster", "ambiguous", "same")
SHORT = {"forward": "fwd", "forward+backward": "fwd+bwd", "decode": "decode"}
COLOURS = {"slower": "red", "faster": "green", "ambiguous": "yellow", "same": ""}


def headline(found: Comparison) -> str:
    """The verdict in one line."""
    counts = Counter(row.verdict for row in found.timings)
    said = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    said = said or f"{len(found.errors)} errors compared"
    errors, memory = (sum(row.grew for row in rows) for rows in (found.errors, found.memory))
    more = [
        text
        for n, text in (
            (errors, _many(errors, "error", "grew or gate turned red")),
            (memory, _many(memory, "peak of memory grew", "")),
            (len(found.broken), f"{len(found.broken)} broken"),
        )
        if n
    ]
    gpu, dtype, *_ = found.a.setting
    return f"{'CPU' if gpu == 'none' else gpu}, {dtype}: " + "; ".join([said, *more])


def _many(n: int, what: str, more: str) -> str:
    return f"{n} {what}{'s' * (n != 1 and not what.endswith('grew'))} {more}".strip()


def notes(found: Comparison) -> Iterator[str]:
    """What the intervals stand on, and what else differs."""
    for c in found.controls:
        how = c.kind
        if c.shift == 1.0 and c.spread == float("inf"):
            yield f"{how}: {c.count} rivals timed in both runs, too few to tell a change from a drift of the machine"
        else:
            yield f"{how}: {c.count} timings of rivals, {c.shift:.3f} times as long in B, spread {100 * c.spread:.1f} %"
    if found.seen:
        (half, _), (most, row) = found.seen[len(found.seen) // 2], found.seen[-1]
        name, direction, tokens, how, *_ = timing_cells(row)
        yield (
            f"a slowdown is told from {half:.2f} times as long on for half of the timings, from {most:.2f} for all "
            f"({name} {direction}, {tokens} tokens, {how})"
        )
    for text in found.slow_starts:
        yield f"longer to the first result: {text}"
    if not found.told:
        yield "nothing could be told from these records"
    for name, (a, b) in found.environment.items():
        yield f"{name} differs: {a} in A, {b} in B"
    if found.gone:
        yield f"{len(found.gone)} in A and not tried in B: {'; '.join(found.gone[:5])}" + ", .." * (len(found.gone) > 5)


def print_comparison(console: Console, found: Comparison, everything: bool) -> None:
    """What changed; with ``everything`` also what is the same, and what the intervals leave open."""
    table = Table(title=headline(found), title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("direction", "tokens", "how", "A ms", "B ms", "B / A", "interval", "verdict"):
        right = name in ("tokens", "A ms", "B ms", "B / A")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    last = ""
    for row in found.timings:
        if everything or row.verdict in ("slower", "faster"):
            name, direction, *cells = timing_cells(row)
            if name != last:
                table.add_row(f"[bold]{escape(name)}[/]")
            table.add_row(SHORT[direction], *cells, style=COLOURS[row.verdict])
            last = name
    console.print(table if table.row_count else headline(found), highlight=False)
    for line in [*map(growth_text, found.grown), *(f"broken: {text}" for text in found.broken)]:
        console.print(line, style="red", highlight=False, soft_wrap=True, markup=False)
    for line in notes(found):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def timing_cells(row: Timing) -> list[str]:
    """The cells of a row; "cold" is a graph whose inputs are not in the L2 cache."""
    interval = "?" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
    name = f"{row.operator}-{row.variant}" if row.variant else row.operator
    how = "cold" if row.l2 == "cold" else "graph" if row.graphed else "plain"
    ms = [f"{x:.3g}" for x in row.ms]
    return [name, row.direction, str(row.tokens), how, *ms, f"{row.ratio:.2f}", interval, row.verdict]


def growth_text(row: Growth) -> str:
    """What grew, and from what to what."""
    name = f"{row.operator}-{row.variant}" if row.variant else row.operator
    numbers = " to ".join("none" if x is None else f"{x:.4g}" for x in (row.a, row.b))
    return f"{name} {row.direction}, {row.tokens} tokens: {row.why} ({numbers})"


def to_markdown(pairs: Sequence[Comparison]) -> str:
    """A comment for a pull request: the verdict, what changed, what it stands on."""
    lines = list[str]()
    for found in pairs:
        lines += [f"### {'❌' if found.failed else '✅'} {headline(found)}", ""]
        changed = [row for row in found.timings if row.verdict in ("slower", "faster")]
        if changed:
            lines += ["| operator | direction | tokens | how | A ms | B ms | B / A | interval | verdict |"]
            lines += ["|---|---|--:|---|--:|--:|--:|---|---|"]
            lines += [f"| {' | '.join(timing_cells(row))} |" for row in changed] + [""]
        lines += [f"- {line}" for line in [*map(growth_text, found.grown), *(f"broken: {x}" for x in found.broken)]]
        lines += [f"- {line}" for line in notes(found)]
        of = "" if found.timings else " (the commit is linattest's, which judged)"
        lines += ["", f"A is {found.a.name}, {found.a.commit}; B is {found.b.name}, {found.b.commit}{of}.", ""]
    return "\n".join(lines)


def to_json(pairs: Sequence[Comparison]) -> dict[str, Any]:
    """What ``bench compare --json`` prints."""
    return {
        "schema": SCHEMA,
        "failed": any(found.failed for found in pairs),
        "comparisons": [
            {
                "a": _side(found.a), "b": _side(found.b), "factor": found.factor, "failed": found.failed,
                "counts": dict.fromkeys(VERDICTS, 0) | Counter(row.verdict for row in found.timings),
                "controls": [
                    asdict(c) | {"spread": None if c.spread == float("inf") else c.spread} for c in found.controls
                ],
                "timings": [asdict(row) for row in found.timings], "errors": [asdict(row) for row in found.errors],
                "memory": [asdict(row) for row in found.memory], "broken": found.broken, "gone": found.gone,
                "slow_starts": found.slow_starts, "told": found.told,
                "environment": found.environment,
            }
            for found in pairs
        ],
    }  # fmt: skip


def _side(side: Side) -> dict[str, Any]:
    gpu, dtype, B, H, D, sampling = side.setting
    return {
        "name": side.name, "commit": side.commit, "started": side.started, "gpu": gpu, "dtype": dtype, "B": B, "H": H,
        "D": D, "sampling": sampling,
    }  # fmt: skip
