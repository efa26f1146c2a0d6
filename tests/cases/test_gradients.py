"""K16, K17: gradients of the normalised form, of the scale, and of heads that share keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch

from linattest.verify.examine import Examination, examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Batch, Case, Structure
from linattest.verify.measure import THRESHOLD
from linattest.verify.spec import Operator
from linattest.verify.subjects import keywords, resolve, run, spread
from linattest.verify.tolerance import unit_roundoff


def has_option(name: str) -> pytest.MarkDecorator:
    return pytest.mark.where(keep=lambda operator, variant: name in {option.name for option in operator.options})


def grouped(operator: Operator, options: Mapping[str, Any]) -> bool:
    alone = operator.ungrouped is not None and operator.ungrouped(options)
    return not alone and any(x.per_value_head for x in operator.inputs_of(options))


@pytest.mark.under(keep=lambda operator, options: options.get("normalizer") is True)
def test_gradients_of_the_normalised_form_match_central_differences(operator, setting):
    """B = 2, H = 2, D = 8, positive keys: the oracle's own differences at 400 bits, in float64 and float32."""
    structure = Structure(B=2, T=24, H=2, K=8, V=8)
    for dtype in ("float64", "float32"):
        case = Case(operator=operator.name, structure=structure, dtype=dtype, options=setting)
        records = [r for r in examine(Job(case)) if r.direction == "gradient"]
        assert records and any("full" in name for r in records for name in r.ratios), "no certified direction"
        failed = [f"{r.variant}: {r.message}" for r in records if r.failed]
        assert not failed, failed


def test_no_gradient_is_missing_or_zero(operator, variant, setting, make):
    """Every input moves the output, so autograd must reach it: no cut graph."""
    batch = make(operator, T=20 if variant.kind == "sequence" else 6, K=8, V=8, H=2, options=setting)
    leaves = {name: x.requires_grad_() for name, x in batch.tensors.items()}
    options = keywords(operator, variant, batch)
    for option in operator.options:
        if option.differentiable and option.name in options:
            leaves[option.name] = options[option.name] = torch.tensor(option.default).requires_grad_()
    function = resolve(variant.function)
    if variant.kind == "step":
        state, rows = None, []
        for t in range(6):
            positional, optional = spread(operator, {name: x[:, t : t + 1] for name, x in batch.tensors.items()})
            o, state = function(*positional, initial_state=state, **optional, **options)
            rows.append(o)
        o = torch.cat(rows, 1)
    else:
        positional, optional = spread(operator, batch.tensors)
        o, _ = function(*positional, **optional, **options)
    grads = torch.autograd.grad(o, list(leaves.values()), batch.cotangents["o"], allow_unused=False)
    for name, grad in zip(leaves, grads, strict=True):
        assert bool(grad.isfinite().all()) and bool((grad != 0).any()), name


@has_option("scale")
@pytest.mark.where(keep=lambda operator, variant: bool(operator.states_of()))
@pytest.mark.parametrize("K", [16, 64])
@pytest.mark.parametrize("scale", [-2.0, -1.0, 0.5, None], ids=str)
def test_output_and_gradients_are_linear_in_a_power_of_two(operator, variant, make, same_bits, scale, K):
    """Bit-equal to the scale-1 run times the factor; None is K^-0.5, a power of two here, and -1 is not None."""
    T = 66 if variant.name == "chunk" else 9

    def outcome(scale: float | None) -> dict[str, torch.Tensor]:
        batch = make(operator, T=T, K=K, V=4, options={} if scale is None else {"scale": scale})
        batch.cotangents.update({k: torch.zeros_like(x) for k, x in batch.cotangents.items() if k != "o"})
        return run(operator, variant, batch, backward=True).values

    got, one = outcome(scale), outcome(1.0)
    factor = K**-0.5 if scale is None else scale
    for name, x in one.items():
        same_bits(got[name], x if name.startswith("state.") else x * factor, name)


@has_option("scale")
@pytest.mark.parametrize("scale", [0.37, -2.0, 1.0])
def test_every_scale_is_right(operator, make, judge, scale):
    judge(operator, make(operator, T=16, K=16, V=4, options={"scale": scale}), backward=True)


@pytest.mark.where(keep=lambda operator, variant: "grouped" in variant.supports)
@pytest.mark.under(keep=grouped)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grouped_heads_equal_repeated_heads_and_share_gradients(operator, variant, setting, make, same_bits, dtype):
    """H = 2, HV = 4: the same bits as with keys repeated, and each key gradient is the sum over its group.

    Both round each repeated head's gradient once; their sum of two and the grouped one's own rounding add at most
    2 u (|a| + |b|) in the output's type: 3 u in all. Of what cancels in a head no more than the float64 arithmetic of
    both is left: twice the harness's budget in that type.
    """
    T = 20 if variant.kind == "sequence" else 6
    batch = make(operator, B=2, T=T, K=4, V=3, H=2, group=2, dtype=dtype, options=setting)
    shared = {x.name for x in operator.inputs_of(batch.options) if not x.per_value_head}
    tensors = {k: x.repeat_interleave(2, 2) if k in shared else x for k, x in batch.tensors.items()}
    cotangents = dict(batch.cotangents)
    per_key_head = {f"state.{x.name}": x.head_axis for x in operator.states_of(batch.options) if not x.per_value_head}
    for name, axis in per_key_head.items():
        if axis is not None:
            batch.cotangents[name].zero_()
            cotangents[name] = batch.cotangents[name].repeat_interleave(2, axis)
    structure = msgspec.structs.replace(batch.case.structure, H=4, group=1)
    case = msgspec.structs.replace(batch.case, structure=structure)
    backward = variant.kind == "sequence"  # one token at a time, a cache's gradient adds up in the input dtype
    got = run(operator, variant, batch, backward=backward)
    apart = run(operator, variant, Batch(case, tensors, None, batch.options, cotangents), backward=backward)
    roundoff = unit_roundoff(dtype)
    for name, x in apart.values.items():
        if name.removeprefix("d ") in shared and name.startswith("d "):
            pair = x.double().unflatten(2, (2, 2))
            off = (got[name].double() - pair.sum(3)).abs() - 3 * roundoff * pair.abs().sum(3)
            if bool((off > 0).any()):
                kappa = torch.from_numpy(Examination(operator, batch).sensitivity.kappa(name))
                off -= 2 * THRESHOLD * kappa * unit_roundoff("float64") / unit_roundoff(dtype)
            assert bool((off <= 0).all()), name
        else:
            axis = per_key_head.get(name)
            same_bits(got[name] if axis is None else got[name].repeat_interleave(2, axis), x, name)
