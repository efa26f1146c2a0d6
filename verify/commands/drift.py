"""``linattest drift``: how the error of each form grows with the length of the sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer
from rich.console import Console
from rich.table import Table

from linattest.verify import devices
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK, check_device, operators_named
from linattest.verify.drift import DEVICE_LENGTHS, DEVICE_WIDTH, LENGTHS, Row, collect, measure, measure_kernels
from linattest.verify.spec import Operator


def drift(
    operators: Annotated[
        list[str] | None, typer.Argument(help="operators to follow; all if none", metavar="[OPERATOR]...")
    ] = None,
    most: Annotated[int | None, typer.Option(min=LENGTHS[0], help="longest sequence")] = None,
    device: Annotated[str, typer.Option(help="cuda: kernels on a GPU, up to T = 131 072")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="write one JSON object to this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Error in roundoffs at T = 100, 1 000, .. 100 000, of every form in every dtype."""
    chosen = operators_named(operators or [])
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}", param_hint="--output")
    console = Console(stderr=as_json)
    check_device(console, device)
    on_gpu = devices.kind(device) != "cpu"
    lengths = [length for length in (DEVICE_LENGTHS if on_gpu else LENGTHS) if most is None or length <= most]
    rows, interrupted = _follow(console, chosen, lengths, device if on_gpu else "")
    collected = collect(rows, device, DEVICE_WIDTH) if on_gpu else collect(rows)
    text = msgspec.json.format(msgspec.json.encode(collected)).decode() + "\n"
    if output is not None and rows:
        output.write_text(text)
    if as_json:
        print(text, end="")
    else:
        console.print(_table(rows))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(NOTHING if not rows else FAILED if any(row.error is None for row in rows) else OK)


def _follow(
    console: Console, operators: list[Operator], lengths: list[int], device: str = ""
) -> tuple[list[Row], bool]:
    """The rows of all, with a line of progress on a terminal; what is done when interrupted is kept."""
    rows: list[Row] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors of a few numbers: more threads only wait for each other
    try:
        with console.status("") as status:
            for operator in operators:
                status.update(operator.name)
                for found in measure_kernels(operator, device, lengths) if device else measure(operator, lengths):
                    rows += found
                    status.update(f"{operator.name}, T = {found[0].tokens} done" if found else operator.name)
    except KeyboardInterrupt:
        return rows, True
    finally:
        torch.set_num_threads(threads)
    return rows, False


def _table(rows: list[Row]) -> Table:
    table = Table(title="root mean square error of the last tokens, in roundoffs (final state)", title_justify="left")
    lengths = sorted({row.tokens for row in rows})
    for name in ("operator", "form", "dtype"):
        table.add_column(name)
    for length in lengths:
        table.add_column(f"T = {length}", justify="right")
    by = {(row.operator, row.variant, row.dtype, row.tokens): row for row in rows}
    last = ""
    for operator, variant, dtype in dict.fromkeys(key[:3] for key in by):
        cells = [_cell(by.get((operator, variant, dtype, length))) for length in lengths]
        table.add_row("" if operator == last else operator, variant, dtype, *cells)
        last = operator
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    state = "" if row.state_error is None else f" ({row.state_error:.2g})"
    return ("[red]not finite[/]" if row.error is None else f"{row.error:.2g}") + state
