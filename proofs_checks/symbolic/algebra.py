"""Asking sympy: an identity is proved when the difference of its sides simplifies to 0, and refuted by numbers."""

from __future__ import annotations

import random

import msgspec
import sympy as sp

from linattest.proofs_checks.pins import shortened
from linattest.proofs_checks.proof import Answer

TOOL = f"sympy {sp.__version__}"
TRIALS = 20


def equal(*sides: tuple[sp.Expr | sp.MatrixBase, sp.Expr | sp.MatrixBase]) -> Answer:
    """Whether the sides of every equation (of matrices: of every entry) are identically equal.

    A refutation carries rational values of the symbols at which two are not; neither a difference that simplifies to 0
    nor such values leave the answer unknown.
    """
    entries = [pair for left, right in sides for pair in zip(_entries(left), _entries(right), strict=True)]
    return msgspec.structs.replace(_vanish([left - right for left, right in entries]), asked=_question(entries))


def _entries(side: sp.Expr | sp.MatrixBase) -> list[sp.Expr]:
    return [sp.sympify(x) for x in (side if isinstance(side, sp.MatrixBase) else [side])]


def _question(entries: list[tuple[sp.Expr, sp.Expr]]) -> str:
    """The symbols with what is assumed of them, and a line for each equation, before any simplification."""
    names = sorted({x for pair in entries for side in pair for x in side.free_symbols}, key=str)
    kinds = (f"{x} {'> 0' if x.is_positive else ': Real' if x.is_real else ': Complex'}" for x in names)
    lines = (f"  {left} = {right}" for left, right in entries)
    return shortened("\n".join([f"for every {', '.join(kinds)}", *lines]))


def _vanish(entries: list[sp.Expr]) -> Answer:
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
