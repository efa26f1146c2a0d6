"""K05, K23, K25: long sums of equal terms, small terms behind huge ones, and digits beyond ten bits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch

from linattest.verify.inputs import Batch, resolve_options
from linattest.verify.signature import State
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import resolve, run
from linattest.verify.tolerance import unit_roundoff

LEVELS = (4096).bit_length() + 1

STATEFUL = pytest.mark.where(keep=lambda operator, variant: bool(operator.states_of()) and "state" in variant.supports)
SECOND_MOMENTS = frozenset({"psd", "scatter"})


def adds(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether uniform inputs add up in the memory (erase keys are 0 in them), rather than overwrite."""
    return not {"beta", "u"} & {x.name for x in operator.inputs_of(options)}


def scaled_sum(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether the output is a scaled read of a plain sum of outer products."""
    memory = any(x.shape.endswith(" K V") for x in operator.states_of(options))
    return memory and "scale" in options and adds(operator, options)


SUMS = pytest.mark.under(keep=scaled_sum)
KEEPS_SECOND_MOMENTS = pytest.mark.under(
    keep=lambda operator, options: bool(SECOND_MOMENTS & {x.domain for x in operator.states_of(options)})
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


def after_uniform(kind: State, batch: Batch, n: int, added: bool) -> torch.Tensor:
    """The state after n uniform tokens: n in what adds up, or the last of them in a memory that they overwrite."""
    sizes = batch.case.structure.sizes() | {"L": LEVELS}
    x = torch.zeros(
        [sizes[letter] for letter in kind.shape.split()], dtype=torch.int64 if kind.whole else torch.float32
    )
    if kind.domain in {"count", "position"}:
        x.fill_(n)
    elif kind.domain == "psd":
        x[..., 0, 0] = n
    elif kind.domain == "feature_sum" or kind.name == "reference":
        x[..., 0] = 1 if kind.name == "reference" else n
    elif kind.domain == "buckets":
        bits = [bit for bit in range(n.bit_length()) if n >> bit & 1]
        for bit in bits:  # the lowest bucket holds the last token
            x[:, bit + 1, ..., 0, :] = 1 << bit if added else float(bit == bits[0])
    elif kind.shape.endswith(" K V"):
        x[..., 0, :] = n if added else 1
    return x  # the mean about the reference and the scatter about the mean are 0


def roomy(name: str, x: torch.Tensor, operator: Operator) -> torch.Tensor:
    """A weight for each of LEVELS levels, where the operator has some: 4096 tokens need them."""
    letters = next(i.shape for i in operator.inputs if i.name == name).split()
    return x.new_ones([LEVELS if letter == "L" else n for letter, n in zip(letters, x.shape, strict=False)]) if (
        "L" in letters) else x  # fmt: skip


@STATEFUL
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_four_thousand_equal_terms_add_up_exactly(operator, variant, setting, uniform, same_bits, dtype):
    """One unit key, 4096 times: 4096 on that diagonal. A float16 sum stops at 2048, a bfloat16 one at 256.

    Token loops start from 4000 and add the last 96.
    """
    start, T = (0, 4096) if takes_chunk_size(variant) else (4000, 96)
    options = setting | ({"normalizer": True} if "normalizer" in resolve_options(operator, setting) else {})
    batch = uniform(operator, T=T, K=4, V=2, dtype=dtype, options=options, initial_state=True)
    kept, added = operator.states_of(batch.options), adds(operator, batch.options)
    state, wanted = ({x.name: after_uniform(x, batch, n, added) for x in kept} for n in (start, 4096))
    tensors = {name: roomy(name, x, operator) for name, x in batch.tensors.items()}
    outcome = run(operator, variant, batch.with_(tensors=tensors, state=state))
    for name, exact in wanted.items():
        if name != "S" or setting.get("gain") != "raw":  # a regression's weights are a quotient
            same_bits(outcome[f"state.{name}"], exact, f"state {name}")


@pytest.mark.under(keep=lambda operator, options: "scatter" in {x.domain for x in operator.states_of(options)})
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_squares_about_a_mean_of_zero_add_up(operator, variant, setting, uniform, dtype):
    """Keys e_1 and -e_1 in turn: 4096 on the diagonal, where a narrow sum stops early; decoding rounds every token."""
    start, T = (0, 4096) if takes_chunk_size(variant) else (4000, 96)
    signs = 1.0 - 2 * (torch.arange(T) % 2)
    batch = uniform(operator, T=T, K=4, V=2, dtype=dtype, options=setting, initial_state=True)
    batch.tensors["k"].mul_(signs[:, None, None])
    state = {x.name: after_uniform(x, batch, 0, added=True) for x in operator.states_of(batch.options)}
    for name, place in {"count": ..., "scatter": (..., 0, 0)}.items():
        state[name][place] = start
    if start:
        state["reference"][..., 0], state["mean"][..., 0] = 1, -1
    got = run(operator, variant, batch.with_(state=state))["state.scatter"].double()
    roundoff = unit_roundoff("float32") * (T + 1 if variant.kind == "step" else 1)
    assert (got[..., 0, 0] - 4096).abs().max() <= roundoff * 4096
    assert got.flatten(2)[..., 1:].eq(0).all()


@STATEFUL
@KEEPS_SECOND_MOMENTS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_second_moments_keep_their_smallest_eigenvalue(operator, variant, setting, make, dtype):
    """One rounding of the entries moves an eigenvalue by at most u |M|_F <= u trace(M); decoding rounds every token."""
    T = 100
    batch = make(operator, T=T, K=16, V=2, dtype=dtype, family="duplicate", options=setting)
    outcome = run(operator, variant, batch)
    roundoff = unit_roundoff("float32") * (T if variant.kind == "step" else 1)
    for kind in (x for x in operator.states_of(batch.options) if x.domain in SECOND_MOMENTS):
        matrices = outcome[f"state.{kind.name}"].double().numpy()
        least, trace = np.linalg.eigvalsh(matrices).min(-1), np.trace(matrices, axis1=-2, axis2=-1)
        assert (least >= -roundoff * trace).all(), f"{kind.name}: {least}"
        if kind.domain == "psd":
            lam0 = float(batch.options["lam0"])  # type: ignore[arg-type]
            ridge = np.linalg.eigvalsh(matrices + lam0 * np.eye(16)).min(-1)
            assert (ridge >= lam0 - roundoff * trace).all(), f"{kind.name}: {ridge}"


@SUMS
def test_small_terms_behind_huge_ones_are_kept(operator, variant, setting, uniform, same_bits):
    """32 x 1e8, then 32 x 1: the reverse sum at 32, which is the gradient of value 32, is 32 exactly.

    As total - prefix it would be 1.0 (or 0.0) in float32.
    """
    batch = uniform(operator, T=64, K=2, V=1, options={**setting, "scale": 1.0})
    batch.cotangents["o"][:, :32] = 1e8
    batch.cotangents["o"][:, 32:] = 1
    got = run(operator, variant, batch, backward=True)["d v"].flatten()
    exact = torch.cat([1e8 * torch.arange(32, 0, -1).double() + 32, torch.arange(32, 0, -1)])
    same_bits(got, exact.float(), "d v")
    forward = batch.with_(tensors=batch.tensors | {"v": batch.cotangents["o"].flip(1)})
    same_bits(run(operator, variant, forward)["o"].flatten(), exact.flip(0).float(), "o")


@SUMS
def test_a_product_keeps_the_bits_that_tf32_drops(operator, variant, setting, uniform, same_bits, precision):
    """32 products of 1 + 2^-11 and 1: 32.015625, where ten bits of fraction give 32."""
    batch = uniform(operator, T=1, K=32, V=1, options={**setting, "scale": 1.0}, fill={"q": 1.0})
    key = next(name for name in batch.tensors if name in {"k", "write"})
    batch.tensors[key].fill_(1 + 2.0**-11)
    same_bits(run(operator, variant, batch)["o"].flatten(), torch.tensor([32.015625]), "o")


def test_a_machine_wide_precision_changes_no_bit(operator, variant, setting, make, same_bits, precision):
    batch = make(operator, T=20, K=8, V=5, options=setting)
    got = run(operator, variant, batch, backward=True)
    torch.set_float32_matmul_precision("highest")
    for name, x in run(operator, variant, batch, backward=True).values.items():
        same_bits(got[name], x, name)


def test_ten_runs_give_the_same_bits(operator, variant, setting, make, same_bits):
    """K21, K22: with gates of 1 too, and from the very first call."""
    batch = make(operator, T=70 if takes_chunk_size(variant) else 12, K=8, V=5, H=2, options=setting)
    for gate in (x.name for x in operator.inputs_of(batch.options) if x.domain == "log_gate"):
        batch.tensors[gate].zero_()
    first = run(operator, variant, batch, backward=True)
    for _ in range(9):
        for name, x in run(operator, variant, batch, backward=True).values.items():
            same_bits(x, first[name], name)
