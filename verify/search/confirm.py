"""The value of a found input by the oracle, in high precision: the number that a witness claims.

mpmath computes it at the digits asked for and at twice as many; Arb encloses it in a ball. All three must agree, and
the inputs must be within their bounds, or there is no witness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flint

from linattest.verify.numbers import ArbContext, MpContext, encloses
from linattest.verify.search.domain import Space, Tensors
from linattest.verify.search.objectives import Objective, Probe, bend

LEAST_DIGITS = 50
"""Fewest decimal digits at which a find is checked."""

DIGITS = 60
"""Decimal digits of a check, if none are asked for."""

LOST_DIGITS = 20
"""Digits that a check may lose to the condition of its input; what is left is what two checks must share."""

_MOST_BITS = 1 << 14


class RefusedError(ValueError):
    """A find does not stand: out of bounds, not reproduced in high precision, or below what was asked."""


@dataclass(frozen=True)
class Confirmed:
    """A value as a decimal of ``digits`` digits, the proved relative radius, and the inputs' distance from bounds."""

    text: str
    digits: int
    radius: float
    off_bounds: float

    @property
    def value(self) -> float:
        """The value, rounded to float64."""
        return float(self.text)


def bits_of(digits: int) -> int:
    """Bits that hold so many decimal digits."""
    return math.ceil(digits * math.log2(10)) + 8


def tolerance(digits: int) -> Any:
    """Relative difference that two values of this many digits may have, as an ``mpf``."""
    return MpContext(bits_of(digits)).mp.mpf(10) ** (LOST_DIGITS - digits)


def apart(one: str, other: str, digits: int) -> Any:
    """The relative difference of two decimals, as an ``mpf``."""
    mp = MpContext(bits_of(2 * digits)).mp
    x, y = mp.mpf(one), mp.mpf(other)
    return abs(x - y) / max(abs(x), abs(y)) if x != y else mp.zero


def confirm(
    objective: Objective, space: Space, free: Tensors, tensors: Tensors, probe: Probe, digits: int = DIGITS
) -> Confirmed:
    """The value of one input by the oracle.

    Args:
        free, tensors: free numbers and inputs ``[1, T, 1, ..]``, float64, taken as exact.

    Raises:
        ValueError: fewer than 50 digits.
        InfeasibleError: an input is out of its bounds.
        RefusedError: two precisions, or mpmath and Arb, disagree, or the memory is not affine.
    """
    if digits < LEAST_DIGITS:
        raise ValueError(f"digits={digits}, expected at least {LEAST_DIGITS}")
    off = space.check(free, tensors)
    texts: list[str] = []
    for precision in (digits, 2 * digits):
        ctx = MpContext(bits_of(precision))
        texts.append(ctx.mp.nstr(objective.exact(ctx, space, tensors, probe), precision, strip_zeros=False))
    if not (gap := apart(texts[0], texts[1], digits)) <= tolerance(digits):
        raise RefusedError(f"{digits} and {2 * digits} digits differ by {float(gap):.3g}: {texts[0]} and {texts[1]}")
    if probe.direction is not None:
        ctx = MpContext(bits_of(digits))
        if not (curved := bend(ctx, space, tensors, probe)) <= tolerance(digits):
            raise RefusedError(f"the memory of {space.operator.name!r} is not affine: it bends by {float(curved):.3g}")
    return Confirmed(texts[0], digits, _radius(objective, space, tensors, probe, texts[1], digits), off)


def _radius(objective: Objective, space: Space, tensors: Tensors, probe: Probe, value: str, digits: int) -> float:
    """The proved relative radius of a ball that encloses the value; it is below 10**-(digits - 20)."""
    prec = bits_of(digits)
    while prec <= _MOST_BITS:
        prec *= 2
        arb = ArbContext(prec)
        with arb.working():
            ball: flint.arb = objective.exact(arb, space, tensors, probe)
            if not ball.is_finite() or (radius := _relative(ball)) > 10.0 ** (LOST_DIGITS - digits):
                continue
            mpf = MpContext(bits_of(2 * digits)).mp.mpf(value)
            if not encloses(ball, mpf, bits_of(digits)):
                raise RefusedError(f"mpmath gives {value}, outside Arb's {ball}")
            return radius
    raise RefusedError(f"no ball of {_MOST_BITS} bits is narrow enough")


def _relative(ball: flint.arb) -> float:
    if not ball.rad():
        return 0.0
    return float((ball.rad() / abs(ball.mid())).upper()) if ball.mid() else math.inf
