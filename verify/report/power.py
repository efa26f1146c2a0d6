"""The detection-power table in a terminal: the smallest wrongs that the harness sees, and those that it does not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.power import RELATIVE, Row
from linattest.verify.tolerance import THRESHOLD

COLUMNS: dict[str, Callable[[str], bool]] = {
    "output": lambda of: of == "o",
    "one token": lambda of: of == "o in one token",
    "one element": lambda of: of == "o in one element",
    "states": lambda of: of.startswith("state."),
    "gradients": lambda of: of.startswith("d "),
}
"""Columns of relative errors, and what belongs to each."""


def print_power(console: Console, rows: Sequence[Row]) -> None:
    """One line an operator and dtype, then what is not seen, then what makes the table fail.

    A cell holds one number a length: n where 2^n is the smallest relative error that is seen, the worst over seeds,
    families and, for states and gradients, over all of them.
    """
    lengths = sorted({row.T for row in rows})
    named = ", ".join(map(str, lengths))
    table = Table(title=f"Smallest relative error seen, as n of 2^n, at T = {named}", title_justify="left")
    for name in ("operator", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in (*COLUMNS, "wrongs seen"):
        table.add_column(name, justify="right")
    last = ""
    for (operator, dtype), group in _grouped(rows, lambda r: (r.operator, r.dtype)).items():
        cells = (_exponents(group, lengths, belongs) for belongs in COLUMNS.values())
        wrongs = _wrongs(group)
        seen = f"{sum(row.seen for row in wrongs)} of {len(wrongs)}"
        table.add_row("" if operator == last else operator, dtype, *cells, seen)
        last = operator
    console.print(table)
    _print_unseen(console, [row for row in _wrongs(rows) if not row.seen and not row.required])
    for row in (row for row in rows if row.failed):
        console.print(f"[red]{escape(complaint(row))}[/]", highlight=False, soft_wrap=True)


def complaint(row: Row) -> str:
    """Why a row makes the table fail, in words."""
    where = f"{row.operator} {row.dtype} T={row.T} {row.family}"
    if row.false_alarm:
        return f"{where}: the right answer is called wrong in {', '.join(row.by)}; expected a ratio <= {THRESHOLD:g}"
    ratio = "no ratio" if row.ratio is None else f"ratio {row.ratio:.3g}"
    return f"{where}: {row.injection} is not seen ({ratio}, expected > {THRESHOLD:g} in some output)"


def _wrongs(rows: Iterable[Row]) -> list[Row]:
    """The rows of wrongs of fixed size."""
    return [row for row in rows if not row.injection.startswith(RELATIVE) and not row.right]


def _exponents(rows: list[Row], lengths: list[int], belongs: Callable[[str], bool]) -> str:
    errors = [row for row in rows if row.injection.startswith(RELATIVE)]
    cells: list[str] = []
    for length in lengths:
        mine = [r for r in errors if length == r.T and belongs(r.injection.removeprefix(RELATIVE).strip())]
        sizes = [row.smallest for row in mine if row.smallest is not None]
        cells.append("-" if not mine else "none" if len(sizes) < len(mine) else f"{math.log2(max(sizes)):.0f}")
    return " ".join(cells)


def _print_unseen(console: Console, unseen: list[Row]) -> None:
    """What is not seen, by dtype and wrong: it must be known to be out of reach."""
    for (dtype, injection), group in _grouped(unseen, lambda r: (r.dtype, r.injection)).items():
        by_operator = _grouped(group, lambda r: (r.operator,))
        places = (
            f"{operator} ({', '.join(f'T={r.T} {r.family}' for r in each)})"
            for (operator,), each in by_operator.items()
        )
        console.print(f"not seen at {dtype}: {escape(injection)}: {'; '.join(places)}", highlight=False, soft_wrap=True)


def _grouped(rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
