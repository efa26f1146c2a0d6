"""The gated delta rule with a gate per value channel: what `impls.gated_delta_net` says of value heads of width 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linattest.impls import gated_delta_net
from linattest.kernels import delta_channels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = 30 * 2.0**-24
"""Of a relative error of norms, for float32: thirty roundings, as in verify."""


def drawn(T: int, K: int, N: int, *, H: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v, g, beta for two rows and H heads with N value heads each."""
    torch.manual_seed(T + K + N)
    q, k = (torch.nn.functional.normalize(torch.randn(2, T, H, K), dim=-1) for _ in range(2))
    v, g, beta = torch.randn(2, T, H * N, 1), -torch.rand(2, T, H * N), torch.rand(2, T, H * N)
    return [x.to(DEVICE, dtype).requires_grad_() for x in (q, k, v, g, beta)]


def both(inputs: list[Tensor], **options: float) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel's output and gradients, and those of the chunk form in float64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    found: list[list[Tensor]] = []
    upstream = torch.randn(inputs[2].shape, generator=torch.Generator().manual_seed(1)).to(inputs[2].dtype)
    for module, given in ((delta_channels, inputs), (gated_delta_net, wide)):
        o, _ = module.chunk(*given, **options)
        found.append([o.detach(), *torch.autograd.grad(o, given, upstream.to(o))])
    return found[0], found[1]


def far(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))


@pytest.mark.parametrize(("T", "K", "N"), [(1, 1, 1), (9, 8, 4), (20, 5, 3), (12, 32, 32)])
def test_output_and_gradients_are_those_of_value_heads_of_width_1(T: int, K: int, N: int):
    for got, want in zip(*both(drawn(T, K, N)), strict=True):
        assert got.shape == want.shape
        assert far(got, want) <= BOUND


def test_a_fault_in_one_gate_is_seen():
    """The planted fault: one channel of one token forgets a hundredth more."""
    inputs = drawn(9, 8, 4)
    _, want = both(inputs)
    with torch.no_grad():
        inputs[3][0, 3, 2] -= 0.01
    got = delta_channels.chunk(*inputs)[0].detach().double()
    assert far(got, want[0]) > BOUND


@pytest.mark.parametrize(("dtype", "roundoff"), [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)])
def test_half_precision_is_rounded_once_whatever_the_strides(dtype: torch.dtype, roundoff: float):
    inputs = drawn(9, 8, 4, dtype=dtype)
    q = inputs[0].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    for got, want in zip(*both([q, *inputs[1:]], scale=0.5), strict=True):
        assert got.dtype == dtype
        assert far(got, want) <= roundoff + BOUND


def test_what_it_does_not_take_is_named():
    q, k, v, g, beta = drawn(4, 8, 4)
    with pytest.raises(ValueError, match="v has width 2, expected 1"):
        delta_channels.chunk(q, k, v.expand(-1, -1, -1, 2), g, beta)
    with pytest.raises(ValueError, match="output_final_state is given"):
        delta_channels.chunk(q, k, v, g, beta, output_final_state=True)
    with pytest.raises(ValueError, match="g has shape"):
        delta_channels.chunk(q, k, v, g[:, 1:], beta)
    wide = drawn(2, 129, 1)
    with pytest.raises(ValueError, match="K is 129, expected 1 to 128"):
        delta_channels.chunk(*wide)
