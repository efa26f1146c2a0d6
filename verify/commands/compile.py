"""``linattest compile``: every kernel compiled for GPUs that need not be there, beside the committed record."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from linattest.verify import compiled
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK
from linattest.verify.compiled import NEW, Build, Compiled, Finding
from linattest.verify.compiled_builds import SHARED_LIMIT, build_all, plan_all
from linattest.verify.compiled_calls import ARCHITECTURES, Plan, calls
from linattest.verify.executors import default_workers, local_executor

QUICK_ARCHITECTURE = 90


def compile(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(help="kernels, as file or file.function; all if none", metavar="[KERNEL]..."),
    ] = None,
    arch: Annotated[
        list[int] | None, typer.Option(help="only this architecture (90 is sm_90); may be repeated")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="bfloat16, 128 by 128, two settings of each operator, for sm_90 alone")
    ] = False,
    update: Annotated[bool, typer.Option("--update", help="write what was compiled into the record")] = False,
    record: Annotated[Path, typer.Option(help="the record to compare with")] = compiled.PATH,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
) -> None:
    """Compile every kernel for sm_80, sm_90 and sm_100: a spill, growth by a fifth or an error fails."""
    console = Console(stderr=as_json)
    architectures = _architectures(arch, quick)
    before = _record(record)
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError as error:
        console.print("Triton is not installed: pip install 'linattest[triton]' (Linux)")
        raise typer.Exit(NOTHING) from error
    builds, interrupted = _compile(console, architectures, quick, kernels or [], workers)
    now = Compiled(triton=version, kernels=compiled.numbered(builds))
    whole = not (quick or arch or kernels or interrupted)
    findings = compiled.compare(before, now, SHARED_LIMIT, whole)
    if update and now.kernels:
        findings = _update(console, record, before, now, whole, findings)
    if as_json:
        print(json.dumps(_as_json(now, findings), indent=2, allow_nan=False))
    else:
        _show(console, before, now, findings)
    raise typer.Exit(_status(console, now, findings, interrupted))


def _architectures(arch: list[int] | None, quick: bool) -> list[int]:
    unknown = sorted(set(arch or []) - set(ARCHITECTURES))
    if unknown:
        raise typer.BadParameter(f"no architecture {unknown}; known: {list(ARCHITECTURES)}", param_hint="--arch")
    return arch or ([QUICK_ARCHITECTURE] if quick else list(ARCHITECTURES))


def _record(path: Path) -> Compiled | None:
    try:
        return compiled.read(path)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--record") from error


def _compile(
    console: Console, architectures: list[int], quick: bool, names: list[str], workers: int
) -> tuple[list[Build], bool]:
    """The builds, and whether it was interrupted: what is done then is kept."""
    builds: list[Build] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with (
            local_executor(workers) as executor,
            Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar,
        ):
            task = bar.add_task("calls", total=None)
            wanted = [(call, arch) for arch in architectures for call in calls(quick)]
            plans, builds = plan_all(executor, wanted)
            chosen = _named(plans, names)
            bar.update(task, total=len(chosen))
            for made in build_all(executor, chosen):
                builds.append(made)
                failed = sum(bool(b.error or b.spills) for b in builds)
                about = f"{len(builds)} of {len(chosen)} builds, {failed} spill or fail"
                bar.update(task, completed=len(builds), description=about)
    except KeyboardInterrupt:
        console.print(f"interrupted: {len(builds)} builds were made")
        return builds, True
    return builds, False


def _named(plans: list[Plan], names: list[str]) -> list[Plan]:
    """The plans of the named kernels or files; a name that none has is a usage error."""
    known = {name for plan in plans for name in (plan.name, plan.name.partition(".")[0])}
    unknown = sorted(set(names) - known)
    if unknown:
        raise typer.BadParameter(f"no kernel {unknown}; known: {sorted(known)}", param_hint="KERNEL")
    return [p for p in plans if not names or p.name in names or p.name.partition(".")[0] in names]


def _update(
    console: Console, path: Path, before: Compiled | None, now: Compiled, whole: bool, findings: list[Finding]
) -> list[Finding]:
    """Write the record; what is left to say is what is wrong beside the new one."""
    try:
        fresh = compiled.update(before, now, whole)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--update") from error
    path.write_text(compiled.encode(fresh))
    console.print(f"wrote {len(now.kernels)} builds into {path}")
    return compiled.compare(fresh, now, SHARED_LIMIT, whole)


def _as_json(now: Compiled, findings: list[Finding]) -> dict[str, Any]:
    said = [
        {"name": f.key[0], "call": f.key[1], "arch": f.key[2], "message": f.message, "fails": f.fails} for f in findings
    ]
    every = [{name: getattr(build, name) for name in Build.__struct_fields__} for build in now.kernels]
    return msgspec.to_builtins({"schema": now.schema, "triton": now.triton, "kernels": every, "findings": said})


def _show(console: Console, before: Compiled | None, now: Compiled, findings: list[Finding]) -> None:
    """The worst build of each kernel and architecture, and every finding."""
    table = Table(title=f"worst of each kernel, in bytes and seconds; Triton {now.triton}", title_justify="left")
    table.add_column("kernel", no_wrap=True)
    for name in ("sm", "builds", "registers", "spills", "shared", "seconds"):
        table.add_column(name, justify="right")
    groups: dict[tuple[str, int], list[Build]] = {}
    for b in now.kernels:
        groups.setdefault((b.name.partition("#")[0], b.arch), []).append(b)
    for (name, arch), some in sorted(groups.items()):
        worst = [max(getattr(b, field) for b in some) for field in ("registers", "spills", "shared", "seconds")]
        table.add_row(name, str(arch), str(len(some)), *(f"{x:g}" for x in worst))
    if now.kernels:
        console.print(table)
    new = [f for f in findings if f.message == NEW]
    for f in (f for f in findings if f.message != NEW):
        name, call, arch = f.key
        said = f"{'FAIL' if f.fails else 'note'}: {name} (sm_{arch}, {call}): {f.message}"
        console.print(said, markup=False, soft_wrap=True)
    if new:
        console.print(f"note: {len(new)} builds {NEW}", markup=False)
    if before is not None and before.triton != now.triton:
        console.print(f"the record is of Triton {before.triton}: growth is told, and does not fail", markup=False)


def _status(console: Console, now: Compiled, findings: list[Finding], interrupted: bool) -> int:
    if interrupted:
        return INTERRUPTED
    if not now.kernels:
        console.print("nothing compiled: no operator has a kernel")
        return NOTHING
    return FAILED if any(f.fails for f in findings) else OK
