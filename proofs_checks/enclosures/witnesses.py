"""The kept inputs against VLA's propositions 1 and 2, replayed in balls: every digit that is named is proved.

The recursion here is written from the paper's three formulas with A_t by inverting M_t, so it shares no line with the
oracle that found the digits. Each input is replayed twice: as kept, its float64 numbers taken as exact, against the
digits that its file names; and made without any rounding from the few short numbers it was drawn from, so that it
meets the bounds exactly. Memories are [d_v, d] as in the paper; J = I - k a^T acts on their rows.

A file names digits of |X J| / |X| for the direction X it keeps, in float64, which is a lower bound of the spectral norm
of J and agrees with it to 29 digits or more. The norm itself, the largest singular value, has its digits in ``NORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from functools import cache
from typing import Any

import flint
import mpmath

from linattest.proofs_checks.enclosures.balls import lies
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

NORMS = {
    "jacobian": "1.5347435106783324630540924587297564592660715631407",
    "product": "91.164017629430295110632669291058973622456880338392",
}
"""The first 50 digits of the spectral norms, proved here from nothing but the kept inputs."""

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

    def below(self, limit: flint.arb) -> bool:
        """Whether |J|_2 < limit, by Sylvester's criterion: every leading minor of limit^2 I - J^T J is positive."""
        return all(minor > 0 for minor in self._minors(limit))

    def above(self, limit: flint.arb) -> bool:
        """Whether |J|_2 > limit: where a leading minor is negative, limit^2 I - J^T J is not positive semidefinite."""
        return any(minor < 0 for minor in self._minors(limit))

    def _minors(self, limit: flint.arb) -> list[flint.arb]:
        d = self.J.nrows()
        left = limit**2 * _identity(d) - self.J.transpose() * self.J
        return [matrix([row[:n] for row in left.tolist()[:n]]).det() for n in range(1, d + 1)]

    def spectral(self) -> flint.arb:
        """|J|_2, the largest singular value: mpmath's, with a radius for which the minors vouch.

        Raises ``ArithmeticError`` if they do not.
        """
        mp = mpmath.mp.clone()
        mp.dps = 3 * DIGITS
        middles = [[x.mid().str(3 * DIGITS, radius=False) for x in row] for row in self.J.tolist()]
        largest = max(mp.svd_r(mp.matrix(middles), compute_uv=False))
        before, flint.ctx.prec = flint.ctx.prec, BITS
        try:
            middle = arb(mp.nstr(largest, 2 * DIGITS))
            ball = arb(middle.mid(), (middle * arb(10) ** (10 - 2 * DIGITS)).upper())
            if self.above(ball.lower()) and self.below(ball.upper()):
                return ball
        finally:
            flint.ctx.prec = before
        raise ArithmeticError(f"the minors do not vouch for {ball}")


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


def named(objective: str) -> str:
    """The first 50 digits that a witness's file names."""
    return str(Context(prec=DIGITS, rounding=ROUND_FLOOR).plus(Decimal(kept(objective).witness.exact or "NaN")))


def shown(objective: str, made: Callable[[Kept], Iterator[Token]], lam0: str | float) -> flint.arb:
    """What a witness shows: |S_64|_F, or |X J| / |X| for the direction X it keeps."""
    found = replay(objective, made, lam0)
    return norm(found.S) if objective == "state-norm" else found.stretch()


def _moved(digits: str, last: int) -> str:
    """The number with so many added in the last of its digits."""
    number = Decimal(digits)
    return str(WIDE.add(number, Decimal((0, (1,), number.adjusted() - DIGITS + 1)) * last))


def as_file(objective: str, last: int) -> Answer:
    """Whether what the kept input shows begins with the 50 digits that its file names, ``last`` added in the last."""
    low = _moved(named(objective), last)
    what = f"{SHOWN[objective]} of the kept input"
    return lies(lambda: shown(objective, as_kept, 0.1), what, low, _moved(low, 1), digits=DIGITS)


def spectral_norm(objective: str, digits: str) -> Answer:
    """Whether the spectral norm of the kept input's J begins with these 50 digits."""
    what = f"|J|_2 of the kept {objective}"
    return lies(lambda: replay(objective, as_kept, 0.1).spectral(), what, digits, _moved(digits, 1), digits=DIGITS)


def within(objective: str, low: str, high: str) -> Answer:
    """Whether inputs that meet the bounds exactly give a memory, or a stretch, strictly between."""
    what = f"{SHOWN[objective]} of inputs within the bounds"
    return lies(lambda: shown(objective, within_bounds, "0.1"), what, low, high, digits=DIGITS)


def _statements(objective: str, what: str, least: str) -> Iterator[Statement]:
    """Digits of what is shown, of the norm itself, and a bound for the same input made without rounding."""
    file = f"verify/data/witnesses/vla-{objective}-d4-T64-seed0.safetensors"
    mend = f"{file} does not show it: restore that file (for instance with git), or mend its digits (verify/search)"
    yield Statement(
        id=f"vla.witness.{objective}", method="enclosure", assumptions=KEPT,
        statement=f"{what} begins with the {DIGITS} digits that the file names",
        ask=as_file, right=(objective, 0), twin="with one more in the last", wrong=(objective, 1), mend=mend,
    )  # fmt: skip
    if objective in NORMS:
        digits = NORMS[objective]
        yield Statement(
            id=f"vla.witness.{objective}.norm", method="enclosure", assumptions=KEPT,
            statement=f"{NORM[objective]}, its largest singular value, begins with the {DIGITS} digits {digits}",
            ask=spectral_norm, right=(objective, digits),
            twin="with one more in the last", wrong=(objective, _moved(digits, 1)), mend=mend,
        )  # fmt: skip
    yield Statement(
        id=f"vla.witness.{objective}.in-bounds", method="enclosure", assumptions=BOUNDS,
        statement=f"{what} is more than {least}", ask=within, right=(objective, least, "1e9"),
        twin=f"it is less than {least}", wrong=(objective, "0", least), mend=mend,
    )  # fmt: skip


KEPT = (
    "the kept input: 64 tokens, d = 4, its float64 numbers taken as exact, lam0 = the double nearest 0.1, keys divided "
    "by their length again"
)
BOUNDS = (
    "64 tokens made from the file's short numbers without rounding: d = 4, lam0 = 1/10, |x_i| <= 8, "
    "k = phi(x)/|phi(x)|, u = W x/|W x|/2 with one matrix W, |v| <= 1"
)
NORM = {
    "jacobian": "the spectral norm of one token's Jacobian J = I - k a^T",
    "product": "the spectral norm of the product J of all 64 Jacobians",
}
SHOWN = {"state-norm": "|S_64|_F", "jacobian": "|X J|/|X|", "product": "|X J|/|X|"}

STATEMENTS = (
    *_statements("state-norm", SHOWN["state-norm"], "250.7"),
    *_statements("jacobian", f"|X J|/|X| for a kept X, a lower bound of {NORM['jacobian']},", "1.534"),
    *_statements("product", f"|X J|/|X| for a kept X, a lower bound of {NORM['product']},", "91.1"),
)
