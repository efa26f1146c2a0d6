"""Each form of an operator is held to the one below it, and the bottom one to a loop written here from the paper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linattest.verify import registry
from linattest.verify.examine import Examination
from linattest.verify.grids import settings
from linattest.verify.inputs import Batch, Case, Scalar, Structure, build, resolve_options
from linattest.verify.measure import Wanted, compare
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import keywords, resolve, run, spread
from linattest.verify.tolerance import accumulation, unit_roundoff

OURS = [(o, v) for o in registry.OPERATORS for v in o.variants if v.function.startswith("linattest.impls.")]
ROUNDOFF = unit_roundoff("float64")


def takes(variant: Variant, keyword: str) -> bool:
    return keyword in inspect.signature(resolve(variant.function)).parameters


def pairs(*keep: tuple[Operator, Variant]) -> pytest.MarkDecorator:
    assert keep, "no registered operator has what the test needs"
    return pytest.mark.parametrize("operator, variant", [pytest.param(o, v, id=f"{o.name}-{v.name}") for o, v in keep])


def under(keep: Callable[[Operator, Variant, Mapping[str, Any]], bool]) -> pytest.MarkDecorator:
    """Every form that is no step under every option setting of the grid, as far as it is kept."""
    trios = [(o, v, s) for o, v in OURS if v.kind == "sequence" for s in settings(o)]
    kept = [(o, v, s) for o, v, s in trios if keep(o, v, resolve_options(o, s))]
    assert kept, "no registered operator has what the test needs"
    ids = ["-".join([o.name, v.name, *(f"{k}={x}" for k, x in s.items())]) for o, v, s in kept]
    return pytest.mark.parametrize("operator, variant, setting", kept, ids=ids)


CHUNKED = pairs(*((o, v) for o, v in OURS if takes(v, "chunk_size")))
NUDGED = pairs(*((o, v) for o, v in OURS if takes(v, "nudge_period")))
RAW = pairs(*((o, v) for o, v in OURS if takes(v, "gain")))
WHOLE = under(lambda o, v, options: True)
STATEFUL = under(lambda o, v, options: bool(o.states_of(options)))
SECOND_MOMENTS = under(
    lambda o, v, options: takes(v, "chunk_size") and bool({"psd", "scatter"} & {x.domain for x in o.states_of(options)})
)


def given(
    operator: Operator, dtype: str = "float64", options: Mapping[str, Scalar] | None = None, **sizes: Any
) -> Batch:
    case = Case(operator=operator.name, structure=Structure(**sizes), dtype=dtype, options=options or {})
    return build(operator, case)


def within_budget(operator: Operator, batch: Batch, values: dict[str, torch.Tensor], dtype: str) -> Iterator[str]:
    """Messages of what is beyond the budget around the reference's own float64 run."""
    sensitive = Examination(operator, batch).sensitivity
    for name, got in values.items():
        exact = sensitive.values[name]
        wanted = Wanted(exact, 0 * exact, sensitive.kappa(name), 0 * exact, 1 if "state" in name else 2)
        verdict = compare(name, got, wanted, dtype, unit_roundoff(accumulation(dtype)))
        if not verdict.passed:
            yield verdict.message()


@CHUNKED
@pytest.mark.parametrize("chunks", range(1, 10))
def test_any_number_of_chunks_equals_the_recurrence(operator: Operator, variant: Variant, chunks: int, in_turn: Any):
    """N = 1 to 9 chunks of 4, the last one a token short if N is odd; forward, states and gradients."""
    T = 4 * chunks - chunks % 2
    small = Variant(name="small", function=variant.function, options={**variant.options, "chunk_size": 4})
    for options in in_turn(operator, chunks):
        batch = given(operator, "float32", options, T=T, K=4, V=3, initial_state=bool(operator.states_of()))
        outcome = run(operator, small, batch, backward=True)
        values = {k: x for k, x in outcome.values.items() if k.removeprefix("d ") not in batch.options}
        failed = list(within_budget(operator, batch, values, "float32"))
        assert not failed, f"T = {T} {options}: {failed}"


@RAW
@pytest.mark.parametrize("lam0", [0.1, 1.0, 10.0])
def test_raw_gain_along_the_keys_is_recursive_least_squares(operator: Operator, variant: Variant, lam0: float):
    """u = k^: S_t = (lam0 I + K^T K)^{-1} K^T V, against numpy. Either side is off by at most its own roundings:

    a backward stable solve, K of them for the matrix's entries, T for a sum: (T + K) cond |S| roundoffs (Higham,
    theorem 10.3 and section 3.1), and the recursion, a contraction, adds T such steps of its own.
    """
    T, K = 40, 5
    batch = given(operator, T=T, K=K, V=3, options={"gain": "raw", "lam0": lam0, "normalizer": False})
    batch.tensors["u"].copy_(batch.tensors["k"] / batch.tensors["k"].norm(dim=-1, keepdim=True))
    outcome = run(operator, variant, batch)
    keys, values = (batch.tensors[name][0, :, 0].numpy() for name in ("u", "v"))
    matrix = lam0 * np.eye(K) + keys.T @ keys
    S = np.linalg.solve(matrix, keys.T @ values)
    bound = 2 * (T + K) * np.linalg.cond(matrix) * np.abs(S).max() * ROUNDOFF
    assert np.abs(outcome["state.S"][0, 0].numpy() - S).max() <= bound
    last = batch.tensors["q"][0, -1, 0].numpy()
    assert np.abs(outcome["o"][0, -1, 0].numpy() - last @ S).max() <= bound * np.abs(last).sum()


