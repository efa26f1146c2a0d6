"""K04: the triangular system inside a delta rule: an ordinary one, one of the identity, one that is ill-conditioned.

With write keys e_0, e_1, ... and erase keys that are rows of a strictly lower triangular L, values e_0, e_1, ..., the
final memory is (I + L)^{-1} itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from linattest.verify.inputs import Batch, resolve_options
from linattest.verify.spec import Operator
from linattest.verify.subjects import run
from linattest.verify.tolerance import TORCH_DTYPES, unit_roundoff
from linattest.verify.values import KEYS

ERASES = pytest.mark.where(keep=lambda operator, variant: {"erase", "write"} <= {x.name for x in operator.inputs_of()})


def corrects(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether a write takes away what was stored under its key."""
    names = {x.name for x in operator.inputs_of(options)}
    return "v" in names and bool({"beta", "erase", "u"} & names)


CORRECTS = pytest.mark.under(keep=corrects)
WHOLLY = pytest.mark.under(keep=lambda operator, options: options.get("gain", "unit") == "unit")


def inverting(uniform, operator: Operator, L: torch.Tensor, dtype: str) -> Batch:
    """Inputs whose final memory is (I + L)^{-1}."""
    n = len(L)
    batch = uniform(operator, T=n, K=n, V=n, dtype=dtype, options={"scale": 1.0})
    eye = torch.eye(n).view(1, n, 1, n)
    for name, value in (("q", eye), ("write", eye), ("v", eye), ("erase", L.view(1, n, 1, n))):
        batch.tensors[name].copy_(value)
    return batch


@functools.cache
def exact_inverse(n: int, dtype: str) -> tuple[torch.Tensor, Any, Any]:
    """L, strictly lower N(0,1) of the dtype, with I + L and its inverse in 30 digits."""
    L = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(TORCH_DTYPES[dtype])
    L = L.tril(-1).double()
    with mpmath.workdps(30):
        A = mpmath.matrix(L.tolist()) + mpmath.eye(n)
        return L, A, mpmath.inverse(A)


def floats(A: Any) -> np.ndarray:
    return np.array([[float(x) for x in row] for row in A.tolist()])


@ERASES
@pytest.mark.parametrize(("n", "dtype"), [(64, "float32"), (24, "float64")])
def test_a_random_triangle_is_inverted_as_well_as_its_condition_allows(operator, variant, uniform, n, dtype):
    """N(0,1) below a unit diagonal: max |A X - I| <= n eps |A| |X|, in 30 digits, and X near mpmath's inverse.

    A solve leaves |X - A^{-1}| <= 2 n u |A^{-1}| |A| |X| elementwise, to first order (Higham, theorem 8.5).
    """
    L, A, inverse = exact_inverse(n, dtype)
    got = run(operator, variant, inverting(uniform, operator, L, dtype))["state.S"][0, 0].double()
    with mpmath.workdps(30):
        X = mpmath.matrix(got.tolist())
        residual, error = np.abs(floats(A * X - mpmath.eye(n))).max(), np.abs(floats(X - inverse))
    a, x, condition = floats(A), got.numpy(), np.linalg.cond(floats(A))
    roundoff = unit_roundoff(dtype)
    size = np.linalg.norm(a, 2) * np.linalg.norm(x, 2)
    assert residual <= n * 2 * roundoff * size, f"residual {residual:.3g}, condition {condition:.3g}"
    bound = 2 * n * roundoff * (np.abs(floats(inverse)) @ np.abs(a) @ np.abs(x))
    assert (error <= bound).all(), f"condition {condition:.3g}: {(error - bound).max():.3g} beyond the bound"


@CORRECTS
@WHOLLY
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_distinct_unit_vectors_need_no_inverse(operator, variant, setting, uniform, same_bits, dtype):
    """Keys e_0, e_1, ...: the inverse is exactly I; the memory (of levels, their sum) holds the values themselves."""
    n, resolved = 40, resolve_options(operator, setting)
    one = {"normalizer": False} if "normalizer" in resolved else {"scale": 1.0}
    inputs = operator.inputs_of(resolved)
    fill = {"q": 1.0} | {x.name: 0.0 for x in inputs if x.domain == "rate"}  # such keys vary: leave queries alone
    batch = uniform(operator, T=n, K=n, V=3, dtype=dtype, options={**setting, **one}, fill=fill)
    values = torch.randint(-9, 9, (1, n, 1, 3), generator=torch.Generator().manual_seed(1)).to(TORCH_DTYPES[dtype])
    eye = torch.eye(n).view(1, n, 1, n)
    for x in (x for x in inputs if x.shape.endswith(" K") and x.domain != "log_gate" and x.name != "q"):
        batch.tensors[x.name].copy_(eye)
    batch.tensors["v"].copy_(values)
    outcome = run(operator, variant, batch)
    memory = outcome["state.S"].sum(1) if "state.position" in outcome.values else outcome["state.S"]
    same_bits(memory[0, 0], values[0, :, 0].float(), "memory")
    same_bits(outcome["o"], values.double().cumsum(1).to(values.dtype), "o")


@CORRECTS
def test_keys_far_from_unit_length_are_graded_by_condition(operator, setting, make, judge):
    """float16 keys of length 2 to 8: every result is right to its condition, or beyond the range and not finite."""
    batch = make(operator, T=24, K=16, V=4, dtype="float16", options=setting)
    keys = {x.name for x in operator.inputs_of(batch.options) if x.domain in KEYS} - {"q"}
    judge(operator, batch.with_(tensors={k: x * 2 if k in keys else x for k, x in batch.tensors.items()}))
