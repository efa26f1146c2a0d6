"""One token of log-linear attention in Triton, reported faults of kernels like it, and what it refuses; small."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import gla
from linattest.impls import log_linear as impl
from linattest.kernels import log_linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDINGS = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""Bound of a relative error of norms: sixteen roundings of an operand (tf32x3, bfloat16, tf32)."""

NAMES = ("q", "k", "v", "g", "level_weights", "beta")

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # 0 * -inf that a mask discards

both = pytest.mark.parametrize("delta", [False, True], ids=["gate", "delta"])


def inputs(T: int, L: int, *, delta: bool = False, B: int = 1, HV: int = 1, K: int = 5, V: int = 3,
           dtype: torch.dtype = torch.float32) -> list[Tensor]:  # fmt: skip
    """Unit keys, gates near 1, weights of both signs."""
    torch.manual_seed(T)
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, 1, K), dim=-1).to(dtype) for _ in range(2))
    found = [q, k, torch.randn(B, T, HV, V).to(dtype), -torch.rand(B, T, HV) / 50, torch.randn(B, T, HV, L)]
    return [x.to(DEVICE) for x in (*found, *([torch.rand(B, T, HV)] if delta else []))]


def state(positions: list[int], L: int, HV: int = 1, K: int = 5, V: int = 3) -> log_linear.FenwickState:
    """Something in every bucket that the positions have."""
    S = torch.zeros(len(positions), L, HV, K, V)
    for n, p in enumerate(positions):
        for bit in (bit for bit in range(p.bit_length()) if p >> bit & 1):
            S[n, bit + 1] = torch.randn(HV, K, V)
    return log_linear.FenwickState(S.to(DEVICE), torch.tensor(positions, device=DEVICE))


def step(module: Any, xs: list[Tensor], start: log_linear.FenwickState | None) -> dict[str, Tensor]:
    """Outputs, and gradients for an upstream gradient that its seed alone decides."""
    xs = [x.detach().requires_grad_() for x in xs]
    S = None if start is None else start.S.clone().requires_grad_()
    given = None if start is None else module.FenwickState(S, start.position)
    beta = {"beta": xs[5]} if len(xs) > 5 else {}
    o, final = module.step(*xs[:5], **beta, initial_state=given, scale=-0.3)
    torch.manual_seed(1)
    loss = (o.double() * torch.randn(o.shape).to(DEVICE)).sum()
    (loss + (final.S * torch.randn(final.S.shape).to(DEVICE)).sum()).backward()
    found = {"o": o.detach(), "final": final.S.detach(), "position": final.position}
    found |= {f"d {n}": x.grad for n, x in zip(NAMES, xs, strict=False) if x.grad is not None}
    return found if S is None or S.grad is None else found | {"d state": S.grad}


def agree(xs: list[Tensor], start: log_linear.FenwickState | None) -> dict[str, Tensor]:
    """What the kernels answer, which is what float64 does."""
    found, wanted = (step(module, xs, start) for module in (log_linear, impl))
    assert found.keys() == wanted.keys()
    for name, y in wanted.items():
        assert found[name].shape == y.shape and found[name].dtype == y.dtype
        error = float((found[name] - y).double().norm() / y.double().norm().clamp_min(1e-30))
        bound = ROUNDINGS[torch.float32 if name == "final" else xs[0].dtype]  # a state has its digits, whatever inputs
        assert error <= bound, name
    assert bool(((found["final"] == 0) | (wanted["final"] != 0)).all()), "levels without a bucket are exactly 0"
    return found


@both
@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
def test_a_step_is_one_token_with_its_gradients(delta: bool, dtype: torch.dtype):
    """At positions with no bucket, with all, with some; behind the last one there is one, in the last level."""
    xs = inputs(1, 5, delta=delta, B=5, HV=2, dtype=dtype)
    found = agree(xs, state([0, 7, 5, 8, 15], 5, 2))
    assert found["position"].tolist() == [1, 8, 6, 9, 16]


@both
def test_a_first_step_needs_no_state_and_one_that_is_given_is_left_alone(delta: bool):
    xs, start = inputs(1, 4, delta=delta, B=2), state([2, 3], 4)
    agree(xs, None)
    before = start.S.clone()
    log_linear.step(*xs[:5], beta=xs[5] if delta else None, initial_state=start)
    assert torch.equal(start.S, before)


@both
def test_decoding_is_the_prefill(delta: bool):
    """From 62 on over the end of a chunk, a token at a time."""
    q, k, v, g, lam, *beta = xs = inputs(66, 8, delta=delta, K=3, V=2)
    whole, final = log_linear.chunk(q, k, v, g, lam, beta=beta[0] if delta else None, output_final_state=True)
    q, k, v, g, lam, *beta = (x[:, :62] for x in xs)
    _, held = log_linear.chunk(q, k, v, g, lam, beta=beta[0] if delta else None, output_final_state=True)
    for t in range(62, 66):
        q, k, v, g, lam, *beta = (x[:, t : t + 1] for x in xs)
        o, held = log_linear.step(q, k, v, g, lam, beta=beta[0] if delta else None, initial_state=held)
        assert float((o - whole[:, t : t + 1]).norm()) <= ROUNDINGS[torch.float32] * float(whole.norm())
    assert held is not None and final is not None and torch.equal(held.position, final.position)
    assert float((held.S - final.S).norm()) <= ROUNDINGS[torch.float32] * float(final.S.norm())


