"""The claims ledger in a terminal, and a piece of evidence in a line."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.claims.record import Claims, Outcome, of_ledgers
from linattest.verify.claims.verdicts import WORDS, Evidence, Word
from linattest.verify.report.summary import plural

COLOURS = {
    "proved": "green", "supported": "green", "corrected": "cyan", "refuted": "magenta", "not reproduced": "yellow",
    "untested": "dim", None: "red",
}  # fmt: skip


def print_claims(console: Console, found: Claims, *, full: bool) -> None:
    """Counts on top, a row a claim (all its evidence if ``full``), and the differences last."""
    outcomes = found.claims
    line = " · ".join(f"[{COLOURS[word]}]{text}[/]" for word, text in tally(found).items())
    console.print(f"[bold]{plural(len(outcomes), 'claim')}[/]: {line}")
    if full:
        for outcome in outcomes:
            _print_one(console, outcome)
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column("verdict", no_wrap=True)
        table.add_column("claim and what its verdict rests on", overflow="fold")
        for o in outcomes:
            note = brief(o)
            text = f"{escape(o.id)}: {escape(o.statement)}" + (f"\n[dim]{escape(note)}[/]" if note else "")
            table.add_row(_word(o), text)
        console.print(table)
    for outcome in outcomes:
        if outcome.differs:
            text = escape(f"{outcome.id}: {outcome.difference}")
            console.print(f"[red]differs[/] {text}", highlight=False, soft_wrap=True)
    if not full and outcomes:
        again = escape(f"linattest claims ID{of_ledgers(outcomes)}")
        console.print(f"all the evidence of one: {again}", highlight=False, soft_wrap=True)


def tally(found: Claims) -> dict[Word | None, str]:
    """How many have each verdict, in words, and how many have none because the check raised."""
    counts: dict[Word | None, int] = {word: found.counts[word] for word in WORDS}
    counts[None] = sum(o.verdict is None for o in found.claims)
    return {x: plural(n, "error") if x is None else f"{n} {x}" for x, n in counts.items() if n}


def _word(o: Outcome) -> str:
    return f"[{COLOURS[o.verdict]}]{o.verdict or 'error'}[/]"


def proofs(o: Outcome) -> list[str]:
    """The ids of the machine proofs that it rests on."""
    return [e.text.split(": ")[0] for e in o.evidence if e.kind == "proof"]


def brief(o: Outcome) -> str:
    """The correction, the proofs' names, or the first figure: what one line can say."""
    instead = [e.text for e in o.evidence if e.kind == "reason" and e.text.startswith("instead: ")]
    if o.verdict == "corrected" and instead:
        return instead[0]
    if o.verdict == "proved":
        return "by " + ", ".join(proofs(o))
    first = next((e for e in o.evidence if e.kind != "proof"), None)
    if first is None:
        return ""
    if first.kind == "measurement" and not _finite(first):
        return f"{first.text}: no number"
    if first.kind == "measurement":
        mean, low, high = (number(first.values.get(name)) for name in ("mean", "low", "high"))
        if "low" not in first.values:
            return f"{first.text}: {mean} (one value, no interval)"
        return f"{first.text}: {mean} ({low} to {high}, {first.values['seeds']} seeds)"
    shown = next(iter(first.values.values()), "")
    return first.text + (f": {number(shown)}" if first.values else "")


def _print_one(console: Console, o: Outcome) -> None:
    console.print(
        f"\n[bold]{escape(o.id)}[/] {_word(o)} (the ledger: {o.expected}), {o.seconds:.1f} s", highlight=False
    )
    console.print(f"  {escape(o.statement)}", highlight=False)
    for label, text in (("where", o.where), ("scope", o.scope), ("error", o.error)):
        if text:
            console.print(f"  {label}: {escape(text)}", highlight=False)
    for e in o.evidence:
        console.print("  - " + escape(line(e)), highlight=False)
    rests = ", ".join(o.sources[:3]) + (f" and {len(o.sources) - 3} more (--json)" if len(o.sources) > 3 else "")
    console.print(f"  depends on {escape(rests) or 'the row alone'}; hash {o.hash}", highlight=False)


def line(e: Evidence) -> str:
    """A piece of evidence: its kind, how many digits are known, what it says, its numbers, its file."""
    told = e.values
    if e.kind == "measurement" and not _finite(e):  # NaN thrice says no more than once
        told = {name: value for name, value in told.items() if name not in ("mean", "low", "high")}
        told = {"mean": "no number"} | told
    values = ", ".join(f"{name} {number(value)}" for name, value in told.items())
    digits = "" if e.digits is None else " (exact)" if e.digits == -1 else f" ({e.digits} digits)"
    fallen = "" if e.stands or e.lacks else "DOES NOT STAND: "
    return (
        f"{e.kind}{digits}: {fallen}{e.text}" + (f"; {values}" if values else "") + (f" [{e.where}]" if e.where else "")
    )


def _finite(e: Evidence) -> bool:
    return all(x is not None and math.isfinite(x) for x in e.ends)  # None: as read from JSON


def number(value: Any) -> str:
    """A value of evidence, short."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(number(x) for x in value) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {number(x)}" for name, x in value.items())
    return f"{value[:24]}..." if isinstance(value, str) and len(value) > 40 and value[:1].isdigit() else str(value)
