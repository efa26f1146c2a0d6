"""K06: a penalty fed nothing, one key, or the same key n times, with a tiny ridge.

P = (lam0 I + sum u u^T)^{-1} is read column by column with x = e_1, e_2, ...: row i of the batch solves for e_i.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from linattest.verify.inputs import Batch
from linattest.verify.spec import Operator
from linattest.verify.subjects import run
from linattest.verify.tolerance import TORCH_DTYPES

SOLVES = pytest.mark.where(keep=lambda operator, variant: {"x", "u"} <= {x.name for x in operator.inputs_of()})
PENALISED = pytest.mark.under(keep=lambda operator, options: "psd" in {x.domain for x in operator.states_of(options)})


def columns(uniform, operator: Operator, T: int, lam0: float, dtype: str) -> Batch:
    """K = 3: row i solves for e_i, with u = e_1 at every token."""
    batch = uniform(operator, B=3, T=T, K=3, V=1, dtype=dtype, options={"lam0": lam0})
    batch.tensors["x"].copy_(torch.eye(3).view(3, 1, 1, 3))
    return batch


def rounded(x: Fraction, dtype: str) -> torch.Tensor:
    """The number of the dtype nearest to a fraction (a float64 in between is within its own last bit)."""
    return torch.tensor(x.numerator / x.denominator, dtype=torch.float64).to(TORCH_DTYPES[dtype])


@SOLVES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lam0", [0.1, 1e-7, 1e-8], ids=str)
@pytest.mark.parametrize("n", [1, 10, 100])
def test_n_identical_unit_keys_give_the_closed_form(operator, variant, uniform, near, n, lam0, dtype):
    """P_11 = 1/(lam0 + n), the others 1/lam0, off the diagonal 0. The subtractive float32 form gives 0.0 at 1e-8.

    Either is a sum and a quotient of exact numbers, so what nobody can avoid is at most one roundoff of each: kappa.
    """
    batch = columns(uniform, operator, n, lam0, dtype)
    got = run(operator, variant, batch)["o"]
    for t in range(n):
        diagonal = [1 / (Fraction(lam0) + t + 1), 1 / Fraction(lam0), 1 / Fraction(lam0)]
        exact = torch.diag(torch.tensor([x.numerator / x.denominator for x in diagonal], dtype=torch.float64))
        exact = exact.view(3, 1, 1, 3)
        near(f"token {t}", got[:, t : t + 1], exact, 2 * torch.finfo(got.dtype).eps / 2 * exact, dtype)


@SOLVES
def test_one_unit_key_with_a_tiny_ridge_keeps_its_digits(operator, variant, uniform):
    """lam0 = 1e-8: 0.99999999 exactly rounded, not 0.0 and, in float64, not 1.0."""
    for dtype in ("float32", "float64"):
        got = run(operator, variant, columns(uniform, operator, 1, 1e-8, dtype))["o"][0, 0, 0, 0]
        assert got == rounded(1 / (1 + Fraction(1e-8)), dtype), got.item()


@PENALISED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_keys_leave_the_penalty_and_the_memory_alone(operator, variant, setting, make, same_bits, dtype):
    """No wind-up: after all zero tokens every state has its bits, and what is read of a zero key is 0.

    (But for statistics of the keys, in which a zero key is a key.)
    """
    T = 300 if variant.kind == "sequence" and not setting else 30
    batch = make(operator, T=T, K=4, V=3, dtype=dtype, options=setting, initial_state=True)
    kept = operator.states_of(batch.options)
    counted = {x.part for x in kept if x.domain == "count"}
    zero = {
        x.name: batch.tensors[x.name] * (0 if x.name in {"k", "u", "x"} else 1)
        for x in operator.inputs_of(batch.options)
    }
    outcome = run(operator, variant, batch.with_(tensors=zero), backward=True)
    for name in (x.name for x in kept if x.part not in counted):
        x = (batch.state or {})[name]
        wanted = (x + x.mT) / 2 if name == "M" else x
        same_bits(outcome[f"state.{name}"], wanted, f"state {name}")
    if "x" in zero:
        same_bits(outcome["o"], torch.zeros_like(outcome["o"]), "o")
    assert all(bool(x.isfinite().all()) for x in outcome.values.values())
    blank = run(operator, variant, batch.with_(tensors=zero, state=None))
    same_bits(blank["o"], torch.zeros_like(blank["o"]), "o without a state")


@SOLVES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_keys_the_inverse_is_that_of_the_ridge(operator, variant, uniform, same_bits, dtype):
    """All-zero u: x/lam0 at every token, exactly rounded, however many there are."""
    batch = columns(uniform, operator, 100, 1e-8, dtype)
    batch.tensors["u"].zero_()
    got = run(operator, variant, batch)["o"]
    wanted = rounded(1 / Fraction(1e-8), dtype) * batch.tensors["x"]
    same_bits(got, wanted, "o")


@PENALISED
@pytest.mark.parametrize("options", [{"lam0": 1e-8}, {"lam0": 1e-8, "gain": "raw"}], ids=str)
def test_a_tiny_ridge_and_repeated_keys_are_right(operator, setting, make, judge, options):
    known = {option.name for option in operator.options}
    options = dict(setting) | {name: value for name, value in options.items() if name in known}
    for dtype in ("float32", "float64"):
        judge(
            operator, make(operator, T=9, K=3, V=2, family="one_direction", options=options, dtype=dtype), backward=True
        )
