"""``linattest verify``: every implementation against its oracle, on a grid or on random cases, or one saved case."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from linattest.verify import devices, registry
from linattest.verify.campaign import Campaign, run_campaign
from linattest.verify.commands.common import (
    FAILED,
    NOTHING,
    OK,
    check_device,
    dtypes_named,
    operators_named,
    status_of,
    variants_named,
    with_progress,
)
from linattest.verify.examine import replay as replay_bundle
from linattest.verify.executors import Unavailable, default_workers, local_executor, open_executor
from linattest.verify.fuzz import Fuzzed, fuzz
from linattest.verify.grids import Job, device_grid, grid
from linattest.verify.records import Record, load_bundle
from linattest.verify.report.coverage import coverage_json, print_fuzzed, shrunk_json
from linattest.verify.report.terminal import print_campaign, print_failure, to_json
from linattest.verify.spec import Operator


@dataclass(frozen=True)
class Asked:
    """What the options say, checked. ``how`` are the keywords of ``run_campaign`` and ``fuzz`` alike."""

    operators: list[Operator]
    dtypes: tuple[str, ...]
    jobs: list[Job]
    seed: int
    budget: float | None
    device: str
    left: list[devices.Left]
    how: dict[str, Any]

    @property
    def output(self) -> Path | None:
        """The file of records."""
        return self.how["output"]


def verify(
    operators: Annotated[
        list[str] | None, typer.Argument(help="operators to judge; all if none", metavar="[OPERATOR]...")
    ] = None,
    variant: Annotated[list[str] | None, typer.Option(help="only this variant; may be repeated")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be repeated")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a first impression in about a minute")] = False,
    full: Annotated[bool, typer.Option("--full", help="every structure and family in every dtype")] = False,
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="random cases for so long, instead of the grid")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
    output: Annotated[Path | None, typer.Option(help="write that JSON object to this file too")] = None,
    seed: Annotated[int, typer.Option(help="seed of the inputs")] = 0,
    device: Annotated[str, typer.Option(help="where the variants run: cpu, cuda, cuda:1")] = "cpu",
    workers: Annotated[int | None, typer.Option(min=1, help="processes; default: one a core")] = None,
    executor: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="run on a dask cluster: tcp://host:8786")
    ] = None,
    records: Annotated[Path | None, typer.Option(help="append every record to this JSON-lines file")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="skip what --records already holds")] = False,
    failures: Annotated[Path, typer.Option(help="folder for replay bundles")] = Path("linattest-failures"),
    replay: Annotated[Path | None, typer.Option(help="run again what a replay bundle saved")] = None,
) -> None:
    """Compare every implementation with its oracle: forward, gradients, properties."""
    console = Console(stderr=as_json)
    check_device(console, device)
    if replay is not None:
        raise typer.Exit(_replay(console, replay, as_json, device))
    _refuse_contradictions(quick, full, budget, workers, executor, records, resume, device)
    _check_places(records, failures, output)
    chosen = operators_named(operators or [])
    variants, dtypes = variants_named(chosen, variant or []), dtypes_named(dtype or [])
    left = _left_out(chosen, variants, device)
    jobs: list[Job] = []
    if budget is None:
        runs = [operator for operator in chosen if devices.chosen(operator, variants, device)]
        jobs = _jobs(runs, dtypes, quick=quick, full=full, seed=seed, device=device)
        if not jobs:
            which = f"{'quick ' if quick else ''}grid has no case in {', '.join(dtypes)}"
            console.print("nothing to run" if left and not runs else f"nothing to run: the {which}")
            _print_left(console, left)
            raise typer.Exit(NOTHING)
    how = {"variants": variants, "bundles": failures, "output": records, "resume": resume}
    asked = Asked(chosen, dtypes, jobs, seed, budget, device, left, how)
    found = _run(console, asked, executor, workers or default_workers())
    campaign = found.campaign if isinstance(found, Fuzzed) else found
    part = bool(variants or dtype or device != "cpu" or campaign.interrupted or campaign.stopped)
    campaign.complete = full and not part
    _report(console, asked, found, campaign, as_json, output)
    if campaign.interrupted or campaign.stopped:
        _say_how_to_go_on(console, campaign, records)
    raise typer.Exit(status_of(campaign))


def _run(console: Console, asked: Asked, executor: str | None, workers: int) -> Campaign | Fuzzed:
    """The campaign, on this machine or a cluster."""
    try:
        with open_executor(executor, workers) as pool:

            def run(progress: Callable[..., None]) -> Campaign | Fuzzed:
                if asked.budget is None:
                    return run_campaign(asked.jobs, pool, progress=progress, **asked.how)
                how: dict[str, Any] = {"seed": asked.seed, "dtypes": asked.dtypes, "progress": progress, **asked.how}
                return fuzz(asked.operators, pool, asked.budget, **how)

            try:
                return with_progress(console, asked.jobs, run, asked.budget)
            except (OSError, ValueError) as error:
                if asked.output is None:
                    raise
                raise typer.BadParameter(str(error), param_hint="--records") from error
    except Unavailable as error:
        console.print(f"[red]cannot run[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING) from error


def _jobs(
    operators: list[Operator], dtypes: tuple[str, ...], *, quick: bool, full: bool, seed: int, device: str
) -> list[Job]:
    """The grid of every operator, longest first; a GPU has one of its own, with long sequences."""
    own = devices.kind(device) != "cpu" and not (quick or full)
    grids = (
        device_grid(operator, seed=seed) if own else grid(operator, quick=quick, full=full, seed=seed)
        for operator in operators
    )
    some = (replace(job, device=device) for jobs in grids for job in jobs if job.case.dtype in dtypes)
    return sorted(some, key=lambda job: -job.work)


def _left_out(operators: list[Operator], names: tuple[str, ...], device: str) -> list[devices.Left]:
    """What will not be run. Where there is no GPU, a kernel that is asked for by name runs in Triton's interpreter."""
    kernels = any(v.kernel and v.name in names for operator in operators for v in operator.variants)
    if kernels and devices.kind(device) == "cpu" and devices.missing("cuda"):
        devices.interpret()
    return devices.left_out(operators, names, device)


