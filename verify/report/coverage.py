"""Which part of the space of cases random ones tried, as a table and as JSON: ``linattest verify --budget``."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.coverage import Coverage
from linattest.verify.fuzz import Fuzzed
from linattest.verify.records import Record

MOST_UNTRIED = 20
"""Pairs that no case had, listed in JSON an operator; all are counted."""


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """The object under "coverage": how many pairs of values were tried, and how often each value."""
    operators = {name: _operator(coverage, name) for name in coverage.spaces}
    tried, pairs = (sum(x[key] for x in operators.values()) for key in ("pairs_tried", "pairs"))
    return {"inputs": coverage.cases.total(), **_share(tried, pairs), "operators": operators}


def _operator(coverage: Coverage, name: str) -> dict[str, Any]:
    pairs = sum(1 for _ in coverage.spaces[name].pairs())
    untried = coverage.untried(name)
    return {
        "inputs": coverage.cases[name],
        **_share(pairs - len(untried), pairs),
        "values": coverage.times(name),
        "untried_pairs": [[f"{axis}: {value}" for axis, value in pair] for pair in untried[:MOST_UNTRIED]],
    }


def _share(tried: int, pairs: int) -> dict[str, float]:
    return {"pairs_tried": tried, "pairs": pairs, "percent": round(100 * tried / pairs, 1) if pairs else 0.0}


def shrunk_json(fuzzed: Fuzzed) -> list[dict[str, str]]:
    """The objects under "shrunk": each failure made smaller, and the case it was first seen on."""
    return [
        {
            "operator": small.case.operator, "variant": small.variant, "what": small.direction, "output": small.what,
            "case": small.case.describe(), "first_seen": first.case.describe(), "message": small.message,
            "replay": small.replay,
        }
        for first, small in fuzzed.shrunk
    ]  # fmt: skip


def print_fuzzed(console: Console, fuzzed: Fuzzed) -> None:
    """The failures made smaller, and a row an operator: inputs, pairs of values tried, values that none had."""
    for first, small in fuzzed.shrunk:
        _print_shrunk(console, first, small)
    found = coverage_json(fuzzed.coverage)
    table = Table(title="coverage: pairs of values that some random input had", title_justify="left")
    table.add_column("operator")
    for column in ("inputs", "pairs", "of", "%"):
        table.add_column(column, justify="right")
    table.add_column("values not tried")
    for name, row in found["operators"].items():
        untried = [f"{axis} {x}" for axis, times in row["values"].items() for x, n in times.items() if not n]
        shown = ", ".join(untried[:4]) + (f" and {len(untried) - 4} more" if len(untried) > 4 else "")
        numbers = (row["inputs"], row["pairs_tried"], row["pairs"], f"{row['percent']:.1f}")
        table.add_row(name, *map(str, numbers), escape(shown) or "none")
    console.print(table)
    console.print(
        f"{found['inputs']} random inputs tried {found['pairs_tried']} of {found['pairs']} pairs of values "
        f"({found['percent']:.1f}%)",
        highlight=False,
    )


def _print_shrunk(console: Console, first: Record, small: Record) -> None:
    console.print(
        f"[red]smallest[/] [bold]{small.case.operator} {small.variant} {small.case.dtype}[/] {small.direction} "
        f"{escape(small.what)}\n  input: {escape(small.case.describe())}\n  first seen: {escape(first.case.describe())}"
        f"\n  {escape(small.message)}" + (f"\n  replay: {escape(small.replay)}" if small.replay else ""),
        highlight=False, soft_wrap=True,
    )  # fmt: skip
