"""Level weights in one Triton launch against the float64 forms, with all gradients; small, since interpreted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import level_weights as impl
from linattest.kernels import log_linear_weights as ours

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7}
"""Of a relative error of norms: sixteen roundings of float32; two of bfloat16, in which a gradient comes back."""


def answers(function: Any, xs: list[Tensor | None], *options: Any) -> list[Tensor]:
    """The weights, and the gradients of all that is given."""
    given = [None if x is None else x.detach().clone().requires_grad_() for x in xs]
    out = function(*given, *options)
    torch.manual_seed(1)
    leaves = [x for x in given if x is not None]
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn(out.shape).to(out))]


def agree(name: str, xs: list[Tensor | None], *options: Any) -> list[Tensor]:
    found = answers(getattr(ours, name), xs, *options)
    wanted = answers(getattr(impl, name), [None if x is None else x.double() for x in xs], *options)
    leaves = [x for x in xs if x is not None]
    for x, y, like in zip(found, wanted, [torch.empty(0), *leaves], strict=True):
        assert x.shape == y.shape and x.dtype == like.dtype
        assert float((x - y).norm()) <= BOUND[x.dtype] * float(y.norm())
    return found


def parameters(L: int, hidden: int, *, bias: bool, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
    torch.manual_seed(L)
    d = (3 * torch.randn(2, 35, 3, L)).to(dtype)
    w1, b1, w2, b2 = (
        torch.randn(L, hidden) / L**0.5,
        torch.randn(hidden),
        torch.randn(hidden, L) / hidden**0.5,
        torch.randn(L),
    )
    return [None if x is None else x.to(DEVICE) for x in (d, w1, b1 if bias else None, w2, b2)]


@pytest.mark.parametrize("name", ["mlp_softplus", "mlp_softmax"])
@pytest.mark.parametrize("activation", impl.ACTIVATIONS)
def test_an_mlp_and_its_gradients_are_those_of_float64(name: str, activation: str):
    """210 feature vectors: three programs and a rest; a width that fills its tile and one that does not."""
    agree(name, parameters(11, 16, bias=activation == "gelu"), activation)


def test_features_may_be_bfloat16_and_parameters_lie_in_any_order():
    d, w1, b1, w2, b2 = parameters(8, 20, bias=True, dtype=torch.bfloat16)
    assert w1 is not None and w2 is not None and d is not None
    agree("mlp_softplus", [d.transpose(1, 2), w1.T.contiguous().T, b1, w2.T.contiguous().T, b2], "gelu")


@pytest.mark.parametrize("per_head", [False, True])
def test_the_linear_form_and_its_gradients_are_those_of_float64(per_head: bool):
    d = parameters(11, 16, bias=False)[0]
    agree("linear", [d, torch.randn(3, 11).to(DEVICE) if per_head else torch.randn(11).to(DEVICE)])


def test_small_weights_have_their_digits():
    """softplus(-30) = 9e-14, which log(1 + exp(-30)) in float32 is not."""
    d = torch.tensor([[-30.0, -10.0, 0.0, 30.0, 100.0]], device=DEVICE)
    found = ours.linear(d, torch.ones(5, device=DEVICE))
    assert torch.allclose(found.double(), torch.logaddexp(d.double(), torch.zeros(())), rtol=2.0**-21, atol=0)


def test_what_it_does_not_take_is_refused_by_name():
    d, w1, b1, w2, b2 = parameters(4, 6, bias=True)
    assert d is not None and w1 is not None and w2 is not None and b2 is not None
    with pytest.raises(ValueError, match="w2 has shape \\[4, 6\\], expected \\[hidden, L\\] = \\[6, 4\\]"):
        ours.mlp_softplus(d, w1, b1, w2.T, b2)
    with pytest.raises(TypeError, match="d has dtype torch.float64, expected float32, bfloat16 or float16"):
        ours.mlp_softmax(d.double(), w1, b1, w2, b2)
    with pytest.raises(ValueError, match="activation is 'relu'"):
        ours.mlp_softmax(d, w1, b1, w2, b2, "relu")
    with pytest.raises(ValueError, match="weight has shape \\[5\\]"):
        ours.linear(d, torch.ones(5, device=DEVICE))
