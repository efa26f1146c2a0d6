"""What the commands share: names into records, exit codes, one progress bar."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from linattest.verify import devices, registry
from linattest.verify.campaign import Campaign
from linattest.verify.commands.codes import FAILED, INTERRUPTED, NOTHING, OK
from linattest.verify.grids import Job
from linattest.verify.records import Record
from linattest.verify.spec import DTYPES, Operator


def operators_named(names: list[str]) -> list[Operator]:
    """The named operators, or all. A typo is a usage error that lists the known names."""
    try:
        return [registry.operator(name) for name in names] if names else list(registry.OPERATORS)
    except KeyError as error:
        raise typer.BadParameter(error.args[0], param_hint="OPERATOR") from error


def variants_named(operators: list[Operator], names: list[str]) -> tuple[str, ...]:
    """The names of variants, each of which one of the operators has."""
    known = {variant.name for operator in operators for variant in operator.variants}
    unknown = sorted(set(names) - known)
    if unknown:
        raise typer.BadParameter(f"no variant {unknown}; known: {sorted(known)}", param_hint="--variant")
    return tuple(names)


def dtypes_named(names: list[str]) -> tuple[str, ...]:
    """The named dtypes, or all."""
    unknown = sorted(set(names) - set(DTYPES))
    if unknown:
        raise typer.BadParameter(f"no dtype {unknown}; known: {list(DTYPES)}", param_hint="--dtype")
    return tuple(names) or DTYPES


def none_begins(what: str, given: str, known: Sequence[str]) -> str:
    """That no claim or statement begins so, with the ids that are close and how many there are of each paper."""
    close = difflib.get_close_matches(given, known, n=4, cutoff=0.5)
    near = f" (close: {', '.join(close)})" if close else ""
    counts = Counter(x.partition(".")[0] for x in known)
    of = ", ".join(f"{n} with {first}." for first, n in counts.items())
    return f"no {what} begins with {given!r}{near}; {len(known)} are known: {of}"


def check_device(console: Console, device: str) -> None:
    """A word that names no device is wrong usage; one that this machine has not, an environment that lacks it."""
    try:
        known = devices.kind(device) in ("cpu", "cuda")
    except RuntimeError:
        known = False
    if not known:
        raise typer.BadParameter(f"{device!r}, expected cpu, cuda or cuda:N", param_hint="--device")
    if why := devices.missing(device):
        console.print(f"[red]cannot run[/]: {escape(why)}", highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING)


def status_of(campaign: Campaign) -> int:
    """The exit code of a campaign."""
    if campaign.interrupted:
        return INTERRUPTED
    if campaign.failed or campaign.stopped or campaign.stale_limitations:
        return FAILED
    return OK if campaign.records else NOTHING


Result = TypeVar("Result")


class _Budget(Progress):
    """A bar that fills with the time, not with what is done."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """As ``Progress.get_renderables``."""
        for task in self.tasks:
            task.completed = min(task.elapsed or 0.0, task.total or 0.0)
        yield from super().get_renderables()


def with_progress(
    console: Console,
    jobs: list[Job],
    run: Callable[[Callable[[list[Record]], None]], Result],
    budget: float | None = None,
) -> Result:
    """Run with one progress bar on the terminal: inputs done (or time spent), failures, time left; silent without.

    The bar's length and the time left go by the work of the jobs, since the longest are run first.
    """
    work = {job.case.key: job.work for job in jobs}
    kind, total = (Progress, sum(work.values())) if budget is None else (_Budget, budget)
    ending = TimeRemainingColumn() if budget is None else TextColumn(f"of {budget:g} s")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), ending)
    with kind(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("inputs", total=total)
        done, failed = 0, 0

        def advance(records: list[Record]) -> None:
            nonlocal done, failed
            done += 1
            failed += sum(record.failed for record in records)
            of = f" of {len(jobs)}" if budget is None else ""
            bar.update(
                task, advance=work.get(records[0].case.key, 0.0), description=f"{done}{of} inputs, {failed} failed"
            )

        return run(advance)
