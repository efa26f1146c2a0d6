"""The kept inputs against VLA's propositions 1 and 2, replayed in balls: every digit that is named is proved.

The recursion here is written from the paper's three formulas with A_t by inverting M_t, so it shares no line with the
oracle that found the digits. Each input is replayed twice: as kept, its float64 numbers taken as exact, against the
digits that its file names; and made without any rounding from the few short numbers it was drawn from, so that it
meets the bounds exactly. Memories are [d_v, d] as in the paper; J = I - k a^T acts on their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from functools import cache
from typing import Any

import flint

from linattest.proofs_checks.enclosures.balls import TOOL, encloses
from linattest.proofs_checks.proof import Answer, Statement
from linattest.verify.environment import ROOT
from linattest.verify.search.witness import Kept, load

arb, matrix = flint.arb, flint.arb_mat

FOLDER = ROOT / "verify" / "data" / "witnesses"
BITS = 512
"""Of the recursion: about 150 digits, of which 64 tokens at width 4 lose few."""

DIGITS = 50
WIDE = Context(prec=2 * DIGITS)
"""Decimals of that many digits are added without rounding."""

GAP = Decimal("1e-20")
"""A Jacobian's direction is kept in float64, so what it shows falls short of the norm by some 1e-32 of it."""

Token = tuple[Any, Any, Any]
"""Key of length 1, value and penalty direction, as columns of balls."""


def kept(objective: str) -> Kept:
    """The witness of 64 tokens at width 4."""
    return load(FOLDER / f"vla-{objective}-d4-T64-seed0.safetensors")


def column(row: list[Any]) -> Any:
    return matrix(len(row), 1, [arb(x) for x in row])


def norm(x: Any) -> flint.arb:
    """The Euclidean (Frobenius) norm."""
    return sum((y * y for y in x.entries()), arb(0)).sqrt()


def unit(x: Any) -> Any:
    return x * (1 / norm(x))


def phi(x: float) -> flint.arb:
    """The feature map ELU(x) + 1."""
    return arb(x) + 1 if x > 0 else arb(x).exp()


def as_kept(x: Kept) -> Iterator[Token]:
    """The float64 numbers of the file, as exact ones; the operator divides keys by their length."""
    rows = (x.tensors["input"][name][0, :, 0].tolist() for name in ("k", "v", "u"))
    for k, v, u in zip(*rows, strict=True):
        yield unit(column(k)), column(v), column(u)


def within_bounds(x: Kept) -> Iterator[Token]:
    """Inputs made without rounding: k = phi(x)/|phi(x)|, u = W x/|W x|/sqrt(d), v, or v/|v| where |v| > 1."""
    free = x.tensors["free"]
    W = matrix([[arb(y) for y in row] for row in free["u"][0].tolist()])
    for raw, value in zip(free["k"][0, :, 0].tolist(), free["v"][0, :, 0].tolist(), strict=True):
        v = column(value)
        u = unit(W * column(raw)) * (1 / arb(len(raw)).sqrt())
        yield unit(column([phi(y) for y in raw])), v if norm(v) <= 1 else unit(v), u


@dataclass(frozen=True)
class Replay:
    """The final memory, the Jacobian that the witness is about (of one token, or of all), and its direction."""

    S: Any
    J: Any
    direction: Any

    def stretch(self) -> flint.arb:
        """|X J| / |X| for the kept memory X: the norm of J is not less."""
        return norm(self.direction * self.J) / norm(self.direction)

    def below(self, limit: str) -> bool:
        """Whether |J|_2 < limit, by Sylvester's criterion: every leading minor of limit^2 I - J^T J is positive."""
        d = self.J.nrows()
        left = arb(limit) ** 2 * _identity(d) - self.J.transpose() * self.J
        minors = (matrix([row[:n] for row in left.tolist()[:n]]).det() for n in range(1, d + 1))
        return all(minor > 0 for minor in minors)


def _identity(d: int) -> Any:
    return matrix(d, d, [int(i == j) for i in range(d) for j in range(d)])


