"""The feature map and the level weights' softplus keep their digits far from 0, where shorter formulas lose them."""

from __future__ import annotations

import mpmath
import pytest
import torch

from linattest.impls import features, level_weights

POINTS = [sign * 2.0**n * 1.3 for sign in (-1, 1) for n in range(-12, 9)]


def softplus(x: torch.Tensor) -> torch.Tensor:
    return level_weights.linear(x.unsqueeze(-1), torch.ones(1, dtype=x.dtype)).squeeze(-1)


EXACT = {
    "phi": (features.phi, lambda x: x + 1 if x > 0 else mpmath.exp(x)),
    "softplus": (softplus, lambda x: mpmath.log1p(mpmath.exp(x))),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", EXACT)
def test_every_size_of_argument_keeps_its_digits(name: str, dtype: torch.dtype):
    """Within 4 units in the last place: exp and log1p are each good to one or two."""
    form, exact = EXACT[name]
    x = torch.tensor(POINTS, dtype=dtype)
    got = form(x).double()
    about = torch.finfo(dtype)
    with mpmath.workdps(60):
        for value, y in zip(x.double().tolist(), got.tolist(), strict=True):
            wanted = exact(mpmath.mpf(value))
            if wanted > about.smallest_normal:
                assert abs(y - wanted) <= 4 * about.eps * wanted, f"{name}({value}) = {y}, expected {wanted}"


@pytest.mark.parametrize("short", [lambda x: torch.expm1(x) + 1, torch.nn.functional.softplus])
def test_the_shorter_formulas_lose_them(short):
    """elu(x) + 1 below 0, and PyTorch's softplus, which is x itself above 20: why neither is used."""
    x = torch.tensor([-40.0, 22.0], dtype=torch.float64)
    wanted = torch.tensor([float(mpmath.exp(-40)), 22 + float(mpmath.log1p(mpmath.exp(-22)))], dtype=torch.float64)
    assert bool(((short(x) - wanted).abs() > 1e-12 * wanted).any())


@pytest.mark.parametrize("others", [[3.0, 4.0], [1e-300, 0.0]], ids=["usual", "tiny"])
def test_a_row_of_zeros_is_normalised_to_zeros_with_no_gradient(others: list[float]):
    """Whatever its neighbours hold, whose gradient is the projection off their direction, over their length."""
    x = torch.tensor([[0.0, 0.0], others], dtype=torch.float64, requires_grad=True)
    y = features.norm(x)
    (gradient,) = torch.autograd.grad(y, x, torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=torch.float64))
    assert y[0].tolist() == [0.0, 0.0] and gradient[0].tolist() == [0.0, 0.0]
    unit = torch.tensor(others, dtype=torch.float64) / (length := max(others) if others[1] == 0 else 5.0)
    cotangent = torch.tensor([1.0, 2.0], dtype=torch.float64)
    wanted = (cotangent - unit * (unit @ cotangent)) / length
    assert torch.allclose(gradient[1], wanted, rtol=1e-14, atol=0)
