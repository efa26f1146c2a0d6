"""``linattest selftest``: plant faults in a scratch copy and see that the harness catches each."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK
from linattest.verify.executors import default_workers, local_executor
from linattest.verify.faults.bank import BankError, Fault, bank, chosen
from linattest.verify.faults.selftest import LIMIT, Selftest, Trial, run_selftest
from linattest.verify.power import LENGTHS, LONG, Row, power_table
from linattest.verify.report.selftest import print_bank, print_selftest, to_json


def selftest(
    ids: Annotated[list[str] | None, typer.Argument(help="faults to plant; all if none", metavar="[ID]...")] = None,
    only: Annotated[str, typer.Option(help="only edits of this file: impls/vla.py, or vla", metavar="FILE")] = "",
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
    limit: Annotated[float, typer.Option(min=1, help="seconds that one edit may take", metavar="SECONDS")] = LIMIT,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
    power: Annotated[bool, typer.Option("--power/--no-power", help="the table of the smallest error seen")] = True,
    full: Annotated[bool, typer.Option("--full", help="the power table up to T = 1024")] = False,
    listed: Annotated[bool, typer.Option("--list", help="print the bank and plant nothing")] = False,
) -> None:
    """Plant one-line faults in a scratch copy of the sources, one at a time: each must turn a check red.

    The power table is left out where only some faults are asked for.
    """
    console = Console(stderr=as_json)
    entries = _entries(ids or [], only)
    if listed:
        print_bank(console, entries)
        raise typer.Exit(OK if entries else NOTHING)
    if not entries:
        console.print("nothing to plant: the bank is empty")
        raise typer.Exit(NOTHING)
    found = _with_progress(entries, workers, limit)
    rows = _power(workers, LONG if full else LENGTHS) if power and not (ids or only or found.interrupted) else []
    if as_json:
        print(json.dumps(to_json(found, rows), indent=2, allow_nan=False))
    else:
        print_selftest(console, found, rows)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(FAILED if found.failed or any(row.failed for row in rows) else OK)


def _entries(ids: list[str], only: str) -> list[Fault]:
    """The chosen entries. A typo is a usage error; so is a bank that does not fit the sources."""
    try:
        return chosen(bank(), ids, only)
    except KeyError as error:
        raise typer.BadParameter(error.args[0], param_hint="ID or --only") from error
    except BankError as error:
        raise typer.BadParameter(str(error), param_hint="bank") from error


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _with_progress(entries: list[Fault], workers: int, limit: float) -> Selftest:
    """Run with a bar on the terminal; what does not come out as it should is named at once."""
    with _bar() as bar:
        task = bar.add_task("edits", total=len(entries))

        def advance(what: str, trial: Trial | None) -> None:
            if trial is None:
                bar.update(task, description=what)
                return
            bar.update(task, advance=1, description=trial.file)
            if trial.status not in ("caught", "green"):
                bar.console.print(what, highlight=False)

        return run_selftest(entries, workers, advance, limit)


def _power(workers: int, lengths: tuple[int, ...]) -> list[Row]:
    """The table of detection power. It runs the implementations: after the faults are done with."""
    with _bar() as bar, local_executor(workers) as executor:
        task = bar.add_task("power", total=None)
        return power_table(
            lengths=lengths, executor=executor,
            progress=lambda done, whole: bar.update(task, completed=done, total=whole),
        )  # fmt: skip