@cache
def replay(objective: str, made: Callable[[Kept], Iterator[Token]], lam0: str | float) -> Replay:
    """The recursion over a witness: M_t = M_{t-1} + u u^T, a = M_t^{-1} k/|.|, S_t = S_{t-1} + (v - S_{t-1} k) a^T."""
    before, flint.ctx.prec = flint.ctx.prec, BITS
    try:
        found = kept(objective)
        d = found.witness.case.structure.K
        M, S, J = _identity(d) * arb(lam0), matrix(d, d), _identity(d)
        for t, (k, v, u) in enumerate(made(found)):
            M = M + u * u.transpose()
            a = unit(M.inv() * k)
            S = S + (v - S * k) * a.transpose()
            step = _identity(d) - k * a.transpose()
            if found.witness.token in (None, t):
                J = J * step
        probe = found.tensors.get("probe", {}).get("direction")
        return Replay(S, J, None if probe is None else matrix(probe.mT.tolist()))
    finally:
        flint.ctx.prec = before


# --- statements --------------------------------------------------------------------------------------------------


def named(objective: str) -> tuple[str, str]:
    """The first 50 digits that a witness's file names, and the same with one more in the last."""
    whole = Decimal(kept(objective).witness.exact or "NaN")
    low = Context(prec=DIGITS, rounding=ROUND_FLOOR).plus(whole)
    return str(low), str(WIDE.add(low, Decimal((0, (1,), low.adjusted() - DIGITS + 1))))


def state_norm(low: str, high: str) -> Answer:
    """Whether |S_64|_F of the kept input lies between."""
    return encloses(lambda: norm(replay("state-norm", as_kept, 0.1).S), low, high, digits=DIGITS)


def spectral_norm(objective: str, low: str, high: str) -> Answer:
    """Whether |J|_2 of the kept input lies in [low, high): its direction shows the one, the minors the other."""
    before, flint.ctx.prec = flint.ctx.prec, BITS
    try:
        found = replay(objective, as_kept, 0.1)
        shown = found.stretch()
        evidence = {"at_least": shown.str(DIGITS), "below": high, "bits": str(BITS)}
        if shown >= arb(low) and found.below(high):
            return Answer(status="proved", tool=TOOL, evidence=evidence)
        outside = shown >= arb(high) or found.below(low)
        return Answer(status="refuted" if outside else "unknown", tool=TOOL, evidence=evidence)
    finally:
        flint.ctx.prec = before


def within(objective: str, low: str, high: str) -> Answer:
    """Whether inputs that meet the bounds exactly give a memory, or a stretch, strictly between."""

    def value() -> flint.arb:
        found = replay(objective, within_bounds, "0.1")
        return norm(found.S) if objective == "state-norm" else found.stretch()

    return encloses(value, low, high, digits=DIGITS)


def as_named(objective: str, what: str, check: Callable[[str, str], Answer]) -> Statement:
    """The kept input has the digits that its file names; the twin has one less in the last."""

    def right() -> Answer:
        low, high = named(objective)
        return check(low, high if objective == "state-norm" else str(WIDE.add(Decimal(low), GAP)))

    return Statement(
        id=f"vla.witness.{objective}", method="enclosure", assumptions=KEPT,
        statement=f"{what}: at least the {DIGITS} digits that the file names, and above them by less than "
        f"{'one in the last' if objective == 'state-norm' else GAP}",
        check=right, twin="it is less than those digits", twin_check=lambda: check("0", named(objective)[0]),
    )  # fmt: skip


def in_bounds(objective: str, what: str, least: str) -> Statement:
    """The same input, made without rounding, still shows what refutes the proposition."""
    return Statement(
        id=f"vla.witness.{objective}.in-bounds", method="enclosure", assumptions=BOUNDS,
        statement=f"{what} is more than {least}", check=lambda: within(objective, least, "1e9"),
        twin=f"it is less than {least}", twin_check=lambda: within(objective, "0", least),
    )  # fmt: skip


KEPT = "the kept input: 64 tokens, d = 4, lam0 = 0.1, its float64 numbers taken as exact"
BOUNDS = (
    "64 tokens made from the file's short numbers without rounding: d = 4, lam0 = 1/10, |x_i| <= 8, "
    "k = phi(x)/|phi(x)|, u = W x/|W x|/2 with one matrix W, |v| <= 1"
)
STATE = "|S_64|_F"
STEP = "the spectral norm of one token's Jacobian I - a k^T"
ALL = "the spectral norm of the product of all 64 Jacobians"

STATEMENTS = (
    as_named("state-norm", STATE, state_norm),
    in_bounds("state-norm", STATE, "250.7"),
    as_named("jacobian", STEP, lambda low, high: spectral_norm("jacobian", low, high)),
    in_bounds("jacobian", STEP, "1.534"),
    as_named("product", ALL, lambda low, high: spectral_norm("product", low, high)),
    in_bounds("product", ALL, "91.1"),
)
