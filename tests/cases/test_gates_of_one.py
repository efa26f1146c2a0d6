"""K03, K29: the gate that is exactly 1, and every regime of gates."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from linattest.verify import grids, registry
from linattest.verify.inputs import Scalar, resolve_options
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import call, resolve, run


def has_levels(operator: Operator, options: Mapping[str, object]) -> bool:
    return any(x.domain == "level" for x in operator.inputs_of(options))


WITH_LEVELS = pytest.mark.under(keep=has_levels)
WITHOUT_LEVELS = pytest.mark.under(keep=lambda operator, options: not has_levels(operator, options))


def corrects(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether a unit key with beta or gain 1 takes away all that was stored under it."""
    names = {x.name for x in operator.inputs_of(options)}
    return "v" in names and bool(names & {"beta", "erase", "u"}) and options.get("gain", "unit") == "unit"


def twins(operator: Operator, setting: Mapping[str, Scalar]) -> Iterator[tuple[Operator, dict[str, Any]]]:
    """The operator with one switch turned, and every setting of the others."""
    for option in (x for x in operator.options if isinstance(x.default, bool | str)):
        for value in {option.default, *(given.get(option.name, option.default) for given in operator.grid)}:
            turned = {x.name: x.default for x in operator.options} | {**setting, option.name: value}
            idle = {x.name for x in operator.options if x.when is not None and not x.when(turned)}
            kept = {k: turned[k] for k in {*setting, option.name} - idle}
            yield operator, {k: x for k, x in kept.items() if x is not None}
    yield from ((other, given) for other in registry.OPERATORS for given in grids.settings(other))


def without(operator: Operator, setting: Mapping[str, Scalar], *gone: str) -> tuple[Operator, dict[str, Scalar]]:
    """The operator and setting that has all inputs but those, and no memory that this one lacks."""
    options = resolve_options(operator, setting)
    inputs = [(x.name, x.shape) for x in operator.inputs_of(options) if x.name not in gone]
    memory = {x.name for x in operator.states_of(options)}
    for twin, given in twins(operator, setting):
        theirs = resolve_options(twin, given)
        states = {x.name for x in twin.states_of(theirs)}
        if states and states <= memory and [(x.name, x.shape) for x in twin.inputs_of(theirs)] == inputs:
            return twin, given
    raise AssertionError(f"no way to leave {gone} out of {operator.name} with {setting}")


@WITHOUT_LEVELS
@pytest.mark.parametrize("T", [7, 50, 64, 65, 128, 200])
def test_gates_of_one_are_no_gates(operator, variant, setting, gate, make, same_bits, T):
    """Against the call without the gate or, where it is no option, the operator that has the other inputs."""
    chunked = "chunk_size" in inspect.signature(resolve(variant.function)).parameters
    batch = make(operator, T=T if chunked else min(T, 20), K=4, V=3, H=2, options=setting)
    batch.tensors[gate.name].zero_()
    gated = run(operator, variant, batch, backward=True)
    plain = batch.with_(tensors={name: x for name, x in batch.tensors.items() if name != gate.name})
    parameters, twin = inspect.signature(resolve(variant.function)).parameters, operator
    if gate.name not in parameters or parameters[gate.name].default is not None:
        twin, given = without(operator, setting, gate.name)
        plain = plain.with_(options=resolve_options(twin, given))
    outcome = run(twin, twin.variant(variant.name), plain, backward=True, caller=call)
    for name, x in outcome.values.items():
        same_bits(gated[name], x, name)


@WITH_LEVELS
@pytest.mark.parametrize("T", [7, 50, 64, 65, 128, 200])
def test_gates_and_level_weights_of_one_are_none(operator, setting, gate, make, judge, T):
    """Held to the oracle and the budget of the operator that has the other inputs."""
    batch = make(operator, T=T, K=4, V=3, H=2, options=setting)
    batch.tensors[gate.name].zero_()
    weights = next(x.name for x in operator.inputs_of(batch.options) if x.domain == "level")
    batch.tensors[weights].fill_(1)
    twin, given = without(operator, setting, gate.name, weights)
    plain = make(twin, T=T, K=4, V=3, H=2, options=given)
    for x in (batch, plain):
        x.cotangents.update({k: torch.zeros_like(y) for k, y in x.cotangents.items() if k != "o"})
    tensors = {name: batch.tensors[name] for name in plain.tensors}
    plain = plain.with_(tensors=tensors, cotangents=plain.cotangents | {"o": batch.cotangents["o"]})

    def obtain(variant: Variant) -> dict[str, torch.Tensor]:
        values = run(operator, operator.variant(variant.name), batch, backward=True).values
        return {name: values[name] for name in ("o", *(f"d {x}" for x in tensors))}

    judge(twin, plain, obtain, backward=True)


def test_every_regime_of_gates_is_right(operator, setting, gate, make, judge):
    """K29's regimes too, a row each: constants, resets, a random half of random gates 0."""
    regimes = [0.0, -1e-3, -1.0, -5.0, -50.0, -torch.inf]
    batch = make(operator, B=len(regimes) + 1, T=67, K=3, V=2, options=setting)
    x = batch.tensors[gate.name]
    for row, g in enumerate(regimes):
        x[row] = g
    x[-1][torch.rand(x[-1].shape, generator=torch.Generator().manual_seed(0)) < 0.5] = 0
    for weight in (y for y in operator.inputs_of(batch.options) if y.domain == "weight"):
        batch.tensors[weight.name].clamp_(min=0.125)  # or a carried count goes below the smallest number at -50 a token
    judge(operator, batch, backward=True)


@pytest.mark.under(keep=corrects)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_repeated_key_reads_the_last_value(operator, variant, setting, uniform, same_bits, dtype):
    """The delta rule with identical unit keys, v = 1, beta = 1: o_t = scale exactly."""
    options = resolve_options(operator, setting)
    one = {"normalizer": False} if "normalizer" in options else {"scale": 0.5}
    batch = uniform(operator, T=70, K=4, V=2, options={**setting, **one}, dtype=dtype)
    if "erase" in batch.tensors:
        batch.tensors["erase"].copy_(batch.tensors["write"])
    o = run(operator, variant, batch)["o"]
    same_bits(o, torch.full_like(o, one.get("scale", 1)), "o")
