"""The Jacobian J = I - a k^T of one delta-rule write, in the plane of its two unit directions (VLA, proposition 2).

Off that plane J is the identity, so that what holds in the plane holds in every width. Coordinates: k = (1, 0),
a = (c, s) with c^2 + s^2 = 1, hence J x = (x1 (1 - c), x2 - s x1).
"""

from __future__ import annotations

import z3

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.smt.solver import always, exists

c, s, x, y, r = z3.Reals("c s x y r")
UNIT = c * c + s * s == 1
IMAGE = (x * (1 - c)) ** 2 + (y - s * x) ** 2
SIZE = x * x + y * y
ROOT = [r >= 0, r * r == 5 - 4 * c]
"""r = sqrt(5 - 4 c): twice sigma(c) = (1 + r) / 2, less one."""


def _bounded(factor: z3.ArithRef) -> Answer:
    return always(UNIT, *ROOT, then=factor * factor * SIZE >= 4 * IMAGE)


def _attained(offset: int) -> Answer:
    """sigma^2 is an eigenvalue of J^T J: its characteristic polynomial vanishes there."""
    square = ((1 + r) / 2) ** 2 + offset
    trace, determinant = (1 - c) ** 2 + s * s + 1, (1 - c) ** 2
    return always(UNIT, *ROOT, then=square * square - trace * square + determinant == 0)


def _cosine(definite: bool) -> Answer:
    """0 < k . A k <= |A k| for A = [[p, q], [q, w]]; without definiteness the first inequality falls."""
    p, q, w = z3.Reals("p q w")
    positive = [p > 0, p * w - q * q > 0] if definite else [p * w - q * q > 0]
    k = [x, y]
    ak = [p * x + q * y, q * x + w * y]
    along = k[0] * ak[0] + k[1] * ak[1]
    return always(*positive, SIZE == 1, then=z3.And(along > 0, along * along <= ak[0] ** 2 + ak[1] ** 2))


def _radius(limit: float) -> Answer:
    """Real eigenvalues of J are 1 and 1 - c: |value| <= limit where 0 < c <= 1."""
    value = z3.Real("value")
    characteristic = (1 - c - value) * (1 - value)
    return always(UNIT, c > 0, characteristic == 0, then=z3.And(value <= limit, value >= -limit))


PLANE = "a, k unit vectors; the plane they span, off which J is the identity"

STATEMENTS = (
    Statement(
        id="vla.jacobian.exceeds-one", method="smt", assumptions=PLANE + "; a . k > 0",
        statement="|J x| > |x| for some a, k, x: the spectral norm of J is not 1 in general",
        check=lambda: exists(UNIT, c > 0, IMAGE > SIZE),
        twin="|J x| > |x| for some x with a = k", twin_check=lambda: exists(UNIT, c == 1, IMAGE > SIZE),
    ),
    Statement(
        id="vla.jacobian.bound", method="smt", assumptions=PLANE,
        statement="|J x| <= sigma(c) |x| for every x, sigma(c) = (1 + sqrt(5 - 4c)) / 2, c = a . k in [-1, 1]",
        check=lambda: _bounded(1 + r),
        twin="|J x| <= 0.99 sigma(c) |x|", twin_check=lambda: _bounded((1 + r) * z3.Q(99, 100)),
    ),
    Statement(
        id="vla.jacobian.attained", method="smt", assumptions=PLANE,
        statement="sigma(c)^2 is an eigenvalue of J^T J: the bound is attained for every c",
        check=lambda: _attained(0),
        twin="sigma(c)^2 + 1 is an eigenvalue of J^T J", twin_check=lambda: _attained(1),
    ),
    Statement(
        id="vla.jacobian.cosine", method="smt", assumptions="A symmetric positive definite 2 x 2, |k| = 1",
        statement="0 < k . A k <= |A k|: the cosine c of a = A k / |A k| and k lies in (0, 1]",
        check=lambda: _cosine(definite=True),
        twin="the same of A with a positive determinant only", twin_check=lambda: _cosine(definite=False),
    ),
    Statement(
        id="vla.jacobian.radius", method="smt", assumptions=PLANE + "; 0 < c <= 1",
        statement="every eigenvalue of J lies in [-1, 1], and 1 is one: the spectral radius is 1",
        check=lambda: _radius(1),
        twin="every eigenvalue of J lies in [-0.99, 0.99]", twin_check=lambda: _radius(0.99),
    ),
)  # fmt: skip
