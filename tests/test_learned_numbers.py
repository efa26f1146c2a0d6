"""A number that may be learned is the same as a float, a scalar or one number a head, and each head has its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from linattest.verify import registry
from linattest.verify.grids import settings
from linattest.verify.inputs import Batch, Case, Scalar, Structure, build, resolve_options
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import keywords, name_state, pack_state, resolve, spread
from linattest.verify.tolerance import unit_roundoff

ROUNDOFF = unit_roundoff("float64")

PLACES = [
    pytest.param(o, v, setting, id="-".join([o.name, v.name, *(f"{k}={x}" for k, x in setting.items())]))
    for o in registry.OPERATORS
    for v in o.variants
    for setting in settings(o)
    if v.kind == "sequence"
    and not v.kernel
    and any(x.differentiable and x.name in resolve_options(o, setting) for x in o.options)
]
LEARNED = pytest.mark.parametrize("operator, variant, setting", PLACES)


def given(operator: Operator, setting: Mapping[str, Scalar], dtype: str = "float64", **sizes: Any) -> Batch:
    return build(operator, Case(operator=operator.name, structure=Structure(**sizes), dtype=dtype, options=setting))


def learned_run(operator: Operator, variant: Variant, batch: Batch, value: object) -> list[torch.Tensor]:
    """Output and final state with every learned number set to this value."""
    names = [x.name for x in operator.options if x.differentiable and x.name in batch.options]
    options = keywords(operator, variant, batch) | dict.fromkeys(names, value)
    options |= {"initial_state": pack_state(operator, batch.state, batch.options), "output_final_state": True}
    positional, optional = spread(operator, batch.tensors)
    o, final = resolve(variant.function)(*positional, **optional, **options)
    return [o, *name_state(operator, final, batch.options).values()]


@LEARNED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_learned_number_as_a_float_a_scalar_and_one_a_head_is_one(
    operator: Operator, variant: Variant, setting: Mapping[str, Scalar], dtype: str
):
    batch = given(operator, setting, dtype, T=70, K=4, V=3, H=2, initial_state=True)
    values = (0.375, torch.tensor(0.375), torch.tensor([0.375, 0.375]), torch.tensor(0.375, dtype=torch.float64))
    first, *others = (learned_run(operator, variant, batch, value) for value in values)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@LEARNED
def test_a_learned_number_a_head_is_each_head_by_itself(
    operator: Operator, variant: Variant, setting: Mapping[str, Scalar]
):
    """Two rows, two heads, numbers that differ: no head uses another's, and each gets its own gradient."""
    batch = given(operator, setting, B=2, T=70, K=4, V=3, H=2)

    def results(batch: Batch, value: torch.Tensor) -> list[torch.Tensor]:
        learned = value.clone().requires_grad_()
        o = learned_run(operator, variant, batch, learned)[0]
        return [o.detach(), *torch.autograd.grad(o.square().sum(), learned)]

    heads = torch.tensor([0.375, 1.5], dtype=torch.float64)
    o, slope = results(batch, heads)
    for h in range(2):
        mine = {name: x[:, :, h : h + 1] for name, x in batch.tensors.items()}
        alone, own = results(batch.with_(tensors=mine), heads[h : h + 1])
        # the same terms; the sum over rows and tokens may be taken in another order
        terms = sum(x.numel() for x in mine.values())
        assert torch.equal(o[:, :, h : h + 1], alone)
        assert (slope[h] - own[0]).abs() <= terms * ROUNDOFF * own[0].abs()
