"""The covariance kernels' gradients against the float64 loop of impls; small, since Triton interprets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import covariance_contract as wide
from linattest.kernels import building, covariance_adjoint, covariance_contract, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUDGET = {torch.float32: 2.0**-17, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-10}
"""Relative error, norm by norm: what the outputs are allowed, and a few roundings for sums over all later tokens."""


def _draw(
    B: int, T: int, H: int, K: int, *, N: int = 0, far: float = 0.0, count: float | None = None, **given: Any
) -> dict[str, Any]:
    """Arguments of `chunk` in float32: cov_g "some" has totals, "faded" is e^-25 a token; the first weights are 0."""
    random = torch.Generator().manual_seed(T + K)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    lam = torch.sigmoid(normal(B, T, H))
    lam[:, 3::7] = 0
    drawn: dict[str, Any] = {"q": normal(B, T, H, K), "k": normal(B, T, H, K) + far, "lam": lam}
    if "cov_g" in given:
        drawn["cov_g"] = -0.1 * normal(B, T, H).abs()
        drawn["cov_g"][:, [1, T // 2]] = -torch.inf
        if given["cov_g"] == "faded":
            drawn["cov_g"][:] = -25.0
    if given.get("weight"):
        drawn["weight"] = normal(B, T, H).abs()
        drawn["weight"][:, :3] = drawn["weight"][:, T // 2 : T // 2 + 2] = 0
    if N:
        root = normal(N, H, K, K)
        counts = normal(N, H).abs() if count is None else torch.full((N, H), count)
        drawn["initial_state"] = covariance_contract.CovState(
            counts, normal(N, H, K) + far, normal(N, H, K), root @ root.mT + 0.3 * root
        )
    return _mapped(drawn, lambda x: x.to(DEVICE))


def _mapped(drawn: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    def one(x: Any) -> Any:
        return type(x)(*map(change, x)) if isinstance(x, tuple) else change(x)

    return {name: one(x) for name, x in drawn.items()}


def _gradients(
    function: Any, drawn: dict[str, Any], change: Callable[[Tensor], Tensor], offsets: list[int] | None, final: bool
) -> dict[str, Tensor]:
    """Gradients of every input and part of a state, from upstream ones that are the same for both dtypes."""
    leaves = _mapped(drawn, lambda x: change(x).requires_grad_())
    options: dict[str, Any] = {}
    if function is not covariance_contract.step and function is not wide.step:
        options["output_final_state"] = True
        options["cu_seqlens"] = None if offsets is None else torch.tensor(offsets, device=DEVICE)
    o, state = function(**leaves, **options)
    random = torch.Generator().manual_seed(5)
    results = [o[:, : None if offsets is None else offsets[-1]], *(state if final else ())]
    upstream = [torch.randn(y.shape, generator=random).bfloat16().to(DEVICE, y.dtype) for y in results]
    pairs = [(y, g) for y, g in zip(results, upstream, strict=True) if y.requires_grad]
    named = {n: x for n, x in leaves.items() if not isinstance(x, tuple)}
    if "initial_state" in leaves:
        named |= leaves["initial_state"]._asdict()
    found = torch.autograd.grad(
        [y for y, _ in pairs], list(named.values()), [g for _, g in pairs], allow_unused=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


def _errors(
    drawn: dict[str, Any], offsets: list[int] | None = None, *, final: bool = True, form: str = "chunk"
) -> dict[str, float]:
    """Relative error of each gradient; an absolute one where the right one is 0."""
    got = _gradients(getattr(covariance_contract, form), drawn, Tensor.clone, offsets, final)
    wide_form = wide.step if form == "step" else wide.recurrent
    wanted = _gradients(wide_form, drawn, Tensor.double, offsets, final)
    norms = {name: x.norm().item() for name, x in wanted.items()}
    return {n: (got[n].double() - x).norm().item() / (norms[n] if norms[n] > 1e-40 else 1) for n, x in wanted.items()}


CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any], list[int] | None]] = {
    "plain": ((1, 70, 2, 20), {}, None),
    "far from the origin": ((1, 70, 1, 16), {"far": 1e3}, None),
    "with a state": ((2, 70, 1, 20), {"N": 2}, None),
    "with a light state": ((1, 40, 1, 20), {"N": 1, "count": 1e-4}, None),
    "with a scatter that weighs nothing": ((1, 70, 1, 20), {"N": 1, "count": 0.0, "weight": True}, None),
    "several segments": ((1, 300, 1, 6), {"N": 1, "cov_g": "some", "weight": True}, None),
    "packed": ((1, 90, 1, 17), {"N": 5, "cov_g": "some", "weight": True}, [0, 0, 5, 70, 71, 80]),
    "width one": ((1, 20, 1, 1), {}, None),
    "no token": ((1, 0, 1, 16), {"N": 1}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_loop(name: str) -> None:
    shape, given, offsets = CASES[name]
    errors = _errors(_draw(*shape, **given), offsets)
    assert max(errors.values()) < BUDGET[torch.float32], errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [{"far": 100.0}, {"cov_g": "some", "weight": True}])
def test_narrow_inputs_cost_their_rounding(dtype: torch.dtype, given: dict[str, Any]) -> None:
    errors = _errors(_mapped(_draw(1, 100, 1, 32, **given), lambda x: x.to(dtype)))
    assert max(errors.values()) < BUDGET[dtype], errors


def test_a_count_that_fades_leaves_every_gradient_right() -> None:
    """The count falls by e^-25 a token, and what is left of a sum in float32 is divided by it."""
    drawn = _draw(1, 40, 2, 8, cov_g="faded", weight=True)
    drawn["weight"][:, 2::4] = 0
    errors = _errors(drawn, final=False)
    assert max(errors.values()) < BUDGET[torch.float32], errors


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_a_count_that_has_faded_away_leaves_finite_gradients() -> None:
    drawn = _draw(1, 40, 1, 8, N=1, cov_g="faded", weight=True)
    drawn["weight"][:, torch.arange(40) % 8 != 2] = 0
    found = _gradients(covariance_contract.chunk, drawn, Tensor.clone, None, True)
    assert all(bool(x.isfinite().all()) for x in found.values())


def test_one_token_has_the_gradients_of_a_sequence_of_one() -> None:
    errors = _errors(_draw(2, 1, 2, 5, N=2), form="step")
    assert max(errors.values()) < BUDGET[torch.float32], errors


def test_a_token_of_narrow_inputs_rounds_nothing_on_the_way() -> None:
    drawn = _draw(2, 1, 2, 5, N=2)
    drawn["cov_g"] = torch.full_like(drawn["lam"], -0.5)
    drawn |= {name: drawn[name].bfloat16() for name in ("q", "k", "lam", "cov_g")}
    errors = _errors(drawn, form="step")
    assert max(errors[name] for name in covariance_contract.CovState._fields) < BUDGET[torch.float32], errors


def test_nothing_is_read_behind_the_last_sequence() -> None:
    drawn = _draw(1, 80, 1, 16)
    clean = _gradients(covariance_contract.chunk, drawn, Tensor.clone, [0, 70], False)
    drawn["k"][:, 70:] = torch.nan
    found = _gradients(covariance_contract.chunk, drawn, Tensor.clone, [0, 70], False)
    assert all(torch.equal(x, found[name]) and not x[:, 70:].any() for name, x in clean.items())


def test_a_backward_pass_is_nine_launches_and_keeps_nothing_a_token() -> None:
    x = torch.randn(1, 128, 2, 16, device=DEVICE)
    q, k, lam = x.requires_grad_(), torch.randn_like(x), torch.rand(1, 128, 2, device=DEVICE)
    with building.recording() as launches:
        o, _ = covariance_contract.chunk(q, k, lam)
        forward = len(launches)
        torch.autograd.grad(o, q, torch.ones_like(o))
    assert (forward, len(launches) - forward) == (3, 9)


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a segment starts from no gradient of the mean behind it."""
    drawn = _draw(1, 300, 1, 4)
    right = _errors(drawn, final=False)
    real = launch.run

    def cut(kernel: Any, programs: int, *args: Any, **rest: Any) -> None:
        real(kernel, programs, *args, **rest)
        if kernel is covariance_adjoint.scan:
            args[0][..., : rest["K"]] = 0  # the gradients at segments' ends

    monkeypatch.setattr(launch, "run", cut)
    wrong = _errors(drawn, final=False)
    assert right["k"] < BUDGET[torch.float32] < 1e-3 < wrong["k"] and wrong["q"] == right["q"]
