"""``linattest diff``: the worst error ratios now, beside those of a committed snapshot."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from linattest.verify import baselines, registry, snapshots
from linattest.verify.baselines import Baseline
from linattest.verify.campaign import Campaign, run_campaign
from linattest.verify.commands.common import (
    FAILED,
    INTERRUPTED,
    NOTHING,
    OK,
    dtypes_named,
    operators_named,
    variants_named,
    with_progress,
)
from linattest.verify.environment import environment
from linattest.verify.executors import default_workers, local_executor
from linattest.verify.grids import Job
from linattest.verify.histories import SEEDS, jobs, keys
from linattest.verify.report.diffs import Difference, print_difference, to_json
from linattest.verify.snapshots import Entry, Key, Snapshot
from linattest.verify.spec import DTYPES, Operator


@dataclass(frozen=True)
class Selection:
    """What of the history is run; empty means all."""

    operators: list[Operator]
    named: bool
    variants: tuple[str, ...]
    dtypes: tuple[str, ...]
    families: tuple[str, ...]
    seeds: tuple[int, ...]
    quick: bool

    def jobs(self) -> list[Job]:
        """Operator by operator, so that an interrupted run has whole ones."""
        seeds = self.seeds or range(SEEDS)
        return [
            job for operator in self.operators
            for job in jobs(operator, self.dtypes, self.families or None, seeds, quick=self.quick)
        ]  # fmt: skip

    def covers(self, entry: Entry) -> bool:
        """Whether the entry is of what is run, or would be if it were registered still."""
        return (
            (not self.named or entry.operator in {operator.name for operator in self.operators})
            and (not self.variants or entry.variant in self.variants)
            and entry.dtype in self.dtypes
            and (not self.families or entry.family in self.families)
        )

    def registered(self) -> set[Key]:
        """Every key of these operators: a quick run has them all."""
        return {key for operator in self.operators for key in keys(operator, jobs(operator, quick=True))}

    @property
    def narrowed(self) -> list[str]:
        """The options that leave a part of an operator out."""
        given = {
            "--variant": self.variants, "--dtype": self.dtypes != DTYPES, "--family": self.families,
            "--seed": self.seeds, "--quick": self.quick,
        }  # fmt: skip
        return [name for name, used in given.items() if used]


def diff(
    baseline: Annotated[
        str | None,
        typer.Argument(
            help="a snapshot's file, or a revision that has one; the package's own if none", metavar="[REV|FILE]"
        ),
    ] = None,
    operator: Annotated[list[str] | None, typer.Option(help="only this operator; may be repeated")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="only this variant; may be repeated")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be repeated")] = None,
    family: Annotated[list[str] | None, typer.Option(help="only this value family; may be repeated")] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, max=SEEDS - 1, help="only this seed; may be repeated")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="one seed an entry, in about a minute")] = False,
    update: Annotated[bool, typer.Option("--update", help="write what was measured as the new snapshot")] = False,
    output: Annotated[Path | None, typer.Option(help="write what was measured to this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
    records: Annotated[Path | None, typer.Option(help="append every record to this JSON-lines file")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="skip what --records already holds")] = False,
    failures: Annotated[Path, typer.Option(help="folder for replay bundles")] = Path("linattest-failures"),
) -> None:
    """Compare the worst error ratios with a snapshot: what grew to more than twice its size fails."""
    console = Console(stderr=as_json)
    selection = _selection(operator, variant, dtype, family, seed, quick)
    if update and selection.narrowed:
        raise typer.BadParameter(
            f"writes whole operators, which {', '.join(selection.narrowed)} would not measure", param_hint="--update"
        )
    if resume and records is None:
        raise typer.BadParameter("needs --records FILE", param_hint="--resume")
    try:
        before = _baseline(baseline, optional=baseline is None and (update or output is not None))
    except baselines.Missing as error:
        console.print(str(error.args[0]), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING) from error
    campaign = _run(console, selection, workers, failures, records, resume)
    difference = _compare(before, campaign, selection, baseline)
    _write(console, difference, campaign, output, update)
    if as_json:
        print(json.dumps(to_json(difference), indent=2, allow_nan=False))
    else:
        print_difference(console, difference)
    raise typer.Exit(_status(difference))


def _selection(
    operator: list[str] | None, variant: list[str] | None, dtype: list[str] | None, family: list[str] | None,
    seed: list[int] | None, quick: bool,
) -> Selection:  # fmt: skip
    chosen = operators_named(operator or [])
    variants, dtypes = variants_named(chosen, variant or []), dtypes_named(dtype or [])
    known = {name for one in chosen for name in one.families}
    unknown = sorted(set(family or []) - known)
    if unknown:
        raise typer.BadParameter(f"no family {unknown}; known: {sorted(known)}", param_hint="--family")
    if quick and seed:
        raise typer.BadParameter("chooses seeds itself: contradicts --seed", param_hint="--quick")
    seeds = tuple(sorted(set(seed or [])))
    return Selection(chosen, bool(operator), variants, dtypes, tuple(family or []), seeds, quick)


def _baseline(wanted: str | None, optional: bool) -> Baseline | None:
    """The baseline; ``None`` where there is none and none is needed."""
    try:
        return baselines.find(wanted, snapshots.fingerprint(environment()))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="REV|FILE") from error
    except baselines.Missing:
        if optional:
            return None
        raise


def _run(
    console: Console, selection: Selection, workers: int, failures: Path, records: Path | None, resume: bool
) -> Campaign:
    todo = selection.jobs()
    try:
        with local_executor(workers) as executor:
            return with_progress(
                console, todo,
                lambda progress: run_campaign(
                    todo, executor, variants=selection.variants, bundles=failures, output=records, resume=resume,
                    progress=progress,
                ),
            )  # fmt: skip
    except (OSError, ValueError) as error:
        if records is None:
            raise
        raise typer.BadParameter(str(error), param_hint="--records") from error


def _compare(before: Baseline | None, campaign: Campaign, selection: Selection, wanted: str | None) -> Difference:
    measured = [r for r in campaign.records if snapshots.key_of(r) is not None]
    now = snapshots.fold(measured) if measured else None
    changes: list[snapshots.Change] = []
    shared = 0
    if before is not None and now is not None:
        covered = [entry for entry in before.snapshot.entries if selection.covers(entry)]
        old = Snapshot(fingerprint=before.snapshot.fingerprint, entries=covered)
        changes = snapshots.compare(old, now, selection.registered())
        shared = len(old.by_key.keys() & now.by_key.keys())
    return Difference(before, wanted, now, changes, shared, campaign)


def _write(console: Console, difference: Difference, campaign: Campaign, output: Path | None, update: bool) -> None:
    """What was measured, to ``output`` however little it is, and as the new snapshot if it is whole."""
    now = difference.now
    if now is None:
        return
    if output is not None:
        _save(output, now, "--output")
    if not update:
        return
    short = sorted({entry.operator for entry in now.entries if entry.seeds < SEEDS})
    if campaign.interrupted or campaign.stopped or short:
        why = f"{', '.join(short)} without all seeds" if short else "not all was run"
        console.print(f"not updated: {why} (--records FILE --resume goes on)", markup=False, highlight=False)
        return
    failing = {key for record in campaign.failed if (key := snapshots.key_of(record)) is not None}
    path = baselines.path_of(now.fingerprint)
    held = baselines.committed(now.fingerprint)
    _save(path, snapshots.merge(held, now, failing, registry.BY_NAME), "--update")
    difference.written = str(path)


def _save(path: Path, snapshot: Snapshot, option: str) -> None:
    """In one step, so that nobody finds half a file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(snapshots.encode(snapshot), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error}", param_hint=option) from error


def _status(difference: Difference) -> int:
    campaign = difference.campaign
    if campaign.interrupted:
        return INTERRUPTED
    if campaign.failed or (difference.regressions and not difference.written):
        return FAILED
    compared = difference.shared if difference.baseline is not None else difference.now
    return NOTHING if campaign.stopped or not (compared or difference.written) else OK
