"""How much arithmetic the operators do, as a table or as JSON: ``linattest cost``."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table

from linattest.verify.complexity import WIDTH, Growth

COMPARED = ("vla", "linear")
"""The ratio that is printed beneath the table."""


def print_costs(console: Console, found: Iterable[Growth], as_json: bool) -> None:
    """Multiply-adds per token at the shortest and longest T, the order of growth, and VLA over linear attention."""
    rows = list(found)
    ratio = _ratio(rows)
    if as_json:
        costs = [msgspec.to_builtins(row, str_keys=True) | {"order": row.order} for row in rows]
        print(json.dumps({"costs": costs, "ratio": ratio, "width": WIDTH}, indent=2, allow_nan=False))
        return
    table = Table(title=f"Multiply-adds per token and head, K = V = {WIDTH}, chunk form", title_justify="left")
    lengths = sorted(rows[0].per_token) if rows else []
    for name in ("operator", "options"):
        table.add_column(name)
    for length in (*lengths[:1], *lengths[-1:]):
        table.add_column(f"T = {length}", justify="right")
    table.add_column("grows as")
    for row in rows:
        options = " ".join(f"{name}={value}" for name, value in row.options.items())
        ends = (f"{row.per_token[length]:,.0f}" for length in (lengths[0], lengths[-1]))
        table.add_row(row.operator, options, *ends, row.order)
    console.print(table)
    if ratio is not None:
        console.print(f"{COMPARED[0]} / {COMPARED[1]}: {ratio:.2f}", highlight=False)


def _ratio(rows: list[Growth]) -> float | None:
    """The first setting of one over that of the other, at the longest T, where both are counted."""
    first = {row.operator: row.per_token[max(row.per_token)] for row in reversed(rows)}
    return first[COMPARED[0]] / first[COMPARED[1]] if set(COMPARED) <= set(first) else None
