"""The command line: ``linattest verify``, ``cost``, ``show``, ``info``.

Exit codes: 0 all as expected, 1 a failure or regression, 2 usage, 3 nothing measured or the environment
lacks what was asked, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from linattest.verify import registry
from linattest.verify.campaign import Campaign, default_workers, local_executor, resume, run_campaign
from linattest.verify.complexity import LENGTHS, costs
from linattest.verify.examine import replay as replay_bundle
from linattest.verify.grids import Job, grid
from linattest.verify.records import Record
from linattest.verify.report.costs import print_costs
from linattest.verify.report.pages import info_markdown, print_info, print_page
from linattest.verify.report.terminal import print_campaign, print_failure, to_json
from linattest.verify.spec import DTYPES, Operator

app = typer.Typer(
    help="Judge linear-attention operators against arbitrary-precision oracles.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

OK, FAILED, NOTHING, INTERRUPTED = 0, 1, 3, 130


def _operators(names: list[str]) -> list[Operator]:
    """The named operators, or all. A typo is a usage error that lists the known names."""
    try:
        return [registry.operator(name) for name in names] if names else list(registry.OPERATORS)
    except KeyError as error:
        raise typer.BadParameter(error.args[0], param_hint="OPERATOR") from error


def _variants(operators: list[Operator], names: list[str]) -> tuple[str, ...]:
    known = {variant.name for operator in operators for variant in operator.variants}
    unknown = sorted(set(names) - known)
    if unknown:
        raise typer.BadParameter(f"no variant {unknown}; known: {sorted(known)}", param_hint="--variant")
    return tuple(names)


def _dtypes(names: list[str]) -> tuple[str, ...]:
    unknown = sorted(set(names) - set(DTYPES))
    if unknown:
        raise typer.BadParameter(f"no dtype {unknown}; known: {list(DTYPES)}", param_hint="--dtype")
    return tuple(names) or DTYPES


@app.command()
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
    chosen = _operators(operators or [])
    variants, dtypes = _variants(chosen, variant or []), _dtypes(dtype or [])
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
        campaign = _with_progress(
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
    raise typer.Exit(_status(campaign))


def _status(campaign: Campaign) -> int:
    if campaign.interrupted:
        return INTERRUPTED
    if campaign.failed or campaign.stale_limitations:
        return FAILED
    return OK if campaign.records else NOTHING


def _with_progress(
    console: Console, jobs: list[Job], run: Callable[[Callable[[list[Record]], None]], Campaign]
) -> Campaign:
    """Run with a progress bar on the terminal; silent where there is none."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("inputs", total=len(jobs))
        failed = 0

        def advance(records: list[Record]) -> None:
            nonlocal failed
            failed += sum(record.failed for record in records)
            bar.update(task, advance=1, description="inputs" + (f", {failed} failed" if failed else ""))

        return run(advance)


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


@app.command()
def cost(
    operators: Annotated[
        list[str] | None, typer.Argument(help="operators to count; all if none", metavar="[OPERATOR]...")
    ] = None,
    most: Annotated[int, typer.Option(min=1024, help="longest sequence")] = max(LENGTHS),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Count multiply-adds per token of the chunk-parallel forms and say how they grow with T."""
    lengths = [length for length in LENGTHS if length <= most]
    print_costs(Console(), costs(_operators(operators or []), lengths), as_json)


@app.command()
def show(operator: Annotated[str, typer.Argument(help="an operator, as `linattest info` lists them")]) -> None:
    """What an operator is, and where to read about it: definition, variants, properties, files."""
    print_page(Console(), _operators([operator])[0])


@app.command()
def info(
    markdown: Annotated[bool, typer.Option("--markdown", help="the README's table of what is verified")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """The operators, what is verified of them, and the environment."""
    if markdown:
        print(info_markdown())
    else:
        print_info(Console(), as_json)


def main() -> None:
    """Entry point."""
    app()
