"""Fenwick levels: the closed form is the recursive definition, and a read touches popcount(t) + 1 states."""

from __future__ import annotations

import mpmath
import pytest
import torch

from linattest.impls import arguments, level_weights, log_linear
from linattest.verify import registry
from linattest.verify.complexity import count
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import ArbContext
from linattest.verify.operators.log_linear import definition, level
from linattest.verify.oracle import heads

LOG_LINEAR = registry.operator("log_linear")


def fenwick_buckets(t: int) -> list[range]:
    """The recursive definition: the token itself, then peel the lowest set bit until nothing is left."""
    buckets, end = [range(t, t + 1)], t
    while end:
        size = end & -end
        buckets.append(range(end - size, end))
        end -= size
    return buckets


def test_level_is_the_recursive_definition_for_all_tokens_to_2048():
    """Each earlier token lies in one bucket; its level is that bucket's place among the powers of two."""
    for t in range(2049):
        buckets = fenwick_buckets(t)
        assert len(buckets) == t.bit_count() + 1 and sum(map(len, buckets)) == t + 1
        for bucket in buckets[1:]:
            assert {level(t, s) for s in bucket} == {len(bucket).bit_length()}
        assert level(t, t) == 0


@pytest.mark.parametrize("delta", [False, True])
def test_the_oracle_is_the_double_sum(delta: bool):
    """Kept by level or summed as written: the balls overlap, outputs and final state."""
    case = Case(operator="log_linear", structure=Structure(T=37, K=3, V=2), options={"delta": delta})
    ctx = ArbContext(256)
    with ctx.working():
        _, _, head = next(heads(LOG_LINEAR, build(LOG_LINEAR, case), ctx))
        (rows, final), (wanted, kept) = LOG_LINEAR.oracle(ctx, head), definition(ctx, head)
        pairs = list(zip(rows, wanted, strict=True)) + list(zip(final["S"], kept["S"], strict=True))
        for got, exact in pairs:
            for x, y in zip(ctx.entries(got), ctx.entries(exact), strict=True):
                assert (x - y).contains(0) and (x - y).rad() < 1e-60
    assert final["position"] == kept["position"] == 37


def at(position: int, K: int = 8, V: int = 8) -> tuple[Batch, log_linear.FenwickState]:
    """One token, and the state before it after `position` tokens: a matrix of ones for every bucket."""
    L = arguments.levels_needed(1 << 20, 1)
    batch = build(LOG_LINEAR, Case(operator="log_linear", structure=Structure(T=1, K=K, V=V)))
    weights = torch.ones(1, 1, 1, L)
    S = torch.zeros(1, L, 1, K, V)
    for bit in (bit for bit in range(position.bit_length()) if position >> bit & 1):
        S[:, bit + 1] = 1
    state = log_linear.FenwickState(S, torch.tensor([position]))
    return batch.with_(tensors={**batch.tensors, "level_weights": weights}), state


def test_a_decode_step_reads_popcount_plus_one_states_up_to_a_million():
    """Measured: the multiply-adds of a step are a constant plus those of popcount(t) + 1 reads and decays, whatever t
    is; the stack it hands on has a fixed shape."""
    found: dict[int, set[int]] = {}
    for t in (0, 1, 2, 3, 64, 127, 128, 1023, 1024, 65_535, 65_536, 999_999, 1_000_000, (1 << 20) - 1):
        batch, state = at(t)
        carried = batch.with_(state={"S": state.S, "position": state.position})
        found.setdefault(t.bit_count(), set()).add(count(LOG_LINEAR, LOG_LINEAR.variant("step"), carried))
    assert all(len(work) == 1 for work in found.values()), found
    work = {bits: work.pop() for bits, work in found.items()}
    slopes = {(work[bits] - work[0]) / bits for bits in work if bits}
    assert len(slopes) == 1 and 8 * 8 <= slopes.pop() <= 4 * 8 * 8, work


def test_decoding_to_a_million_tokens_keeps_a_stack_of_fixed_size():
    """A prefill of a million tokens less a few, then steps across 2^20: as a chunk from there on, in fixed memory."""
    T, more = (1 << 20) - 5, 10
    L = arguments.levels_needed(T + more, 0)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, T + more, 1, 2, generator=generator) for _ in range(3))
    g = -1e-5 * torch.rand(1, T + more, 1, generator=generator)
    weights = torch.rand(1, T + more, 1, L, generator=generator)
    everything = (q, k, v, g, weights)
    _, state = log_linear.chunk(*(x[:, :T] for x in everything), output_final_state=True, chunk_size=16)
    rest, _ = log_linear.chunk(*(x[:, T:] for x in everything), initial_state=state)
    for t in range(T, T + more):
        assert state is not None and state.S.shape == (1, L, 1, 2, 2)
        assert int((state.S != 0).flatten(2).any(-1).sum()) == t.bit_count()
        before = state.S.clone()
        o, after = log_linear.step(*(x[:, t : t + 1] for x in everything), initial_state=state)
        assert torch.equal(state.S, before)
        torch.testing.assert_close(o, rest[:, t - T : t - T + 1], rtol=1e-5, atol=1e-6)
        state = after


# --- level weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["identity", "gelu", "softplus"])
@pytest.mark.parametrize("form", ["mlp_softplus", "mlp_softmax"])
def test_level_weights_are_their_formula(form: str, activation: str):
    """Against mpmath at 40 digits, float32 features: within two roundings of the largest term."""
    generator = torch.Generator().manual_seed(5)
    L, hidden = 4, 6
    d, w1, b1, w2, b2 = (
        2 * torch.randn(shape, generator=generator) for shape in ((L,), (L, hidden), (hidden,), (hidden, L), (L,))
    )
    got = getattr(level_weights, form)(d, w1, b1, w2, b2, activation=activation)
    with mpmath.workdps(40):
        mpf = mpmath.mpf
        act = {
            "identity": lambda x: x,
            "gelu": lambda x: x * mpmath.ncdf(x),
            "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
        }[activation]
        inner = [
            act(mpmath.fdot(map(mpf, d.tolist()), map(mpf, w1[:, j].tolist())) + mpf(b1[j].item()))
            for j in range(hidden)
        ]
        outer = [mpmath.fdot(inner, map(mpf, w2[:, i].tolist())) + mpf(b2[i].item()) for i in range(L)]
        if form == "mlp_softplus":
            wanted = [float(mpmath.log1p(mpmath.exp(x))) for x in outer]
        else:
            total = sum(mpmath.exp(x) for x in outer)
            wanted = [float(mpmath.exp(x) / total) for x in outer]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=2.0**-23, atol=0)


def test_level_weights_start_as_specified():
    """softplus(0.54) = 0.999162736...; the constant for exactly 1 is ln(e - 1)."""
    start = level_weights.LambdaMLPSoftplus(16, 2, 5)
    weights = start(torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(1)))
    assert weights.shape == (1, 3, 2, 5)
    torch.testing.assert_close(weights, torch.full_like(weights, 0.999162736), rtol=1e-7, atol=0)
    softmax = level_weights.LambdaMLPSoftmax(16, 2, 5)(torch.randn(1, 3, 16))
    torch.testing.assert_close(softmax, torch.full_like(softmax, 0.2), rtol=1e-7, atol=0)
