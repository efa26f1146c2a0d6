"""K10, K14, K15: a row does not depend on the company it is in, however large that is."""

from __future__ import annotations

import inspect

import msgspec
import pytest
import torch
from hypothesis import settings

from linattest.verify.inputs import Batch
from linattest.verify.properties.pieces import tokens, unpacked
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import resolve, run


def takes_chunk_size(operator: Operator, variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


CHUNKED = pytest.mark.where(keep=takes_chunk_size)
HAS_STATE = pytest.mark.where(keep=lambda operator, variant: bool(operator.states_of()))
SUMS = pytest.mark.where(
    keep=lambda operator, variant: (
        any(x.domain == "state" and x.shape.endswith(" K V") for x in operator.states_of())
        and not {"beta", "u"} & {x.name for x in operator.inputs_of()}
    )
)


def one_row(batch: Batch, row: int) -> Batch:
    """A row of the batch, alone."""
    structure = msgspec.structs.replace(batch.case.structure, B=1)
    return batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={name: x[row : row + 1] for name, x in batch.tensors.items()},
        state={k: x[row : row + 1] for k, x in batch.state.items()} if batch.state else None,
        cotangents={name: x[row : row + 1] for name, x in batch.cotangents.items()},
    )


@pytest.mark.parametrize(("B", "dtype"), [(2, "bfloat16"), (24, "float32"), (62, "float32")])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(operator, variant, make, same_bits, B, dtype):
    """Forward, final state and gradients, at the batch's ends and in the middle."""
    T = 66 if takes_chunk_size(operator, variant) else 9
    state = bool(operator.states_of()) and "state" in variant.supports
    batch = make(operator, B=B, T=T, K=4, V=3, H=2, dtype=dtype, initial_state=state)
    together = run(operator, variant, batch, backward=True)
    shared = {f"d {option.name}" for option in operator.options}  # summed over the batch
    for row in {0, B // 2, B - 1}:
        alone = run(operator, variant, one_row(batch, row), backward=True)
        for name in together.values.keys() - shared:
            same_bits(alone[name], together[name][row : row + 1], f"{name} of row {row}")


@pytest.mark.where(keep=lambda operator, variant: "packed" in variant.supports and variant.kind == "sequence")
def test_the_order_of_packed_sequences_does_not_matter(operator, variant, make, same_bits):
    lengths = (7, 64, 1, 20)
    offsets = [sum(lengths[:n]) for n in range(5)]
    batch = make(operator, T=92, K=4, V=3, H=2, cu_seqlens=tuple(offsets))
    o = run(operator, variant, batch)["o"]
    turned = [2, 0, 3, 1]
    rows = torch.cat([torch.arange(offsets[n], offsets[n + 1]) for n in turned])
    moved = [sum(lengths[n] for n in turned[:m]) for m in range(5)]
    other = batch.with_(
        tensors={k: x[:, rows] for k, x in batch.tensors.items()}, cu_seqlens=torch.tensor(moved, dtype=torch.int32)
    )
    same_bits(run(operator, variant, other)["o"], o[:, rows], "o")


@CHUNKED
@HAS_STATE
@pytest.mark.parametrize(("B", "H"), [(10923, 6), (65537, 1)])
def test_more_rows_than_a_launch_grid_has(operator, variant, make, same_bits, B, H):
    """B H = 65538 and 65537: each sampled row equals the row alone."""
    batch = make(operator, B=B, T=1, K=2, V=2, H=H)
    o = run(operator, variant, batch)["o"]
    for row in (0, B // 2, B - 2, B - 1):
        same_bits(run(operator, variant, one_row(batch, row))["o"], o[row : row + 1], f"row {row}")


@CHUNKED
@SUMS
def test_more_tokens_than_a_launch_grid_has(operator, variant, uniform, same_bits):
    """T = 65537, gates 0: o_t = t at every token, the last included (exact in float32)."""
    batch = uniform(operator, T=65537, K=2, V=1, options={"scale": 1.0})
    same_bits(run(operator, variant, batch)["o"].flatten(), torch.arange(1.0, 65538.0), "o")


@CHUNKED
@pytest.mark.where(keep=lambda operator, variant: "packed" in variant.supports)
@pytest.mark.skipif(settings().max_examples < 100, reason="a minute an operator: LINATTEST_PROFILE=nightly")
@pytest.mark.timeout(1800)
def test_more_packed_sequences_than_a_launch_grid_has(operator, variant, make, same_bits):
    """65 537 sequences of one token: each sampled row equals the token alone."""
    N = 65537
    batch = make(operator, T=N, K=2, V=2, cu_seqlens=tuple(range(N + 1)))
    o = run(operator, variant, batch)["o"]
    for n in (0, 1, 65535, 65536):
        alone = run(operator, variant, unpacked(tokens(batch, n, n + 1)))["o"]
        same_bits(o[:, n : n + 1], alone, f"sequence {n}")
