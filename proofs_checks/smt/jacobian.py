"""The Jacobian J = I - a k^T of one delta-rule write, in the plane of its two unit directions (VLA, proposition 2).

Off that plane J is the identity, so that what holds in the plane holds in every width. Coordinates: k = (1, 0),
a = (c, s) with c^2 + s^2 = 1, hence J x = (x1 (1 - c), x2 - s x1).
"""

from __future__ import annotations

from typing import Any

import z3

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.smt.solver import always, exists

Row = tuple[Any, Any]

c, s, x, y, r = z3.Reals("c s x y r")
UNIT = c * c + s * s == 1
ONE, NIL = z3.RealVal(1), z3.RealVal(0)
K, A = (ONE, NIL), (c, s)
"""The unit directions k and a, a . k = c."""

J: tuple[Row, Row] = ((ONE - A[0] * K[0], -A[0] * K[1]), (-A[1] * K[0], ONE - A[1] * K[1]))
"""I - a k^T, from which everything below is taken: J x, J^T J and both characteristic polynomials."""

IMAGE = (J[0][0] * x + J[0][1] * y) ** 2 + (J[1][0] * x + J[1][1] * y) ** 2
SIZE = x * x + y * y
ROOT = [r >= 0, r * r == 5 - 4 * c]
"""r = sqrt(5 - 4 c): twice sigma(c) = (1 + r) / 2, less one."""


def trace(m: tuple[Row, Row]) -> z3.ArithRef:
    return m[0][0] + m[1][1]


def determinant(m: tuple[Row, Row]) -> z3.ArithRef:
    return m[0][0] * m[1][1] - m[0][1] * m[1][0]


def gram(m: tuple[Row, Row]) -> tuple[Row, Row]:
    """m^T m."""
    (a, b), (d, e) = m
    return (a * a + d * d, a * b + d * e), (a * b + d * e, b * b + e * e)


def characteristic(m: tuple[Row, Row], real: z3.ArithRef, imaginary: z3.ArithRef = NIL) -> Row:
    """det(m - z I) at z = real + i imaginary: its real and its imaginary part."""
    (a, b), (d, e) = m
    part = (a - real) * (e - real) - imaginary * imaginary - b * d
    return part, -imaginary * ((a - real) + (e - real))


def _longer(*cosine: z3.BoolRef) -> Answer:
    return exists(UNIT, *cosine, IMAGE > SIZE)


def _bounded(factor: z3.ArithRef) -> Answer:
    return always(UNIT, *ROOT, then=factor * factor * SIZE >= 4 * IMAGE)


def _attained(offset: int) -> Answer:
    """sigma^2 is an eigenvalue of J^T J: its characteristic polynomial vanishes there."""
    square = ((1 + r) / 2) ** 2 + offset
    return always(UNIT, *ROOT, then=characteristic(gram(J), square)[0] == 0)


def _cosine(definite: bool) -> Answer:
    """0 < k . A k <= |A k| for A = [[p, q], [q, w]]; without definiteness the first inequality falls."""
    p, q, w = z3.Reals("p q w")
    positive = [p > 0, p * w - q * q > 0] if definite else [p * w - q * q > 0]
    k = [x, y]
    ak = [p * x + q * y, q * x + w * y]
    along = k[0] * ak[0] + k[1] * ak[1]
    return always(*positive, SIZE == 1, then=z3.And(along > 0, along * along <= ak[0] ** 2 + ak[1] ** 2))


def _radius(limit: z3.ArithRef) -> Answer:
    """|z| <= limit for every complex root z = p + i w of J's characteristic polynomial, of which 1 is one."""
    p, w = z3.Reals("p w")
    real, imaginary = characteristic(J, p, w)
    inside = z3.Implies(z3.And(real == 0, imaginary == 0), p * p + w * w <= limit * limit)
    return always(UNIT, c > 0, then=z3.And(characteristic(J, ONE)[0] == 0, inside))


PLANE = "a, k unit vectors; the plane they span, off which J is the identity"

STATEMENTS = (
    Statement(
        id="vla.jacobian.exceeds-one", method="smt", assumptions=PLANE + "; a . k > 0",
        statement="|J x| > |x| for some a, k, x: the spectral norm of J is not 1 in general",
        ask=_longer, right=(c > 0,),
        twin="|J x| > |x| for some x with a = k", wrong=(c == 1,),
    ),
    Statement(
        id="vla.jacobian.bound", method="smt", assumptions=PLANE,
        statement="|J x| <= sigma(c) |x| for every x, sigma(c) = (1 + sqrt(5 - 4c)) / 2, c = a . k in [-1, 1]",
        ask=_bounded, right=(1 + r,),
        twin="|J x| <= 0.99 sigma(c) |x|", wrong=((1 + r) * z3.Q(99, 100),),
    ),
    Statement(
        id="vla.jacobian.attained", method="smt", assumptions=PLANE,
        statement="sigma(c)^2 is an eigenvalue of J^T J: the bound is attained for every c",
        ask=_attained, right=(0,),
        twin="sigma(c)^2 + 1 is an eigenvalue of J^T J", wrong=(1,),
    ),
    Statement(
        id="vla.jacobian.cosine", method="smt", assumptions="A symmetric positive definite 2 x 2, |k| = 1",
        statement="0 < k . A k <= |A k|: the cosine c of a = A k / |A k| and k lies in (0, 1]",
        ask=_cosine, right=(True,),
        twin="the same of A with a positive determinant only", wrong=(False,),
    ),
    Statement(
        id="vla.jacobian.radius", method="smt", assumptions=PLANE + "; 0 < c <= 1",
        statement="every complex eigenvalue z of J has |z| <= 1, and 1 is one: the spectral radius is 1",
        ask=_radius, right=(ONE,),
        twin="the same with |z| <= 0.99", wrong=(z3.Q(99, 100),),
    ),
)  # fmt: skip
