"""Structure of the level weights' maps (adaptive lambda)."""

from __future__ import annotations

import sympy as sp

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.symbolic.algebra import symbols, vanishes

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
    return vanishes(*(J[i, j] for i in range(LEVELS) for j in range(LEVELS) if i != j))


def _slope(shift: int) -> Answer:
    J = _jacobian(_softplus())
    return vanishes(*(J[i, i] - 1 / (1 + sp.exp(-x[i] - shift)) for i in range(LEVELS)))


def _coupled(factor: int) -> Answer:
    p = _softmax()
    J = _jacobian(p)
    wanted = sp.Matrix(LEVELS, LEVELS, lambda i, j: p[i] * (int(i == j) - factor * p[j]))
    return vanishes(J - wanted)


def _budget(total: int) -> Answer:
    """Softmax weights sum to 1, so that one level's gain is the others' loss."""
    return vanishes(sum(_softmax(), start=sp.Integer(0)) - total)


STATEMENTS = (
    Statement(
        id="lam.softplus-independent.decoupled", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="the Jacobian of softplus weights is diagonal: no level's score moves another's weight",
        check=lambda: _decoupled(_softplus()),
        twin="the Jacobian of softmax weights is diagonal", twin_check=lambda: _decoupled(_softmax()),
    ),
    Statement(
        id="lam.softplus-independent.slope", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="its diagonal is sigmoid(x)",
        check=lambda: _slope(0), twin="its diagonal is sigmoid(x + 1)", twin_check=lambda: _slope(1),
    ),
    Statement(
        id="lam.softplus-independent.coupled", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="the Jacobian of softmax weights is diag(p) - p p^T: every score moves every weight",
        check=lambda: _coupled(1), twin="it is diag(p) - 2 p p^T", twin_check=lambda: _coupled(2),
    ),
    Statement(
        id="lam.softplus-independent.budget", method="symbolic", assumptions=f"{LEVELS} levels",
        statement="softmax weights sum to 1",
        check=lambda: _budget(1), twin="they sum to 2", twin_check=lambda: _budget(2),
    ),
)  # fmt: skip
