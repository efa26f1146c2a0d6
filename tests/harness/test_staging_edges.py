"""What staged terms know of cut-off operands, of parts of a split, and of float32: and what stays red beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from linattest.verify import registry
from linattest.verify.examination import Examination
from linattest.verify.examine import _judge, _property
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.operands import BFLOAT16, TF32, TF32X3, Format, RoundedOperands
from linattest.verify.properties import metamorphic
from linattest.verify.sensitivity import run_copies
from linattest.verify.spec import OPERANDS, Variant
from linattest.verify.subjects import provide, resolve

Function = Callable[..., Any]


def rounding(operator: str, form: Format) -> Function:
    """Our chunk form, every operand of its products rounded as a tensor core's, its output rounded to the dtype."""
    right = resolve(registry.operator(operator).variant("chunk").function)

    def wide(y: Any) -> Any:
        return y.float() if isinstance(y, torch.Tensor) and y.is_floating_point() else y

    def kernel(*x: torch.Tensor, **given: Any) -> Any:
        with RoundedOperands(form):
            o, state = right(*map(wide, x), **{name: wide(y) for name, y in given.items()})
        return o.to(x[0].dtype), state

    return kernel


def case_of(operator: str, dtype: str, structure: Structure, **changes: Any) -> Batch:
    record = registry.operator(operator)
    return build(record, Case(operator=operator, structure=structure, dtype=dtype, **changes))


def a_kernel(function: Function, staged: Any = OPERANDS) -> Variant:
    provide("tests:edges", function)
    return Variant(name="triton", function="tests:edges", staged=staged)


def failed(batch: Batch, function: Function, staged: Any = OPERANDS) -> list[bool]:
    examination = Examination(registry.operator(batch.case.operator), batch)
    return [_judge(examination, a_kernel(function, staged), d).failed for d in ("forward", "gradient")]


class ShrinkingOnes(RoundedOperands):
    """Numbers that the type holds shrink like all others, and hide what the others lose."""

    def staged(self, x: torch.Tensor) -> torch.Tensor:
        y = super().staged(x)
        held = self.form.holds(x.contiguous()) if x.dtype == torch.float64 else None
        return y if held is None else torch.where(held & (y != x), y - 0.5 * self.form.spacing(x.contiguous()), y)


def deviations(samples: type[RoundedOperands]) -> float:
    """Root mean square of what truncation really does to a chunk of the covariance, in deviations of the samples."""
    operator = registry.operator("covariance_contract")
    batch = case_of("covariance_contract", "float16", Structure(T=70, K=8, V=8, B=2, H=2, initial_state=True))

    def run() -> np.ndarray[Any, Any]:
        found = run_copies(operator, batch, 1, False, moved=False, form="chunk", dtype="float32")
        return found[0].values["o"].double().numpy()

    base = run()
    with RoundedOperands(TF32):
        real = run() - base
    moved: list[Any] = []
    for seed in range(16):
        with samples(TF32, seed):
            moved.append(run() - base)
    deviation = np.sqrt(np.mean(np.square(moved), axis=0))
    return float(np.sqrt(np.mean(np.square(real[deviation > 0] / deviation[deviation > 0]))))


def test_samples_lose_as_much_as_truncation_does_also_where_biases_meet():
    assert deviations(RoundedOperands) < 1.2
    assert deviations(ShrinkingOnes) > 1.5, "ones that shrink would go unseen here"


# --- parts of a split ------------------------------------------------------------------------------------------------


def forgets(part: float) -> Any:
    """A state that is handed over loses a part of itself."""

    def plant(right: Function) -> Function:
        def wrong(*x: torch.Tensor, initial_state: Any = None, **given: Any) -> Any:
            kept = None if initial_state is None else (1 - part) * initial_state
            return right(*x, initial_state=kept, **given)

        return wrong

    return plant


@pytest.mark.parametrize("form", [BFLOAT16, TF32], ids=lambda form: form.name)
def test_a_split_counts_what_its_parts_stage_and_still_sees_a_state_that_fades(
    form: Format, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metamorphic, "_cuts", lambda _length: [3, 46])
    dtype = {"bfloat16": "bfloat16", "tf32": "float16"}[form.name]
    batch = case_of("gla", dtype, Structure(T=90, K=8, V=6, B=2, H=2, initial_state=True), gradient=False)
    tried = next(p for p in registry.properties(registry.operator("gla")) if p.name == "split")
    for fault, status in ((forgets(0.0), "pass"), (forgets(0.05), "fail")):
        examination = Examination(registry.operator("gla"), batch)
        record = _property(examination, a_kernel(fault(rounding("gla", form))), tried)
        assert record.status == status, record.message


# --- float32 --------------------------------------------------------------------------------------------------------


def test_float32_has_the_term_of_three_tf32_products_where_a_chunk_cancels():
    """A token that replaces all that is remembered: what is left of the rest is 0 token by token, and in a chunk a
    difference of numbers of the memory's size."""
    structure = Structure(T=200, K=1, V=1, B=2, H=1, initial_state=True)
    batch = case_of("delta_net", "float32", structure, family="subnormal", seed=9)
    kernel = rounding("delta_net", TF32X3)
    assert failed(batch, kernel) == [False, False]
    assert any(failed(batch, kernel, ()))
    assert failed(batch, rounding("delta_net", TF32)) == [True, True]
