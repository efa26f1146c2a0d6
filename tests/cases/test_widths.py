"""K18: widths that are no power of two equal the run zero-padded to the next one, at the same scale."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from linattest.verify.examine import Examination
from linattest.verify.inputs import Batch, Scalar, resolve_options
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import run

WIDTHS = (1, 8, 24, 40, 48, 72, 80, 96, 100, 112)


def padded(operator: Operator, batch: Batch, K: int, V: int) -> Batch:
    """The batch with zeros appended along its key and value widths."""
    widths = {"K": K, "V": V}

    def wider(x: torch.Tensor, shape: str) -> torch.Tensor:
        letters = shape.split()
        wide = x.new_zeros([widths.get(letter, size) for letter, size in zip(letters, x.shape, strict=True)])
        wide[tuple(slice(size) for size in x.shape)] = x
        return wide

    shapes = {"o": operator.output} | {f"state.{x.name}": x.shape for x in operator.states_of(batch.options)}
    structure = msgspec.structs.replace(batch.case.structure, K=K, V=V)
    return batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={x.name: wider(batch.tensors[x.name], x.shape) for x in operator.inputs_of(batch.options)},
        state={x.name: wider(batch.state[x.name], x.shape) for x in operator.states_of(batch.options)}
        if batch.state
        else None,
        cotangents={name: wider(x, shapes[name]) for name, x in batch.cotangents.items()},
    )


def has_values(operator: Operator, variant: Variant) -> bool:
    return any("V" in x.shape.split() for x in operator.inputs_of())


@pytest.mark.parametrize("width", WIDTHS)
def test_an_odd_key_width_is_the_padded_one(operator, make, near, same_bits, in_turn, width):
    for options in in_turn(operator, WIDTHS.index(width)):
        check(operator, make, near, same_bits, options, {"K": width, "V": 5})


@pytest.mark.where(keep=has_values)
@pytest.mark.parametrize("width", WIDTHS)
def test_an_odd_value_width_is_the_padded_one(operator, make, near, same_bits, in_turn, width):
    for options in in_turn(operator, WIDTHS.index(width)):
        check(operator, make, near, same_bits, options, {"K": 5, "V": width})


def check(
    operator: Operator, make: Any, near: Any, same_bits: Any, options: dict[str, Scalar], sizes: dict[str, int]
) -> None:
    """Both are held to the float64 reference, repeats to the same bits, the added lanes to exact zeros."""
    if "scale" in resolve_options(operator, options):
        options = options | {"scale": sizes["K"] ** -0.5}
    state = bool(operator.states_of())
    batch = make(operator, T=5, H=2, initial_state=state, options=options, **sizes)
    sensitive = Examination(operator, batch).sensitivity
    power = {name: 1 << (size - 1).bit_length() for name, size in sizes.items()}
    wide = padded(operator, batch, power["K"], power["V"])
    for variant in operator.variants:
        if not variant.function.startswith("linattest.impls.") or (state and "state" not in variant.supports):
            continue
        plain, again, other = (run(operator, variant, b, backward=True) for b in (batch, batch, wide))
        for name, reference in sensitive.values.items():
            what = f"{variant.name} {options} {name}"
            same_bits(again[name], plain[name], f"repeat of {what}")
            exact, kappa = torch.as_tensor(reference), torch.as_tensor(sensitive.kappa(name))
            inner = other[name][tuple(slice(size) for size in exact.shape)]
            for run_of, got in (("", plain[name]), ("padded ", inner)):
                near(f"{run_of}{what}", got.reshape(exact.shape), exact, kappa, "float32")
            added = other[name].clone()
            added[tuple(slice(size) for size in exact.shape)] = 0
            same_bits(added, torch.zeros_like(added), f"added lanes of {what}")
