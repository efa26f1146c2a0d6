"""The claims ledger in a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify.claims.ledger import WORDS, Outcome
from linattest.verify.claims.verdicts import Evidence
from linattest.verify.environment import environment

SCHEMA = 1
COLOURS = {
    "proved": "green", "supported": "green", "corrected": "cyan", "refuted": "magenta", "not reproduced": "yellow",
    "untested": "dim", None: "red",
}  # fmt: skip


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many have each verdict, how many differ from the ledger, and how many raised."""
    found = {word: sum(o.verdict == word for o in outcomes) for word in WORDS}
    return found | {"different": sum(o.differs for o in outcomes), "errors": sum(o.verdict is None for o in outcomes)}


def to_json(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """The contract of ``claims --json``."""
    claims = [_strict(msgspec.to_builtins(o)) | {"differs": o.differs} for o in outcomes]
    return {
        "schema": SCHEMA,
        "claims": claims,
        "counts": counts(outcomes),
        "seconds": round(seconds, 3),
        "environment": msgspec.to_builtins(environment()),
    }


def _strict(x: Any) -> Any:
    """JSON has no word for infinity and NaN: ``null``."""
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if isinstance(x, dict):
        return {str(name): _strict(value) for name, value in x.items()}
    return [_strict(value) for value in x] if isinstance(x, list | tuple) else x


def print_claims(console: Console, outcomes: Sequence[Outcome], *, full: bool) -> None:
    """Counts on top, a row a claim (all its evidence if ``full``), and the differences last."""
    numbers = counts(outcomes)
    line = " · ".join(f"[{COLOURS[word]}]{numbers[word]} {word}[/]" for word in WORDS if numbers[word])
    console.print(f"[bold]{len(outcomes)} claims[/]: {line}")
    if full:
        for outcome in outcomes:
            _print_one(console, outcome)
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column("verdict", no_wrap=True)
        table.add_column("claim and what its verdict rests on", overflow="fold")
        for o in outcomes:
            note = _brief(o)
            text = f"{escape(o.id)}: {escape(o.statement)}" + (f"\n[dim]{escape(note)}[/]" if note else "")
            table.add_row(_word(o), text)
        console.print(table)
    for outcome in outcomes:
        if outcome.differs:
            console.print(f"[red]differs[/] {escape(difference(outcome))}", highlight=False, soft_wrap=True)
    if not full and outcomes:
        console.print("all the evidence of one: linattest claims ID", highlight=False)


def difference(o: Outcome) -> str:
    """What is not as the ledger says, in one line."""
    if o.error is not None:
        return f"{o.id}: the check raised {o.error}; the ledger says {o.expected!r}"
    said = "" if o.verdict == o.expected else f"{o.verdict!r}, the ledger says {o.expected!r}"
    fallen = [f"does not stand: {e.text}" for e in o.evidence if not e.stands]
    parts = [said, *fallen, *(f"stale: {x}" for x in o.stale)]
    return f"{o.id}: " + "; ".join(x for x in parts if x)


def _word(o: Outcome) -> str:
    return f"[{COLOURS[o.verdict]}]{o.verdict or 'error'}[/]"


def _brief(o: Outcome) -> str:
    """The correction, the proofs' names, or the first figure: what one line can say."""
    instead = [e.text for e in o.evidence if e.kind == "reason" and e.text.startswith("instead: ")]
    if o.verdict == "corrected" and instead:
        return instead[0]
    if o.verdict == "proved":
        return "by " + ", ".join(e.text.split(": ")[0] for e in o.evidence if e.kind == "proof")
    first = next((e for e in o.evidence if e.kind != "proof"), None)
    if first is None:
        return ""
    if first.kind == "measurement":
        mean, low, high = (_number(first.values[name]) for name in ("mean", "low", "high"))
        return f"{first.text}: {mean} ({low} to {high}, {first.values['seeds']} seeds)"
    shown = next(iter(first.values.values()), "")
    return first.text + (f": {_number(shown)}" if first.values else "")


def _print_one(console: Console, o: Outcome) -> None:
    console.print(
        f"\n[bold]{escape(o.id)}[/] {_word(o)} (the ledger: {o.expected}), {o.seconds:.1f} s", highlight=False
    )
    console.print(f"  {escape(o.statement)}", highlight=False)
    for label, text in (("where", o.where), ("scope", o.scope), ("error", o.error)):
        if text:
            console.print(f"  {label}: {escape(text)}", highlight=False)
    for e in o.evidence:
        console.print("  " + escape(_line(e)), highlight=False)
    console.print(f"  depends on {escape(', '.join(o.sources)) or 'the row alone'}; hash {o.hash}", highlight=False)


def _line(e: Evidence) -> str:
    values = ", ".join(f"{name} {_number(value)}" for name, value in e.values.items())
    digits = "" if e.digits is None else " (exact)" if e.digits == -1 else f" ({e.digits} digits)"
    fallen = "" if e.stands or e.lacks else "DOES NOT STAND: "
    return (
        f"- {e.kind}{digits}: {fallen}{e.text}"
        + (f"; {values}" if values else "")
        + (f" [{e.where}]" if e.where else "")
    )


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_number(x) for x in value) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_number(x)}" for name, x in value.items())
    return f"{value[:24]}..." if isinstance(value, str) and len(value) > 40 and value[:1].isdigit() else str(value)
