"""VLA in Triton against float64; small, since Triton interprets it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import vla as impl
from linattest.kernels import building, configs, vla, vla_rule
from linattest.kernels.vla import VLAState

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
ROUNDINGS = 30
"""Bound of an error of norms, as in verify: in roundings of the result or, if that is more, in what float64 changes by
when each input is changed by a rounding."""

PATTERNS = 4
"""Ways of changing inputs that are tried."""

NAMES = ("q", "k", "v", "u")

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # rows that take no part


def inputs(T: int, *, H: int = 1, K: int = 3, V: int = 2, N: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """q, k, v, u, and a state for N sequences (None for 0); one direction is zero."""
    torch.manual_seed(T + K)
    q, k = (torch.nn.functional.elu(torch.randn(1, T, H, K)) + 1 for _ in range(2))
    u, v = torch.nn.functional.normalize(torch.randn(1, T, H, K), dim=-1) * K**-0.5, torch.randn(1, T, H, V)
    u[:, T // 3 : T // 3 + 1] = 0.0
    root = torch.randn(N, H, K, K)
    state = VLAState(torch.randn(N, H, K, V), root @ root.mT / K, torch.rand(N, H, K))
    return [x.to(DEVICE, dtype) for x in (q, k, v, u)], VLAState(*(x.to(DEVICE) for x in state)) if N else None


def answers(function: Any, xs: list[Tensor], state: Any, lam0: float = 0.1, **options: Any) -> dict[str, Tensor]:
    """Outputs, and gradients for an upstream gradient that its seed alone decides."""
    xs = [x.detach().clone().requires_grad_() for x in xs]
    ridge = torch.tensor(lam0, device=DEVICE).requires_grad_()
    state = None if state is None else VLAState(*(x.detach().clone().requires_grad_() for x in state))
    o, final = function(*xs, lam0=ridge, initial_state=state, **options)
    torch.manual_seed(1)
    loss = torch.stack([(y.double() * torch.randn(y.shape).to(DEVICE)).sum() for y in (o, *final)]).sum()
    leaves = dict(zip([f"d {n}" for n in (*NAMES, "lam0")], [*xs, ridge], strict=True))
    leaves |= {} if state is None else {f"d {n}": x for n, x in zip(state._fields, state, strict=True)}
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    found = {"o": o.detach()} | {n: x.detach() for n, x in zip(VLAState._fields, final, strict=True)}
    return found | dict(zip(leaves, gradients, strict=True))


def agree(xs: list[Tensor], state: Any, form: str = "chunk", **options: Any) -> dict[str, Tensor]:
    """What the kernels answer, which is what float64 does."""
    options = options if form == "step" else {"output_final_state": True} | options
    found, wanted = (answers(getattr(module, form), xs, state, **options) for module in (vla, impl))
    rounding = ROUNDING[xs[0].dtype]
    wide = None if state is None else VLAState(*(x.double() for x in state))
    near = []
    for _ in range(PATTERNS):
        moved = [x.double() * (1 + rounding * (2 * torch.randint(2, x.shape) - 1).to(DEVICE)) for x in xs]
        near.append(answers(getattr(impl, form), moved, wide, **options))
    for of, y in wanted.items():
        assert found[of].shape == y.shape and found[of].dtype == y.dtype
        unit = max(float(rounding * y.double().norm()), *(float((x[of] - y).norm()) for x in near), 1e-30)
        if of == "d lam0":  # a sum over all tokens, which may cancel until it is no larger than one of its terms
            unit *= max(1, xs[0].shape[1] * xs[0].shape[2]) ** 0.5
        assert float((found[of].double() - y.double()).norm()) <= ROUNDINGS * unit, of
    return found


@pytest.mark.parametrize(("gain", "lam0", "normalizer"), [("unit", 0.1, True), ("raw", 2.0, False)])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_outputs_states_and_gradients_are_those_of_float64(
    dtype: torch.dtype, gain: str, lam0: float, normalizer: bool
):
    T = 66 if dtype == torch.float32 and gain == "unit" else 12
    agree(*inputs(T, H=2, N=1, dtype=dtype), gain=gain, lam0=lam0, normalizer=normalizer)


def test_packed_sequences_are_alone_and_rows_behind_the_last_are_zero():
    xs, state = inputs(20, N=4)
    found = agree(xs, state, cu_seqlens=torch.tensor([0, 0, 3, 17, 17], device=DEVICE))
    assert all(bool((found[of][:, 17:] == 0).all()) for of in ("o", "d q", "d k", "d v", "d u"))
    assert all(torch.equal(found[n][0], x[0]) for n, x in zip(VLAState._fields, state, strict=True))


@pytest.mark.parametrize("offsets", [None, [0, 5, 205, 210]])
def test_segments_hand_over_their_states_and_views_are_read_as_they_lie(
    offsets: list[int] | None, monkeypatch: pytest.MonkeyPatch
):
    """Two chunks a segment."""
    monkeypatch.setattr(configs, "segment_length", lambda T: 128)  # pyright: ignore[reportUnknownLambdaType]
    xs, state = inputs(210, K=2, V=3, N=1 if offsets is None else 3)
    xs = [torch.stack([x, x], -1)[..., 0] for x in xs]
    assert not xs[0].is_contiguous()
    options: dict[str, Any] = {} if offsets is None else {"cu_seqlens": torch.tensor(offsets, device=DEVICE)}
    agree(xs, state, **options)


def test_float16_gradients_of_a_long_past_lose_no_more_than_their_own_rounding():
    """Denominators of 1e4 and more: what is divided by them on the way is no number of float16 any more."""
    xs, state = inputs(20, K=8, V=8, N=1, dtype=torch.float16)
    assert state is not None
    state = state._replace(z=state.z * 1e5 + 1e4)

    def gradients(module: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in xs]
        torch.manual_seed(1)
        upstream = torch.randn(xs[2].shape).to(DEVICE, torch.float16)
        start = VLAState(*(x.double() for x in state)) if dtype == torch.float64 else state
        o, _ = module.chunk(*leaves, initial_state=start)
        return list(torch.autograd.grad(o, [leaves[0], leaves[2]], upstream.to(dtype)))  # u's and k's lose more later

    for got, exact in zip(gradients(vla, torch.float16), gradients(impl, torch.float64), strict=True):
        assert (got.double() - exact).norm() <= 1.5 * (exact.half().double() - exact).norm()


def test_a_denominator_at_its_floor_is_a_constant():
    xs, state = inputs(9)
    found = agree(xs, state, eps=1e3)
    assert float(found["o"].abs().max()) < 1e-2 and float(found["d q"].norm()) > 0


def test_a_zero_key_writes_nothing_and_the_gradient_of_its_normalisation_is_zero():
    xs, state = inputs(9, N=1)
    xs[1][:, 4] = 0.0
    wanted, _ = impl.chunk(*xs, normalizer=False, initial_state=state)
    xs[1].requires_grad_()
    o, final = vla.chunk(*xs, normalizer=False, initial_state=state, output_final_state=True)
    assert float((o.detach() - wanted).norm()) <= ROUNDINGS * ROUNDING[torch.float32] * float(wanted.norm())
    assert final is not None
    (grad,) = torch.autograd.grad(o.sum() + final.S.sum(), xs[1])
    assert bool((grad[:, 4] == 0).all()) and bool((grad[:, 5] != 0).all())


def test_tokens_that_do_nothing_leave_the_state_alone():
    (q, k, v, u), state = inputs(70, N=1)
    _, final = vla.chunk(q, 0 * k, v, 0 * u, initial_state=state, output_final_state=True)
    assert final is not None and all(torch.equal(x, y) for x, y in zip(final, state, strict=True))


def test_later_tokens_change_no_bit_of_earlier_ones_and_nan_stays_in_its_head():
    xs, _ = inputs(40, H=2)
    before, _ = vla.chunk(*xs)
    for x in xs:
        x[:, 20:] *= 3
    xs[1][0, 30, 1, 0] = torch.nan
    after, _ = vla.chunk(*xs)
    assert torch.equal(before[:, :20, 0], after[:, :20, 0]) and not torch.equal(before[:, 20:], after[:, 20:])
    assert bool(after[:, :, 0].isfinite().all()) and bool(after[:, 30:, 1].isnan().all())


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_step_is_one_token_and_leaves_its_state_alone(dtype: torch.dtype):
    xs, state = inputs(1, H=2, N=1, dtype=dtype)
    before = [x.clone() for x in state]
    agree(xs, state, "step")
    assert all(torch.equal(x, y) for x, y in zip(before, state, strict=True))


def test_no_tokens_give_no_outputs_and_the_state_as_it_was():
    xs, state = inputs(0, N=1)
    o, final = vla.chunk(*xs, initial_state=state, output_final_state=True)
    assert o.shape == (1, 0, 1, 2) and final is not None
    assert all(torch.equal(x, y) for x, y in zip(final, state, strict=True))


def test_what_a_kernel_does_not_take_is_refused_by_name():
    (q, k, v, u), state = inputs(3, N=1)
    with pytest.raises(TypeError, match="q has dtype torch.float64, expected float32, bfloat16 or float16"):
        vla.chunk(q.double(), k.double(), v.double(), u.double())
    with pytest.raises(ValueError, match="v has HV = 2 heads, expected H = 1"):
        vla.chunk(q, k, v.repeat(1, 1, 2, 1), u)
    with pytest.raises(ValueError, match="gain is 'half'"):
        vla.chunk(q, k, v, u, gain="half")
    with pytest.raises(TypeError, match=r"initial_state must be a VLAState\(S, M, z\)"):
        vla.chunk(q, k, v, u, initial_state=state.S)
    with pytest.raises(ValueError, match="scale is 2.0, expected None"):
        vla.step(q[:, :1], k[:, :1], v[:, :1], u[:, :1], scale=2.0)
    with pytest.raises(ValueError, match="lam0 is 0.0"):
        vla.chunk(q, k, v, u, lam0=torch.zeros((), device=DEVICE), validate=True)


def test_a_second_derivative_is_refused():
    (q, *rest), _ = inputs(3)
    o, _ = vla.chunk(q.requires_grad_(), *rest)
    (grad,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot differentiate twice"):
        torch.autograd.grad(grad.sum(), q)


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch):
    """A planted fault: the ridge solve's gradient does not come back to the key."""
    xs, state = inputs(12)
    agree(xs, state)
    right = vla_rule._tangents  # pyright: ignore[reportPrivateUsage]

    def without(x: Tensor, first: Tensor, *, second: Tensor | None = None, **rest: Any) -> Tensor:
        return right(x, first, second=None if second is None else 0 * second, **rest)

    monkeypatch.setattr(vla_rule, "_tangents", without)
    with pytest.raises(AssertionError, match="d k"):
        agree(xs, state)


def test_launches_can_be_listed_without_memory():
    xs = [x.to("meta").requires_grad_() for x in inputs(600)[0]]
    with building.recording() as launches:
        vla.chunk(*xs)[0].sum().backward()
    names = [x.kernel.__name__ for x in launches]
    assert names[:8] == [
        *("sums", "scan", "solve", "reads"),
        *("inverses", "transitions", "scan", "outputs"),
    ]
