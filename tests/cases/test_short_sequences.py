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


SCALED_SUM = pytest.mark.under(
    keep=lambda operator, options: (
        "scale" in options and any(x.shape.endswith(" K V") for x in operator.states_of(options))
    )
)


def asymmetric(batch: Batch) -> Batch:
    """The batch with every matrix and vector of the initial state made of unrelated numbers (none symmetric, positive).

    What is exactly 0 (a level that holds no bucket) stays so, and so do numbers: positions, and counts, which are >= 0.
    """
    generator = torch.Generator().manual_seed(3)
    return batch.with_(
        state={
            k: torch.randn(x.shape, generator=generator).to(x) * (x != 0) if x.dim() > 2 else x
            for k, x in (batch.state or {}).items()
        }
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
def test_no_token_returns_the_state_bit_for_bit(operator, variant, setting, make, same_bits, dtype, offsets):
    B = 1 if offsets else 2
    sizes = {"T": 0, "K": 4, "V": 4, "B": B, "H": 2, "cu_seqlens": offsets, "initial_state": True}
    batch = asymmetric(make(operator, dtype=dtype, options=setting, **sizes))
    outcome = run(operator, variant, batch, backward=True)
    assert outcome["o"].shape == (B, 0, 2, 4) and outcome["o"].dtype == getattr(torch, dtype)
    for name, x in (batch.state or {}).items():
        same_bits(outcome[f"state.{name}"], x, f"state {name}")
        shared = outcome[f"state.{name}"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert not shared or not x.numel(), f"the returned {name} is the one passed in"
        if x.is_floating_point():
            wanted = batch.cotangents[f"state.{name}"]
            same_bits(outcome[f"d state.{name}"], wanted, f"gradient of state {name}")


@WHOLE
@STATEFUL
def test_no_token_and_no_state_return_zero_states(operator, variant, setting, make, same_bits):
    batch = make(operator, T=0, K=4, V=3, B=2, H=2, options=setting)
    outcome = run(operator, variant, batch)
    states = operator.states_of(batch.options)
    assert {f"state.{x.name}" for x in states} == outcome.values.keys() - {"o"}
    for x in states:
        dtype = torch.int64 if x.whole else torch.float32
        zeros = torch.zeros(batch.case.structure.shape(x.shape), dtype=dtype)
        same_bits(outcome[f"state.{x.name}"], zeros, f"state {x.name}")


def test_an_empty_batch_gives_empty_results(operator, variant, setting, make):
    T = 1 if variant.kind == "step" else 3
    numbers = {f"d {option.name}" for option in operator.options}
    batch = make(operator, T=T, K=4, V=3, B=0, H=2, options=setting)
    outcome = run(operator, variant, batch, backward="gradient" in variant.supports)
    assert outcome["o"].shape[:3] == (0, T, 2)
    assert all(x.shape[0] == 0 for name, x in outcome.values.items() if name not in numbers), outcome.values
    assert all(x.eq(0).all() for x in outcome.values.values())


@pytest.mark.parametrize("T", range(18))
def test_up_to_seventeen_tokens_are_right(operator, make, judge, in_turn, T):
    for options in in_turn(operator, T):
        state = bool(operator.states_of()) and T % 2 == 1
        judge(operator, make(operator, T=T, K=3, V=2, initial_state=state, seed=T, options=options), backward=True)


@PACKED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_with_empty_sequences_is_the_separate_runs(operator, variant, setting, make, same_bits, dtype):
    offsets = (0, 0, 5, 5, 12, 12)
    state = bool(operator.states_of()) and "state" in variant.supports
    sizes = {"T": 12, "K": 4, "V": 3, "H": 2, "cu_seqlens": offsets, "initial_state": state}
    batch = make(operator, dtype=dtype, options=setting, **sizes)
    together = run(operator, variant, batch)
    for n, (start, stop) in enumerate(zip(offsets, offsets[1:], strict=False)):
        mine = {name: x[n : n + 1] for name, x in batch.state.items()} if batch.state else None
        alone = run(operator, variant, some_rows(batch, start, stop, mine))
        same_bits(together["o"][:, start:stop], alone["o"], f"output of sequence {n}")
        for name in (name for name in together.values if name.startswith("state.")):
            same_bits(together[name][n : n + 1], alone[name], f"{name} of sequence {n}")


@STATEFUL
@PACKED
def test_an_empty_sequence_passes_its_state_and_gradient_through(operator, variant, setting, make, same_bits):
    sizes = {"T": 5, "K": 4, "V": 4, "cu_seqlens": (0, 0, 5, 5), "initial_state": True}
    batch = asymmetric(make(operator, options=setting, **sizes))
    outcome = run(operator, variant, batch, backward=True)
    for name, x in (batch.state or {}).items():
        for n in (0, 2):
            same_bits(outcome[f"state.{name}"][n], x[n], f"state {name} of sequence {n}")
            if x.is_floating_point():
                wanted = batch.cotangents[f"state.{name}"][n]
                same_bits(outcome[f"d state.{name}"][n], wanted, f"gradient of {name}")


def handed_on(batch: Batch, n: int, q: torch.Tensor) -> torch.Tensor:
    """dht + scale q do^T of row n, the first and only token read with ``q`` [H, K].

    A state of levels: set bit j of its position is the bucket at level j + 1, which the token reads with that weight;
    after the token, it is in the level of what the position and the bucket's first token differ in.
    """
    after, do = batch.cotangents["state.S"][n].double(), batch.cotangents["o"][n, 0].double()
    read = 0.5 * q[:, :, None] * do[:, None, :]
    if "position" not in (batch.state or {}):
        return after + read
    before, position = torch.zeros_like(after), int((batch.state or {})["position"][n])
    weights = batch.tensors["level_weights"][n, 0].double()
    for bit in (bit for bit in range(position.bit_length()) if position >> bit & 1):
        start = position >> (bit + 1) << (bit + 1)
        now = ((position + 1) ^ start).bit_length()
        before[bit + 1] = after[now] + weights[:, bit + 1, None, None] * read
    return before


@STATEFUL
@SCALED_SUM
def test_one_token_hands_the_gradient_of_the_state_on(operator, variant, setting, make, near):
    """Plain gated sum, T = 1: dh0 = exp(g) dht + scale exp(g) q do^T.

    A token that erases nothing (its erase key or beta is 0) and a query left alone (lam = 0) make it one.
    """
    batch = make(operator, T=1, K=4, V=3, H=2, B=4, initial_state=True, options={**setting, "scale": 0.5})
    still = {x.name for x in operator.inputs_of(batch.options) if x.domain in {"beta", "rate"}} | {"erase"}
    batch = batch.with_(tensors={k: torch.zeros_like(x) if k in still else x for k, x in batch.tensors.items()})
    q, g = batch.tensors["q"][:, 0].double(), batch.tensors.get("g", torch.zeros(4, 1, 2))[:, 0].double()
    decay = g.exp()[..., None, None] if g.dim() == 2 else g.exp()[..., None]  # a head, or a channel
    exact = torch.stack([decay[n] * handed_on(batch, n, q[n]) for n in range(4)])
    kappa = torch.from_numpy(Examination(operator, batch).sensitivity.kappa("d state.S"))
    near("d state.S", run(operator, variant, batch, backward=True)["d state.S"], exact, kappa, "float32")


@WHOLE
@STATEFUL
@pytest.mark.parametrize("sizes", [(1,), (2,), (1, 2, 3)], ids=str)
def test_pieces_of_one_and_two_tokens_are_the_whole_run(operator, make, judge, in_turn, sizes):
    """Forward, final state and every gradient, the one of the initial state included."""

    def in_pieces(operator: Operator, variant: Variant, batch: Batch) -> tuple[torch.Tensor, Tensors]:
        outputs, state, start, turn = [], batch.state, 0, 0
        while start < batch.case.structure.T:
            stop = start + sizes[turn % len(sizes)]
            o, state = call(operator, variant, some_rows(batch, start, stop, state))
            outputs.append(o)
            start, turn = stop, turn + 1
        return torch.cat(outputs, 1), state or {}

    for options in in_turn(operator, sum(sizes)):
        batch = make(operator, T=12, K=4, V=3, H=2, initial_state=True, dtype="float64", options=options)

        def obtain(variant: Variant, batch: Batch = batch) -> Tensors:
            return run(operator, variant, batch, backward=True, caller=in_pieces).values

        judge(operator, batch, obtain, backward=True)
