"""What a self-test looks like in a terminal, and as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.environment import environment
from linattest.verify.faults.bank import Fault
from linattest.verify.faults.selftest import Selftest, Trial
from linattest.verify.power import Row
from linattest.verify.report.power import print_power

SCHEMA = 1

COLOURS = {"caught": "green", "green": "green", "missed": "red", "red": "red", "error": "yellow"}


def to_json(found: Selftest, power: Sequence[Row]) -> dict[str, Any]:
    """The object that ``selftest --json`` prints (schema 1)."""
    faults = [trial for trial in found.trials if trial.kind == "fault"]
    return {
        "schema": SCHEMA,
        "planted": len(faults),
        "caught": len(found.having("caught")),
        "missed": [_plain(trial) for trial in found.having("missed", "error")],
        "faults": [_plain(trial) for trial in faults],
        "neutral": [_plain(trial) for trial in found.trials if trial.kind == "neutral"],
        "control": msgspec.to_builtins(found.control),
        "power": [msgspec.to_builtins(row) for row in power],
        "seconds": found.seconds,
        "interrupted": found.interrupted,
        "environment": msgspec.to_builtins(environment()),
    }


def _plain(trial: Trial) -> dict[str, Any]:
    """One trial; the check that caught it in words and in parts."""
    plain: dict[str, Any] = msgspec.to_builtins(trial)
    if trial.by is not None:
        plain["by"].pop("case", None)
        plain["by"]["name"] = trial.by.name
    return plain


def print_selftest(console: Console, found: Selftest, power: Sequence[Row]) -> None:
    """What was missed in full, catches counted by the kind of check, the power table's summary, a closing line."""
    wrong = [*found.having("missed", "error"), *found.having("red", "error", kind="neutral")]
    for trial in wrong:
        print_trial(console, trial)
    for line in found.control.red:
        console.print(f"[red]red without any edit[/]: {escape(line)}")
    if caught := found.having("caught"):
        console.print(_by_check(caught))
    if power:
        print_power(console, power)
    neutral = [trial for trial in found.trials if trial.kind == "neutral"]
    planted, grown = [t for t in found.trials if t.kind == "fault"], [t.growth for t in neutral if t.growth]
    console.print(
        f"[{'green' if len(caught) == len(planted) else 'red'}]{len(caught)} of {len(planted)} faults caught[/], "
        f"{len(found.having('green', kind='neutral'))} of {len(neutral)} neutral edits green"
        + (f" (ratios at most {max(grown):.2f} times those of the code as it is)" if grown else "")
        + f"; {found.control.checks} checks of the code as it is, {len(found.control.red)} red; {found.seconds:.0f} s"
        + (", [red]interrupted[/]" if found.interrupted else ""),
        highlight=False,
    )


def print_trial(console: Console, trial: Trial) -> None:
    """One edit that did not come out as it should: where, what, why it is a fault, and what was seen."""
    colour = COLOURS[trial.status]
    console.print(f"[{colour}]{trial.status}[/] {escape(trial.id)}  {trial.file}:{trial.line}", highlight=False)
    for line in (trial.edit, trial.why, trial.message or f"{trial.checks} checks, all green"):
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)


def _by_check(caught: Iterable[Trial]) -> Table:
    """How many faults of each file were caught by which kind of check."""
    kinds = ("forward", "gradient", "property", "test")
    rows: dict[str, Counter[str]] = {}
    for trial in caught:
        assert trial.by is not None
        rows.setdefault(trial.file, Counter())[trial.by.direction or "test"] += 1
    table = Table("file", *kinds, title="Faults caught, by the check that came first", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for file, counts in rows.items():
        table.add_row(file, *(str(counts[kind] or "") for kind in kinds))
    return table


def print_bank(console: Console, entries: Sequence[Fault]) -> None:
    """Every entry: id, file, why."""
    table = Table("id", "file", "why", title=f"{len(entries)} edits", title_justify="left")
    for entry in entries:
        table.add_row(
            entry.id, f"{entry.file}:{entry.line}", ("neutral: " if entry.kind == "neutral" else "") + entry.why
        )
    console.print(table)
