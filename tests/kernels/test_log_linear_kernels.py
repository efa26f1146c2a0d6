"""Log-linear attention in Triton against float64, both transitions; small, since Triton interprets it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import log_linear as impl
from linattest.kernels import building, fenwick_delta_launch, fenwick_launch, log_linear
from linattest.verify.operands import TF32, RoundedOperands

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDINGS = {torch.float32: 2.0**-19, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""Bound of a relative error of norms: sixteen roundings of an operand (tf32x3, bfloat16, tf32), 32 in float32, whose
gates' gradients are sums of many."""

JOINED = 4
"""What nodes of the tree may lose more than a chunk form does: their maps are joined on the way, each product cut off
again (3.2 times measured)."""

NAMES = ("q", "k", "v", "g", "level_weights", "beta")

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # 0 * -inf that a mask discards

both = pytest.mark.parametrize("delta", [False, True], ids=["gate", "delta"])


def inputs(T: int, L: int, *, delta: bool, B: int = 1, H: int = 1, HV: int = 1, K: int = 5, V: int = 3,
           dtype: torch.dtype = torch.float32) -> list[Tensor]:  # fmt: skip
    """Unit keys, gates near 1 but for one of -inf, weights of both signs."""
    torch.manual_seed(T)
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1) for _ in range(2))
    g = -torch.rand(B, T, HV) / 50
    g[:, T // 3 : T // 3 + 1] = -torch.inf
    found = [q.to(dtype), k.to(dtype), torch.randn(B, T, HV, V).to(dtype), g, torch.randn(B, T, HV, L)]
    return [x.to(DEVICE) for x in (*found, *([torch.rand(B, T, HV)] if delta else []))]


def state(positions: list[int], L: int, HV: int = 1, K: int = 5, V: int = 3) -> tuple[Tensor, Tensor]:
    """S with something in every bucket that the positions have, and the positions."""
    S = torch.zeros(len(positions), L, HV, K, V)
    for n, p in enumerate(positions):
        for bit in (bit for bit in range(p.bit_length()) if p >> bit & 1):
            S[n, min(bit + 1, L - 1)] = torch.randn(HV, K, V)
    return S.to(DEVICE), torch.tensor(positions, device=DEVICE)


def answers(module: Any, name: str, xs: list[Tensor], start: tuple[Tensor, Tensor] | None, **options: Any) -> dict[
    str, Tensor
]:  # fmt: skip
    """Outputs, and gradients for an upstream gradient that its seed alone decides."""
    xs = [x.detach().requires_grad_() for x in xs]
    S = None if start is None else start[0].clone().requires_grad_()
    given = None if start is None else module.FenwickState(S, start[1])
    beta = {"beta": xs[5]} if len(xs) > 5 else {}
    o, final = getattr(module, name)(*xs[:5], **beta, initial_state=given, scale=-0.3, **options)
    torch.manual_seed(1)
    loss = (o.double() * torch.randn(o.shape).to(DEVICE)).sum()
    (loss + (final.S * torch.randn(final.S.shape).to(DEVICE)).sum()).backward()
    found = {"o": o, "final": final.S, "position": final.position}
    found |= {f"d {n}": x.grad for n, x in zip(NAMES, xs, strict=False) if x.grad is not None}
    return found if S is None else found | {"d state": torch.zeros_like(S) if S.grad is None else S.grad}


def errors(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        assert x.shape == wanted[name].shape and x.dtype == wanted[name].dtype
    return {
        name: float((found[name] - y).detach().double().norm() / y.detach().double().norm().clamp_min(1e-30))
        for name, y in wanted.items()
    }


def agree(xs: list[Tensor], start: tuple[Tensor, Tensor] | None = None, name: str = "chunk", cut_off: bool = False,
          **options: Any) -> dict[str, Tensor]:  # fmt: skip
    """What the kernels answer, which is what float64 does; if `cut_off`, to `JOINED` times what float64 loses where
    operands are cut off to tf32, if that is more."""
    if name == "chunk":
        options = {"output_final_state": True} | options
    found, wanted = (answers(module, name, xs, start, **options) for module in (log_linear, impl))
    lost = dict.fromkeys(wanted, 0.0)
    if cut_off:
        with RoundedOperands(TF32):
            lost = errors(answers(impl, name, xs, start, **options), wanted)
    for of, error in errors(found, wanted).items():
        assert error <= max(ROUNDINGS[xs[0].dtype], JOINED * lost[of]), of
    assert bool(((found["final"] == 0) | (wanted["final"] != 0)).all()), "levels without a bucket are exactly 0"
    return found


@pytest.mark.parametrize(
    ("delta", "dtype"),
    [(False, torch.float32), (False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float16)], ids=str,
)  # fmt: skip
def test_outputs_states_and_gradients_are_those_of_float64(delta: bool, dtype: torch.dtype):
    agree(inputs(66, 8, delta=delta, HV=2, K=3, V=2, dtype=dtype), state([3], 8, 2, 3, 2))


@both
def test_packed_sequences_start_from_level_0_and_rows_behind_the_last_are_zero(delta: bool):
    offsets = torch.tensor([0, 0, 3, 70, 70], device=DEVICE)
    found = agree(inputs(74, 8, delta=delta, K=3, V=2), cu_seqlens=offsets)
    assert all(bool((x[:, 70:] == 0).all()) for of, x in found.items() if of not in ("final", "position"))
    assert found["position"].tolist() == [0, 3, 67, 0]


@both
def test_rows_of_a_batch_may_be_at_different_positions(delta: bool):
    """In the middle of a chunk, inside one all along, at the end of one, at the first token."""
    agree(inputs(6, 8, delta=delta, B=4, HV=2, K=3, V=2), state([37, 61, 64, 0], 8, 2, 3, 2))


@both
def test_a_sequence_without_tokens_hands_its_state_on(delta: bool):
    offsets, start = torch.tensor([0, 0, 9], device=DEVICE), state([70, 3], 8, 1, 3, 2)
    found = agree(inputs(9, 8, delta=delta, K=3, V=2), start, cu_seqlens=offsets)
    assert torch.equal(found["final"][0], start[0][0])
    o, final = log_linear.chunk(
        *inputs(0, 8, delta=False), initial_state=log_linear.FenwickState(*state([5], 8)), output_final_state=True
    )
    assert o.shape == (1, 0, 1, 3) and final is not None and final.position.tolist() == [5]


def test_groups_of_eight_chunks_hand_over():
    """From chunk 13 to chunk 17: the third one ends two groups of 8, nodes of heights 0 to 4 are made and read."""
    xs = inputs(260, 12, delta=False, K=2, V=1)
    xs[3] = xs[3].clamp_min(-1e-3)  # or nothing would be left to hand over
    found = agree(xs, state([862], 12, 1, 2, 1))
    assert float(found["d state"].norm()) > 0.1


def test_groups_of_groups_have_nodes_too():
    """1100 tokens without a state: all nodes are of this call."""
    xs = inputs(1100, 12, delta=False, K=2, V=1)
    xs[3] = xs[3].clamp_min(-1e-3)
    o, final = log_linear.chunk(*xs, output_final_state=True)
    wanted, held = impl.chunk(*xs, output_final_state=True)
    assert final is not None and held is not None
    for x, y in ((o, wanted), (final.S, held.S)):
        assert float((x - y).norm()) <= ROUNDINGS[torch.float32] * float(y.norm())


@pytest.mark.parametrize(("dtype", "K"), [(torch.float32, 3), (torch.float16, 3), (torch.float16, 200)], ids=str)
def test_nodes_of_the_delta_tree_hand_over(dtype: torch.dtype, K: int):
    """From the middle of chunk 3 to chunk 6, which reads through a node of two chunks into one of the state too. Maps
    of 200 channels are read in parts, for float16 and float32 alike."""
    xs = inputs(190, 10, delta=True, K=K, V=2, dtype=dtype)
    xs[3], xs[5] = xs[3].clamp_min(-1e-3), xs[5] / 10
    found = agree(xs, state([200], 10, 1, K, 2), cut_off=dtype == torch.float16)
    assert float(found["d state"].norm()) > 0.1


def test_launches_can_be_listed_without_memory():
    xs = [x.to("meta") for x in inputs(600, 11, delta=True)]
    with building.recording() as launches:
        log_linear.chunk(*xs[:5])
        log_linear.chunk(*xs[:5], beta=xs[5])
    names = [x.kernel.__name__ for x in launches]
    assert names == ["states", "outputs", "inverses", "reads", "tokens", "writes", "join", "join", "join", "outputs"]
    assert fenwick_launch.LOG == fenwick_delta_launch.LOG == 6
