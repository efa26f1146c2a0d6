"""What tensor cores round is measured, and hides nothing else: a chunk form whose operands are really rounded passes,
and the same form with a fault of known size does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from linattest.verify import registry, staging
from linattest.verify.examination import Examination
from linattest.verify.examine import _judge, _property
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.operands import BFLOAT16, TF32, Format, RoundedOperands
from linattest.verify.properties.handover import IDLE_STATE
from linattest.verify.records import Record
from linattest.verify.spec import OPERANDS, Variant
from linattest.verify.subjects import provide, resolve
from linattest.verify.tolerance import STAGED_ROW_SIGMAS, STAGED_SIGMAS

Function = Callable[..., Any]

STRUCTURE = Structure(T=130, K=16, V=12, H=2, initial_state=True)
FORMS = {"bfloat16": BFLOAT16, "float16": TF32}
OPERATORS = ("gla", "delta_net", "gated_delta_net")


# --- a kernel in small -------------------------------------------------------------------------------------------


def rounding(operator: str, form: Format) -> Function:
    """Our chunk form, every operand of its products rounded as a tensor core's, its output rounded to the dtype."""
    right = resolve(registry.operator(operator).variant("chunk").function)

    def kernel(*x: torch.Tensor, **given: Any) -> Any:
        def wide(y: Any) -> Any:
            return y.float() if isinstance(y, torch.Tensor) and y.is_floating_point() else y

        with RoundedOperands(form):
            o, state = right(*map(wide, x), **{name: wide(y) for name, y in given.items()})
        return o.to(x[0].dtype), state

    return kernel


def scale_up(right: Function, by: float = 1.01) -> Function:
    """The scale is 1% too large."""

    def wrong(*x: torch.Tensor, scale: float | None = None, **given: Any) -> Any:
        return right(*x, scale=by * (x[0].shape[-1] ** -0.5 if scale is None else scale), **given)

    return wrong


def scale_up_more(right: Function) -> Function:
    """1.1%: a delta rule's differences lose more to bfloat16 than a percent of a few numbers."""
    return scale_up(right, 1.011)


def gates_up(right: Function) -> Function:
    """Log-gates are 2% too large."""

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        if "g" in given:
            return right(q, k, v, *x, **{**given, "g": 1.02 * given["g"]})
        return right(q, k, v, 1.02 * x[0], *x[1:], **given)

    return wrong


def narrow_state(dtype: torch.dtype) -> Callable[[Function], Function]:
    """Between chunks of 64 the state is carried in another type."""

    def plant(right: Function) -> Function:
        def wrong(*x: torch.Tensor, initial_state: Any = None, output_final_state: bool = False, **given: Any) -> Any:
            g = given.pop("g", None)
            state, rows = initial_state, []
            for t in range(0, x[0].shape[1], 64):
                gate = {} if g is None else {"g": g[:, t : t + 64]}
                o, state = right(
                    *(y[:, t : t + 64] for y in x), initial_state=state, output_final_state=True, **gate, **given
                )
                state = state.to(dtype).to(state.dtype)
                rows.append(o)
            return torch.cat(rows, 1), state

        return wrong

    return plant


def case_of(operator: str, dtype: str, structure: Structure = STRUCTURE, **changes: Any) -> Batch:
    record = registry.operator(operator)
    return build(record, Case(operator=operator, structure=structure, dtype=dtype, **changes))


def a_kernel(function: Function, staged: Any = OPERANDS) -> Variant:
    provide("tests:staged", function)
    return Variant(name="triton", function="tests:staged", staged=staged)


def judged(batch: Batch, function: Function, staged: Any = OPERANDS) -> dict[str, Record]:
    examination = Examination(registry.operator(batch.case.operator), batch)
    return {d: _judge(examination, a_kernel(function, staged), d) for d in ("forward", "gradient")}


# --- it passes, and not for nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_rounded_operands_pass_with_their_term_and_fail_without(operator: str, dtype: str):
    kernel, batch = rounding(operator, FORMS[dtype]), case_of(operator, dtype)
    assert [r.message for r in judged(batch, kernel).values() if r.failed] == []
    assert all(r.status == "fail" for r in judged(batch, kernel, ()).values())


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("family", ["duplicate", "coherent", "zeros", "subnormal"])
def test_rounded_operands_pass_on_hard_values(family: str, dtype: str):
    for operator in ("gla", "gated_delta_net"):
        batch = case_of(operator, dtype, Structure(T=70, K=12, V=9), family=family, seed=3)
        found = judged(batch, rounding(operator, FORMS[dtype]))
        assert [r.message for r in found.values() if r.failed] == []


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize(("operator", "fault"), [("gla", scale_up), ("gla", gates_up), ("delta_net", scale_up_more),
                                                 ("gated_delta_net", gates_up)])  # fmt: skip
def test_a_fault_of_a_percent_or_two_is_seen_beneath_the_term(operator: str, fault: Any, dtype: str):
    found = judged(case_of(operator, dtype), fault(rounding(operator, FORMS[dtype])))
    assert found["forward"].status == "fail" and found["forward"].what == "o", found["forward"].message


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("carried", [torch.bfloat16, torch.float16], ids=str)
def test_a_narrow_state_between_chunks_is_seen(operator: str, carried: torch.dtype):
    """Among values it may hide behind rounded residuals; where tokens do nothing there is no such thing."""
    kernel = rounding(operator, BFLOAT16)
    batch = case_of(operator, "bfloat16", Structure(T=70, K=8, V=6, H=2, initial_state=True), gradient=False)
    for function, status in ((kernel, "pass"), (narrow_state(carried)(kernel), "fail")):
        examination = Examination(registry.operator(operator), batch)
        record = _property(examination, a_kernel(function), IDLE_STATE)
        assert record.status == status and record.ratios["findings"], record.message


