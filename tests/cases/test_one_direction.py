"""A penalty that grows along one direction for 4096 tokens: the subtractive chunk form loses all its digits here.

x = e_1 and u = |u| e_1 at every token, so y_t = e_1 / (lam0 + (t+1) |u|^2) and M = (t+1) |u|^2 e_1 e_1^T, exactly.
Every (|u|, lam0) pair is a (row, head) of one batch.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from linattest.verify.measure import Wanted, compare
from linattest.verify.subjects import resolve
from linattest.verify.tolerance import TORCH_DTYPES, accumulation, unit_roundoff

SOLVES = pytest.mark.where(
    keep=lambda operator, variant: [x.name for x in operator.inputs_of()] == ["x", "u"] and variant.kind == "sequence"
)
RIDGES = (0.1, 1e-3, 1e-8)


def split(values: list[Fraction], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Fractions as hi + lo, each a float64."""
    hi = [x.numerator / x.denominator for x in values]
    lo = [float(x - Fraction(h)) for x, h in zip(values, hi, strict=True)]
    return np.reshape(hi, shape), np.reshape(lo, shape)


@SOLVES
@pytest.mark.parametrize("K", [4, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_closed_form_holds_for_every_token(operator, variant, K, dtype):
    """kappa, relative, with r the roundoff of the type that is computed in, n = t + 1 and d = lam0 + n |u|^2:

    moving lam0 by r moves d by lam0 r; moving every u_s by r moves it by 2 n |u|^2 r; rounding every product u u^T,
    by n |u|^2 r more; x moves y by r itself. So kappa = r y (1 + (lam0 + 3 n |u|^2)/d), at most 4 r y. The roundings
    of the running sum, n |u|^2 r each in the worst case, are the implementation's own to avoid.
    """
    slow = dtype == "float64" and variant.name == operator.reference
    T = 256 if slow else 1024 if variant.name == operator.reference else 4096
    torch_dtype, wide = TORCH_DTYPES[dtype], accumulation(dtype)
    sizes = torch.tensor([K**-0.5, 1.0, 1e3], dtype=torch_dtype)
    x, u = torch.zeros(2, 3, T, 3, K, dtype=torch_dtype)
    x[..., 0] = 1
    u[..., 0] = sizes.view(3, 1, 1)
    lam0 = torch.tensor(RIDGES, dtype=torch.float64)
    with torch.no_grad():
        y, M = resolve(variant.function)(x, u, lam0=lam0, output_final_state=True)
    assert bool((y[..., 1:] == 0).all()), "exact zeros off the direction"
    assert bool((M.flatten(2)[..., 1:] == 0).all()), "exact zeros off the diagonal of M"
    squares = [Fraction(float(size)) ** 2 for size in sizes]
    values = [1 / (Fraction(lam) + (t + 1) * q) for q in squares for t in range(T) for lam in RIDGES]
    hi, lo = split(values, (3, T, 3))
    grown = np.array([float(q) for q in squares])[:, None, None] * np.arange(1, T + 1)[None, :, None]
    ridge = np.array(RIDGES)[None, None, :]
    kappa = unit_roundoff(wide) * hi * (1 + (ridge + 3 * grown) / (ridge + grown))
    verdict = compare("y", y[..., 0], Wanted(hi, lo, kappa, 0 * hi, 2), dtype, unit_roundoff(wide))
    assert verdict.passed, verdict.message()
    hi, lo = split([T * q for q in squares for _ in RIDGES], (3, 3))
    wanted = Wanted(hi, lo, 3 * unit_roundoff(wide) * hi, 0 * hi, 1)
    verdict = compare("state.M", M[..., 0, 0], wanted, wide, unit_roundoff(wide))
    assert verdict.passed, verdict.message()


@SOLVES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_orthogonal_vector_sees_the_ridge_alone(operator, variant, near, dtype):
    """x = e_2 under the same u: 1/lam0 at every token; moving x and lam0 by a roundoff r moves it by 2 r."""
    T = 4096 if variant.name != operator.reference else 128
    x, u = torch.zeros(2, 1, T, 3, 4, dtype=TORCH_DTYPES[dtype])
    x[..., 1] = 1
    u[..., 0] = 1e3
    with torch.no_grad():
        y, _ = resolve(variant.function)(x, u, lam0=torch.tensor(RIDGES, dtype=torch.float64))
    quotients = [1 / Fraction(lam) for lam in RIDGES]
    exact = torch.tensor([q.numerator / q.denominator for q in quotients], dtype=torch.float64).expand(1, T, 3)
    near("y", y[..., 1], exact, 2 * unit_roundoff(accumulation(dtype)) * exact, dtype)
    assert bool((y[..., 0] == 0).all() and (y[..., 2:] == 0).all())
