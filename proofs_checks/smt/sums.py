"""Sums of log gates in floating point: why a decay is the exp of a segment's own sum, never of a difference.

Half precision in z3's own floating-point theory; gates are finite and at most 0, rounding is to nearest even.
"""

from __future__ import annotations

import z3

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.smt.solver import always, exists

HALF = z3.Float16()
NEAREST = z3.RNE()
a, b, d = (z3.FP(name, HALF) for name in "abd")
ZERO = z3.FPVal(0, HALF)
GATES = [z3.And(z3.fpLEQ(x, ZERO), z3.Not(z3.fpIsInf(x)), z3.Not(z3.fpIsNaN(x))) for x in (a, b, d)]


def add(*terms: z3.FPRef) -> z3.FPRef:
    """Left to right, rounded after each addition."""
    total = terms[0]
    for term in terms[1:]:
        total = z3.fpAdd(NEAREST, total, term)
    return total


def _finite(*sums: z3.FPRef) -> list[z3.BoolRef]:
    return [z3.Not(z3.fpIsInf(x)) for x in sums]


def _positive(whole: z3.FPRef, part: z3.FPRef) -> Answer:
    """Whether a running sum of more gates may exceed one of fewer."""
    return exists(*GATES, *_finite(whole, part), z3.fpGT(z3.fpSub(NEAREST, whole, part), ZERO))


def _segment(bound: float) -> Answer:
    total = add(a, b, d)
    return always(*GATES, then=z3.fpLEQ(total, z3.FPVal(bound, HALF)))


def _dropped(zero: bool) -> Answer:
    """The first gate is gone from (a + b) - a, though not from b itself."""
    total = z3.fpSub(NEAREST, add(a, b), a)
    gone = z3.And(z3.fpEQ(total, ZERO), z3.fpLEQ(b, z3.FPVal(-1, HALF)))
    small = z3.fpGEQ(a, z3.FPVal(-4 if zero else -60000, HALF))
    return exists(*GATES, *_finite(add(a, b)), small, gone)


GIVEN = "finite float16 gates a, b, d <= 0, round to nearest even"

STATEMENTS = (
    Statement(
        id="gates.segment-sum", method="smt", assumptions=GIVEN,
        statement="a segment's own sum ((a + b) + d) is at most 0 in floating point, so its exp is at most 1",
        ask=_segment, right=(0,),
        twin="it is at most -1", wrong=(-1,),
    ),
    Statement(
        id="gates.trees-disagree", method="smt", assumptions=GIVEN,
        statement="running sums from two trees can rise: ((a + b) + (d + 0)) - (a + (b + d)) > 0 for some gates",
        ask=_positive, right=(add(a, b, d), add(a, add(b, d))),
        twin="so can ((a + b) + d) - (a + b)", wrong=(add(a, b, d), add(a, b)),
    ),
    Statement(
        id="gates.difference-forgets", method="smt", assumptions=GIVEN,
        statement="(a + b) - a can be 0 for a gate b <= -1: a difference of running sums loses whole gates",
        ask=_dropped, right=(False,),
        twin="it can where a >= -4", wrong=(True,),
    ),
)  # fmt: skip