@pytest.mark.parametrize("T", [1, 63, 65, 129])
def test_weights_of_1_are_gated_linear_attention(T: int):
    q, k, v, g, lam = inputs(T, 9)
    o, _ = log_linear.chunk(q, k, v, g, torch.ones_like(lam))
    wanted, _ = gla.chunk(q, k, v, g)
    assert float((o - wanted).norm()) <= ROUNDINGS[torch.float32] * float(wanted.norm())


@pytest.mark.parametrize(("delta", "T"), [(False, 1), (False, 65), (False, 129), (True, 65)])
def test_what_lies_behind_the_level_weights_is_not_read(delta: bool, T: int):
    """A prefix of a buffer whose rest is NaN, then 1e30: the same bits, outputs and gradients (fla #1142)."""
    q, k, v, g, lam, *beta = inputs(T, 9, delta=delta, K=2, V=1)
    found: list[list[Tensor]] = []
    for fill in (torch.nan, 1e30):
        buffer = torch.full((2 * lam.numel(),), fill, device=DEVICE)
        tight = buffer[: lam.numel()].view_as(lam).copy_(lam)
        xs = [x.detach().requires_grad_() for x in (q, k, v, g, tight, *beta)]
        o, _ = log_linear.chunk(xs[0], xs[1], xs[2], xs[3], xs[4], beta=xs[5] if delta else None)
        found.append([o.detach(), *torch.autograd.grad(o.sum(), xs)])
    assert all(torch.equal(x, y) and bool(x.isfinite().all()) for x, y in zip(*found, strict=True))


def test_the_last_gate_of_a_short_chunk_has_all_of_its_gradient():
    """fla #1142: with weights 1 and no decay o_65 is 65 scale, and gate j has j - 1."""
    ones, g = torch.ones(1, 65, 1, 1, device=DEVICE), torch.zeros(1, 65, 1, device=DEVICE, requires_grad=True)
    o, _ = log_linear.chunk(ones, ones, ones, g, torch.ones(1, 65, 1, 8, device=DEVICE), scale=1.0)
    o[0, -1].sum().backward()
    assert float(o[0, -1].detach()) == 65 and g.grad is not None
    assert torch.equal(g.grad.flatten(), torch.arange(65.0, device=DEVICE))


def test_a_level_that_is_missing_is_nan_where_a_token_needs_it():
    """Positions lie on the device: too few levels are an error where they are looked at, and NaN where not."""
    xs = inputs(2, 4)
    for position, last in ((6, 8), (7, 9)):
        start = log_linear.FenwickState(torch.zeros(1, 4, 1, 5, 3, device=DEVICE), torch.tensor([position]).to(DEVICE))
        o, final = log_linear.chunk(*xs, initial_state=start, output_final_state=True)
        assert final is not None and bool(final.S[:, 3].isnan().all()) == (last > 8)
        assert o.isnan().all(-1).flatten().tolist() == [False, last > 8]
        if last > 8:
            with pytest.raises(ValueError, match="level_weights has L = 4 levels, expected at least 5 for 2 tokens"):
                log_linear.chunk(*xs, initial_state=start, validate=True)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dtype": torch.float64}, TypeError, "q has dtype torch.float64, expected float32, bfloat16 or float16"),
        ({"K": 257}, ValueError, "K is 257, expected 1 to 256"),
        ({"L": 1}, ValueError, "level_weights has L = 1 levels, expected at least 2 for 2 tokens"),
    ],
)
def test_what_a_kernel_does_not_take_is_refused_by_name(change: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        log_linear.chunk(*inputs(2, change.pop("L", 3), **change))


def test_values_are_checked_when_asked_and_a_second_derivative_is_refused():
    q, k, v, g, lam, beta = inputs(2, 3, delta=True)
    with pytest.raises(ValueError, match="level_weights\\[0, 0, 0, 0\\] is inf"):
        log_linear.chunk(q, k, v, g, torch.full_like(lam, torch.inf), validate=True)
    with pytest.raises(ValueError, match="beta\\[0, 0, 0\\] is nan"):
        log_linear.chunk(q, k, v, g, lam, beta=torch.full_like(beta, torch.nan), validate=True)
    with pytest.raises(ValueError, match="initial_state.position\\[0\\] is -1"):
        bad = log_linear.FenwickState(torch.zeros(1, 3, 1, 5, 3, device=DEVICE), torch.tensor([-1], device=DEVICE))
        log_linear.chunk(q, k, v, g, lam, initial_state=bad, validate=True)
    q.requires_grad_()
    o, _ = log_linear.chunk(q, k, v, g, lam)
    (grad,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot differentiate twice"):
        torch.autograd.grad(grad.sum(), q)
