"""The delta scan, DeltaNet and Gated DeltaNet in Triton against float64; small, since Triton interprets them."""

from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from linattest.impls import delta_net as delta_net_impl
from linattest.impls import delta_scan as delta_scan_impl
from linattest.impls import gated_delta_net as gated_impl
from linattest.kernels import building, configs, delta_net, delta_rule, delta_scan, gated_delta_net, launch
from linattest.kernels.delta_rule import Operands

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-10, torch.float16: 2.0**-13}
"""Of an operand: tf32x3, bfloat16, tf32."""

ROUNDINGS = 16
"""Bound of an error of norms, in roundings of the result or, if that is more, in what float64 changes by when each
operand is changed by a rounding: what a token writes is a difference."""

NAMES = {"delta_scan": ("q", "erase", "write", "v", "g"), "delta_net": ("q", "k", "v", "beta"),
         "gated_delta_net": ("q", "k", "v", "g", "beta")}  # fmt: skip
OURS = {"delta_scan": delta_scan, "delta_net": delta_net, "gated_delta_net": gated_delta_net}
IMPLS = {"delta_scan": delta_scan_impl, "delta_net": delta_net_impl, "gated_delta_net": gated_impl}

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # 0 * -inf that a mask discards

each = pytest.mark.parametrize("name", NAMES)


