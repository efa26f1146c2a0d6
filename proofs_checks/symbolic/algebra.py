"""Asking sympy: an identity is proved when the difference of its sides simplifies to 0, and refuted by numbers."""

from __future__ import annotations

import random

import sympy as sp

from linattest.proofs_checks.proof import Answer

TOOL = f"sympy {sp.__version__}"
TRIALS = 20


def vanishes(*differences: sp.Expr | sp.MatrixBase) -> Answer:
    """Whether expressions (or every entry of matrices) are identically 0.

    A refutation carries rational values of the symbols at which one is not 0; neither a simplification to 0 nor such
    values leave the answer unknown.
    """
    entries = [sp.sympify(x) for part in differences for x in (part if isinstance(part, sp.MatrixBase) else [part])]
    for entry in entries:
        if sp.simplify(sp.together(sp.expand(entry))) != 0:
            return _witness(entry)
    return Answer(status="proved", tool=TOOL, evidence={"entries": str(len(entries))})


def _witness(entry: sp.Expr) -> Answer:
    rng = random.Random(0)
    for _ in range(TRIALS):
        values = {x: sp.Rational(rng.randint(1, 9), rng.randint(1, 9)) for x in sorted(entry.free_symbols, key=str)}
        value = entry.subs(values)
        if value.is_finite and abs(sp.N(value, 50)) > sp.Float("1e-30", 50):
            found = {str(x): str(v) for x, v in values.items()}
            return Answer(status="refuted", tool=TOOL, evidence=found | {"difference": str(sp.N(value, 15))})
    return Answer(status="unknown", tool=TOOL, evidence={"left": str(entry)[:500]})


def symbols(name: str, *shape: int, positive: bool = False) -> sp.Matrix:
    """A matrix of distinct real symbols."""
    rows, columns = shape if len(shape) == 2 else (shape[0], 1)
    return sp.Matrix(rows, columns, lambda i, j: sp.Symbol(f"{name}{i}{j}", real=True, positive=positive or None))
