"""How a run differs from a snapshot, in a terminal and as one JSON object."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.baselines import Baseline
from linattest.verify.campaign import Campaign
from linattest.verify.environment import environment
from linattest.verify.report.terminal import MOST_FAILURES, print_failure
from linattest.verify.snapshots import FLOOR, GROWTH, SCHEMA, Change, Entry, Snapshot, Verdict, fingerprint

MOST_CHANGES = 20
"""Changes of one kind that are printed; the rest are counted."""


@dataclass
class Difference:
    """A run beside a baseline: ``shared`` entries are in both. ``wanted`` is what the user called the baseline.

    ``written`` is the file that the run was written to as the new snapshot.
    """

    baseline: Baseline | None
    wanted: str | None
    now: Snapshot | None
    changes: list[Change]
    shared: int
    campaign: Campaign
    written: str = ""

    def of(self, verdict: Verdict) -> list[Change]:
        """The changes of one kind."""
        return [change for change in self.changes if change.verdict == verdict]

    @property
    def advice(self) -> bool:
        """Whether the baseline is of another class, so that growth says nothing certain."""
        return self.baseline is not None and not self.baseline.same

    @property
    def regressions(self) -> list[Change]:
        """What makes the run fail."""
        return [] if self.advice else self.of("grew")

    def again(self, entry: Entry) -> str:
        """The command that runs an entry's worst input again and compares it with the same baseline."""
        parts = ["linattest", "diff", *([self.wanted] if self.wanted else []), "--operator", entry.operator]
        parts += ["--variant", entry.variant, "--dtype", entry.dtype, "--family", entry.family]
        return shlex.join([*parts, "--seed", str(entry.seed)])


def to_json(difference: Difference) -> dict[str, Any]:
    """The object that ``diff --json`` prints (schema 1)."""
    campaign, baseline = difference.campaign, difference.baseline
    cases = {record.case.key: record.case.describe() for record in campaign.records}
    return {
        "schema": SCHEMA,
        "baseline": None if baseline is None else {
            "source": baseline.source,
            "class": baseline.snapshot.fingerprint.name,
            "made": msgspec.to_builtins(baseline.snapshot.made),
        },
        "class": fingerprint(environment()).name,
        "advice": difference.advice,
        "floor": FLOOR,
        "growth": GROWTH,
        "entries": 0 if difference.now is None else len(difference.now.entries),
        "compared": difference.shared,
        **{verdict: [_plain(difference, change, cases) for change in difference.of(verdict)] for verdict in _WORDS},
        "failed": len(campaign.failed),
        "failures": [
            {
                "operator": r.case.operator, "variant": r.variant, "dtype": r.case.dtype, "family": r.case.family,
                "what": r.direction, "case": r.case.describe(), "message": r.message, "replay": r.replay,
            }
            for r in campaign.failed
        ],
        "written": difference.written or None,
        "seconds": round(campaign.seconds, 2),
        "interrupted": campaign.interrupted,
        "stopped": campaign.stopped,
        "environment": msgspec.to_builtins(environment()),
    }  # fmt: skip


def _plain(difference: Difference, change: Change, cases: dict[str, str]) -> dict[str, Any]:
    operator, variant, dtype, family, direction = change.key
    before, now = change.before, change.now
    return {
        "operator": operator, "variant": variant, "dtype": dtype, "family": family, "what": direction,
        "before": None if before is None else before.ratio, "now": None if now is None else now.ratio,
        "factor": change.factor, "infinite": 0 if now is None else now.infinite,
        "case": None if now is None else cases.get(now.case), "again": None if now is None else difference.again(now),
    }  # fmt: skip


_WORDS: dict[Verdict, str] = {
    "grew": f"more than {GROWTH:g} times as large",
    "shrank": f"less than 1/{GROWTH:g} of what it was: `linattest diff --update` keeps it so",
    "new": "not in the snapshot: `linattest diff --update` adds it",
    "gone": "in the snapshot, and not registered any more: `linattest diff --update` drops it",
}


def print_difference(console: Console, difference: Difference) -> None:
    """A table of what grew and shrank, a command for each that grew, failures in words, and one closing line."""
    baseline, campaign = difference.baseline, difference.campaign
    if baseline is not None and difference.advice:
        console.print(
            f"[yellow]advice only[/]: {escape(baseline.source)} is of class {baseline.snapshot.fingerprint.name}, "
            f"this is {fingerprint(environment()).name}", highlight=False, soft_wrap=True,
        )  # fmt: skip
    for verdict in ("grew", "shrank"):
        if some := difference.of(verdict):
            console.print(_table(verdict, some))
    _print_commands(console, difference)
    for verdict in ("new", "gone"):
        if some := difference.of(verdict):
            keys = ", ".join(" ".join(change.key) for change in some[:3])
            more = ", ..." if len(some) > 3 else ""
            console.print(f"{len(some)} {verdict} ({_WORDS[verdict]}): {keys}{more}", highlight=False, soft_wrap=True)
    for record in campaign.failed[:MOST_FAILURES]:
        print_failure(console, record)
    if len(campaign.failed) > MOST_FAILURES:
        console.print(f"... and {len(campaign.failed) - MOST_FAILURES} more failures (--json lists all)")
    _print_closing(console, difference)


def _table(verdict: Verdict, changes: list[Change]) -> Table:
    table = Table(title=f"{verdict}: {_WORDS[verdict]}", title_justify="left")
    for name in ("operator", "variant", "dtype", "family", "direction"):
        table.add_column(name)
    for name in ("was", "is", "factor"):
        table.add_column(name, justify="right")
    for change in changes[:MOST_CHANGES]:
        factor = "-" if change.factor is None else f"{change.factor:.3g}"
        table.add_row(*change.key, _ratio(change.before), _ratio(change.now), factor)
    if len(changes) > MOST_CHANGES:
        table.caption = f"and {len(changes) - MOST_CHANGES} more (--json lists all)"
    return table


def _ratio(entry: Entry | None) -> str:
    return "-" if entry is None else "inf" if entry.infinite else f"{entry.ratio:.3g}"


def _print_commands(console: Console, difference: Difference) -> None:
    """The worst input of what grew, and how to run it again."""
    cases = {record.case.key: record.case.describe() for record in difference.campaign.records}
    for change in difference.of("grew")[:MOST_FAILURES]:
        if change.now is not None:
            console.print(
                f"[{'yellow' if difference.advice else 'red'}]grew[/] [bold]{' '.join(change.key)}[/]\n"
                f"  input: {escape(cases[change.now.case])}\n  again: {escape(difference.again(change.now))}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def _print_closing(console: Console, difference: Difference) -> None:
    campaign = difference.campaign
    grew = len(difference.of("grew"))
    colour = "green" if not grew else "yellow" if difference.advice else "red"
    parts = [
        f"{len(campaign.records)} cases, {difference.shared} entries compared: [{colour}]{grew} grew[/], "
        f"{len(difference.of('shrank'))} shrank; {len(campaign.failed)} failed; {campaign.seconds:.0f} s"
    ]
    if campaign.interrupted:
        parts.append("interrupted")
    if campaign.stopped:
        parts.append(f"stopped: {escape(campaign.stopped)}")
    if difference.written:
        parts.append(f"written to {escape(difference.written)}")
    console.print("; ".join(parts), highlight=False, soft_wrap=True)
