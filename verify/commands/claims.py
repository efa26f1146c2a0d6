"""``linattest claims``: what the papers say, each with a verdict computed now and what it rests on."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from linattest.verify.claims import ledger
from linattest.verify.claims.ledger import LedgerError, Row
from linattest.verify.claims.record import Claims, collect, of_ledgers
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK, none_begins
from linattest.verify.executors import default_workers
from linattest.verify.report.claims import print_claims
from linattest.verify.report.summary import plural


def claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="claims, or beginnings of their ids: all their evidence is shown", metavar="[ID]..."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
    own: Annotated[
        list[Path] | None,
        typer.Option("--ledger", metavar="FILE", help="your claims: a .toml of rows or a .py of @claim functions"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write what --json prints to this file, for `report --claims`")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
) -> None:
    """Compute the verdict of every claim of the three papers (or of your own) and compare it with the recorded one."""
    try:
        rows = _chosen(ledger.read(own or None), ids or [])
    except LedgerError as error:
        if own and error.path in own:
            raise typer.BadParameter(str(error), param_hint="--ledger") from error
        raise _broken(error) from error
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}", param_hint="--output")
    start = time.perf_counter()
    console = Console(stderr=as_json)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("claims", total=len(rows))
            outcomes = ledger.run(rows, max(1, min(workers, len(rows))), lambda _: bar.advance(task))
    except KeyboardInterrupt:
        again = f"linattest claims ID{''.join(f' --ledger {shlex.quote(str(x))}' for x in own or ())}"
        console.print("[yellow]interrupted[/]: nothing is kept; " + escape(f"`{again}` computes some of them"))
        raise typer.Exit(INTERRUPTED) from None
    found = collect(outcomes, time.perf_counter() - start)
    text = json.dumps(found.to_json(), indent=2, allow_nan=False)
    if output is not None:
        _write(output, text + "\n")
    if as_json:
        print(text)
    else:
        print_claims(console, found, full=bool(ids))
    raise typer.Exit(status_of(found))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--output") from error


def _chosen(rows: list[Row], ids: list[str]) -> list[Row]:
    unknown = [x for x in ids if not any(row.id.startswith(x) for row in rows)]
    if unknown:
        raise typer.BadParameter(
            "; ".join(none_begins("claim", x, [r.id for r in rows]) for x in unknown), param_hint="ID"
        )
    return [row for row in rows if not ids or any(row.id.startswith(x) for x in ids)]


def status_of(found: Claims, stale: Sequence[str] = ()) -> int:
    """0 if all are as the ledger says, 1 if one differs, 3 if that is only for want of a tool or there is none.

    3 too where verdicts are ``stale``: of what is there now nothing was computed.
    """
    if found.failed:
        return FAILED
    return NOTHING if found.counts["different"] or not found.claims or stale else OK


def say_different(console: Console, found: Claims) -> None:
    """Which claims are not as the ledger says, and which of them have no verdict; nothing if all are."""
    differ = [o for o in found.claims if o.differs]
    if differ:
        console.print(
            f"DIFFERS: {len(differ)} of {plural(len(found.claims), 'claim')}: "
            + ", ".join(f"{o.id} (error)" if o.error is not None else o.id for o in differ)
            + f"; the first: {differ[0].difference}", style="red", highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip


def say_stale(console: Console, found: Claims) -> list[str]:
    """The ids of verdicts that other rows, checks or evidence gave than there are now, after saying which."""
    try:
        stale = ledger.outdated(found.claims)
    except LedgerError as error:
        raise _broken(error) from error
    if stale:
        console.print(
            f"STALE: {len(stale)} of {plural(len(found.claims), 'verdict')} came of another row, check, source or "
            f"evidence than there is now, and must be computed again ({_again(found, stale)}): "
            + ", ".join(stale), style="yellow", highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    return stale


def _again(found: Claims, stale: list[str]) -> str:
    """The commands that compute the ledgers anew: a user's, with its file, and the papers' in files of their own."""
    whose = dict.fromkeys(o.ledger for o in found.claims if o.id in stale)
    of_users = [o for o in found.claims if o.ledger and o.ledger in whose]
    commands = [f"linattest claims{of_ledgers(of_users)} --output FILE"] if of_users else []
    return " and ".join([*commands, *(["linattest claims --output FILE"] if "" in whose else [])])


def _broken(error: LedgerError) -> typer.Exit:
    """The ledger of the papers cannot be read, which is no mistake of who asks."""
    Console(stderr=True).print(f"the ledger is broken: {error}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(FAILED)
