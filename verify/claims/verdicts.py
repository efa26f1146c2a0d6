"""Verdicts and the evidence they rest on: the words, and the only functions that choose between them.

A check never names its verdict: it gathers evidence and calls the function for what it set out to show. Evidence that
does not stand gives a lesser word, so that a broken proof, a witness that no longer replays or a figure out of its
range cannot keep a verdict. ``lacks`` names a tool that is not installed; what needed it is then not claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from scipy import stats

Word = Literal["proved", "supported", "refuted", "corrected", "not reproduced", "untested"]
WORDS: tuple[Word, ...] = get_args(Word)
Kind = Literal["proof", "witness", "measurement", "count", "reason"]

LEAST_DIGITS = 50
"""Decimal digits to which a counterexample must be known, unless it is exact."""

CONFIDENCE = 0.95
"""Level of every interval over seeds."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One piece: what it says, its numbers, and the file in which a reader finds it. ``digits`` -1: exact."""

    kind: Kind
    text: str
    values: dict[str, Any] = {}
    where: str = ""
    stands: bool = True
    digits: int | None = None
    lacks: str = ""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that a measurement has to keep."""
        return {name: self.values[name] for name in ("at_least", "at_most") if name in self.values}

    @property
    def ends(self) -> tuple[float | None, float | None, float | None]:
        """Mean and interval of a measurement; one value has no interval and is all three."""
        mean = self.values["mean"]
        return mean, self.values.get("low", mean), self.values.get("high", mean)

    @property
    def broken_limit(self) -> str:
        """By how much a measurement is beyond its limits, in words; empty if it is within."""
        if self.kind != "measurement":
            return ""
        mean, low, high = (math.nan if x is None else x for x in self.ends)  # None: as read from JSON
        if not (math.isfinite(mean) and low <= high):
            return "no number: a sample is NaN, or infinite"
        seen = f"{mean:.4g}" if low == high else f"{mean:.4g} ({low:.4g} to {high:.4g})"
        beyond = {"at_least": ("at least", low, -1), "at_most": ("at most", high, 1)}
        said = [
            f"{words} {limit:.4g}, which {end:.4g} misses by {abs(end - limit):.3g}"
            for name, limit in self.limits.items()
            for words, end, sign in [beyond[name]]
            if not (end - limit) * sign <= 0
        ]
        return f"{seen}, expected {' and '.join(said)}" if said else ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A word and what it rests on."""

    word: Word
    evidence: tuple[Evidence, ...]

    @property
    def lacks(self) -> set[str]:
        """Tools whose absence kept evidence away."""
        return {e.lacks for e in self.evidence if e.lacks}


# --- evidence ----------------------------------------------------------------------------------------------------


def reason(text: str, lacks: str = "") -> Evidence:
    """Words that stand beside the evidence: why something was not done, or what a statement becomes."""
    return Evidence(kind="reason", text=text, lacks=lacks)


def counted(text: str, holds: bool, where: str = "", **values: Any) -> Evidence:
    """Something counted, hence exact and the same everywhere; ``holds``: as the statement says."""
    return Evidence(kind="count", text=text, values=values, where=where, stands=holds)


def exact(text: str, holds: bool, digits: int, where: str = "", **values: Any) -> Evidence:
    """A counterexample known to ``digits`` digits (-1: in exact arithmetic); ``holds``: it contradicts the claim."""
    return Evidence(kind="witness", text=text, values=values, where=where, stands=holds, digits=digits)


