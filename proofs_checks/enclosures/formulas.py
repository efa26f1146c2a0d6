"""Formulas as text, for Arb: what is read is what is computed, so a question can be pinned as it is written.

The text is a Python expression in some variables: + - * / **, comparisons and ``a if b else c``, and the functions of
``FUNCTIONS``. A decimal is enclosed at the precision at hand and never passes through float64.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from typing import Any

import flint

FUNCTIONS: dict[str, Callable[[flint.arb], flint.arb]] = {
    "exp": lambda x: x.exp(), "log": lambda x: x.log(), "log1p": lambda x: x.log1p(), "sqrt": lambda x: x.sqrt(),
    "abs": abs,
}  # fmt: skip
ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


@cache
def compiled(formula: str, *variables: str) -> Callable[..., flint.arb]:
    """The function of these variables that a formula is.

    Raises:
        ValueError: it has something other than arithmetic, or a name that is neither variable nor function.
    """
    tree = _Numbers(formula).visit(ast.parse(formula, mode="eval"))
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise ValueError(f"formula {formula!r} has {type(node).__name__}, expected arithmetic")
        if isinstance(node, ast.Name) and node.id not in {*variables, *FUNCTIONS, _NUMBER}:
            raise ValueError(f"formula {formula!r} has {node.id!r}, expected {[*variables, *FUNCTIONS]}")
    code = compile(ast.fix_missing_locations(tree), formula, "eval")
    names: dict[str, Any] = {"__builtins__": {}, _NUMBER: flint.arb, **FUNCTIONS}
    return lambda *values: eval(code, names, dict(zip(variables, values, strict=True)))


_NUMBER = "number"


class _Numbers(ast.NodeTransformer):
    """Every decimal becomes a ball made from its text; whole exponents stay."""

    def __init__(self, formula: str) -> None:
        self.formula = formula

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        text = ast.get_source_segment(self.formula, node) or ""
        if not isinstance(node.value, int | float) or isinstance(node.value, bool):
            raise ValueError(f"formula {self.formula!r} has {text}, expected numbers")
        return ast.Call(ast.Name(_NUMBER, ast.Load()), [ast.Constant(text)], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        whole = isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant)
        right = node.right if whole and isinstance(node.right.value, int) else self.visit(node.right)
        return ast.BinOp(self.visit(node.left), node.op, right)
