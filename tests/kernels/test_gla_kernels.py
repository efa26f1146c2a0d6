"""GLA in Triton against float64: both gates, every argument of the contract; small, since Triton interprets it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import gla as impl
from linattest.kernels import building, gla

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDINGS = {torch.float32: 2.0**-21, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Bound of a relative error of norms: eight roundings of an operand (tf32x3, bfloat16, tf32)."""

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # 0 * -inf that a mask discards


def inputs(T: int, *, B: int = 1, H: int = 1, HV: int = 1, K: int = 5, V: int = 3, channel: bool = False,
           dtype: torch.dtype = torch.float32) -> list[Tensor]:  # fmt: skip
    torch.manual_seed(T)
    q, k, v = (torch.randn(B, T, h, d) for h, d in ((H, K), (H, K), (HV, V)))
    g = -torch.rand(B, T, *((H, K) if channel else (HV,)))
    g[:, T // 2 : T // 2 + 1] = -torch.inf
    return [x.to(DEVICE, dtype) for x in (q, k, v)] + [g.to(DEVICE)]


def answers(function: Any, xs: list[Tensor], state: Tensor | None, **options: Any) -> dict[str, Tensor]:
    """Outputs, and gradients for an upstream gradient that its seed alone decides."""
    xs = [x.detach().requires_grad_() for x in xs]
    state = None if state is None else state.clone().requires_grad_()
    o, final = function(*xs, initial_state=state, **options)
    torch.manual_seed(1)
    loss = (o.double() * torch.randn(o.shape).to(DEVICE)).sum() + (final * torch.randn(final.shape).to(DEVICE)).sum()
    loss.backward()
    found = {
        "o": o,
        "final": final,
        **{f"d {n}": x.grad for n, x in zip("qkvg", xs, strict=True) if x.grad is not None},
    }
    return found if state is None else found | {"d state": state.grad}  # type: ignore[dict-item]


def agree(found: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype) -> None:
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        y = wanted[name]
        assert x.shape == y.shape and x.dtype == y.dtype
        assert float((x - y).detach().double().norm()) <= ROUNDINGS[dtype] * float(y.detach().double().norm()), name


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("channel", [False, True], ids=["head", "channel"])
def test_outputs_states_and_gradients_are_those_of_float64(dtype: torch.dtype, channel: bool):
    xs = inputs(70, HV=1 if channel else 2, channel=channel, dtype=dtype)
    state = torch.randn(1, xs[2].shape[2], 5, 3).to(DEVICE)
    options = {"scale": -0.3, "output_final_state": True}
    agree(answers(gla.chunk, xs, state, **options), answers(impl.chunk, xs, state, **options), dtype)


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("channel", [False, True], ids=["head", "channel"])
def test_nothing_passes_a_closed_gate(dtype: torch.dtype, channel: bool):
    """Behind a gate of -inf, in the same chunk and in the next, no bit tells what was before it."""
    xs, cut = inputs(140, channel=channel, dtype=dtype), 70
    before = [torch.cat([1000 * x[:, :cut], x[:, cut:]], 1) for x in xs[:3]]
    (o, S), (changed, final) = (gla.chunk(q, k, v, xs[3], output_final_state=True) for q, k, v in (xs[:3], before))
    assert S is not None and final is not None
    assert torch.equal(o[:, cut:], changed[:, cut:]) and torch.equal(S, final)
    assert not torch.equal(o[:, :cut], changed[:, :cut])


@pytest.mark.parametrize("channel", [False, True], ids=["head", "channel"])
def test_packed_sequences_are_alone_and_rows_behind_the_last_are_zero(channel: bool):
    xs = inputs(80, H=2, HV=4, channel=channel)
    offsets = torch.tensor([0, 0, 3, 70, 70], device=DEVICE)
    state = torch.randn(4, 4, 5, 3).to(DEVICE)
    found = answers(gla.chunk, xs, state, cu_seqlens=offsets, output_final_state=True)
    agree(found, answers(impl.chunk, xs, state, cu_seqlens=offsets, output_final_state=True), torch.float32)
    assert all(bool((found[name][:, 70:] == 0).all()) for name in ("o", "d q", "d k", "d v", "d g"))
    assert torch.equal(found["final"][0], state[0]), "an empty sequence passes its state through"


@pytest.mark.parametrize("channel", [False, True], ids=["head", "channel"])
def test_several_segments_with_views_as_they_lie(channel: bool):
    xs = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in inputs(520, B=2, channel=channel, K=3, V=2)]
    o, final = gla.chunk(*xs, output_final_state=True)
    wanted, state = impl.chunk(*xs, output_final_state=True)
    assert final is not None and state is not None and not xs[0].is_contiguous()
    agree({"o": o, "final": final}, {"o": wanted, "final": state}, torch.float32)


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("channel", [False, True], ids=["head", "channel"])
@pytest.mark.parametrize("given", [False, True], ids=["from nothing", "from a state"])
def test_a_step_is_one_token_to_the_last_digits_with_its_gradients(dtype: torch.dtype, channel: bool, given: bool):
    xs = inputs(1, B=2, H=2, HV=4, channel=channel, dtype=dtype)
    xs[3] = -torch.rand(xs[3].shape).to(DEVICE)
    state = torch.randn(2, 4, 5, 3).to(DEVICE) if given else None
    found = answers(gla.step, xs, state)
    wanted = answers(impl.step, xs, state)
    agree(found, wanted, dtype)
    for name in ("final", "d g"):  # what is kept in float32 has its digits, whatever the inputs
        error = float((found[name] - wanted[name]).detach().norm())
        assert error <= ROUNDINGS[torch.float32] * float(wanted[name].detach().norm())


