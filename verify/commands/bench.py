"""``linattest bench``: speed and numerics over commits; ``crossover`` reads committed records and needs no GPU."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.bench.gpu_records import read_records
from linattest.verify.bench.paths import RESULTS
from linattest.verify.bench.showing import SHORT
from linattest.verify.commands.bench_compare import compare
from linattest.verify.commands.bench_publish import publish
from linattest.verify.commands.bench_record import record, run
from linattest.verify.commands.common import NOTHING, operators_named
from linattest.verify.crossover import DIRECTIONS, SCHEMA, crossovers

bench = typer.Typer(
    name="bench", help="Speed and numerics over commits: measure, file, compare, publish.", no_args_is_help=True,
    add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
bench.command()(run)
bench.command()(record)
bench.command()(compare)
bench.command()(publish)


@bench.command()
def crossover(
    operator: Annotated[list[str] | None, typer.Option(help="only this operator; may be repeated")] = None,
    direction: Annotated[
        list[str] | None, typer.Option(help=f"only this one of {', '.join(DIRECTIONS)}; may be repeated")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="each figure from the newest commit that has it")] = False,
    results: Annotated[Path, typer.Option(help="folder with records of gpu_run")] = RESULTS,
    svg: Annotated[Path | None, typer.Option(help="draw it into this file too, each operator's newest figure")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Tokens from which on an operator is faster than the fastest softmax attention."""
    names = {chosen.name for chosen in operators_named(operator or [])} if operator else None
    unknown = sorted(set(direction or []) - set(DIRECTIONS))
    if unknown:
        raise typer.BadParameter(
            f"no direction {', '.join(unknown)}; known: {', '.join(DIRECTIONS)}", param_hint="--direction"
        )
    if not results.is_dir() and results != RESULTS:
        raise typer.BadParameter(f"no folder {results}", param_hint="--results")
    try:
        records = read_records(results)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--results") from error
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for one in records:
        for kept, found in zip(rows, crossovers(one), strict=True):
            kept += [
                row for row in found
                if (names is None or row["operator"] in names) and (not direction or row["direction"] in direction)
            ]  # fmt: skip
    crossed, uncrossed = _newest(*rows) if newest else rows
    if svg is not None:
        _draw(svg, *_newest(*rows))
    if as_json:
        answer = {"schema": SCHEMA, "crossovers": crossed, "uncrossed": uncrossed}
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _show(Console(), crossed, uncrossed)
    raise typer.Exit(0 if crossed or uncrossed else NOTHING)


WIDE = 2
"""A crossover between lengths further apart than a factor of this has them beside it."""

IDENTITY = ("operator", "variant", "direction", "graphed", "l2", "gpu", "dtype", "B", "H", "D")
"""What makes it the same figure in another record."""


def _newest(
    crossed: list[dict[str, Any]], uncrossed: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of the rows of one figure those of the last commit, as it was last measured, on whichever side it is."""
    last: dict[tuple[Any, ...], tuple[str, str]] = {}
    for row in [*crossed, *uncrossed]:
        key = tuple(row[name] for name in IDENTITY)
        last[key] = max(last.get(key, ("", "")), _when(row))

    def keep(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if _when(row) == last[tuple(row[name] for name in IDENTITY)]]

    return keep(crossed), keep(uncrossed)


def _when(row: dict[str, Any]) -> tuple[str, str]:
    return (row["committed"], row["measured"])


def _draw(path: Path, crossed: list[dict[str, Any]], uncrossed: list[dict[str, Any]]) -> None:
    """Write the figure; nothing is drawn of nothing."""
    try:
        made = importlib.import_module("linattest.verify.bench.picture")
    except ImportError as error:
        Console(stderr=True).print(f"--svg needs the extra 'report' (pip install 'linattest[report]'): {error}")
        raise typer.Exit(NOTHING) from error
    rows = made.shown(crossed, uncrossed)
    if not rows:
        raise typer.Exit(NOTHING)
    others = sorted({row["gpu"] for row in [*crossed, *uncrossed]} - {rows[0]["gpu"]})
    if others:
        Console(stderr=True).print(f"{path} is of {rows[0]['gpu']}; not drawn: {', '.join(others)}", highlight=False)
    try:
        path.write_text(made.picture(rows), encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--svg") from error


def _show(console: Console, crossed: list[dict[str, Any]], uncrossed: list[dict[str, Any]]) -> None:
    if not crossed and not uncrossed:
        console.print("nothing measured: no record has timings of an operator beside softmax")
        return
    console.print("faster than softmax attention from so many tokens on\n")
    rows = sorted([*crossed, *uncrossed], key=_order)
    for (name, setting, commit), group in itertools.groupby(rows, _heading):
        console.print(f"[bold]{escape(name)}[/]  {escape(setting)}, commit {escape(commit)}", highlight=False)
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column in ("direction", "how", "tokens", "95 %", "softmax"):
            table.add_column(column, justify="right" if column == "tokens" else "left", no_wrap=column != "95 %")
        for row in group:
            how = ("graph" if row["graphed"] else "plain") + (", cold" if row["l2"] == "cold" else "")
            table.add_row(SHORT[row["direction"]], how, *_cells(row), row["softmax"])
        console.print(table, highlight=False)


def _heading(row: dict[str, Any]) -> tuple[str, str, str]:
    """The operator, the GPU with the dtype, and the commit of a row, in words."""
    name = f"{row['operator']}-{row['variant']}" if row["variant"] else row["operator"]
    setting = f"{row['gpu'].removeprefix('NVIDIA ')}, {row['dtype']}, B={row['B']} H={row['H']} D={row['D']}"
    return name, setting, _short(str(row["commit"]))


def _short(commit: str) -> str:
    return commit[:8] + ("-dirty" if commit.endswith("-dirty") else "")


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    record = (row["dtype"], row["B"], row["H"], row["D"], row["committed"], row["commit"], row["measured"])
    place = (*record, DIRECTIONS.index(row["direction"]), row["graphed"], row["l2"])
    return (row["operator"], row["variant"], row["gpu"], *place)


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    if "tokens" not in row:
        return f"> {row['longest']}", f"{row['ratio']:g}x as slow there"
    high = "?" if row["high"] is None else str(row["high"])
    below, above = row["between"]
    gap = f"; {below}, {above} measured" if above > WIDE * below else ""
    return f"{'<= ' if row['at_most'] else ''}{row['tokens']}", f"{row['low']} to {high}{gap}"
