"""The running ridge solve in half precision: what one plane does, what two do, and what is left to float32."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import ridge_solve as impl
from linattest.kernels import configs, launch, ridge_again, ridge_rule, ridge_solve, ridge_walk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = 2.0**-12
"""Of float16, in which matrices are kept."""

ROUNDINGS = 16

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # rows that take no part


def half(T: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x, and bfloat16 directions that share a mean."""
    random = torch.Generator().manual_seed(seed)
    u = torch.nn.functional.normalize(torch.rand(1, T, 1, K, generator=random) + 0.2, dim=-1) * K**-0.5
    return tuple(y.to(DEVICE, torch.bfloat16) for y in (torch.randn(1, T, 1, K, generator=random), u))  # type: ignore[return-value]


def worst(x: Tensor, u: Tensor, lam0: float) -> tuple[float, float, float]:
    """The largest relative error of a row, before it is rounded; the part of rows that one plane, and that two cannot
    do."""
    shared, _ = ridge_rule.penalty(u, None, lam0, None, None)
    marks: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        real = launch.run

        def watching(kernel: Any, programs: int, *args: Any, **rest: Any) -> None:
            real(kernel, programs, *args, **rest)
            if kernel in (ridge_walk.walk, ridge_again.walk):
                marks.append(float(args[0][3].float().mean()))

        patch.setattr(launch, "run", watching)
        y = ridge_rule.solve(shared, x, wide=True)
    wanted, _ = impl.recurrent(x.double(), u.double(), lam0=lam0)
    one, two = marks
    return float(((y.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()), one, two


@pytest.mark.parametrize("length", [256, 128])
@pytest.mark.parametrize("K", [24, 100])
def test_half_precision_serves_ordinary_directions_to_a_few_of_its_roundings(
    K: int, length: int, monkeypatch: pytest.MonkeyPatch
):
    """The first four chunks of a sequence, or one, are done apart; a segment is four chunks, or two."""
    monkeypatch.setattr(configs, "segment_length", lambda T: length)  # pyright: ignore[reportUnknownLambdaType]
    error, marked, _ = worst(*half(250, K), lam0=0.4)
    assert error <= ROUNDINGS * ROUNDING and marked == 0


@pytest.mark.parametrize("directions", [1, 3])
def test_half_precision_serves_repeated_directions_though_one_step_to_a_factor_is_not_enough(directions: int):
    x, u = half(90, 24)
    error, marked, _ = worst(x, u[:, torch.arange(90) % directions], lam0=0.3)
    assert error <= ROUNDINGS * ROUNDING and marked == 0


@pytest.mark.parametrize("what", ["small ridge", "long direction", "small solutions"])
def test_what_half_precision_cannot_do_is_marked_and_solved_in_two_planes(what: str):
    """A leverage of 300 and |u|^2 of 180, in units of lam0; solutions 40 times smaller than their right sides."""
    x, u = half(90, 24)
    if what == "long direction":
        u[:, 70:71] *= 36
    if what == "small solutions":
        x = u = u[:, :1].repeat(1, 90, 1, 1)
    error, marked, left = worst(x, u, {"small ridge": 1e-2, "long direction": 0.3, "small solutions": 0.1}[what])
    assert error <= ROUNDINGS * ROUNDING and marked > 0 and left == 0


def test_a_direction_that_begins_to_repeat_late_is_marked_from_there_on_and_solved_in_two_planes():
    """In a chunk that no conjugate gradients do beforehand: one chunk for this width."""
    x, u = half(130, 100)
    u[:, :64], u[:, 64:] = u[:, :1].clone(), u[:, 64:65].clone()
    u[:, 64:, :, :50] *= -1
    error, marked, left = worst(x, u, 0.1)
    assert error <= ROUNDINGS * ROUNDING and 0 < marked <= 66 / 130 and left == 0


@pytest.mark.parametrize("what", ["small ridge", "long direction"])
def test_what_two_planes_cannot_do_is_solved_in_float32(what: str):
    """A leverage of 3e5 and |u|^2 of 4e5, in units of lam0."""
    x, u = half(90 if what == "long direction" else 20, 24)
    if what == "long direction":
        u[:, 70:71] *= 1700
    error, _, marked = worst(x, u, 1e-5 if what == "small ridge" else 0.3)
    assert error <= ROUNDINGS * ROUNDING and marked > 0


@pytest.mark.parametrize(("T", "K"), [(60, 24), (100, 100)])
def test_later_tokens_change_no_bit_in_half_precision_either(T: int, K: int):
    """Later tokens that converge late, that are too long, and that are not marked."""
    (x, u), (other, rest) = half(T, K), half(T, K, seed=1)
    before, _ = ridge_solve.chunk(x, u, lam0=2.0)
    for factor in (1, 30, 1000) if K == 24 else (1, 30):
        x[:, T - 20 :], u[:, T - 20 :] = other[:, T - 20 :], factor * rest[:, T - 20 :]
        after, _ = ridge_solve.chunk(x, u, lam0=2.0)
        assert torch.equal(before[:, : T - 20], after[:, : T - 20])
        assert not torch.equal(before[:, T - 20 :], after[:, T - 20 :])
