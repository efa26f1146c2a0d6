"""Inequalities behind growth, shrinking and contraction, in the scalar products that decide them: for every width."""

from __future__ import annotations

import z3

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.smt.solver import always, exists

zx, uz, s, w, p, lam, sigma, size, kq, q, one, two = z3.Reals("zx uz s w p lam sigma size kq q sigma1 sigma2")


def _shrinking(sign: int) -> Answer:
    """x . (A_{t-1} - A_t) x = (z . x)^2 / (1 + u . z) by Sherman-Morrison, and u . z = u . A u >= 0."""
    return always(uz >= 0, then=sign * zx * zx / (1 + uz) >= 0)


def _triangle(factor: int) -> Answer:
    """|S + W|^2 = s^2 + 2 p + w^2, and Cauchy-Schwarz for the scalar product p of S and W."""
    return always(s >= 0, w >= 0, p * p <= s * s * w * w, then=s * s + factor * p + w * w <= (s + w) * (s + w))


def _contracts(most: int) -> Answer:
    """An eigenvalue sigma >= 0 of Sigma becomes the eigenvalue 1 - lam sigma of I - lam Sigma."""
    factor = 1 - lam * sigma
    return always(lam >= 0, sigma >= 0, then=(z3.And(factor >= -1, factor <= 1)) == (lam * sigma <= most))


def _keeps_sign(most: int) -> Answer:
    factor = 1 - lam * sigma
    return always(lam >= 0, sigma >= 0, then=(z3.And(factor >= 0, factor <= 1)) == (lam * sigma <= most))


def _unit_keys(length: int) -> Answer:
    """q . Sigma q is the mean of (k . q)^2, at most |k|^2 |q|^2, less the square of the mean."""
    mean, variance = z3.Reals("mean variance")
    return always(
        size >= 0, size <= length, q > 0, kq <= size * q, variance == kq - mean * mean, lam >= 0, lam <= 1,
        then=lam * variance <= q,
    )  # fmt: skip


def _memory(differ: bool) -> Answer:
    """Width 1, one query: two covariances give two contracted queries."""
    other = two if differ else one
    return exists(one >= 0, two >= 0, lam > 0, lam < 1, q - lam * one * q != q - lam * other * q)


STATEMENTS = (
    Statement(
        id="vla.bounds.shrinking", method="smt",
        assumptions="A_t by Sherman-Morrison (proved apart), u . A u >= 0",
        statement="x . A_t x <= x . A_{t-1} x for every x: the difference is (z . x)^2 / (1 + u . z) >= 0",
        ask=_shrinking, right=(1,), twin="the same for growing", wrong=(-1,),
    ),
    Statement(
        id="vla.bounds.triangle", method="smt", assumptions="Cauchy-Schwarz for Frobenius' scalar product",
        statement="|S + v k^T| <= |S| + |v| |k|: after T writes linear attention's memory is at most their sum, O(T)",
        ask=_triangle, right=(2,), twin="the same with thrice the scalar product", wrong=(3,),
    ),
    Statement(
        id="ccq.bounds.contraction", method="smt", assumptions="lam >= 0, sigma >= 0 an eigenvalue of Sigma",
        statement="|1 - lam sigma| <= 1 exactly if lam sigma <= 2: I - lam Sigma is non-expansive only then",
        ask=_contracts, right=(2,), twin="exactly if lam sigma <= 3", wrong=(3,),
    ),
    Statement(
        id="ccq.bounds.sign", method="smt", assumptions="lam >= 0, sigma >= 0 an eigenvalue of Sigma",
        statement="0 <= 1 - lam sigma <= 1 exactly if lam sigma <= 1: it shrinks without changing sign only then",
        ask=_keeps_sign, right=(1,), twin="exactly if lam sigma <= 2", wrong=(2,),
    ),
    Statement(
        id="ccq.bounds.unit-keys", method="smt",
        assumptions="|k|^2 <= 1; kq is the mean of (k . q)^2, at most |k|^2 |q|^2; 0 <= lam <= 1",
        statement="lam q . Sigma q <= |q|^2: keys of length at most 1 meet the condition of a contraction",
        ask=_unit_keys, right=(1,), twin="keys of squared length up to 2 do", wrong=(2,),
    ),
    Statement(
        id="ccq.bounds.memory", method="smt", assumptions="width 1, 0 < lam < 1",
        statement="two memories exist for which one and the same query is contracted to two: no map of q alone does it",
        ask=_memory, right=(True,), twin="for one memory", wrong=(False,),
    ),
)  # fmt: skip
