"""Structure of the level weights' maps (adaptive lambda)."""

from __future__ import annotations

import sympy as sp

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.symbolic.algebra import equal, symbols

LEVELS = 3
x = symbols("x", LEVELS)


def _jacobian(weights: list[sp.Expr]) -> sp.Matrix:
    return sp.Matrix(weights).jacobian(x)


def _softplus() -> list[sp.Expr]:
    return [sp.log(1 + sp.exp(y)) for y in x]


def _softmax() -> list[sp.Expr]:
    total = sum((sp.exp(y) for y in x), start=sp.Integer(0))
    return [sp.exp(y) / total for y in x]


def _decoupled(weights: list[sp.Expr]) -> Answer:
    """Every entry off the diagonal of the Jacobian is 0."""
    J = _jacobian(weights)
    return equal(*((J[i, j], sp.Integer(0)) for i in range(LEVELS) for j in range(LEVELS) if i != j))


def _slope(shift: int) -> Answer:
    J = _jacobian(_softplus())
    return equal(*((J[i, i], 1 / (1 + sp.exp(-x[i] - shift))) for i in range(LEVELS)))


def _coupled(factor: int) -> Answer:
    p = _softmax()
    J = _jacobian(p)
    wanted = sp.Matrix(LEVELS, LEVELS, lambda i, j: p[i] * (int(i == j) - factor * p[j]))
    return equal((J, wanted))


def _budget(total: int) -> Answer:
    """Softmax weights sum to 1, so that one level's gain is the others' loss."""
    return equal((sum(_softmax(), start=sp.Integer(0)), sp.Integer(total)))


STATEMENTS = (
    Statement(
        id="lam.softplus-independent.decoupled", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="the Jacobian of softplus weights is diagonal: no level's score moves another's weight",
        ask=_decoupled, right=(_softplus(),),
        twin="the Jacobian of softmax weights is diagonal", wrong=(_softmax(),),
    ),
    Statement(
        id="lam.softplus-independent.slope", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="its diagonal is sigmoid(x)",
        ask=_slope, right=(0,), twin="its diagonal is sigmoid(x + 1)", wrong=(1,),
    ),
    Statement(
        id="lam.softplus-independent.coupled", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="the Jacobian of softmax weights is diag(p) - p p^T: every score moves every weight",
        ask=_coupled, right=(1,), twin="it is diag(p) - 2 p p^T", wrong=(2,),
    ),
    Statement(
        id="lam.softplus-independent.budget", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="softmax weights sum to 1",
        ask=_budget, right=(1,), twin="they sum to 2", wrong=(2,),
    ),
)  # fmt: skip