def inputs(name: str, T: int, *, B: int = 1, H: int = 1, HV: int = 1, K: int = 5, V: int = 3,
           dtype: torch.dtype = torch.float32) -> list[Tensor]:  # fmt: skip
    """Unit keys, one of them zero, beta up to 1, one gate -inf; what is erased is near what is written."""
    torch.manual_seed(T)
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1) for _ in range(2))
    write = k.repeat_interleave(HV // H, 2) + torch.randn(B, T, HV, K) / 10
    g = -torch.rand(B, T, HV) / 5
    g[:, T // 2 : T // 2 + 1] = -torch.inf
    k[:, T // 3 : T // 3 + 1] = 0.0
    drawn = {"q": q, "k": k, "erase": k, "write": write, "v": torch.randn(B, T, HV, V), "g": g,
             "beta": torch.rand(B, T, HV)}  # fmt: skip
    return [drawn[x].to(DEVICE, torch.float32 if x in ("g", "beta") else dtype) for x in NAMES[name]]


def answers(function: Any, names: tuple[str, ...], xs: list[Tensor], state: Tensor | None, **options: Any) -> dict[
    str, Tensor
]:  # fmt: skip
    """Outputs, and gradients for an upstream gradient that its seed alone decides."""
    xs = [x.detach().requires_grad_() for x in xs]
    state = None if state is None else state.clone().requires_grad_()
    o, final = function(*xs, initial_state=state, scale=-0.3, **options)
    torch.manual_seed(1)
    loss = (o.double() * torch.randn(o.shape).to(DEVICE)).sum() + (final * torch.randn(final.shape).to(DEVICE)).sum()
    loss.backward()
    found = {"o": o, "final": final}
    found |= {f"d {n}": x.grad for n, x in zip(names, xs, strict=False) if x.grad is not None}
    return found if state is None or state.grad is None else found | {"d state": state.grad}


def rounded(x: Tensor, rounding: float) -> Tensor:
    """x in float64, each number a rounding above or below."""
    return x.double() * (1 + rounding * (2 * torch.randint(2, x.shape) - 1).to(x.device))


def errors(name: str, form: str, xs: list[Tensor], state: Tensor | None, wide: tuple[str, ...] = (),
           **options: Any) -> tuple[dict[str, Tensor], dict[str, float]]:  # fmt: skip
    """What the kernels answer, and how far that is from float64, in roundings (see ROUNDINGS; of float32 if `wide`)."""
    impl, names = getattr(IMPLS[name], form), NAMES[name]
    found, wanted = (answers(f, names, xs, state, **options) for f in (getattr(OURS[name], form), impl))
    assert found.keys() == wanted.keys()
    near = {}
    for rounding in {ROUNDING[xs[0].dtype], *([ROUNDING[torch.float32]] if wide else [])}:
        moved = [rounded(x, rounding) for x in xs], None if state is None else rounded(state, rounding)
        near[rounding] = answers(impl, names, *moved, **options)
    units = {}
    for of, y in wanted.items():
        assert found[of].shape == y.shape and found[of].dtype == y.dtype
        rounding = ROUNDING[torch.float32 if of in wide else xs[0].dtype]
        y = y.detach().double()
        unit = max(rounding * y.norm(), (near[rounding][of].detach() - y).norm(), 1e-30)
        units[of] = float((found[of].detach().double() - y).norm() / unit)
    return found, units


def agree(name: str, xs: list[Tensor], state: Tensor | None, **options: Any) -> dict[str, Tensor]:
    """What the kernels answer, which is what float64 does."""
    found, units = errors(name, "chunk", xs, state, output_final_state=True, **options)
    for of, error in units.items():
        assert error <= ROUNDINGS, of
    return found


@each
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_outputs_states_and_gradients_are_those_of_float64(name: str, dtype: torch.dtype):
    agree(name, inputs(name, 70, HV=2, dtype=dtype), torch.randn(1, 2, 5, 3).to(DEVICE))


@pytest.mark.parametrize("name", ["delta_scan", "gated_delta_net"])
def test_packed_sequences_are_alone_and_rows_behind_the_last_are_zero(name: str):
    offsets, state = torch.tensor([0, 0, 3, 70, 70], device=DEVICE), torch.randn(4, 2, 5, 3).to(DEVICE)
    found = agree(name, inputs(name, 80, HV=2), state, cu_seqlens=offsets)
    assert all(bool((x[:, 70:] == 0).all()) for of, x in found.items() if of not in ("final", "d state"))
    assert torch.equal(found["final"][0], state[0]), "an empty sequence passes its state through"


@pytest.mark.parametrize("given", [False, True], ids=["from nothing", "from a state"])
def test_segments_hand_over_states_and_their_gradients(given: bool, monkeypatch: pytest.MonkeyPatch):
    """Three segments of two chunks, so that one has neighbours on both sides; views as they lie."""
    monkeypatch.setattr(configs, "segment_length", lambda T: 128)  # pyright: ignore[reportUnknownLambdaType]
    xs = inputs("delta_scan", 330, K=16, V=2)
    xs[4] = xs[4].clamp_min(-1e-4)
    xs[1:3] = xs[1] / 10, xs[2] / 10  # or nothing of a state would reach another segment
    xs = [torch.stack([x, x], -1)[..., 0] for x in xs]
    assert not xs[0].is_contiguous()
    found = agree("delta_scan", xs, torch.randn(1, 1, 16, 2).to(DEVICE) if given else None)
    assert not given or float(found["d state"].norm()) > 0.1


def test_segments_of_wide_keys_hand_over_too(monkeypatch: pytest.MonkeyPatch):
    """Beyond 128 channels a scan over segments reads its maps piece by piece."""
    monkeypatch.setattr(configs, "segment_length", lambda T: 64)  # pyright: ignore[reportUnknownLambdaType]
    xs = inputs("delta_scan", 200, K=130, V=2)
    xs[4] = xs[4].clamp_min(-1e-4)
    found = agree("delta_scan", xs, torch.randn(1, 1, 130, 2).to(DEVICE))
    assert float(found["d state"].norm()) > 0.1


def test_packed_sequences_of_several_segments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(configs, "segment_length", lambda T: 64)  # pyright: ignore[reportUnknownLambdaType]
    offsets = torch.tensor([0, 5, 150, 160], device=DEVICE)
    agree("gated_delta_net", inputs("gated_delta_net", 170, K=3, V=2), None, cu_seqlens=offsets)


def test_erase_may_have_a_head_for_each_value_head():
    xs = inputs("delta_scan", 9, H=1, HV=2)
    xs[1] = xs[2] + torch.randn(1, 9, 2, 5).to(DEVICE) / 10
    agree("delta_scan", xs, None)


def test_without_gates_and_one_token():
    for T in (1, 17):
        xs = inputs("delta_scan", T, K=1, V=1)[:4]
        xs[1] = xs[1] / 10  # with one channel, a write key that equals the erase key would leave nothing of a state
        agree("delta_scan", xs, torch.randn(1, 1, 1, 1).to(DEVICE))


@each
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["from nothing", "from a state"])
def test_a_step_is_one_token_to_the_last_digits_with_its_gradients(name: str, dtype: torch.dtype, given: bool):
    xs = inputs(name, 1, B=2, H=2, HV=4, dtype=dtype)
    named = zip(NAMES[name], xs, strict=True)
    xs = [-torch.rand(x.shape).to(DEVICE) if n == "g" else torch.randn(x.shape).to(x) for n, x in named]
    state = torch.randn(2, 4, 5, 3).to(DEVICE) if given else None
    wide = ("final", "d g", "d beta", "d state")  # what is kept in float32 has its digits, whatever the inputs
    for of, error in errors(name, "step", xs, state, wide)[1].items():
        assert error <= ROUNDINGS, of


def test_a_step_leaves_the_state_it_is_given_alone():
    state = torch.randn(1, 1, 5, 3).to(DEVICE)
    before = state.clone()
    _, after = gated_delta_net.step(*inputs("gated_delta_net", 1), initial_state=state)
    assert torch.equal(state, before) and not torch.equal(state, after)


def test_no_tokens_give_no_outputs_and_the_state_and_its_gradient_as_they_were():
    state = torch.randn(1, 1, 5, 3).to(DEVICE).requires_grad_()
    o, final = gated_delta_net.chunk(*inputs("gated_delta_net", 0), initial_state=state, output_final_state=True)
    assert o.shape == (1, 0, 1, 3) and final is not None and torch.equal(final, state)
    (grad,) = torch.autograd.grad(final, state, torch.ones_like(final))
    assert torch.equal(grad, torch.ones_like(grad))


def test_a_second_plane_holds_more_digits_than_one():
    q, k, v, g, beta = inputs("gated_delta_net", 70, dtype=torch.bfloat16)
    state = torch.randn(1, 1, 5, 3).to(DEVICE)
    wide = gated_impl.recurrent(
        *(x.double() for x in (q, k, v, g, beta)), initial_state=state.double(), output_final_state=True
    )[1]
    assert wide is not None
    one, two = (
        delta_rule.forward(Operands(q, k, None, v, g, beta), 1.0, state, None, planes=n)[1].double() for n in (1, 2)
    )
    assert float((two - wide).norm()) < float((one - wide).norm())


def test_nan_in_one_head_stays_there_backwards_too():
    xs = inputs("gated_delta_net", 70, HV=2)
    xs[2][0, 5, 0, 0] = torch.nan
    found = answers(gated_delta_net.chunk, NAMES["gated_delta_net"], xs, None, output_final_state=True)
    assert bool(found["o"][:, 5:, 0, 0].isnan().any()) and bool(found["d beta"][:, 5:, 0].isnan().any())
    for of in ("o", "d v", "d g", "d beta"):
        assert bool(found[of][:, :, 1].isfinite().all()), of
    assert bool(found["final"][:, 1].isfinite().all())


def test_builds_for_other_strides_are_told_apart():
    """Strides in a tile are constants of a kernel: a build for 16 heads is none for 8."""
    few, many = (delta_rule.strides(torch.empty(1, 64, heads, 16)) for heads in (8, 16))
    assert launch.INTERPRETED or building._kind(few) != building._kind(many)  # pyright: ignore[reportPrivateUsage]
    constants = [triton.language.constexpr(n) for n in (128, 256, 128)]
    kinds = [building._kind((16, n)) for n in constants]  # pyright: ignore[reportPrivateUsage]
    assert kinds[0] == kinds[2] != kinds[1]


def test_launches_can_be_listed_without_memory():
    xs = [x.to("meta").requires_grad_() for x in inputs("gated_delta_net", 600)]
    with building.recording() as launches:
        gated_delta_net.chunk(*xs)[0].sum().backward()
    assert [x.kernel.__name__ for x in launches] == [
        *("inverses", "reads", "transitions", "scan", "outputs"),
        *("residuals", "accumulate", "scan", "carry", "gradients"),
    ]
