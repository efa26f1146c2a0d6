"""``linattest sanitize``: compute-sanitizer over small launches of every kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify import devices, sanitizer
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK, check_device, operators_named
from linattest.verify.sanitizer import TOOLS, Finding, Tool


def sanitize(
    operators: Annotated[list[str] | None, typer.Argument(help="all if none", metavar="[OPERATOR]...")] = None,
    tool: Annotated[list[str] | None, typer.Option(help="memcheck or racecheck; both if not named")] = None,
    device: Annotated[str, typer.Option(help="cuda or cuda:N")] = "cuda",
    quick: Annotated[bool, typer.Option("--quick", help="two settings, two structures, bfloat16")] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="write one JSON object")] = None,
) -> None:
    """Accesses out of bounds and races in shared memory, by NVIDIA's tool, where it is installed.

    Exit code 0: all clean; 1: something found, or calls that did not end; 3: no GPU, no tool (pip install
    nvidia-cuda-sanitizer-api), or one that does not see a planted fault.
    """
    console = Console()
    chosen = [x for x in operators_named(operators or []) if any(v.kernel for v in x.variants)]
    if unknown := sorted(set(tool or ()) - set(TOOLS)):
        raise typer.BadParameter(f"no tool {', '.join(unknown)}; known: {', '.join(TOOLS)}", param_hint="--tool")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}", param_hint="--output")
    _check_gpu(console, device)
    there = sanitizer.find()
    if there is None:
        where = "on PATH, in CUDA_HOME or from a package of Python"
        console.print(
            f"no {sanitizer.NAME} {where}: not run; `pip install nvidia-cuda-sanitizer-api` has it", soft_wrap=True
        )
        raise typer.Exit(NOTHING)
    kinds: list[Tool] = [x for x in TOOLS if not tool or x in tool]
    found, interrupted, planted = list[Finding](), False, None
    try:
        planted = sanitizer.sees_planted(there, device) if "memcheck" in kinds else None
        for kind in kinds if planted is not False else ():
            for operator in chosen:
                with console.status(f"{kind}: {operator.name}"):
                    found.append(sanitizer.look(there, kind, operator.name, device, quick=quick))
    except KeyboardInterrupt:
        interrupted = True
    if output is not None:
        told = sanitizer.sanitized(there, planted, found, quick=quick)
        output.write_text(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n", encoding="utf-8")
    _show(console, found)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if planted is False:
        console.print(
            "memcheck does not see a write behind the end of a tensor here: it has judged nothing", soft_wrap=True
        )
        raise typer.Exit(NOTHING)
    raise typer.Exit(OK if found and all(x.clean for x in found) else FAILED if found else NOTHING)


def _check_gpu(console: Console, device: str) -> None:
    """As ``check_device``; what the tool looks at runs on a GPU alone."""
    try:
        there = devices.kind(device) == "cuda"
    except RuntimeError:  # no device of torch's
        there = False
    if not there:
        raise typer.BadParameter(f"--device is {device!r}, expected cuda or cuda:N")
    check_device(console, device)


def _show(console: Console, found: list[Finding]) -> None:
    table = Table("tool", "operator", "calls", "errors", "seconds")
    for x in found:
        table.add_row(x.tool, x.operator, str(x.calls), "?" if x.errors is None else str(x.errors), f"{x.seconds:g}")
    console.print(table)
    for x in found:
        if not x.clean:
            console.print(f"[red]{x.tool}, {x.operator}[/]: {escape(x.trouble)}", highlight=False)