@NUDGED
def test_rank_one_updates_equal_factorisations_on_benign_input(operator: Operator, variant: Variant):
    batch = given(operator, T=64, K=6, V=4, H=2)
    updated = Variant(name="updated", function=variant.function, options={"inverse": "sherman-morrison"})
    failed = list(within_budget(operator, batch, run(operator, updated, batch).values, "float64"))
    assert not failed, failed


def public_variant(batch: Batch, lam0: float, period: int, nudge: float) -> tuple[np.ndarray, np.ndarray]:
    """The authors' loop for one head: A -= z z^T/(1 + u z), and A += nudge I after every ``period`` tokens."""
    q, k, v, u = (batch.tensors[name][0, :, 0].numpy() for name in ("q", "k", "v", "u"))
    A, S, z, rows = np.eye(q.shape[1]) / lam0, np.zeros((v.shape[1], q.shape[1])), np.zeros(q.shape[1]), []
    for t in range(len(q)):
        direction = A @ u[t]
        A = A - np.outer(direction, direction) / (1 + u[t] @ direction)
        if (t + 1) % period == 0:
            A = A + nudge * np.eye(len(A))
        key = k[t] / np.linalg.norm(k[t])
        write = A @ key / np.linalg.norm(A @ key)
        S = S + np.outer(v[t] - S @ key, write)
        z = z + k[t]
        rows.append(S @ q[t] / max(z @ q[t], 1e-6))
    return np.array(rows), S.T


@NUDGED
def test_the_nudged_variant_is_the_public_code(operator: Operator, variant: Variant):
    """nudge_period = 20, nudge = 1e-3; held to the movement of the recurrence it perturbs."""
    batch = given(operator, T=70, K=6, V=4)
    options = {"inverse": "sherman-morrison", "nudge_period": 20, "nudge": 1e-3}
    nudged = Variant(name="nudged", function=variant.function, options=options)
    outcome, plain = run(operator, nudged, batch), run(operator, variant, batch)
    kappa = Examination(operator, batch).sensitivity
    rows, S = public_variant(batch, 0.1, 20, 1e-3)
    for name, exact in (("o", rows[None, :, None]), ("state.S", S[None, None])):
        wanted = Wanted(exact, 0 * exact, kappa.kappa(name), 0 * exact, 2 if name == "o" else 1)
        verdict = compare(name, outcome[name], wanted, "float64", ROUNDOFF)
        assert verdict.passed, verdict.message()
    assert bool((outcome["o"][:, :19] - plain["o"][:, :19]).abs().max() < (outcome["o"] - plain["o"]).abs().max())


@STATEFUL
def test_gradient_flows_from_the_final_to_the_initial_state(
    operator: Operator, variant: Variant, setting: Mapping[str, Scalar]
):
    """And only where the state is used: every initial tensor's gradient is finite and not zero."""
    batch = given(operator, options=setting, B=3, T=5, K=4, V=3, H=2, initial_state=True)
    batch.cotangents["o"].zero_()
    outcome = run(operator, variant, batch, backward=True)
    for name in (name for name in batch.cotangents if name != "o"):
        grad = outcome[f"d {name}"]
        assert bool(grad.isfinite().all()) and bool((grad != 0).any()), name


INSIDE = {"log_gate": (None, -0.5), "weight": (0.5, None)}
"""Where a difference of two values stays in the domain."""


@WHOLE
def test_a_second_derivative_works_or_says_that_it_does_not(
    operator: Operator, variant: Variant, setting: Mapping[str, Scalar]
):
    """Against a difference of first derivatives; an error is of the operator, not autograd's about an unused input."""
    batch = given(operator, options=setting, T=5, K=4, V=3)
    for x in operator.inputs_of(batch.options):
        batch.tensors[x.name].clamp_(*INSIDE.get(x.domain, (-np.inf, None)))

    def slopes(tensors: list[torch.Tensor], twice: bool) -> tuple[torch.Tensor, ...]:
        positional, optional = spread(operator, dict(zip(batch.tensors, tensors, strict=True)))
        o, _ = resolve(variant.function)(*positional, **optional, **keywords(operator, variant, batch))
        return torch.autograd.grad(o.square().sum(), tensors, create_graph=twice)

    inputs = [x.requires_grad_() for x in batch.tensors.values()]
    first = slopes(inputs, twice=True)
    try:
        second = torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), inputs)
    except RuntimeError as error:
        assert "differentiate twice" in str(error), f"not a clear error: {error}"
        return
    assert all(bool(x.isfinite().all()) for x in second)
    step = 2.0**-17  # the cube root of float64's roundoff; truncation and rounding are both about its square
    shifts = [
        torch.randn(x.shape, generator=torch.Generator().manual_seed(i), dtype=x.dtype) for i, x in enumerate(inputs)
    ]
    sides = []
    for sign in (1, -1):
        moved = [(x + sign * step * d).detach().requires_grad_() for x, d in zip(inputs, shifts, strict=True)]
        sides.append(sum(g.square().sum() for g in slopes(moved, twice=False)))
    quotient, slope = (
        (sides[0] - sides[1]) / (2 * step),
        sum((g * d).sum() for g, d in zip(second, shifts, strict=True)),
    )
    size = sum((g.abs() * d.abs()).sum() for g, d in zip(second, shifts, strict=True)) + abs(sides[0])
    assert abs(quotient - slope) <= 30 * step * size


class Largest(TorchDispatchMode):
    """Records the largest number of elements of any result."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


@SECOND_MOMENTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_matrix_a_token_is_ever_made(
    operator: Operator, variant: Variant, setting: Mapping[str, Scalar], dtype: str
):
    """T = 1024, K = 16: nothing as large as [T, K, K], forward or backward."""
    batch = given(operator, dtype, setting, T=1024, K=16, V=16)
    with Largest() as largest:
        run(operator, variant, batch, backward=True)
    assert 1024 * 16 <= largest.numel < 1024 * 16 * 16, largest.numel