def _report(
    console: Console, asked: Asked, found: Campaign | Fuzzed, campaign: Campaign, as_json: bool, output: Path | None
) -> None:
    answer = to_json(campaign) | {"stopped": campaign.stopped or None} | _place(asked, campaign)
    if isinstance(found, Fuzzed):
        answer |= {"coverage": coverage_json(found.coverage), "shrunk": shrunk_json(found)}
    text = json.dumps(answer, indent=2, allow_nan=False)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
        return
    print_campaign(console, campaign)
    if isinstance(found, Fuzzed):
        print_fuzzed(console, found)
    _print_left(console, asked.left)
    if too_large := _too_large(asked):
        where = f"in the interpreter: {too_large} inputs of T (K + V) heads rows above {devices.INTERPRETED_WORK}"
        console.print(f"[yellow]not run[/] {where}", highlight=False)


def _print_left(console: Console, left: list[devices.Left]) -> None:
    """A line for each reason, with the variants that it keeps from running."""
    for why, some in groupby(sorted(left, key=lambda x: x.why), key=lambda x: x.why):
        names = [f"{x.operator} {x.variant}" for x in some]
        few = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        console.print(f"[yellow]not run[/]: {len(names)} variants ({few}): {escape(why)}", highlight=False)


def _too_large(asked: Asked) -> int:
    """Inputs that no chosen kernel got, since the interpreter would take minutes for them."""
    by_name = {operator.name: operator for operator in asked.operators}
    kernels = {
        name: [v for v in devices.chosen(operator, asked.how["variants"], asked.device) if v.kernel]
        for name, operator in by_name.items()
    }
    return sum(
        any(not devices.small_enough(v, job.case, job.device) for v in kernels[job.case.operator]) for job in asked.jobs
    )


