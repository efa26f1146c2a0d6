"""How many multiply-adds an implementation does, counted from the operations it really runs.

PyTorch's own counter knows the matrix products; what it leaves out is added here: triangular solves, factorisations
and element-wise products. Counts are exact and the same on every machine; additions alone, comparisons and
exponentials are not counted. The fit over lengths says how the work grows: a T log2 T share beside the T share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from linattest.verify.grids import settings
from linattest.verify.inputs import Batch, Case, Scalar, Structure, build
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import run

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Lengths over which the growth is fitted."""

WIDTH = 16
"""Key and value width of what is counted."""

Shape = Sequence[int]


def _products(*_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * math.prod(out_shape)


def _triangular(a: Shape, b: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """Forward or backward substitution: n (n - 1) / 2 multiply-adds and n divisions a right-hand side."""
    n = a[-1]
    return 2 * (math.prod(out_shape) // max(n, 1)) * (n * (n + 1) // 2)


def _cholesky(a: Shape, *_: Any, **__: Any) -> int:
    """(n^3 + 3 n^2 + 2 n) / 6 multiply-adds, divisions and roots."""
    n = a[-1]
    return 2 * math.prod(a[:-2]) * (n * (n + 1) * (n + 2) // 6)


def _cholesky_solve(b: Shape, a: Shape, *_: Any, **__: Any) -> int:
    n = a[-1]
    return 2 * math.prod(b) // max(n, 1) * n * (n + 1)


aten = torch.ops.aten
MULTIPLY_ADDS = {
    aten.mul: _products,
    aten.mul_: _products,
    aten.addcmul: _products,
    aten.linalg_solve_triangular: _triangular,
    aten.linalg_cholesky_ex: _cholesky,
    aten.cholesky_solve: _cholesky_solve,
}
"""Formulas in the counter's unit, two a multiply-add."""


def count(operator: Operator, variant: Variant, batch: Batch, *, backward: bool = False) -> int:
    """Multiply-adds of one run of a variant on a batch."""
    with FlopCounterMode(display=False, custom_mapping=MULTIPLY_ADDS) as counter:
        run(operator, variant, batch, backward=backward)
    return counter.get_total_flops() // 2


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Multiply-adds per token by length, and their least-squares fit ``linear + logarithmic log2 T + quadratic T``."""

    operator: str
    variant: str
    options: Mapping[str, Scalar]
    per_token: dict[int, float]
    linear: float
    logarithmic: float
    quadratic: float
    misfit: float

    @property
    def order(self) -> str:
        """ "T", "T log T" or "T^2": the steepest term with more than 1% of the work at the longest length."""
        longest = max(self.per_token)
        shares = {"T^2": self.quadratic * longest, "T log T": self.logarithmic * math.log2(longest)}
        return next((name for name, share in shares.items() if share > 0.01 * self.per_token[longest]), "T")


def growth(
    operator: Operator,
    variant: Variant,
    options: Mapping[str, Scalar] | None = None,
    *,
    lengths: Sequence[int] = LENGTHS,
    width: int = WIDTH,
) -> Growth:
    """Count a forward pass at each length and fit the counts per token.

    Every listed length is a whole number of chunks, so that no count depends on padding.
    """
    chosen, counts = options or {}, dict[int, float]()
    for T in lengths:
        case = Case(operator=operator.name, structure=Structure(T=T, K=width, V=width), options=chosen)
        counts[T] = count(operator, variant, build(operator, case)) / T
    x = np.array([[1.0, math.log2(T), T] for T in counts])
    y = np.array(list(counts.values()))
    fit, *_ = np.linalg.lstsq(x / y[:, None], np.ones_like(y), rcond=None)
    misfit = float(np.max(np.abs(x @ fit / y - 1)))
    linear, logarithmic, quadratic = map(float, fit)
    return Growth(
        operator=operator.name, variant=variant.name, options=chosen, per_token=counts, linear=linear,
        logarithmic=logarithmic, quadratic=quadratic, misfit=misfit,
    )  # fmt: skip


def costs(operators: Sequence[Operator], lengths: Sequence[int] = LENGTHS) -> Iterator[Growth]:
    """The chunk-parallel variant of each operator, once for each setting that changes what is computed."""
    for operator in operators:
        for options in settings(operator):
            yield growth(operator, operator.variant("chunk"), options, lengths=lengths)
