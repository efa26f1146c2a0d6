"""What a campaign looks like in a terminal, and as one JSON object."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify import registry
from linattest.verify.campaign import Campaign
from linattest.verify.environment import environment
from linattest.verify.records import SCHEMA, Record
from linattest.verify.spec import DTYPES
from linattest.verify.tolerance import ORACLE_MARGIN, THRESHOLD

MOST_FAILURES = 12
"""Failures printed in full; the rest are counted."""

Key = tuple[str, str, str, str]


def worst(records: list[Record]) -> dict[Key, Record]:
    """The worst record of each (operator, variant, dtype, direction)."""
    found: dict[Key, Record] = {}
    for record in records:
        key = (record.case.operator, record.variant, record.case.dtype, record.direction)
        if key not in found or _badness(record) > _badness(found[key]):
            found[key] = record
    return found


def _badness(record: Record) -> tuple[bool, bool, float]:
    """Failures first, known ones last: they are counted, and listed in JSON, beside the worst of what must pass."""
    return record.failed, record.status != "known", float("inf") if record.ratio is None else record.ratio


def to_json(campaign: Campaign) -> dict[str, Any]:
    """The object that ``verify --json`` prints (schema 1)."""
    rows = [
        {"operator": o, "variant": v, "dtype": d, "what": w, "ratio": r.ratio, "case": r.case.describe()}
        for (o, v, d, w), r in sorted(worst(campaign.records).items())
    ]
    failures = [
        {
            "operator": r.case.operator, "variant": r.variant, "dtype": r.case.dtype, "what": r.direction,
            "output": r.what, "case": r.case.describe(), "message": r.message, "replay": r.replay,
        }
        for r in campaign.failed
    ]  # fmt: skip
    return {
        "schema": SCHEMA,
        "cases": len(campaign.records),
        "failed": len(campaign.failed),
        "known": sum(r.status == "known" for r in campaign.records),
        "worst": rows,
        "known_failures": [
            {
                "operator": r.case.operator,
                "variant": r.variant,
                "dtype": r.case.dtype,
                "what": r.direction,
                "ratio": r.ratio,
                "case": r.case.describe(),
                "message": r.message,
            }
            for r in campaign.records
            if r.status == "known"
        ],
        "failures": failures,
        "stale_limitations": campaign.stale_limitations,
        "oracle_radius": campaign.oracle_radius,
        "oracle_radius_unit": "fraction of the error budget; proved",
        "gradients": sum(r.direction == "gradient" for r in campaign.records),
        "certified_gradients": sum(r.certified for r in campaign.records),
        "crosschecked": sum(r.crosschecked for r in campaign.records),
        "seconds": round(campaign.seconds, 2),
        "interrupted": campaign.interrupted,
        "environment": _plain(environment()),
    }


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def print_campaign(console: Console, campaign: Campaign) -> None:
    """Table of worst error ratios, failures in words, and one closing line."""
    found = worst(campaign.records)
    table = Table(title=f"worst error ratio: forward | gradient, at most {THRESHOLD:g}; properties: failed / tried")
    table.add_column("operator")
    table.add_column("variant")
    dtypes = [d for d in DTYPES if any(key[2] == d for key in found)]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    table.add_column("properties", justify="right")
    last = ""
    for operator, variant in _subjects(campaign.records):
        cells = [_cell(found, operator, variant, dtype) for dtype in dtypes]
        table.add_row(
            "" if operator == last else operator, variant, *cells, _properties(campaign.records, operator, variant)
        )
        last = operator
    console.print(table)
    for record in campaign.failed[:MOST_FAILURES]:
        print_failure(console, record)
    if len(campaign.failed) > MOST_FAILURES:
        console.print(f"... and {len(campaign.failed) - MOST_FAILURES} more failures (--json lists all)")
    for line in campaign.stale_limitations:
        console.print(f"[red]known failure that no longer fails[/]: {escape(line)}")
    radius = campaign.oracle_radius
    proved = "" if radius is None else f"; oracle radius {radius:.1e} of the budget (at most {ORACLE_MARGIN:.1e})"
    known = sum(r.status == "known" for r in campaign.records)
    gradients, certified = (
        sum(x) for x in ((r.direction == "gradient" for r in campaign.records), (r.certified for r in campaign.records))
    )
    console.print(
        f"{len(campaign.records)} cases, [{'red' if campaign.failed else 'green'}]{len(campaign.failed)} failed[/], "
        f"{known} known failures{proved}; {certified} of {gradients} gradients certified by the oracle; "
        f"{campaign.seconds:.0f} s" + (", interrupted" if campaign.interrupted else ""),
        highlight=False,
    )


def print_failure(console: Console, record: Record) -> None:
    """One failure: what, on which input, in words, and how to run it again."""
    console.print(
        f"[red]{record.status}[/] [bold]{record.case.operator} {record.variant} {record.case.dtype}[/] "
        f"{record.direction} {escape(record.what)}\n  input: {escape(record.case.describe())}\n"
        f"  {escape(record.message)}" + (f"\n  replay: {escape(record.replay)}" if record.replay else ""),
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _subjects(records: list[Record]) -> list[tuple[str, str]]:
    """(operator, variant) in registry order."""
    seen = {(r.case.operator, r.variant) for r in records}
    ordered = [(o.name, v.name) for o in registry.OPERATORS for v in o.variants]
    return [pair for pair in ordered if pair in seen] + sorted(seen - set(ordered))


def _cell(found: dict[Key, Record], operator: str, variant: str, dtype: str) -> str:
    parts: list[str] = []
    for direction in ("forward", "gradient"):
        record = found.get((operator, variant, dtype, direction))
        if record is None:
            parts.append("-")
            continue
        text = (
            "inf" if record.ratio is None else f"{record.ratio:.1f}" if record.ratio < 1000 else f"{record.ratio:.0e}"
        )
        colour = {"pass": "green", "known": "yellow"}.get(record.status, "red")
        parts.append(f"[{colour}]{text}[/]")
    return " | ".join(parts)


def _properties(records: list[Record], operator: str, variant: str) -> str:
    tried: dict[str, int] = defaultdict(int)
    for record in records:
        if (record.case.operator, record.variant, record.direction) == (operator, variant, "property"):
            tried["all"] += 1
            tried["failed"] += record.failed
    if not tried["all"]:
        return "-"
    return f"[{'red' if tried['failed'] else 'green'}]{tried['failed']}[/] / {tried['all']}"
