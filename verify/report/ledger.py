"""The ledger on the page: counts by verdict, a row a claim, and figures; alone, or as a section of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linattest.verify.claims.ledger import outdated
from linattest.verify.claims.record import Claims, Outcome
from linattest.verify.claims.verdicts import Word
from linattest.verify.report.claims import brief, line, number, proofs, tally
from linattest.verify.report.ledger_figures import chart
from linattest.verify.report.summary import plural

MEANINGS: dict[Word, str] = {
    "proved": "by machine, for all inputs of the scope",
    "supported": "measured, or counted",
    "refuted": "a counterexample that is exact or known to 50 digits",
    "corrected": "refuted as stated, a nearby statement proved",
    "not reproduced": "ran as described, gave something else",
    "untested": "with the reason",
}


@dataclass(frozen=True)
class Row:
    """A claim as the table shows it: ``short`` is what it rests on in a line or two, ``evidence`` all of it."""

    claim: Outcome
    place: str
    short: Sequence[str]
    evidence: Sequence[str]
    proofs: Sequence[str]
    stale: bool


@dataclass(frozen=True)
class Ledger:
    """What the templates need of a record of claims."""

    found: Claims
    outdated: Sequence[str]

    @property
    def counts(self) -> dict[str, int]:
        """By verdict, and how many differ or raised."""
        return self.found.counts

    @property
    def verdict(self) -> str:
        """The page in a line."""
        numbers = ", ".join(tally(self.found).values()) or "none"
        different = self.counts["different"]
        ending = f"{different} not as the ledger says" if different else "all as the ledger says"
        stale = f"; {len(self.outdated)} stale, to be computed again" if self.outdated else ""
        return f"{plural(len(self.found.claims), 'claim')}: {numbers}; {ending}{stale}"

    @property
    def papers(self) -> dict[str, list[Row]]:
        """The rows of each paper, in the ledger's order."""
        found: dict[str, list[Row]] = {}
        for claim in self.found.claims:
            found.setdefault(claim.paper, []).append(self._row(claim))
        return found

    @property
    def charts(self) -> list[dict[str, Any]]:
        """The figures, each with the claim that it belongs to."""
        return [chart(o.figure) | {"claim": o.id} for o in self.found.claims if o.figure is not None]

    def _row(self, o: Outcome) -> Row:
        place = ": ".join(x for x in (o.paper, o.where) if x)
        return Row(o, place, short(o), [line(e) for e in o.evidence], proofs(o), o.id in self.outdated)


def short(o: Outcome) -> list[str]:
    """What a verdict rests on, in a line or two: the counterexample and the correction, a figure, the reason."""
    if o.verdict not in ("refuted", "corrected"):
        return [text] if o.verdict != "proved" and (text := brief(o)) else _measured(o)
    against = [f"{e.text}: {_value(e.values)}" if e.values else e.text for e in o.evidence if e.kind == "witness"]
    return [*against[:1], *([brief(o)] if o.verdict == "corrected" else [])]


def _measured(o: Outcome) -> list[str]:
    """Figures that stand beside a proof, the first of them."""
    return [line(e) for e in o.evidence if e.kind in ("measurement", "count")][:1]


def _value(values: dict[str, Any]) -> str:
    return number(next(iter(values.values())))


def ledger(found: Claims) -> Ledger:
    """A record of claims for the page, with what has changed since it was made."""
    return Ledger(found, outdated(found.claims))
