"""Unavoidable error is what roundings do to the definition, not what they do to a clever program."""

import dataclasses
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from linattest.impls import linear
from linattest.verify import examine, registry, sensitivity
from linattest.verify.examination import Examination
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.sensitivity import Sensitivity
from linattest.verify.spec import Operator, Variant
from linattest.verify.stochastic import RandomRounding
from linattest.verify.subjects import provide, resolve, run
from linattest.verify.tolerance import PATTERNS, THRESHOLD, unit_roundoff

LINEAR = registry.operator("linear")

COVARIANCE = registry.operator("covariance_contract")


def sizes(found: Sensitivity) -> dict[str, float]:
    """The typical kappa of each output that is not all zero, in roundings of its typical element."""
    rms = {name: float(np.sqrt(np.mean(x * x))) for name, x in found.values.items() if x.any()}
    return {name: float(np.median(found.kappa(name))) / rms[name] / unit_roundoff("float32") for name in rms}


def exaggeration(operator: Operator, batch: Batch) -> dict[str, float]:
    """By output, how much larger kappa is with every operation moved than with the inputs moved alone."""
    with pytest.MonkeyPatch.context() as patch:
        full = sizes(sensitivity.sensitivity(operator, batch, backward=batch.case.gradient))
        patch.setattr(sensitivity, "RandomRounding", lambda *_: nullcontext())
        inputs = sizes(sensitivity.sensitivity(operator, batch, backward=batch.case.gradient))
    return {name: full[name] / max(inputs[name], 0.1) for name in full}


def batch_of(operator: Operator, T: int = 20) -> Batch:
    structure = Structure(T=T, K=5, V=4, H=2, initial_state=True)
    return build(operator, Case(operator=operator.name, structure=structure, seed=2))


@pytest.mark.parametrize("name", [operator.name for operator in registry.OPERATORS])
def test_moving_operations_is_not_much_worse_than_moving_inputs(name: str):
    """On a benign input. More means that the reference runs a trick, such as an error-free sum, that roundings undo:
    kappa is then not the problem's, and the harness is blind."""
    found = exaggeration(registry.operator(name), batch_of(registry.operator(name)))
    assert {what: round(x) for what, x in found.items() if x > THRESHOLD} == {}


def anchored(*x: torch.Tensor, output_final_state: bool, **given: object) -> tuple[torch.Tensor, object]:
    """Linear attention with a trick: each value is cut at a grid far above it, and put together again."""
    q, k, v = x
    coarse, again = ((v + 4096.0) - 4096.0 for _ in range(2))
    return linear.recurrent(q, k, coarse + (v - again), output_final_state=output_final_state, **given)  # type: ignore[arg-type]


def test_a_reference_with_a_trick_is_seen():
    variant = Variant(name="recurrent", function=f"{__name__}:anchored")
    found = exaggeration(dataclasses.replace(LINEAR, variants=(variant,)), batch_of(LINEAR))
    assert found["o"] > THRESHOLD


def test_movement_is_seeded_and_every_pattern_differs():
    first, second = (sensitivity.sensitivity(LINEAR, batch_of(LINEAR), backward=True) for _ in range(2))
    for name, shifts in first.shifts.items():
        assert np.array_equal(shifts, second.shifts[name])
        assert len(shifts) == PATTERNS
        assert len({shift.tobytes() for shift in shifts}) == (PATTERNS if first.values[name].any() else 1), name


def test_exact_zeros_do_not_move():
    batch = batch_of(LINEAR)
    batch = batch.with_(tensors=batch.tensors | {"q": torch.zeros_like(batch.tensors["q"])})
    assert not sensitivity.sensitivity(LINEAR, batch, backward=False).kappa("o").any()


def test_kappa_scales_with_the_roundoff_of_the_accumulation_type():
    batch = batch_of(LINEAR)
    wide = batch.with_(case=Case(operator="linear", structure=batch.case.structure, dtype="float64", seed=2))
    narrow, fine = (sensitivity.sensitivity(LINEAR, b, backward=False).kappa("o") for b in (batch, wide))
    assert np.median(narrow / fine) == pytest.approx(2.0**29, rel=1e-3)


def test_on_a_gpu_results_move_by_the_same_bits_as_on_a_cpu():
    """Another road there: without a copy to the CPU, and without a look whether the numbers are tiny."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((40, 30)) * 10.0 ** rng.integers(-45, 5, (40, 30)))
    x[0] = 0.0
    moved = RandomRounding(3, 1e-30).move(x.clone())
    there = RandomRounding(3, 1e-30)
    start = there.offsets.randrange((1 << 20) - x.numel())
    assert torch.equal(there._move_there(x.clone(), 1 << 20, slice(start, start + x.numel())), moved)
    assert bool((moved[1:] != x[1:]).any()) and bool((moved[0] == 0).all())


@pytest.mark.parametrize(("by", "status"), [(1e-15, "pass"), (1e-12, "fail")])
def test_what_is_lost_to_second_order_is_unavoidable(by: float, status: str):
    """Where no key has a component but for its rounding, an entry of the scatter is the square of a rounding: 1e-15 in
    float32. Steps of 2**-36, scaled up, say 4e-19."""
    right = resolve(COVARIANCE.variant("chunk").function)

    def off(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        last = torch.zeros_like(state.scatter)
        last[..., 15, 15] = by
        return o, state._replace(scatter=state.scatter + last)

    provide("tests:off", off)
    structure = Structure(T=15, K=16, V=16, initial_state=True)
    case = Case(operator="covariance_contract", structure=structure, dtype="float32", family="orthogonal", seed=2,
                options={"forgetting": True}, gradient=False)  # fmt: skip
    examination = Examination(COVARIANCE, build(COVARIANCE, case))
    variant = dataclasses.replace(COVARIANCE.variant("chunk"), function="tests:off")
    assert examine._judge(examination, variant, "forward").status == status
    outcome = run(COVARIANCE, variant, examination.batch.copy())
    assert max(v.ratio for v in examine._forward(examination, variant, outcome, whole=False)) > 100