def _place(asked: Asked, campaign: Campaign) -> dict[str, Any]:
    """Where it ran, in JSON: the device's environment, and what was not run there."""
    where = next((r.environment for r in campaign.records if r.environment and r.environment.input_precision), None)
    where = where or devices.surroundings(asked.device, False)
    return {
        "device": asked.device, "environment": msgspec.to_builtins(where), "too_large": _too_large(asked),
        "left_out": msgspec.to_builtins(asked.left),
        "substituted": sum(r.truth == "float64" for r in campaign.records),
    }  # fmt: skip


def _refuse_contradictions(
    quick: bool, full: bool, budget: float | None, workers: int | None, executor: str | None,
    records: Path | None, resume: bool, device: str,
) -> None:  # fmt: skip
    given = {"--quick": quick, "--full": full, "--budget": budget, "--workers": workers, "--executor": executor}
    pairs = [("--quick", "--full"), ("--budget", "--quick"), ("--budget", "--full"), ("--executor", "--workers")]
    for one, other in pairs:
        if given[one] and given[other]:
            raise typer.BadParameter(f"contradicts {other}", param_hint=one)
    if budget and device != "cpu":
        raise typer.BadParameter("random cases run on the CPU", param_hint="--device")
    if executor is not None and "://" not in executor:
        raise typer.BadParameter(f"{executor!r} is no address such as tcp://host:8786", param_hint="--executor")
    if resume and records is None:
        raise typer.BadParameter("needs --records FILE", param_hint="--resume")


def _check_places(records: Path | None, failures: Path, output: Path | None) -> None:
    """Before anything is computed: what it finds can be written where it is to go."""
    for path, option in ((records, "--records"), (output, "--output")):
        if path is not None and not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"no folder {path.absolute().parent}: make it first", param_hint=option)
        if path is not None and path.is_dir():
            raise typer.BadParameter(f"{path} is a folder, expected a file", param_hint=option)
    there = next(folder for folder in (failures.absolute(), *failures.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{there} is no folder that can be written to", param_hint="--failures")


def _say_how_to_go_on(console: Console, campaign: Campaign, records: Path | None) -> None:
    """The last lines: why it ended early, what is kept, and the command that does the rest."""
    inputs = len({record.case.key for record in campaign.records})
    console.print(f"[yellow]{escape(campaign.stopped) or 'interrupted'}[/] after {inputs} inputs", highlight=False)
    if records is None:
        console.print("their records are kept nowhere: --records FILE keeps them, and --resume goes on from there")
        return
    arguments = [*sys.argv[1:], *([] if "--resume" in sys.argv else ["--resume"])]
    console.print(
        f"their records are in {escape(str(records))}; the rest:\n  linattest {escape(shlex.join(arguments))}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _again(path: Path, device: str) -> list[Record]:
    """The bundle's records; of a kernel on a CPU from a process of its own, where the interpreter is on in time."""
    bundle, _ = load_bundle(path)
    known = registry.BY_NAME.get(bundle.case.operator)
    kernel = known is not None and any(v.kernel and v.name == bundle.variant for v in known.variants)
    if not kernel or devices.kind(device) != "cpu":
        return replay_bundle(path, device)
    devices.interpret()
    with local_executor(1) as pool:
        return pool.submit(replay_bundle, path, device).result()


def _replay(console: Console, path: Path, as_json: bool, device: str) -> int:
    """Run a bundle again; the exit code says whether it still fails."""
    if not path.exists():
        raise typer.BadParameter(f"no file {path}", param_hint="--replay")
    try:
        found = _again(path, device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--replay") from error
    campaign = Campaign(records=found)
    if as_json:
        print(json.dumps(to_json(campaign), indent=2, allow_nan=False))
    for record in found:
        if record.failed:
            print_failure(console, record)
        elif not as_json:
            console.print(
                f"{record.case.operator} {record.variant} {record.direction}: passes now, ratio {record.ratio}"
            )
    return FAILED if campaign.failed else OK if found else NOTHING
