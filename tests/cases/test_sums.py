"""K05, K23, K25: long sums of equal terms, small terms behind huge ones, and digits beyond ten bits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import resolve, run
from linattest.verify.tolerance import unit_roundoff

STATEFUL = pytest.mark.where(keep=lambda operator, variant: bool(operator.states_of()) and "state" in variant.supports)
PENALISED = pytest.mark.where(keep=lambda operator, variant: "psd" in {x.domain for x in operator.states_of()})


def adds(operator: Operator) -> bool:
    """Whether uniform inputs add up in the memory (erase keys are 0 in them), rather than overwrite."""
    return not {"beta", "u"} & {x.name for x in operator.inputs_of()}


def keys_by_values(operator: Operator) -> bool:
    """Whether a memory of the operator is a matrix of outer products."""
    return any(x.domain == "state" and x.shape.endswith(" K V") for x in operator.states_of())


SUMS = pytest.mark.where(keep=lambda operator, variant: keys_by_values(operator) and adds(operator))
WRITTEN = pytest.mark.where(
    keep=lambda operator, variant: keys_by_values(operator) or "state" not in {x.domain for x in operator.states_of()}
)


def takes_chunk_size(variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


@pytest.fixture(params=["highest", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """torch's precision of float32 matrix products, restored afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@STATEFUL
@WRITTEN
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_four_thousand_equal_terms_add_up_exactly(operator, variant, uniform, same_bits, dtype):
    """One unit key, 4096 times: 4096 on that diagonal. A float16 sum stops at 2048, a bfloat16 one at 256.

    Token loops start from 4000 and add the last 96.
    """
    short = not takes_chunk_size(variant)
    start, T = (4000, 96) if short else (0, 4096)
    options = {o.name: True for o in operator.options if o.name == "normalizer"}
    batch = uniform(operator, T=T, K=4, V=2, dtype=dtype, options=options, initial_state=True)
    first = {"S": (0, 0, 0), "M": (0, 0, 0, 0), "z": (0, 0, 0)}
    state, wanted = {}, {}
    for x in operator.states_of(batch.options):
        summed = x.domain in {"psd", "feature_sum"} or adds(operator)
        columns = slice(None) if x.domain == "state" else 0
        shape = (batch.state or {})[x.name].shape
        state[x.name], wanted[x.name] = torch.zeros(shape), torch.zeros(shape)
        for tensor, value in ((state, start if summed else 1), (wanted, 4096 if summed else 1)):
            place = first[x.name] if x.domain != "state" else (0, 0, 0, columns)
            tensor[x.name][place] = value
    outcome = run(operator, variant, batch.with_(state=state))
    for name, exact in wanted.items():
        same_bits(outcome[f"state.{name}"], exact, f"state {name}")


@PENALISED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_penalty_keeps_its_smallest_eigenvalue(operator, variant, make, dtype):
    """One rounding of M's entries moves an eigenvalue by at most u |M|_F <= u trace(M); decoding rounds every token."""
    T = 100
    M = run(operator, variant, make(operator, T=T, K=16, V=2, dtype=dtype, family="duplicate"))["state.M"]
    matrices = M.double().numpy()
    least, trace = np.linalg.eigvalsh(matrices).min(-1), np.trace(matrices, axis1=-2, axis2=-1)
    lam0 = next(float(o.default) for o in operator.options if o.name == "lam0")  # type: ignore[arg-type]
    roundoff = unit_roundoff("float32") * (T if variant.kind == "step" else 1)
    assert (least >= -roundoff * trace).all(), least
    ridge = np.linalg.eigvalsh(matrices + lam0 * np.eye(16)).min(-1)
    assert (ridge >= lam0 - roundoff * trace).all(), ridge


@SUMS
def test_small_terms_behind_huge_ones_are_kept(operator, variant, uniform, same_bits):
    """32 x 1e8, then 32 x 1: the reverse sum at 32, which is the gradient of value 32, is 32 exactly.

    As total - prefix it would be 1.0 (or 0.0) in float32.
    """
    batch = uniform(operator, T=64, K=2, V=1, options={"scale": 1.0})
    batch.cotangents["o"][:, :32] = 1e8
    batch.cotangents["o"][:, 32:] = 1
    got = run(operator, variant, batch, backward=True)["d v"].flatten()
    exact = torch.cat([1e8 * torch.arange(32, 0, -1).double() + 32, torch.arange(32, 0, -1)])
    same_bits(got, exact.float(), "d v")
    forward = batch.with_(tensors=batch.tensors | {"v": batch.cotangents["o"].flip(1)})
    same_bits(run(operator, variant, forward)["o"].flatten(), exact.flip(0).float(), "o")


@SUMS
def test_a_product_keeps_the_bits_that_tf32_drops(operator, variant, uniform, same_bits, precision):
    """32 products of 1 + 2^-11 and 1: 32.015625, where ten bits of fraction give 32."""
    batch = uniform(operator, T=1, K=32, V=1, options={"scale": 1.0}, fill={"q": 1.0})
    key = next(name for name in batch.tensors if name in {"k", "write"})
    batch.tensors[key].fill_(1 + 2.0**-11)
    same_bits(run(operator, variant, batch)["o"].flatten(), torch.tensor([32.015625]), "o")


def test_a_machine_wide_precision_changes_no_bit(operator, variant, make, same_bits, precision):
    batch = make(operator, T=20, K=8, V=5)
    got = run(operator, variant, batch, backward=True)
    torch.set_float32_matmul_precision("highest")
    for name, x in run(operator, variant, batch, backward=True).values.items():
        same_bits(got[name], x, name)


def test_ten_runs_give_the_same_bits(operator, variant, make, same_bits):
    """K21, K22: with gates of 1 too, and from the very first call."""
    batch = make(operator, T=70 if takes_chunk_size(variant) else 12, K=8, V=5, H=2)
    for gate in (x.name for x in operator.inputs_of(batch.options) if x.domain == "log_gate"):
        batch.tensors[gate].zero_()
    first = run(operator, variant, batch, backward=True)
    for _ in range(9):
        for name, x in run(operator, variant, batch, backward=True).values.items():
            same_bits(x, first[name], name)
