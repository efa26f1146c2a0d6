"""Unit roundoffs and the budget formula. No other module holds a tolerance.

A case passes if, pointwise and in root mean square per head,

    |y - y*| <= 1.01 u_out |y*| + staged + 30 kappa

``u_out``   unit roundoff of the output's dtype: the one rounding nobody can avoid (IEEE 754; Higham,
            *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 2.1).
``kappa``   how far this very output moves when every input and every intermediate result of the float64
            recurrence moves by the unit roundoff of the *accumulation* type, and by its smallest normal
            number (a machine may flush subnormals to zero): sensitivity.py. What fails is looked at again
            with steps of that roundoff itself instead of smaller ones scaled up: these do not show second
            orders, as the square of a rounding where 0 is right. Perturbing by the roundoff of bfloat16
            *inputs* would hide a 5% error of scale; inputs are exact once quantised.
``staged``  named terms for low-precision operands inside an implementation, measured (zero for ours).
            In root mean square a term is what its samples have in that measure, not that of pointwise bounds.
``30``      LAPACK's threshold for test ratios (LAPACK Working Note 41, section 7).
"""

from __future__ import annotations

import torch

THRESHOLD = 30.0
"""Largest error ratio that passes."""

OUTPUT_ROUNDING = 1.01
"""Allowance on u_out: one rounding, and the second-order term of rounding a rounded number."""

ORACLE_MARGIN = 2.0**-20
"""The oracle's proved radius must stay below this fraction of the budget, everywhere."""

PATTERNS = 16
"""Sign patterns whose pointwise maximum is kappa; fewer than 8 give false alarms."""

STEP = 2.0**-36
"""Relative step of a perturbation in float64, scaled to the roundoff wanted. The difference of two runs has
about 17 good bits, and inputs with a condition up to 2**36 stay in the linear range (2**-26, the square root
of the roundoff, made matrices with a ridge of 1e-8 indefinite)."""

STAGED_PATTERNS = 32
"""Samples of what low-precision operands lose: enough to know the deviation of every element within an eighth."""

STAGED_SIGMAS = 8
"""How many measured deviations an element may be off by. Student's t with ``STAGED_PATTERNS`` degrees of freedom is
beyond 8 once in 2e8 draws; a case has up to 1e7 elements."""

STAGED_ROW_SIGMAS = 6.5
"""How many deviations of its row of channels, if that is more. A row has as many samples for each channel: with 12 of
them Student's t (384 degrees of freedom) is beyond 6.5 once in 4e9 draws."""

STAGED_PATHS = 2.0**0.5
"""Root mean square of a head: a kernel may stage one more operand of the same size on each path than the chunk form."""

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def unit_roundoff(dtype: str) -> float:
    """Half the distance from 1 to the next number.

    >>> import math
    >>> [math.log2(unit_roundoff(dtype)) for dtype in TORCH_DTYPES]
    [-53.0, -24.0, -8.0, -11.0]
    """
    return torch.finfo(TORCH_DTYPES[dtype]).eps / 2


def accumulation(dtype: str) -> str:
    """The type an operator accumulates in: float64 for float64, float32 for the rest."""
    return "float64" if dtype == "float64" else "float32"


def smallest_normal(dtype: str) -> float:
    """The smallest positive normal number."""
    return torch.finfo(TORCH_DTYPES[dtype]).smallest_normal


def smallest_subnormal(dtype: str) -> float:
    """The smallest positive number."""
    info = torch.finfo(TORCH_DTYPES[dtype])
    return info.smallest_normal * info.eps
