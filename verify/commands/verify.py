"""``linattest verify``: every implementation against its oracle, or one saved case again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from linattest.verify.campaign import Campaign, default_workers, local_executor, resume, run_campaign
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
from linattest.verify.grids import grid
from linattest.verify.report.terminal import print_campaign, print_failure, to_json


def verify(
    operators: Annotated[
        list[str] | None, typer.Argument(help="operators to judge; all if none", metavar="[OPERATOR]...")
    ] = None,
    variant: Annotated[list[str] | None, typer.Option(help="only this variant; may be repeated")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be repeated")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a first impression in about a minute")] = False,
    full: Annotated[bool, typer.Option("--full", help="every structure and family in every dtype")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
    seed: Annotated[int, typer.Option(help="seed of the inputs")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
    records: Annotated[Path | None, typer.Option(help="append every record to this JSON-lines file")] = None,
    resume_: Annotated[bool, typer.Option("--resume", help="skip what --records already holds")] = False,
    failures: Annotated[Path, typer.Option(help="folder for replay bundles")] = Path("linattest-failures"),
    replay: Annotated[Path | None, typer.Option(help="run again what a replay bundle saved")] = None,
) -> None:
    """Compare every implementation with its oracle: forward, gradients, properties."""
    console = Console(stderr=as_json)
    if replay is not None:
        raise typer.Exit(_replay(console, replay, as_json))
    if quick and full:
        raise typer.BadParameter("contradicts --full", param_hint="--quick")
    if resume_ and records is None:
        raise typer.BadParameter("needs --records FILE", param_hint="--resume")
    chosen = operators_named(operators or [])
    variants, dtypes = variants_named(chosen, variant or []), dtypes_named(dtype or [])
    grids = (grid(operator, quick=quick, full=full, seed=seed) for operator in chosen)
    jobs = [job for jobs in grids for job in jobs if job.case.dtype in dtypes]
    if not jobs:
        console.print(f"nothing to run: the {'quick ' if quick else ''}grid has no case in {', '.join(dtypes)}")
        raise typer.Exit(NOTHING)
    jobs.sort(key=lambda job: -job.work)
    campaign = Campaign()
    if resume_ and records is not None:
        try:
            campaign, jobs = resume(records, jobs, variants)
        except (OSError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--records") from error
    with local_executor(workers) as executor:
        campaign = with_progress(
            console, jobs,
            lambda progress: run_campaign(
                jobs, executor, variants=variants, bundles=failures, output=records, progress=progress,
                campaign=campaign,
            ),
        )  # fmt: skip
    campaign.complete = full and not (variants or dtype or campaign.interrupted)
    if as_json:
        print(json.dumps(to_json(campaign), indent=2, allow_nan=False))
    else:
        print_campaign(console, campaign)
    raise typer.Exit(status_of(campaign))


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
