"""The covariance kernels, and CCQ on them, against the float64 forms of impls; small, since Triton interprets them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import ccq as wide_ccq
from linattest.impls import covariance_contract as wide
from linattest.kernels import ccq, covariance_contract, gla, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUDGET = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Relative error, norm by norm: sixteen roundings of float32, two of a bfloat16 or tf32 operand."""


def _draw(B: int, T: int, H: int, K: int, *, N: int = 0, far: float = 0.0, **given: Any) -> dict[str, Any]:
    """Arguments of `chunk` in float32; forgetting is total at one token, the first weights are 0."""
    random = torch.Generator().manual_seed(T + K)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    lam = torch.sigmoid(normal(B, T, H))
    lam[:, 3::7] = 0
    drawn: dict[str, Any] = {"q": normal(B, T, H, K), "k": normal(B, T, H, K) + far, "lam": lam}
    if given.get("cov_g"):
        drawn["cov_g"] = -0.1 * normal(B, T, H).abs()
        drawn["cov_g"][:, T // 2] = -torch.inf
    if given.get("weight"):
        drawn["weight"] = normal(B, T, H).clamp(min=0)
        drawn["weight"][:, :3] = 0
        drawn["weight"][:, T // 2 : T // 2 + 2] = 0
    if N:
        root = normal(N, H, K, K)
        parts = normal(N, H).abs(), normal(N, H, K) + far, normal(N, H, K), root @ root.mT
        drawn["initial_state"] = covariance_contract.CovState(*parts)
    return _mapped(drawn, lambda x: x.to(DEVICE))


def _mapped(drawn: dict[str, Any], change: Any) -> dict[str, Any]:
    def one(name: str, x: Any) -> Any:
        return type(x)(*map(change, x)) if isinstance(x, tuple) else change(x)

    return {name: one(name, x) for name, x in drawn.items()}


def _options(offsets: list[int] | None) -> dict[str, Any]:
    packing = None if offsets is None else torch.tensor(offsets, device=DEVICE)
    return {"output_final_state": True, "cu_seqlens": packing}


def _error(got: Tensor, wanted: Tensor) -> float:
    if not got.numel():
        return 0.0
    return ((got.double() - wanted).norm() / wanted.norm().clamp(min=1e-300)).item()


CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any], list[int] | None]] = {
    "plain": ((2, 130, 1, 20), {}, None),
    "far": ((1, 130, 1, 16), {"far": 1e4}, None),
    "state": ((2, 70, 1, 20), {"N": 2}, None),
    "all": ((1, 530, 1, 20), {"N": 1, "cov_g": True, "weight": True}, None),
    "weight": ((1, 70, 1, 16), {"weight": True}, None),
    "packed": ((1, 560, 2, 17), {"N": 4}, [0, 0, 5, 530, 550]),
    "width one": ((1, 20, 1, 1), {}, None),
    "no token": ((1, 0, 1, 16), {"N": 1}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_states_are_those_of_impls(name: str) -> None:
    shape, given, offsets = CASES[name]
    drawn = _draw(*shape, **given)
    options = _options(offsets)
    got, state = covariance_contract.chunk(**drawn, **options, validate=True)
    wanted, wide_state = wide.recurrent(**_mapped(drawn, Tensor.double), **options)
    end = None if offsets is None else offsets[-1]
    assert _error(got[:, :end], wanted[:, :end]) < BUDGET[torch.float32]
    assert state is not None and wide_state is not None
    for part, x, y in zip(state._fields, state, wide_state, strict=True):
        assert _error(x, y) < BUDGET[torch.float32], part
    assert torch.equal(got[:, 3:end:7], drawn["q"][:, 3:end:7])  # lam = 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [{"far": 100.0}, {"cov_g": True, "weight": True}])
def test_narrow_inputs_cost_their_rounding(dtype: torch.dtype, given: dict[str, Any]) -> None:
    drawn = _mapped(_draw(1, 130, 1, 32, **given), lambda x: x.to(dtype))
    got, _ = covariance_contract.chunk(**drawn)
    wanted, _ = wide.recurrent(**_mapped(drawn, Tensor.double))
    assert got.dtype == dtype and _error(got, wanted) < BUDGET[dtype]


@pytest.mark.parametrize("given", [{}, {"N": 2}, {"N": 2, "cov_g": True, "weight": True}])
def test_one_token_is_a_sequence_of_one(given: dict[str, Any]) -> None:
    drawn = _draw(2, 9, 2, 20, **given)
    drawn = {n: x if n == "initial_state" else x[:, 4:5] for n, x in drawn.items()}  # lam there is not 0
    got, state = covariance_contract.step(**drawn)
    wanted, wide_state = wide.step(**_mapped(drawn, Tensor.double))
    assert _error(got, wanted) < BUDGET[torch.float32]
    assert all(_error(x, y) < BUDGET[torch.float32] for x, y in zip(state, wide_state, strict=True))


def test_a_memory_read_with_it_is_untouched_and_lam_of_0_changes_nothing() -> None:
    drawn, V = _draw(1, 100, 1, 16, weight=True), 20
    v, g = torch.randn(1, 100, 2, V, device=DEVICE), -0.1 * torch.rand(1, 100, 2, device=DEVICE)
    o, state = ccq.chunk(**drawn, v=v, g=g, backbone="gla", output_final_state=True)
    wanted, _ = wide_ccq.recurrent(**_mapped(drawn, Tensor.double), v=v.double(), g=g.double(), backbone="gla")
    plain, memory = gla.chunk(drawn["q"], drawn["k"], v, g, output_final_state=True)
    assert _error(o, wanted) < BUDGET[torch.float32]
    assert state is not None and memory is not None and torch.equal(state.backbone, memory)
    still, _ = ccq.chunk(**{**drawn, "lam": 0 * drawn["lam"]}, v=v, g=g, backbone="gla")
    assert torch.equal(still, plain) and not torch.equal(o, plain)


def test_a_poisoned_head_stays_alone() -> None:
    drawn = _draw(1, 70, 2, 16)
    clean, _ = covariance_contract.chunk(**drawn)
    drawn["k"][0, 10, 1] = torch.nan
    got, _ = covariance_contract.chunk(**drawn)
    assert torch.equal(got[:, :, 0], clean[:, :, 0]) and got[:, 64:, 1].isnan().any()


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: segments merged without the distance of their means."""
    drawn = _draw(1, 530, 1, 16)
    drawn["k"][:, 512:] += 5
    wanted, _ = wide.recurrent(**_mapped(drawn, Tensor.double))
    right, _ = covariance_contract.chunk(**drawn)
    real = launch.run

    def skewed(kernel: Any, programs: int, *args: Any, **rest: Any) -> None:
        real(kernel, programs, *args, **rest)
        if kernel is covariance_contract.covariance_scan.states:
            K = rest["K"]
            args[3][..., K * K + K : K * K + 2 * K] = 0  # the segments' own means

    monkeypatch.setattr(launch, "run", skewed)
    wrong, _ = covariance_contract.chunk(**drawn)
    assert _error(right, wanted) < BUDGET[torch.float32] < 1e-3 < _error(wrong, wanted)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"q": torch.zeros(1, 4, 1, 300), "k": torch.zeros(1, 4, 1, 300)}, ValueError, "K is 300"),
        ({"q": torch.zeros(1, 4, 1, 8).double(), "k": torch.zeros(1, 4, 1, 8).double()}, TypeError, "q has dtype"),
        ({"lam": torch.zeros(1, 3, 1)}, ValueError, "lam"),
        ({"weight": -torch.ones(1, 4, 1)}, ValueError, "weight"),
        ({"cov_g": torch.ones(1, 4, 1)}, ValueError, "cov_g"),
        ({"initial_state": torch.zeros(1)}, TypeError, "initial_state"),
    ],
)
def test_errors_name_the_argument(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {
        "q": torch.zeros(1, 4, 1, 8),
        "k": torch.zeros(1, 4, 1, 8),
        "lam": torch.zeros(1, 4, 1),
    } | changed
    with pytest.raises(error, match=words):
        covariance_contract.chunk(**given, validate=True)


def test_a_backbone_without_kernels_is_refused_by_name() -> None:
    x, lam = torch.zeros(1, 4, 1, 8), torch.zeros(1, 4, 1)
    with pytest.raises(ValueError, match="backbone is 'softmax'"):
        ccq.chunk(x, x, x, lam, backbone="softmax")
    with pytest.raises(TypeError, match="g is missing"):
        ccq.chunk(x, x, x, lam, backbone="gla")


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_a_count_that_has_faded_to_a_subnormal_number_leaves_finite_outputs() -> None:
    torch.manual_seed(0)
    q, k = (torch.rand(1, 6, 1, 4, device=DEVICE) for _ in range(2))
    weight = torch.ones(1, 6, 1, device=DEVICE)
    weight[:, 2:4] = 0.0  # tokens that only forget, from a count of 2 to 2e-41
    cov_g = torch.full((1, 6, 1), -46.5, device=DEVICE)
    o, _ = covariance_contract.chunk(q, k, torch.ones_like(weight), cov_g=cov_g, weight=weight)
    assert bool(o.isfinite().all())
