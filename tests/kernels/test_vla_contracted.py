"""What is built on VLA: CCQ, whose contracted query reads the numerator alone; and what VLA is compared with."""

from typing import Any

import pytest
import torch

from linattest.impls import ccq as impl
from linattest.impls import vla as wide
from linattest.kernels import ccq, vla, vla_sequential

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = 30 * 2.0**-24
"""Of a relative error of norms, for float32: thirty roundings, as in verify."""

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # rows that take no part


def inputs(T: int) -> dict[str, Any]:
    torch.manual_seed(T)
    q, k = (torch.nn.functional.elu(torch.randn(1, T, 1, 5)) + 1 for _ in range(2))
    u = torch.nn.functional.normalize(torch.randn(1, T, 1, 5), dim=-1) * 5**-0.5
    drawn = {"q": q, "k": k, "v": torch.randn(1, T, 1, 3), "lam": torch.rand(1, T, 1), "u": u}
    return {name: x.to(DEVICE) for name, x in drawn.items()}


@pytest.mark.parametrize("normalizer", [True, False])
def test_outputs_and_gradients_are_those_of_float64(normalizer: bool):
    leaves = {name: x.requires_grad_() for name, x in inputs(12).items()}
    found, wanted = (
        module.chunk(**leaves, backbone="vla", normalizer=normalizer)[0].double() for module in (ccq, impl)
    )
    assert float((found - wanted).detach().norm()) <= BOUND * float(wanted.detach().norm())
    upstream = torch.randn(wanted.shape).to(wanted)
    gradients = (torch.autograd.grad(o, list(leaves.values()), upstream) for o in (found, wanted))
    for name, x, y in zip(leaves, *gradients, strict=True):
        assert float((x - y).norm()) <= BOUND * float(y.norm()), name


def test_a_step_goes_on_from_a_sequence():
    drawn = inputs(9)
    whole, _ = ccq.chunk(**drawn, backbone="vla")
    _, state = ccq.chunk(**{n: x[:, :8] for n, x in drawn.items()}, backbone="vla", output_final_state=True)
    last, _ = ccq.step(**{n: x[:, 8:] for n, x in drawn.items()}, backbone="vla", initial_state=state)
    assert float((last - whole[:, 8:]).norm()) <= BOUND * float(whole[:, 8:].norm())


def test_without_contraction_it_is_vla_bit_for_bit():
    drawn = inputs(12)
    still, _ = ccq.chunk(**drawn | {"lam": 0 * drawn["lam"]}, backbone="vla")
    plain, _ = vla.chunk(drawn["q"], drawn["k"], drawn["v"], drawn["u"])
    moved, _ = ccq.chunk(**drawn, backbone="vla")
    assert torch.equal(still, plain) and not torch.equal(moved, plain)


def test_a_scale_is_refused():
    with pytest.raises(ValueError, match="scale is 0.5, expected None"):
        ccq.chunk(**inputs(3), backbone="vla", scale=0.5)


@pytest.mark.parametrize("normalizer", [True, False])
def test_the_sequential_baseline_is_vla_too(normalizer: bool):
    drawn = {name: x for name, x in inputs(20).items() if name != "lam"}
    o = vla_sequential.forward(*(drawn[n] for n in "qkvu"), normalizer=normalizer)
    wanted, _ = wide.recurrent(**{n: x.double() for n, x in drawn.items()}, normalizer=normalizer)
    assert float((o - wanted).norm()) <= 8 * BOUND * float(wanted.norm()), "its inverse is subtractive"
    with pytest.raises(ValueError, match="V is 200, expected 1 to 128"):
        vla_sequential.forward(drawn["q"], drawn["k"], torch.zeros(1, 20, 1, 200, device=DEVICE), drawn["u"])
