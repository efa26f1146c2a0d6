"""VLA's recursion and its relatives in Arb balls, for counterexamples whose every digit is proved.

Matrices are ``flint.arb_mat`` with vectors as columns; the memory is [d_v, d] as in the paper. Inputs are rational, so
they are exact; the only rounding is that of the balls, at ``BITS`` bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import flint

from linattest.verify.numbers import ArbContext

BITS = 512
"""About 150 decimal digits: enough for 50 after hundreds of operations."""

Row = Sequence[Fraction | int]


def working() -> Any:
    """FLINT at ``BITS`` bits, as a context manager."""
    return ArbContext(BITS).working()


def number(x: Fraction | int) -> flint.arb:
    """A rational as a ball."""
    return flint.arb(Fraction(x).numerator) / Fraction(x).denominator


def column(xs: Row) -> flint.arb_mat:
    """A column vector."""
    return flint.arb_mat(len(xs), 1, [number(x) for x in xs])


def identity(n: int) -> flint.arb_mat:
    """The identity."""
    return flint.arb_mat(n, n, [flint.arb(int(i == j)) for i in range(n) for j in range(n)])


def dot(x: flint.arb_mat, y: flint.arb_mat) -> flint.arb:
    """The scalar product of two columns, or of two matrices entry by entry."""
    return sum((a * b for a, b in zip(x.entries(), y.entries(), strict=True)), flint.arb(0))


def norm(x: flint.arb_mat) -> flint.arb:
    """The Euclidean (Frobenius) norm."""
    return dot(x, x).sqrt()


def digits(x: flint.arb) -> int:
    """Proved decimal digits of a ball that does not contain 0 (-1: it is exact; 0: it may be 0)."""
    if x.is_exact():
        return -1
    if x.contains(0):
        return 0
    return math.floor(-math.log10(max(float((x.rad() / abs(x.mid())).upper()), 1e-300)))


def text(x: flint.arb) -> str:
    """The middle of a ball, to 25 digits."""
    return x.mid().str(25, radius=False)


@dataclass(frozen=True)
class Step:
    """What holds after a token: M, A = M^{-1}, the write direction a, the cosine c = a . k, and the memory S."""

    M: flint.arb_mat
    A: flint.arb_mat
    a: flint.arb_mat
    c: flint.arb
    S: flint.arb_mat


def recursion(keys: Sequence[Row], values: Sequence[Row], directions: Sequence[Row], lam0: Fraction) -> list[Step]:
    """VLA over tokens with unit keys: the paper's three formulas, A by inverting M (inside ``working()``)."""
    d = len(keys[0])
    M, S, steps = number(lam0) * identity(d), flint.arb_mat(len(values[0]), d), list[Step]()
    for key, value, direction in zip(keys, values, directions, strict=True):
        k, v, u = column(key), column(value), column(direction)
        M = M + u * u.transpose()
        A = M.inv()
        raw = A * k
        a = raw * (1 / norm(raw))
        S = S + (v - S * k) * a.transpose()
        steps.append(Step(M, A, a, dot(a, k), S))
    return steps


def objective(S: flint.arb_mat, M: flint.arb_mat, keys: Sequence[Row], values: Sequence[Row]) -> flint.arb:
    """The paper's objective: sum |v - S k|^2 + tr(S M S^T)."""
    errors = (column(v) - S * column(k) for k, v in zip(keys, values, strict=True))
    return sum((dot(e, e) for e in errors), flint.arb(0)) + dot(S * M, S)


def minimiser(M: flint.arb_mat, keys: Sequence[Row], values: Sequence[Row]) -> flint.arb_mat:
    """S* = (sum v k^T) (sum k k^T + M)^{-1}."""
    K = [column(k) for k in keys]
    gram = sum((k * k.transpose() for k in K), M)
    cross = sum(
        (column(v) * k.transpose() for v, k in zip(values, K, strict=True)),
        flint.arb_mat(len(values[0]), len(K[0].entries())),
    )
    return cross * gram.inv()


def product(steps: Sequence[Step], keys: Sequence[Row]) -> flint.arb_mat:
    """The product of the one-token Jacobians I - k a^T, acting on rows of S from the right."""
    J = identity(len(keys[0]))
    for step, key in zip(steps, keys, strict=True):
        J = J * (identity(len(key)) - column(key) * step.a.transpose())
    return J
