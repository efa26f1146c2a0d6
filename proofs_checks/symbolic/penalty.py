"""Identities of the penalty inverse and the energy norm (VLA), in width 2 with every entry a symbol.

Coq proves the first three for every width; here the same identities are computed with, which is how their
implementations use them, and the backward of `ridge_solve` is derived from the definition.
"""

from __future__ import annotations

import sympy as sp

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.symbolic.algebra import equal, symbols

WIDTH = 2


def _symmetric(name: str) -> sp.Matrix:
    entries = symbols(name, WIDTH, WIDTH)
    return sp.Matrix(WIDTH, WIDTH, lambda i, j: entries[min(i, j), max(i, j)])


M, u, k = _symmetric("m"), symbols("u", WIDTH), symbols("k", WIDTH)
INVERTIBLE = "M symmetric and invertible, width 2, every entry a symbol"


def _sherman_morrison(sign: int) -> Answer:
    A = M.inv()
    z = A * u
    return equal(((M + u * u.T) * (A - sign * z * z.T / (1 + (u.T * z)[0])), sp.eye(WIDTH)))


def _determinant(factor: int) -> Answer:
    return equal(((M + u * u.T).det(), M.det() * (1 + factor * (u.T * M.inv() * u)[0])))


def _energy(coefficient: int) -> Answer:
    """M - J M J^T for J = I - k a^T, a = A k / n, c = a . k. That n is |A k| plays no part: M a = k / n is enough."""
    A, n = M.inv(), sp.Symbol("n", positive=True)
    a = A * k / n
    J = sp.eye(WIDTH) - k * a.T
    return equal((M - J * M * J.T, (coefficient - (a.T * k)[0]) / n * k * k.T))


def _backward(sign: int) -> Answer:
    """Derivative of g . A x along every entry of x, u and lam0, A = (lam0 I + u u^T)^{-1}."""
    lam0 = sp.Symbol("lam0", positive=True)
    x, g = symbols("x", WIDTH), symbols("g", WIDTH)
    A = (lam0 * sp.eye(WIDTH) + u * u.T).inv()
    y, b = A * x, A * g
    loss = (g.T * y)[0]
    dx, du = (sp.Matrix([sp.diff(loss, s) for s in along]) for along in (x, u))
    wanted = sign * (b * (y.T * u)[0] + y * (b.T * u)[0])
    return equal((dx, b), (du, wanted), (sp.diff(loss, lam0), -(b.T * y)[0]))


def _least_squares(factor: int) -> Answer:
    """Two tokens of the recursion with u = k and gain `factor` A k."""
    lam0 = sp.Symbol("lam0", positive=True)
    keys, values = (symbols("k", WIDTH, 2), symbols("v", 1, 2))
    N, S = lam0 * sp.eye(WIDTH), sp.zeros(1, WIDTH)
    for t in range(2):
        key = keys[:, t]
        N = N + key * key.T
        gain = factor * N.inv() * key
        S = S + (values[:, t] - S * key) * gain.T
    return equal((S * (lam0 * sp.eye(WIDTH) + keys * keys.T), values * keys.T))


def _singular_values(total: int) -> Answer:
    c = sp.Symbol("c", real=True)
    s = sp.sqrt(1 - c**2)
    J = sp.eye(2) - sp.Matrix([c, s]) * sp.Matrix([[1, 0]])
    gram = J.T * J
    sigma = (1 + sp.sqrt(5 - 4 * c)) / 2
    return equal(
        (gram.trace(), total - 2 * c), (gram.det(), (1 - c) ** 2), ((gram - sigma**2 * sp.eye(2)).det(), sp.Integer(0))
    )  # fmt: skip


STATEMENTS = (
    Statement(
        id="vla.sherman-morrison.width-2", method="symbolic", assumptions=INVERTIBLE,
        statement="(M + u u^T) (A - z z^T / (1 + u . z)) = I, A = M^{-1}, z = A u",
        ask=_sherman_morrison, right=(1,),
        twin="the same with + z z^T", wrong=(-1,),
    ),
    Statement(
        id="vla.determinant.width-2", method="symbolic", assumptions=INVERTIBLE,
        statement="det(M + u u^T) = det M (1 + u^T A u)",
        ask=_determinant, right=(1,),
        twin="det(M + u u^T) = det M (1 + 2 u^T A u)", wrong=(2,),
    ),
    Statement(
        id="vla.energy.width-2", method="symbolic", assumptions=INVERTIBLE + "; a = A k / |A k|, c = a . k",
        statement="M - J M J^T = ((2 - c) / |A k|) k k^T for J = I - k a^T",
        ask=_energy, right=(2,),
        twin="the same with (1 - c)", wrong=(1,),
    ),
    Statement(
        id="vla.ridge-backward", method="symbolic", assumptions="M = lam0 I + u u^T, width 2, loss g . A x",
        statement="d x = b, d u = -(b (y . u) + y (b . u)), d lam0 = -b . y, with y = A x, b = A g",
        ask=_backward, right=(-1,),
        twin="the same with d u of the other sign", wrong=(1,),
    ),
    Statement(
        id="vla.least-squares", method="symbolic", assumptions="width 2, two tokens, u = k, gain A k not normalised",
        statement="the recursion is ridge regression: S (lam0 I + K K^T) = V K^T",
        ask=_least_squares, right=(1,),
        twin="the same with a gain twice as long", wrong=(2,),
    ),
    Statement(
        id="vla.singular-values", method="symbolic", assumptions="a, k unit vectors with a . k = c, in their plane",
        statement="the squares of J's singular values sum to 3 - 2c, multiply to (1 - c)^2, and one is sigma(c)^2",
        ask=_singular_values, right=(3,),
        twin="they sum to 2 - 2c", wrong=(2,),
    ),
)  # fmt: skip
