"""The gradient oracle: it agrees with autograd of a definition written here, covers every input, and refuses."""

import dataclasses
from typing import Any

import flint
import numpy as np
import pytest
import torch

from linattest.verify import registry
from linattest.verify.gradients import CHUNK, Direction, derivative, directions
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import ArbContext, Context
from linattest.verify.spec import Operator

VLA, LINEAR, SOFTMAX = (registry.operator(name) for name in ("vla", "linear", "softmax"))


def batch_of(operator: Operator, *, seed: int = 0, options: dict[str, Any] | None = None, **sizes: Any) -> Batch:
    """A float64 batch, by default with an initial state."""
    knobs: dict[str, Any] = {"T": 5, "K": 3, "V": 2, "initial_state": True, **sizes}
    structure = Structure(**knobs)
    case = Case(operator=operator.name, structure=structure, dtype="float64", seed=seed, options=options or {})
    return build(operator, case)


def defined_loss(batch: Batch, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
    """sum(o do) + sum(state dstate) of VLA by its definition: an inverse a token, nothing shared with impls."""
    q, k, v, u, lam0 = (leaves[name] for name in ("q", "k", "v", "u", "lam0"))
    options, given = batch.options, batch.cotangents
    S, M, z = (leaves[f"state.{name}"] for name in "SMz")
    M = (M + M.mT) / 2
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(q.shape[1]):
        M = M + u[:, t, :, :, None] * u[:, t, :, None, :]
        key = k[:, t] / k[:, t].norm(dim=-1, keepdim=True)
        write = torch.linalg.inv(M + lam0 * torch.eye(M.shape[-1], dtype=torch.float64)) @ key[..., None]
        if options["gain"] == "unit":
            write = write / write.norm(dim=-2, keepdim=True)
        S = S + write * (v[:, t] - (S.mT @ key[..., None])[..., 0])[..., None, :]
        z = z + k[:, t]
        o = (S.mT @ q[:, t, :, :, None])[..., 0]
        if options["normalizer"]:
            o = o / (z * q[:, t]).sum(-1, keepdim=True)
        loss = loss + (o * given["o"][:, t]).sum()
    return loss + sum((x * given[f"state.{name}"]).sum() for name, x in zip("SMz", (S, M, z), strict=True))


def autograd(batch: Batch) -> dict[str, np.ndarray]:
    """The gradient of the defined loss in float64."""
    assert batch.state is not None
    leaves = batch.tensors | {f"state.{name}": x for name, x in batch.state.items()}
    leaves = {name: x.double().clone().requires_grad_() for name, x in leaves.items()}
    leaves["lam0"] = torch.tensor(batch.options["lam0"], dtype=torch.float64, requires_grad=True)
    grads = torch.autograd.grad(defined_loss(batch, leaves), list(leaves.values()))
    return {name: grad.numpy() for name, grad in zip(leaves, grads, strict=True)}


@pytest.mark.parametrize("options", [{}, {"normalizer": False}, {"gain": "raw", "lam0": 1.0}])
def test_derivative_equals_autograd_of_the_definition(options: dict[str, Any]):
    batch = batch_of(VLA, H=2, options=options)
    grads = autograd(batch)
    tried = list(directions(VLA, batch, every_edge=True))
    for direction in tried:
        expected = float(np.sum(grads[direction.input] * direction.array))
        assert derivative(VLA, batch, direction) == pytest.approx(expected, rel=1e-9, abs=1e-11), direction.name
    assert len(tried) == 4 * 3 + 3 + 1


def test_derivative_sees_one_gradient_scaled_by_a_thousandth():
    """What the comparison above is worth: no direction's derivative is lost in its tolerance."""
    batch = batch_of(VLA)
    for direction in directions(VLA, batch):
        exact = derivative(VLA, batch, direction)
        assert exact != pytest.approx(1.001 * exact, rel=1e-9, abs=1e-11), direction.name


@pytest.mark.parametrize("name", [operator.name for operator in registry.OPERATORS])
def test_directions_cover_every_input_state_and_scalar(name: str):
    operator = registry.operator(name)
    batch = batch_of(operator, T=CHUNK + 2, K=4)
    found = list(directions(operator, batch, every_edge=True))
    full = {d.input: d for d in found if d.where == "full"}
    states = {f"state.{x.name}" for x in operator.states_of(batch.options) if not x.whole}
    scalars = {x.name for x in operator.options if x.differentiable and x.name in batch.options}
    assert set(full) == {x.name for x in operator.inputs_of(batch.options)} | states | scalars
    for x in operator.inputs_of(batch.options):
        assert full[x.name].array.shape == tuple(batch.tensors[x.name].shape)
        assert np.mean(full[x.name].array != 0) > 0.8
        single = {d.where: d for d in found if d.input == x.name and d.where != "full"}
        assert set(single) == {f"token {t}" for t in (0, CHUNK - 1, CHUNK, CHUNK + 1)}
        for where, direction in single.items():
            live = np.unique(np.nonzero(direction.array)[1]).tolist()
            assert [where] == [f"token {t}" for t in live], (x.name, live)
    assert len({d.name for d in found}) == len(found)


@pytest.mark.parametrize("name", [operator.name for operator in registry.OPERATORS])
def test_without_every_edge_each_input_has_one_and_cases_take_turns(name: str):
    operator = registry.operator(name)
    batches = [batch_of(operator, T=CHUNK + 2, K=4, seed=seed) for seed in range(12)]
    edges: dict[str, set[str]] = {x.name: set() for x in operator.inputs_of()}
    for batch in batches:
        all_of_it = {d.name for d in directions(operator, batch, every_edge=True)}
        found = list(directions(operator, batch))
        assert {d.name for d in found} <= all_of_it
        for x in operator.inputs_of(batch.options):
            (edge,) = [d.where for d in found if d.input == x.name and d.where != "full"]
            edges[x.name].add(edge)
    assert all(len(seen) >= 3 for seen in edges.values()), edges


def test_directions_are_the_same_each_time_and_exact_in_few_bits():
    first, second = (list(directions(VLA, batch_of(VLA))) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.name == b.name and np.array_equal(a.array, b.array)
        assert np.array_equal(a.array * 8, np.round(a.array * 8)) and np.abs(a.array).max() <= 1


def full_direction(batch: Batch, name: str) -> Direction:
    return next(d for d in directions(VLA, batch) if d.name == f"{name}.full")


@pytest.mark.parametrize("name", ["q", "k", "v", "u", "state.S", "state.M", "state.z"])
def test_dead_head_has_derivative_exactly_zero(name: str):
    """The loss looks at head 0 alone; the direction moves head 1 alone."""
    batch = batch_of(VLA, H=2)
    cotangents = {k: x.clone() for k, x in batch.cotangents.items()}
    for k, x in cotangents.items():
        x.select(2 if k == "o" else 1, 1).zero_()
    full = full_direction(batch, name)
    array = full.array.copy()
    np.moveaxis(array, 1 if name.startswith("state.") else 2, 0)[0] = 0
    assert array.any()
    batch = batch.with_(cotangents=cotangents)
    assert derivative(VLA, batch, dataclasses.replace(full, array=array)) == 0.0
    assert derivative(VLA, batch, full) != 0.0


def test_future_token_has_derivative_exactly_zero():
    batch = batch_of(LINEAR, initial_state=False)
    cotangents = {k: torch.zeros_like(x) for k, x in batch.cotangents.items()}
    cotangents["o"][:, :3] = batch.cotangents["o"][:, :3]
    batch = batch.with_(cotangents=cotangents)
    late = [d for d in directions(LINEAR, batch, every_edge=True) if d.where == "token 4"]
    assert [derivative(LINEAR, batch, direction) for direction in late] == [0.0] * 3


def test_grouped_heads_share_the_gradient_of_their_key():
    """o = scale sum_s (q . k_s) v_s: the derivative along k at width 1, by hand, over both value heads."""
    batch = batch_of(LINEAR, T=2, K=1, V=1, group=2, initial_state=False, options={"scale": 1.0})
    q, v, do = (x.numpy() for x in (batch.tensors["q"], batch.tensors["v"], batch.cotangents["o"]))
    direction = Direction("k", "token 0", np.array([1.0, 0.0]).reshape(1, 2, 1, 1))
    expected = sum(q[0, t, 0, 0] * do[0, t, h, 0] * v[0, 0, h, 0] for t in range(2) for h in range(2))
    expected += sum(v[0, 0, h, 0] * batch.cotangents["state.S"][0, h, 0, 0].item() for h in range(2))
    assert derivative(LINEAR, batch, direction) == pytest.approx(expected, rel=1e-14)


def test_packed_sequences_and_states_are_moved_where_they_are():
    """Each sequence's derivative along the packed direction adds up to the derivative of the whole."""
    batch = batch_of(VLA, T=7, cu_seqlens=(0, 3, 3, 6))
    for name in ("k", "state.S"):
        full = full_direction(batch, name)
        parts = []
        for n, (_, start, stop) in enumerate(batch.case.structure.sequences):
            array = np.zeros_like(full.array)
            place = np.s_[n] if name.startswith("state.") else np.s_[0, start:stop]
            array[place] = full.array[place]
            parts.append(derivative(VLA, batch, dataclasses.replace(full, array=array)))
        assert sum(parts) == pytest.approx(derivative(VLA, batch, full), rel=1e-13)
        assert parts[0] and parts[2]


@pytest.mark.parametrize("radius", [1e-3, float("nan")])
def test_derivative_whose_ball_is_wide_is_refused(radius: float):
    def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
        rows, final = LINEAR.oracle(ctx, head)
        assert isinstance(ctx, ArbContext)
        return [row + flint.arb_mat(2, 1, [flint.arb(0, radius)] * 2) for row in rows], final

    operator = dataclasses.replace(LINEAR, oracle=oracle)
    batch = batch_of(LINEAR)
    with pytest.raises(ArithmeticError):
        derivative(operator, batch, next(directions(operator, batch)))