def interval(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Mean, and the ends of its t-interval (one sample, which has none: the sample thrice).

    Raises ``ValueError`` for no samples.
    """
    x = np.asarray(samples, dtype=float)
    if not x.size:
        raise ValueError("no samples, expected at least one")
    mean = float(x.mean())
    if len(x) < 2 or not math.isfinite(mean) or not (spread := float(x.std(ddof=1))):
        return mean, mean, mean
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 1)) * spread / math.sqrt(len(x))
    return mean, mean - half, mean + half


def measured(
    text: str,
    samples: Sequence[float] | np.ndarray,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    where: str = "",
    **values: Any,
) -> Evidence:
    """A figure over seeds: it stands if its whole interval lies in [at_least, at_most] (any finite one without).

    One sample has no interval, and none is given: it stands if it lies there itself. Without a limit the figure is told
    and supports nothing. Raises ``ValueError`` for no samples.
    """
    if not len(samples):
        raise ValueError(f"measured({text!r}): no samples, expected at least one")
    mean, low, high = interval(samples)
    found: dict[str, Any] = {"mean": mean}
    found |= ({"low": low, "high": high} if len(samples) > 1 else {}) | {"seeds": len(samples)}
    limits = {"at_least": at_least, "at_most": at_most}
    found |= {name: x for name, x in limits.items() if math.isfinite(x)}
    stands = math.isfinite(mean) and at_least <= low and high <= at_most
    return Evidence(kind="measurement", text=text, values=found | values, where=where, stands=stands)


# --- verdicts ----------------------------------------------------------------------------------------------------


def untested(why: str, *evidence: Evidence) -> Verdict:
    """Nothing can be said yet."""
    return Verdict(word="untested", evidence=(reason(why), *evidence))


def not_reproduced(*evidence: Evidence) -> Verdict:
    """It ran as described and the result differs; the evidence says how."""
    return Verdict(word="not reproduced", evidence=evidence)


def proved(*evidence: Evidence) -> Verdict:
    """Machine proofs, all of which stand. Without a tool that some need: supported by what was measured."""
    if not any(e.kind == "proof" for e in evidence) or any(e.lacks for e in evidence):
        return supported(*evidence) if _limited(evidence) else untested("nothing proves or limits it", *evidence)
    return _unless_fallen("proved", evidence)


def supported(*evidence: Evidence) -> Verdict:
    """Figures or counts, all of which stand.

    Raises ``ValueError`` where figures are all there is and none has a limit: any number would support the claim.
    """
    if _limited(evidence):
        return _unless_fallen("supported", evidence)
    figure = next((e for e in evidence if e.kind == "measurement"), None)
    if figure is None:
        return untested("nothing was measured", *evidence)
    raise ValueError(
        f"supported({figure.text!r}): no figure has a limit, so any number would do; "
        "say measured(..., at_least=...) or measured(..., at_most=...)"
    )


def refuted(*evidence: Evidence) -> Verdict:
    """A counterexample that stands, exactly or to at least 50 digits, and no proof of it that does not."""
    if fallen := _fallen_proofs(evidence):
        return untested(fallen, *evidence)
    if not any(_contradicts(e) for e in evidence):
        return untested("no counterexample stands exactly or to 50 digits", *evidence)
    return Verdict(word="refuted", evidence=evidence)


def corrected(against: Sequence[Evidence], instead: str, by: Sequence[Evidence]) -> Verdict:
    """Refuted by ``against`` as stated; the nearby statement ``instead`` proved by ``by``."""
    fallen = refuted(*against)
    evidence = (*fallen.evidence, reason(f"instead: {instead}"), *by)
    standing = any(e.kind == "proof" for e in by) and all(e.stands for e in by)
    word: Word = "corrected" if fallen.word == "refuted" and standing else fallen.word
    return Verdict(word=word, evidence=evidence)


def _limited(evidence: Sequence[Evidence]) -> bool:
    """Whether something counts: a count, or a figure with a limit."""
    return any(e.kind == "count" or (e.kind == "measurement" and e.limits) for e in evidence)


def _contradicts(e: Evidence) -> bool:
    deep = e.digits is not None and (e.digits == -1 or e.digits >= LEAST_DIGITS)
    return e.kind == "witness" and e.stands and deep


def _unless_fallen(word: Word, evidence: tuple[Evidence, ...]) -> Verdict:
    fallen = [e for e in evidence if not e.stands]
    if proof := _fallen_proofs(evidence):
        return untested(proof, *evidence)
    return Verdict(word="not reproduced" if fallen else word, evidence=evidence)


def _fallen_proofs(evidence: Sequence[Evidence]) -> str:
    fallen = [e.text for e in evidence if e.kind == "proof" and not e.stands]
    return f"a proof does not stand: {'; '.join(fallen)}" if fallen else ""
