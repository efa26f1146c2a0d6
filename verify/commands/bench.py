"""``linattest bench``: what was measured on GPUs, read from the committed records; none is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from linattest.verify.commands.common import NOTHING, operators_named
from linattest.verify.crossover import DIRECTIONS, SCHEMA, crossovers, read_records
from linattest.verify.environment import ROOT

RESULTS = (ROOT / "verify").resolve().parent / "benchmarks" / "results"
"""The committed records; a checkout has them, an installed package does not."""

bench = typer.Typer(
    name="bench", help="What was measured on GPUs, from the committed records.", no_args_is_help=True,
    add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip


@bench.callback()
def _every_command() -> None:  # pyright: ignore[reportUnusedFunction]
    pass


@bench.command()
def crossover(
    operator: Annotated[list[str] | None, typer.Option(help="only this operator; may be repeated")] = None,
    direction: Annotated[
        list[str] | None, typer.Option(help=f"only this one of {', '.join(DIRECTIONS)}; may be repeated")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="each figure from its newest record alone")] = False,
    results: Annotated[Path, typer.Option(help="folder with records of gpu_run")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Tokens from which on an operator is faster than the fastest softmax attention."""
    names = {chosen.name for chosen in operators_named(operator or [])} if operator else None
    unknown = sorted(set(direction or []) - set(DIRECTIONS))
    if unknown:
        raise typer.BadParameter(f"no direction {unknown}; known: {list(DIRECTIONS)}", param_hint="--direction")
    if not results.is_dir() and results != RESULTS:
        raise typer.BadParameter(f"no folder {results}", param_hint="--results")
    try:
        records = read_records(results)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--results") from error
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for record in records:
        for kept, found in zip(rows, crossovers(record), strict=True):
            kept += [
                row for row in found
                if (names is None or row["operator"] in names) and (not direction or row["direction"] in direction)
            ]  # fmt: skip
    crossed, uncrossed = _newest(*rows) if newest else rows
    if as_json:
        answer = {"schema": SCHEMA, "crossovers": crossed, "uncrossed": uncrossed}
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _show(Console(), crossed, uncrossed)
    raise typer.Exit(0 if crossed or uncrossed else NOTHING)


IDENTITY = ("operator", "variant", "direction", "graphed", "l2", "gpu", "dtype", "B", "H", "D")
"""What makes it the same figure in another record."""


def _newest(
    crossed: list[dict[str, Any]], uncrossed: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of the rows of one figure the last measured, on whichever side it is."""
    last: dict[tuple[Any, ...], str] = {}
    for row in [*crossed, *uncrossed]:
        key = tuple(row[name] for name in IDENTITY)
        last[key] = max(last.get(key, ""), row["measured"])

    def keep(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["measured"] == last[tuple(row[name] for name in IDENTITY)]]

    return keep(crossed), keep(uncrossed)


def _show(console: Console, crossed: list[dict[str, Any]], uncrossed: list[dict[str, Any]]) -> None:
    if not crossed and not uncrossed:
        console.print("nothing measured: no record has timings of an operator beside softmax")
        return
    table = Table(title="faster than softmax attention from so many tokens on", title_justify="left")
    for name in ("operator", "variant", "direction", "graph", "L2"):
        table.add_column(name)
    for name in ("tokens", "95 %"):
        table.add_column(name, justify="right")
    for name in ("softmax", "GPU", "commit"):
        table.add_column(name)
    rows = [*crossed, *uncrossed]
    for row in sorted(
        rows, key=lambda r: (r["operator"], r["variant"], DIRECTIONS.index(r["direction"]), r["measured"])
    ):
        common = (row["operator"], row["variant"], row["direction"], "yes" if row["graphed"] else "no", row["l2"])
        table.add_row(*common, *_cells(row), row["softmax"], row["gpu"], str(row["commit"])[:12])
    console.print(table)


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    if "tokens" not in row:
        return f"> {row['longest']}", f"{row['ratio']:g}x as slow there"
    high = "?" if row["high"] is None else str(row["high"])
    return f"{'<= ' if row['at_most'] else ''}{row['tokens']}", f"{row['low']} to {high}"
