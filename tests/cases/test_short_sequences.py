"""K07: no token, one token, a few tokens, empty sequences: the state is carried through exactly."""

from __future__ import annotations

import msgspec
import pytest
import torch

from linattest.verify.examine import Examination
from linattest.verify.inputs import Batch
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Tensors, call, run

WHOLE = pytest.mark.where(keep=lambda operator, variant: variant.kind == "sequence")
STATEFUL = pytest.mark.where(keep=lambda operator, variant: bool(operator.states_of()) and "state" in variant.supports)
PACKED = pytest.mark.where(keep=lambda operator, variant: variant.kind == "sequence" and "packed" in variant.supports)
GATED_SUM = pytest.mark.where(keep=lambda o, v: "log_gate" in {x.domain for x in o.inputs_of()} and "beta" not in {
    x.domain for x in o.inputs_of()})  # fmt: skip


def asymmetric(batch: Batch) -> Batch:
    """The batch with every tensor of the initial state made of unrelated numbers (no matrix symmetric or positive)."""
    generator = torch.Generator().manual_seed(3)
    return batch.with_(
        state={k: torch.randn(x.shape, generator=generator).to(x) for k, x in (batch.state or {}).items()}
    )


def some_rows(batch: Batch, start: int, stop: int, state: Tensors | None) -> Batch:
    """A stretch of tokens of an unpacked batch, from a state."""
    structure = msgspec.structs.replace(batch.case.structure, T=stop - start, cu_seqlens=None)
    return batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={name: x[:, start:stop] for name, x in batch.tensors.items()},
        state=state,
        cu_seqlens=None,
    )


@WHOLE
@STATEFUL
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("offsets", [None, (0,), (0, 0, 0)], ids=["unpacked", "no sequence", "empty sequences"])
def test_no_token_returns_the_state_bit_for_bit(operator, variant, make, same_bits, dtype, offsets):
    B = 1 if offsets else 2
    batch = asymmetric(make(operator, T=0, K=4, V=4, B=B, H=2, cu_seqlens=offsets, initial_state=True, dtype=dtype))
    outcome = run(operator, variant, batch, backward=True)
    assert outcome["o"].shape == (B, 0, 2, 4) and outcome["o"].dtype == getattr(torch, dtype)
    for name, x in (batch.state or {}).items():
        if f"state.{name}" in outcome.values:
            same_bits(outcome[f"state.{name}"], x, f"state {name}")
            same_bits(outcome[f"d state.{name}"], batch.cotangents[f"state.{name}"], f"gradient of state {name}")


@WHOLE
@STATEFUL
def test_no_token_and_no_state_return_zero_states(operator, variant, make, same_bits):
    outcome = run(operator, variant, make(operator, T=0, K=4, V=3, B=2, H=2))
    states = [x for x in operator.states_of() if f"state.{x.name}" in outcome.values]
    assert states
    for x in states:
        same_bits(
            outcome[f"state.{x.name}"], torch.zeros([{"N": 2, "K": 4, "V": 3}.get(n, 2) for n in x.shape.split()])
        )


def test_an_empty_batch_gives_empty_results(operator, variant, make):
    T = 1 if variant.kind == "step" else 3
    outcome = run(operator, variant, make(operator, T=T, K=4, V=3, B=0, H=2), backward="gradient" in variant.supports)
    assert outcome["o"].shape[:3] == (0, T, 2)
    options = {f"d {option.name}" for option in operator.options}
    assert all(x.shape[0] == 0 for name, x in outcome.values.items() if name not in options), outcome.values
    assert all(x.eq(0).all() for x in outcome.values.values())


@pytest.mark.parametrize("T", range(18))
def test_up_to_seventeen_tokens_are_right(operator, make, judge, T):
    state = bool(operator.states_of()) and T % 2 == 1
    judge(operator, make(operator, T=T, K=3, V=2, initial_state=state, seed=T), backward=True)


@PACKED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_with_empty_sequences_is_the_separate_runs(operator, variant, make, same_bits, dtype):
    offsets = (0, 0, 5, 5, 12, 12)
    state = bool(operator.states_of()) and "state" in variant.supports
    batch = make(operator, T=12, K=4, V=3, H=2, cu_seqlens=offsets, initial_state=state, dtype=dtype)
    together = run(operator, variant, batch)
    for n, (start, stop) in enumerate(zip(offsets, offsets[1:], strict=False)):
        mine = {name: x[n : n + 1] for name, x in batch.state.items()} if batch.state else None
        alone = run(operator, variant, some_rows(batch, start, stop, mine))
        same_bits(together["o"][:, start:stop], alone["o"], f"output of sequence {n}")
        for name in (name for name in together.values if name.startswith("state.")):
            same_bits(together[name][n : n + 1], alone[name], f"{name} of sequence {n}")


@STATEFUL
@PACKED
def test_an_empty_sequence_passes_its_state_and_gradient_through(operator, variant, make, same_bits):
    batch = asymmetric(make(operator, T=5, K=4, V=4, cu_seqlens=(0, 0, 5, 5), initial_state=True))
    outcome = run(operator, variant, batch, backward=True)
    for name, x in (batch.state or {}).items():
        for n in (0, 2):
            if f"state.{name}" in outcome.values:
                same_bits(outcome[f"state.{name}"][n], x[n], f"state {name} of sequence {n}")
                same_bits(outcome[f"d state.{name}"][n], batch.cotangents[f"state.{name}"][n], f"gradient of {name}")


@GATED_SUM
def test_one_token_hands_the_gradient_of_the_state_on(operator, variant, make, near):
    """Plain gated sum, T = 1: dh0 = exp(g) dht + scale exp(g) q do^T."""
    batch = make(operator, T=1, K=4, V=3, H=2, initial_state=True, options={"scale": 0.5})
    tensors = {k: torch.zeros_like(x) if k == "erase" else x for k, x in batch.tensors.items()}
    batch = batch.with_(tensors=tensors)
    q, g, do = tensors["q"][0, 0].double(), tensors["g"][0, 0].double(), batch.cotangents["o"][0, 0].double()
    exact = g.exp()[:, None, None] * (batch.cotangents["state.S"][0].double() + 0.5 * q[:, :, None] * do[:, None, :])
    kappa = torch.from_numpy(Examination(operator, batch).sensitivity.kappa("d state.S"))
    near("d state.S", run(operator, variant, batch, backward=True)["d state.S"], exact[None], kappa, "float32")


@WHOLE
@STATEFUL
@pytest.mark.parametrize("sizes", [(1,), (2,), (1, 2, 3)], ids=str)
def test_pieces_of_one_and_two_tokens_are_the_whole_run(operator, make, judge, sizes):
    """Forward, final state and every gradient, the one of the initial state included."""

    def in_pieces(operator: Operator, variant: Variant, batch: Batch) -> tuple[torch.Tensor, Tensors]:
        outputs, state, start, turn = [], batch.state, 0, 0
        while start < batch.case.structure.T:
            stop = start + sizes[turn % len(sizes)]
            o, state = call(operator, variant, some_rows(batch, start, stop, state))
            outputs.append(o)
            start, turn = stop, turn + 1
        return torch.cat(outputs, 1), state or {}

    def obtain(variant: Variant) -> Tensors:
        return run(operator, variant, batch, backward=True, caller=in_pieces).values

    batch = make(operator, T=12, K=4, V=3, H=2, initial_state=True, dtype="float64")
    judge(operator, batch, obtain, backward=True)
