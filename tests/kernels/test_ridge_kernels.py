"""The running ridge solve in Triton against float64; small, since Triton interprets it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import ridge_solve as impl
from linattest.kernels import building, configs, ridge_solve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
ROUNDINGS = 16
"""Bound of an error of norms, in roundings of the result; where M amplifies them, times its condition."""

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # rows that take no part


def inputs(T: int, *, H: int = 1, K: int = 3, N: int = 0, dtype: torch.dtype = torch.float32) -> list[Any]:
    """x, u (directions of length K ** -0.5, one of them zero), lam0 of each head, an initial M for N sequences."""
    torch.manual_seed(T + K)
    x, u = torch.randn(1, T, H, K), torch.nn.functional.normalize(torch.randn(1, T, H, K), dim=-1) * K**-0.5
    u[:, T // 2 : T // 2 + 1] = 0.0
    root = torch.randn(N, H, K, K)
    lam = torch.linspace(0.1, 0.2, H)
    return [x.to(DEVICE, dtype), u.to(DEVICE, dtype), lam.to(DEVICE), (root @ root.mT / K).to(DEVICE) if N else None]


def answers(function: Any, xs: list[Any], **options: Any) -> dict[str, Tensor]:
    """Outputs, and gradients for an upstream gradient that its seed alone decides."""
    x, u, lam0, state = leaves = [None if y is None else y.detach().clone().requires_grad_() for y in xs]
    y, final = function(x, u, lam0=lam0, initial_state=state, **options)
    torch.manual_seed(1)
    loss = (y.double() * torch.randn(y.shape).to(DEVICE)).sum() + (final * torch.randn(final.shape).to(DEVICE)).sum()
    gradients = torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None])
    names = ("y", "M", "d x", "d u", "d lam0", "d M")
    return dict(zip(names, (y.detach(), final.detach(), *gradients), strict=False))


def agree(xs: list[Any], form: str = "chunk", **options: Any) -> dict[str, Tensor]:
    """What the kernels answer, which is what float64 does."""
    options = options if form == "step" else {"output_final_state": True} | options
    found, wanted = (answers(getattr(module, form), xs, **options) for module in (ridge_solve, impl))
    for of, y in wanted.items():
        assert found[of].shape == y.shape and found[of].dtype == y.dtype
        error = float((found[of].double() - y.double()).norm() / y.double().norm().clamp_min(1e-30))
        assert error <= ROUNDINGS * ROUNDING[torch.float32 if of == "M" else xs[0].dtype], of
    return found


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_solutions_states_and_gradients_are_those_of_float64(dtype: torch.dtype):
    xs = inputs(66, H=2, K=8, N=1, dtype=dtype) if dtype == torch.float32 else inputs(12, H=2, N=1, dtype=dtype)
    agree(xs)


def test_packed_sequences_are_alone_and_rows_behind_the_last_are_zero():
    xs, offsets = inputs(20, N=4), torch.tensor([0, 0, 3, 17, 17], device=DEVICE)
    found = agree(xs, cu_seqlens=offsets)
    assert all(bool((found[of][:, 17:] == 0).all()) for of in ("y", "d x", "d u"))
    assert torch.equal(found["M"][0], xs[3][0]), "an empty sequence passes its state through"


def test_segments_hand_over_the_penalty_and_views_are_read_as_they_lie(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(configs, "segment_length", lambda T: 64)  # pyright: ignore[reportUnknownLambdaType]
    x, u, *rest = inputs(130, K=2, N=1)
    x, u = (torch.stack([y, y], -1)[..., 0] for y in (x, u))
    assert not x.is_contiguous()
    agree([x, u, *rest])


@pytest.mark.parametrize(("length", "lam0"), [(1.0, 1e-4), (200.0, 10.0), (200.0, 1e3)])
@pytest.mark.parametrize("directions", [1, 3])
def test_a_repeated_direction_costs_its_condition_and_no_more(directions: int, length: float, lam0: float):
    """A Woodbury update of a chunk would lose the digits of u A u^T, up to 4e5 here."""
    x, u, *_ = inputs(70, K=8)
    u = length * u[:, torch.arange(70) % directions]
    y, _ = ridge_solve.chunk(x, u, lam0=lam0)
    wanted, _ = impl.recurrent(x.double(), u.double(), lam0=lam0)
    most = (u.double().square().sum(-1).cumsum(1) + lam0) / lam0  # condition of lam0 I + M_t, or more
    error = (y.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert bool((error <= ROUNDINGS * ROUNDING[torch.float32] * most).all())


def test_later_tokens_change_no_bit_of_earlier_ones():
    """Also where they take many more steps."""
    x, u, *_ = inputs(60)
    before, _ = ridge_solve.chunk(x, u, lam0=0.1)
    x[:, 40:], u[:, 40:] = 1e3 * x[:, 40:], 100 * u[:, 40:]
    after, _ = ridge_solve.chunk(x, u, lam0=0.1)
    assert torch.equal(before[:, :40], after[:, :40]) and not torch.equal(before[:, 40:], after[:, 40:])


@pytest.mark.parametrize("factor", [4.0, 2.0**-100, 2.0**100])
def test_a_power_of_two_in_x_is_one_in_y(factor: float):
    x, u, *_ = inputs(9)
    assert torch.equal(ridge_solve.chunk(factor * x, u, lam0=0.1)[0], factor * ridge_solve.chunk(x, u, lam0=0.1)[0])


def test_zero_rows_give_zero_and_zero_directions_leave_the_state_alone():
    x, u, _, state = inputs(9, N=1)
    x[:, 4] = 0.0
    y, after = ridge_solve.chunk(x, 0 * u, lam0=0.5, initial_state=state, output_final_state=True)
    assert after is not None and torch.equal(y[:, 4], x[:, 4]) and torch.equal(after, state)
    wanted = torch.linalg.solve(state.double() + 0.5 * torch.eye(3, device=DEVICE), x.double().unsqueeze(-1))
    assert torch.allclose(y.double(), wanted.squeeze(-1), rtol=1e-5, atol=0)


def test_a_state_that_is_not_positive_is_nan_in_its_head_and_nan_stays_in_its_own():
    x, u, lam0, state = inputs(9, H=3, N=1)
    state[0, 1] = -torch.eye(3)
    x[0, 3, 2, 0] = torch.nan
    y, _ = ridge_solve.chunk(x, u, lam0=lam0, initial_state=state)
    assert bool(y[0, :, 1].isnan().all()) and bool(y[0, 3, 2].isnan().all())
    assert bool(y[0, :, 0].isfinite().all()) and bool(y[0, 4:, 2].isfinite().all())


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_step_is_one_token_and_leaves_its_state_alone(dtype: torch.dtype):
    xs = inputs(1, H=2, N=1, dtype=dtype)
    xs[1] = xs[0] / 3
    before = xs[3].clone()
    agree(xs, "step")
    assert torch.equal(before, xs[3])


def test_no_tokens_give_no_rows_and_the_state_as_it_was():
    x, u, lam0, state = inputs(0, N=1)
    state = state + torch.randn_like(state)  # not symmetric
    y, final = ridge_solve.chunk(x, u, lam0=lam0, initial_state=state.requires_grad_(), output_final_state=True)
    assert y.shape == x.shape and final is not None and torch.equal(final, state)
    (grad,) = torch.autograd.grad((final * state.detach()).sum(), state)
    assert torch.equal(grad, state)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dtype": torch.float64}, TypeError, "x has dtype torch.float64, expected float32, bfloat16 or float16"),
        ({"K": 257}, ValueError, "K is 257, expected 1 to 256"),
    ],
)
def test_what_a_kernel_does_not_take_is_refused_by_name(change: dict[str, Any], error: type[Exception], says: str):
    x, u, *_ = inputs(1, **change)
    with pytest.raises(error, match=says):
        ridge_solve.chunk(x, u, lam0=0.1)


def test_values_are_checked_when_asked():
    x, u, *_ = inputs(4)
    with pytest.raises(ValueError, match="lam0 is -1.0"):
        ridge_solve.chunk(x, u, lam0=torch.tensor(-1.0, device=DEVICE), validate=True)
    with pytest.raises(ValueError, match="cu_seqlens ends at 9"):
        ridge_solve.chunk(x, u, lam0=0.1, cu_seqlens=torch.tensor([0, 9], device=DEVICE), validate=True)
    with pytest.raises(TypeError, match="validate is 1"):
        ridge_solve.chunk(x, u, lam0=0.1, validate=1)  # type: ignore[arg-type]


def test_launches_can_be_listed_without_memory():
    x, u, *_ = (y.to("meta").requires_grad_() for y in inputs(600)[:2])
    with building.recording() as launches:
        ridge_solve.chunk(x, u, lam0=0.1)[0].sum().backward()
    assert [y.kernel.__name__ for y in launches] == [
        *("sums", "scan", "solve"),
        *("solve", "states", "scan", "walk", "walk", "gradients"),
    ]