def test_a_step_leaves_the_state_it_is_given_alone():
    xs, state = inputs(1), torch.randn(1, 1, 5, 3).to(DEVICE)
    before = state.clone()
    _, after = gla.step(*xs, initial_state=state)
    assert torch.equal(state, before) and not torch.equal(state, after)


def test_the_first_gate_has_no_gradient_without_a_state():
    for channel in (False, True):
        found = answers(gla.chunk, inputs(9, channel=channel), None, output_final_state=True)
        assert bool((found["d g"][:, 0] == 0).all())


def test_no_tokens_give_no_outputs_and_the_state_as_it_was():
    state = torch.randn(1, 1, 5, 3).to(DEVICE)
    o, final = gla.chunk(*inputs(0), initial_state=state, output_final_state=True)
    assert o.shape == (1, 0, 1, 3) and final is not None and torch.equal(final, state)


def test_a_second_derivative_is_refused():
    q, k, v, g = inputs(3)
    q.requires_grad_()
    o, _ = gla.chunk(q, k, v, g)
    (grad,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot differentiate twice"):
        torch.autograd.grad(grad.sum(), q)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dtype": torch.float64}, TypeError, "q has dtype torch.float64, expected float32, bfloat16 or float16"),
        ({"K": 257}, ValueError, "K is 257, expected 1 to 256"),
        ({"V": 300}, ValueError, "V is 300, expected 1 to 256"),
    ],
)
def test_what_a_kernel_does_not_take_is_refused_by_name(change: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        gla.chunk(*inputs(2, **change))


def test_values_are_checked_when_asked():
    q, k, v, g = inputs(4)
    with pytest.raises(ValueError, match="g\\[0, 1, 0\\] is 0.5"):
        gla.chunk(q, k, v, g.index_fill(1, torch.tensor([1], device=DEVICE), 0.5), validate=True)
    with pytest.raises(ValueError, match="cu_seqlens ends at 9"):
        gla.chunk(q, k, v, g, cu_seqlens=torch.tensor([0, 9], device=DEVICE), validate=True)
    with pytest.raises(TypeError, match="validate is 1"):
        gla.chunk(q, k, v, g, validate=1)  # type: ignore[arg-type]


def test_launches_can_be_listed_without_memory():
    xs = [x.to("meta") for x in inputs(70)]
    with building.recording() as launches:
        gla.chunk(*xs)
    assert [x.kernel.__name__ for x in launches] == ["states", "scan", "outputs"]