# --- the roundings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [BFLOAT16, TF32], ids=lambda form: form.name)
def test_numbers_are_rounded_as_the_type_has_it(form: Format):
    # Seeded: one number in 2**17 lies so near a tie that torch, which goes by float32, rounds it twice.
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x *= torch.logspace(-30, 30, 4000, dtype=torch.float64)
    rounded, spacing = form.rounded(x), form.spacing(x).abs()
    assert bool(form.holds(rounded).all()) and not bool(form.holds(x).any())
    if form is BFLOAT16:
        assert torch.equal(rounded, x.bfloat16().double())
    else:
        assert bool((rounded.abs() <= x.abs()).all()) and bool(((x - rounded).abs() < spacing).all())
    special = torch.tensor([0.0, float("inf"), -float("inf"), float("nan"), 1.5, -0.0], dtype=torch.float64)
    for y in (form.rounded(special), form.dithered(special, random.Random(0))):
        assert torch.equal(y.nan_to_num(7), special.nan_to_num(7))


@pytest.mark.parametrize("form", [BFLOAT16, TF32], ids=lambda form: form.name)
def test_random_roundings_are_as_large_as_real_ones(form: Format):
    x = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    real = (form.rounded(x) - x).numpy()
    drawn = (form.dithered(x, random.Random(0)) - x).numpy()
    for measure in (np.mean, np.std, np.max, np.min):
        assert abs(measure(real) - measure(drawn)) < 0.01 * np.abs(real).max()


def test_only_operands_of_products_are_rounded():
    x = torch.tensor([[1.0 + 2.0**-12]], dtype=torch.float64)
    with RoundedOperands(BFLOAT16):
        assert float(x * x) == float(x) ** 2 and float(x + x) == 2 * float(x)
        assert float(x @ x) == 1.0 and float(torch.addmm(x, x, x)) == float(x) + 1.0
        wide = x.expand(1, 2)
        assert float(torch.einsum("ij,kj->ik", wide, wide)) == 2.0
        assert float(x.float() @ x.float()) > 1.0


def test_inputs_are_left_alone_wherever_they_were_moved_and_what_was_computed_is_not():
    """A one in a result loses as much as any number of its size; a one that was given is no operand that is rounded."""
    x = torch.eye(3, dtype=torch.float64)
    with RoundedOperands(BFLOAT16, seed=0):
        padded = torch.cat([x, x.new_zeros(2, 3)]).roll(1, 0).where(torch.ones(5, 3, dtype=torch.bool), 0.0)
        copied = torch.zeros(5, 3, dtype=torch.float64).copy_(padded)
        for moved in (x, x.float().double(), padded, padded.mT[:, 1:4].contiguous(), copied):
            assert torch.equal(moved @ torch.eye(moved.shape[1]).double(), moved)
        for computed in (
            x * 1.0,
            torch.cat([x, x + 0.0]),
            x.clone().mul_(1.0),
            torch.zeros(3, 3).double().copy_(x * 1),
        ):
            found = computed @ x
            assert not torch.equal(found, computed) and bool((found - computed).abs().max() < 2.0**-8)
            assert bool((found[computed == 0] == 0).all())


def test_state_matrices_that_meet_number_by_number_are_operands():
    x = torch.full((2, 3, 4), 1.0 + 2.0**-12, dtype=torch.float64)
    with RoundedOperands(BFLOAT16, states={(3, 4)}):
        assert float((x * x)[0, 0, 0]) == 1.0
        assert float((x * x[:, :, :1])[0, 0, 0]) > 1.0 and float((x.mT * x.mT)[0, 0, 0]) > 1.0


def test_the_term_of_an_element_is_no_less_than_that_of_its_row():
    operator, batch = registry.operator("gla"), case_of("gla", "bfloat16", Structure(T=70, K=8, V=6))
    most = staging.terms(operator, a_kernel(len), batch, True)
    least = 0.999 * STAGED_ROW_SIGMAS / np.hypot(STAGED_SIGMAS, STAGED_ROW_SIGMAS)  # of the row's own terms
    for name in ("o", "d q", "state.S"):
        rows = most[name].most
        assert bool((rows >= least * np.sqrt(np.mean(rows**2, axis=-1, keepdims=True))).all())
        assert bool((rows.max(-1) > rows.min(-1)).any())  # and one that loses more keeps its own


def test_terms_of_several_operands_add_up_and_depend_on_the_dtype():
    operator, batch = registry.operator("gla"), case_of("gla", "bfloat16", Structure(T=9, K=3, V=2))
    once, twice = (staging.terms(operator, a_kernel(len, OPERANDS * n), batch, False)["o"] for n in (1, 2))
    assert np.allclose(twice.most, 2 * once.most) and once.rms is not None and twice.rms is not None
    assert np.allclose(twice.rms, 2 * once.rms)
    wide = case_of("gla", "float32", Structure(T=9, K=3, V=2))
    assert staging.terms(operator, a_kernel(len), wide, False, whole=False) == {}
    assert 0 < staging.terms(operator, a_kernel(len), wide, False)["o"].most.max() < 2.0**-10 * once.most.max()
