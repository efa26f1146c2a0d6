"""How small the cosine c of k and A k can be: Kantorovich's bound, for every width.

Scale A so that its eigenvalues lie in [h, 1], h = 1 / cond(A). With m1 = k . A k and m2 = |A k|^2 for a unit k,
averages of lambda and lambda^2 over a distribution on [h, 1], the cosine is m1 / sqrt(m2).
"""

from __future__ import annotations

import z3

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.smt.solver import always, exists

value, h, m1, m2 = z3.Reals("lambda h m1 m2")
RANGE = [h > 0, h <= 1]


def _chord(slope: int) -> Answer:
    """Averaging this inequality gives m2 <= (1 + h) m1 - h."""
    return always(*RANGE, value >= h, value <= 1, then=value * value <= (slope + h) * value - h)


def _bound(factor: z3.ArithRef) -> Answer:
    """c^2 >= 4 h / (1 + h)^2."""
    return always(*RANGE, m1 >= h, m1 <= 1, m2 > 0, m2 <= (1 + h) * m1 - h,
                  then=m1 * m1 * (1 + h) ** 2 >= factor * h * m2)  # fmt: skip


def _attained(factor: int) -> Answer:
    """Weights h / (1 + h) on eigenvalue 1 and 1 / (1 + h) on h give equality."""
    first, second = 2 * h, h * (1 + h)  # m1 (1 + h) and m2 (1 + h)
    return always(*RANGE, then=first * first * (1 + h) == factor * h * second)


def _small(*most: z3.BoolRef) -> Answer:
    """c < 1/10 for the widest spread of two eigenvalues."""
    return exists(*RANGE, *most, m1 >= h, m2 > 0, m2 == (1 + h) * m1 - h, 100 * m1 * m1 < m2)


STATEMENTS = (
    Statement(
        id="vla.kantorovich.chord", method="smt", assumptions="h <= lambda <= 1, 0 < h <= 1",
        statement="lambda^2 <= (1 + h) lambda - h: averaged, |A k|^2 <= (1 + h) k . A k - h for eigenvalues in [h, 1]",
        ask=_chord, right=(1,), twin="lambda^2 <= h lambda - h", wrong=(0,),
    ),
    Statement(
        id="vla.kantorovich.bound", method="smt", assumptions="averages m1, m2 as vla.kantorovich.chord allows",
        statement="m1^2 (1 + h)^2 >= 4 h m2: the cosine is at least 2 sqrt(kappa) / (1 + kappa), kappa = 1/h",
        ask=_bound, right=(z3.RealVal(4),), twin="the same with (4 + 1e-9) h m2",
        wrong=(z3.Q(4 * 10**9 + 1, 10**9),),
    ),
    Statement(
        id="vla.kantorovich.attained", method="smt", assumptions="0 < h <= 1",
        statement="weights h / (1 + h) on eigenvalue 1 and 1 / (1 + h) on h attain the bound",
        ask=_attained, right=(4,), twin="they attain it with 5 in place of 4", wrong=(5,),
    ),
    Statement(
        id="vla.kantorovich.small", method="smt", assumptions="averages m1, m2 as vla.kantorovich.chord allows",
        statement="the cosine may be below 1/10: it has no bound that holds for every penalty",
        ask=_small, right=(),
        twin="it may be below 1/10 with cond(A) <= 4",
        wrong=(4 * h >= 1,),
    ),
)  # fmt: skip
