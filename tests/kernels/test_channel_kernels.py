"""The decay scan with a gate per key channel against float64, whatever the gates; small, since Triton interprets it."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from linattest.impls import gla
from linattest.kernels import building, channel
from linattest.kernels import gla as public

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # an anchor that is not used

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Relative, of norms: sixteen roundings of float32, two of a bfloat16 or tf32 operand."""


class Call(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    state: Tensor | None
    offsets: Tensor | None


def gates(kind: str, *shape: int) -> Tensor:
    """[shape]: mild ones keep to one anchor a chunk, the others do not."""
    u = torch.rand(shape)
    return {
        "mild": -u / 16,
        "mixed": torch.where(u < 0.5, -u / 1000, -4 * u),
        "strong": -60 * u,
        "resets": torch.where(u < 0.1, -torch.inf, -u / 8),
    }[kind]


def call(
    kind: str, T: int = 70, *, B: int = 1, H: int = 1, HV: int = 1, K: int = 8, V: int = 5,
    dtype: torch.dtype = torch.float32, state: bool = True, offsets: list[int] | None = None,
) -> Call:  # fmt: skip
    torch.manual_seed(T + K)
    q, k, v = (torch.randn(B, T, h, d).to(DEVICE, dtype) for h, d in ((H, K), (H, K), (HV, V)))
    g = gates(kind, B, T, H, K).to(DEVICE, dtype)
    N = B if offsets is None else len(offsets) - 1
    initial = torch.randn(N, HV, K, V).to(DEVICE) if state else None
    return Call(q, k, v, g, initial, None if offsets is None else torch.tensor(offsets, device=DEVICE))


def results(x: Call) -> dict[str, Tensor]:
    """Outputs and gradients of the kernels, for upstream gradients of a fixed seed."""
    scale = x.q.shape[-1] ** -0.5
    o, final, saved = channel.forward(x.q, x.k, x.v, x.g, x.state, x.offsets, scale)
    do, dfinal = upstream(o, final)
    found = channel.backward(x.q, x.k, x.v, x.g, x.state, x.offsets, scale, saved, do, dfinal)
    return {"o": o, "final": final, **dict(zip(("dq", "dk", "dv", "dg", "dstate"), found, strict=True))}


def upstream(o: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(o.shape).to(DEVICE, o.dtype), torch.randn(final.shape).to(DEVICE)


def reference(x: Call) -> dict[str, Tensor]:
    """The same in float64, by autograd; the gradient of a gate of -inf is 0."""
    wide = [y.double().requires_grad_() for y in x[:4]]
    N = x.q.shape[0] if x.offsets is None else x.offsets.shape[0] - 1
    shape = (N, x.v.shape[2], x.q.shape[3], x.v.shape[3])
    state = (torch.zeros(shape, device=DEVICE) if x.state is None else x.state).double().requires_grad_()
    o, final = gla.chunk(*wide, initial_state=state, output_final_state=True, cu_seqlens=x.offsets)
    assert final is not None
    do, dfinal = upstream(o.to(x.v.dtype), final)
    found = torch.autograd.grad((o, final), (*wide, state), (do.double(), dfinal.double()))
    names = ("dq", "dk", "dv", "dg", "dstate")
    return {"o": o.detach(), "final": final.detach(), **dict(zip(names, map(torch.nan_to_num, found), strict=True))}


def errors(x: Call) -> dict[str, float]:
    """Relative error of each result, infinite where one is not finite."""
    found, expected = results(x), reference(x)
    return {
        name: float((y.double() - expected[name]).norm() / expected[name].norm()) if y.isfinite().all() else torch.inf
        for name, y in found.items()
    }


def beyond(x: Call) -> dict[str, float]:
    return {name: error for name, error in errors(x).items() if not error <= TOLERANCE[x.q.dtype]}


@pytest.mark.parametrize("kind", ["mild", "mixed", "strong", "resets"])
def test_outputs_and_gradients_are_the_reference_whatever_the_gates(kind: str) -> None:
    assert not beyond(call(kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_rounded_a_few_times_only(dtype: torch.dtype) -> None:
    assert not beyond(call("mixed", dtype=dtype, T=40))


def test_sequences_packed_and_value_heads_that_share_keys() -> None:
    x = call("mixed", T=100, HV=2, K=3, offsets=[0, 0, 5, 75])
    assert not beyond(x)  # rows behind the last sequence among them


def test_segments_hand_their_states_on_in_both_directions() -> None:
    assert not beyond(call("mild", T=514, K=2, V=2))


def test_one_token_and_one_channel() -> None:
    assert not beyond(call("mild", T=1, K=1, V=1))


def test_no_token_returns_the_state_and_its_gradient() -> None:
    x = call("mild", T=0)
    found = results(x)
    assert x.state is not None
    assert torch.equal(found["final"], x.state)
    assert torch.equal(found["dstate"], upstream(found["o"], found["final"])[1])


@pytest.mark.parametrize("kind", ["mild", "strong"])
def test_the_first_gate_has_no_gradient_without_an_initial_state(kind: str) -> None:
    found = results(call(kind, T=30, state=False))["dg"]
    assert not found[:, 0].any()
    assert found[:, 1].any()


def test_one_anchor_where_it_does_not_reach_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "REACH", dict.fromkeys(channel.REACH, 1e6))
    assert not beyond(call("mild"))
    assert "o" in beyond(call("strong"))


def test_a_tree_all_the_way_down_agrees_with_one_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    x = call("mild", T=30)
    near = results(x)["o"]
    monkeypatch.setattr(channel, "REACH", dict.fromkeys(channel.REACH, 0.0))
    far = results(x)["o"]
    assert 0 < float((far - near).norm() / near.norm()) < TOLERANCE[torch.float32]


def test_strides_are_taken_as_they_are() -> None:
    x = call("mixed", T=20)
    turned = x._replace(**{n: getattr(x, n).transpose(1, 3).contiguous().transpose(1, 3) for n in ("q", "k", "v", "g")})
    assert not turned.q.is_contiguous()
    expected = results(x)
    for name, y in results(turned).items():
        # A GPU runs another binary there, which may add in another order.
        error = float((y - expected[name]).norm() / expected[name].norm())
        assert error <= (1e-6 if DEVICE == "cuda" else 0), name


def test_a_decoded_token_has_the_gradients_of_its_definition() -> None:
    x = call("mixed", T=1, HV=2)
    assert x.state is not None
    inputs = [y.requires_grad_() for y in (*x[:4], x.state)]
    found = torch.autograd.grad([y.sum() for y in public.step(*inputs[:4], initial_state=inputs[4])], inputs)
    expected = torch.autograd.grad([y.sum() for y in gla.step(*inputs[:4], initial_state=inputs[4])], inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[torch.float32], atol=TOLERANCE[torch.float32])


def test_a_forward_is_five_launches() -> None:
    x = torch.empty(1, 4096, 16, 128, dtype=torch.bfloat16, device="meta")
    with building.recording() as launches:
        channel.forward(x, x, x, x, None, None, 1.0)
    assert [y.kernel.__name__ for y in launches] == ["prepare", "tree", "states", "scan", "outputs"]
