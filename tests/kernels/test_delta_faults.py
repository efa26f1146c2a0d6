"""What the delta scan's kernels refuse, and faults planted in them that its tests would see."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import gated_delta_net as impl
from linattest.kernels import configs, delta_net, delta_rule, delta_scan, gated_delta_net, launch
from linattest.kernels.delta_rule import Operands

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = 2.0**-20
"""Of a relative error of norms for float32, in test_delta_kernels.py."""

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # 0 * -inf that a mask discards


def inputs(T: int, *, K: int = 5, V: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(T)
    q, k = (torch.nn.functional.normalize(torch.randn(1, T, 1, K), dim=-1).to(DEVICE, dtype) for _ in range(2))
    rest = torch.randn(1, T, 1, V).to(DEVICE, dtype), -torch.rand(1, T, 1).to(DEVICE) / 50, torch.rand(1, T, 1)
    return [q, k, *(x.to(DEVICE) for x in rest)]


def gradients(function: Any, xs: list[Tensor]) -> list[Tensor]:
    """Output, and the gradients of all inputs."""
    xs = [x.detach().requires_grad_() for x in xs]
    o, _ = function(*xs)
    torch.manual_seed(1)
    return [o.detach(), *torch.autograd.grad(o, xs, torch.randn(o.shape).to(DEVICE))]


def worst(xs: list[Tensor]) -> float:
    """The largest relative error of the output and of any gradient."""
    pairs = zip(gradients(gated_delta_net.chunk, xs), gradients(impl.chunk, xs), strict=True)
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def _lower_blocks(saved: delta_rule.Saved) -> None:
    block = torch.arange(saved.tm.shape[1], device=DEVICE) % 64 // 16
    lower = block[:, None] != torch.arange(64, device=DEVICE)[None, :] // 16
    saved.tm.masked_fill_(lower[None, :, None], 0.0)


def _unfading(saved: delta_rule.Saved) -> None:
    saved.factors[..., 1] = 1.0


@pytest.mark.parametrize("fault", [_lower_blocks, _unfading], ids=["lower blocks of the inverse", "fading writes"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_fault_in_what_a_forward_keeps_is_seen(fault: Any, backward: bool, monkeypatch: pytest.MonkeyPatch):
    """Such a kernel is far outside the bound, so the bound says something."""
    if backward:
        right = delta_rule.backward

        def wrong(x: Operands, scale: float, initial: Any, offsets: Any, saved: delta_rule.Saved, *rest: Any) -> Any:
            fault(saved)
            return right(x, scale, initial, offsets, saved, *rest)

        monkeypatch.setattr(delta_rule, "backward", wrong)
    else:
        invert = delta_rule._invert  # pyright: ignore[reportPrivateUsage]

        def faulty(x: Operands, saved: delta_rule.Saved, *rest: Any) -> None:
            invert(x, saved, *rest)
            fault(saved)

        monkeypatch.setattr(delta_rule, "_invert", faulty)
    assert worst(inputs(70)) > 1000 * BOUND


def test_a_walk_that_does_not_hand_over_is_seen(monkeypatch: pytest.MonkeyPatch):
    """Three segments of two chunks, of which the middle one has neighbours on both sides."""
    run, module = launch.run, delta_rule.delta_backward_walk
    monkeypatch.setattr(configs, "segment_length", lambda T: 128)  # pyright: ignore[reportUnknownLambdaType]
    xs = inputs(330, K=16, V=2)
    xs[1], xs[3] = xs[1] / 10, xs[3] / 100  # or nothing of a state would reach another segment
    assert worst(xs) < BOUND
    for kernel in (module.accumulate, module.scan):

        def without(launched: Any, programs: int, *args: Any, kernel: Any = kernel, **options: Any) -> None:
            if launched is kernel:
                if kernel is module.accumulate:
                    args[0].zero_()
            else:
                run(launched, programs, *args, **options)

        monkeypatch.setattr(launch, "run", without)
        assert worst(xs) > 1000 * BOUND


def test_a_second_derivative_is_refused():
    q, *rest = inputs(3)
    q.requires_grad_()
    o, _ = gated_delta_net.chunk(q, *rest)
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
    q, k, v, g, beta = inputs(1, **change)
    with pytest.raises(error, match=says):
        gated_delta_net.chunk(q, k, v, g, beta)
    with pytest.raises(error, match=says):
        delta_net.step(q, k, v, beta)
    with pytest.raises(error, match=says):
        delta_scan.chunk(q, k, k, v)


def test_values_are_checked_when_asked():
    q, k, v, g, beta = inputs(4)
    bad = g.index_fill(1, torch.tensor([1], device=DEVICE), 0.5)
    with pytest.raises(ValueError, match="g\\[0, 1, 0\\] is 0.5"):
        gated_delta_net.chunk(q, k, v, bad, beta, validate=True)
    with pytest.raises(ValueError, match="g\\[0, 1, 0\\] is 0.5"):
        delta_scan.chunk(q, k, k, v, bad, validate=True)
    with pytest.raises(ValueError, match="beta\\[0, 0, 0\\] is inf"):
        delta_net.chunk(q, k, v, torch.full_like(beta, torch.inf), validate=True)
    with pytest.raises(ValueError, match="cu_seqlens ends at 9"):
        delta_net.chunk(q, k, v, beta, cu_seqlens=torch.tensor([0, 9], device=DEVICE), validate=True)
    with pytest.raises(TypeError, match="validate is 1"):
        delta_scan.chunk(q, k, k, v, validate=1)  # type: ignore[arg-type]
