"""What a user's function may take and give back: packs alone, states of any kind, a cast too early; each in words."""

from typing import Any

import pytest
import torch

from linattest.verify.diagnosis import diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.records import Record
from linattest.verify.subject import Subject, hand_over

Tensor = torch.Tensor


def linear(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Linear attention, right: rounded once."""
    to = torch.float64 if q.dtype == torch.float64 else torch.float32
    a, b, c = q.to(to) * q.shape[-1] ** -0.5, k.to(to), v.to(to)
    S = q.new_zeros(len(q), q.shape[2], q.shape[-1], v.shape[-1], dtype=to) if state is None else state
    rows: list[Tensor] = []
    for t in range(q.shape[1]):
        S = S + b[:, t, :, :, None] * c[:, t, :, None, :]
        rows.append((a[:, t, :, :, None] * S).sum(-2))
    return (torch.stack(rows, 1) if rows else torch.zeros_like(c)).to(v.dtype), S


def packs_alone(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    ends = cu_seqlens.tolist()
    o = torch.zeros_like(v)
    for i, j in zip(ends, ends[1:], strict=False):
        o[:, i:j] = linear(q[:, i:j], k[:, i:j], v[:, i:j])[0]
    return o


def states(q: Tensor, k: Tensor, v: Tensor, initial_state: Any = None, output_final_state: bool = False) -> Any:
    return linear(q, k, v, initial_state)


def flat_state(q: Tensor, k: Tensor, v: Tensor, initial_state: Any = None, output_final_state: bool = False) -> Any:
    o, S = linear(q, k, v, initial_state)
    return o, S.flatten(1)


def foreign_state(q: Tensor, k: Tensor, v: Tensor, initial_state: Any = None, output_final_state: bool = False) -> Any:
    o, S = linear(q, k, v, initial_state)
    return o, S.detach().numpy()


def rounded_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scale comes after the cast."""
    to = torch.float64 if q.dtype == torch.float64 else torch.float32
    return linear(q.to(to) * q.shape[-1] ** 0.5, k, v)[0] * q.shape[-1] ** -0.5


def spreads_nan(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Later tokens are left out by a product with 0."""
    return linear(q, k, v)[0] + 0 * k.sum((1, 3))[:, None, :, None]


def kinds(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return {"o": v}


def judged(function: Any, *dtypes: str, properties: bool = False, **sizes: Any) -> tuple[Subject, list[Record]]:
    subject = Subject(function=hand_over(function), operator="linear", dtypes=dtypes or ("float32",))
    subject, _, _ = prepare(subject)
    knobs: dict[str, Any] = {"T": 40, "K": 12, "V": 8, "H": 2, **sizes}
    structure = Structure(**knobs)
    jobs = [
        Job(Case(operator="linear", structure=structure, dtype=d, seed=3), properties and d == "float32", subject)
        for d in subject.dtypes
    ]
    return subject, [record for job in jobs for record in examine(job, (subject.variant,))]


def diagnosed(function: Any, *dtypes: str, **knobs: Any) -> list[Diagnosis]:
    return diagnose(*judged(function, *dtypes, **knobs))


@pytest.mark.parametrize("sizes", [{"B": 3}, {"B": 2, "layout": "transposed"}, {"cu_seqlens": (0, 5, 5, 40)}, {"T": 0}])
def test_a_function_of_packs_alone_gets_each_row_as_a_sequence(sizes: dict[str, Any]):
    _, records = judged(packs_alone, **sizes)
    assert records and all(not record.failed for record in records), records
    _, _, notes = prepare(Subject(function=hand_over(packs_alone), operator="linear"))
    assert any("its cu_seqlens has no default" in note for note in notes)


def test_a_right_state_passes_and_another_shape_or_type_is_named():
    assert all(not record.failed for record in judged(states, initial_state=True)[1])
    (found,) = diagnosed(flat_state, initial_state=True)
    assert found.rule == "shape" and found.fault == "the final state S has another shape than is due"
    assert "[1, 512], expected [1, 2, 16, 16] = [N, HV, K, V]" in found.evidence
    (found,) = diagnosed(foreign_state, initial_state=True)
    assert found.rule == "raises" and "a final state with a ndarray in it, expected tensors" in found.evidence


def test_what_is_no_tensor_is_said_to_be_returned_not_raised():
    (found,) = diagnosed(kinds)
    assert found.fault == "it returns what is not due on every input" and "a dict" in found.evidence
    assert found.suggestion.startswith("return o in the inputs' layout and dtype")


def test_a_result_that_is_rounded_twice_is_told_from_another_error_of_one_dtype():
    (found,) = diagnosed(rounded_twice, "float32", "bfloat16")
    assert found.rule == "dtype" and found.fault == "wrong only for bfloat16"
    assert "something is still computed after the cast to bfloat16" in found.suggestion


def test_a_property_that_fails_in_the_one_dtype_it_is_tried_in_is_not_laid_to_the_dtype():
    (found,) = diagnosed(spreads_nan, "float32", "bfloat16", properties=True, T=70)
    assert found.rule == "promise" and "nan-contained" in found.fault and "0 * NaN is NaN" in found.suggestion
