"""``linattest verify``: every implementation against its oracle, on a grid or on random cases, or one saved case."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from linattest.verify.campaign import Campaign, run_campaign
from linattest.verify.commands.common import (
    FAILED,
    NOTHING,
    OK,
    dtypes_named,
    operators_named,
    status_of,
    variants_named,
    with_progress,
)
from linattest.verify.examine import replay as replay_bundle
from linattest.verify.executors import Unavailable, default_workers, open_executor
from linattest.verify.fuzz import Fuzzed, fuzz
from linattest.verify.grids import Job, grid
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
    seed: Annotated[int, typer.Option(help="seed of the inputs")] = 0,
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
    if replay is not None:
        raise typer.Exit(_replay(console, replay, as_json))
    _refuse_contradictions(quick, full, budget, workers, executor, records, resume)
    _check_places(records, failures)
    chosen = operators_named(operators or [])
    variants, dtypes = variants_named(chosen, variant or []), dtypes_named(dtype or [])
    jobs: list[Job] = []
    if budget is None:
        grids = (grid(operator, quick=quick, full=full, seed=seed) for operator in chosen)
        jobs = sorted((job for jobs in grids for job in jobs if job.case.dtype in dtypes), key=lambda job: -job.work)
        if not jobs:
            console.print(f"nothing to run: the {'quick ' if quick else ''}grid has no case in {', '.join(dtypes)}")
            raise typer.Exit(NOTHING)
    how = {"variants": variants, "bundles": failures, "output": records, "resume": resume}
    found = _run(console, Asked(chosen, dtypes, jobs, seed, budget, how), executor, workers or default_workers())
    campaign = found.campaign if isinstance(found, Fuzzed) else found
    campaign.complete = full and not (variants or dtype or campaign.interrupted or campaign.stopped)
    _report(console, found, campaign, as_json)
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


def _report(console: Console, found: Campaign | Fuzzed, campaign: Campaign, as_json: bool) -> None:
    if as_json:
        answer = to_json(campaign) | {"stopped": campaign.stopped or None}
        if isinstance(found, Fuzzed):
            answer |= {"coverage": coverage_json(found.coverage), "shrunk": shrunk_json(found)}
        print(json.dumps(answer, indent=2, allow_nan=False))
        return
    print_campaign(console, campaign)
    if isinstance(found, Fuzzed):
        print_fuzzed(console, found)


def _refuse_contradictions(
    quick: bool, full: bool, budget: float | None, workers: int | None, executor: str | None,
    records: Path | None, resume: bool,
) -> None:  # fmt: skip
    given = {"--quick": quick, "--full": full, "--budget": budget, "--workers": workers, "--executor": executor}
    pairs = [("--quick", "--full"), ("--budget", "--quick"), ("--budget", "--full"), ("--executor", "--workers")]
    for one, other in pairs:
        if given[one] and given[other]:
            raise typer.BadParameter(f"contradicts {other}", param_hint=one)
    if executor is not None and "://" not in executor:
        raise typer.BadParameter(f"{executor!r} is no address such as tcp://host:8786", param_hint="--executor")
    if resume and records is None:
        raise typer.BadParameter("needs --records FILE", param_hint="--resume")


def _check_places(records: Path | None, failures: Path) -> None:
    """Before anything is computed: what it finds can be written where it is to go."""
    if records is not None:
        if not records.absolute().parent.is_dir():
            raise typer.BadParameter(f"no folder {records.absolute().parent}: make it first", param_hint="--records")
        if records.is_dir():
            raise typer.BadParameter(f"{records} is a folder, expected a file", param_hint="--records")
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


def _replay(console: Console, path: Path, as_json: bool) -> int:
    """Run a bundle again; the exit code says whether it still fails."""
    if not path.exists():
        raise typer.BadParameter(f"no file {path}", param_hint="--replay")
    try:
        found = replay_bundle(path)
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
