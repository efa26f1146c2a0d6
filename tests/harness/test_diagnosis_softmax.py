"""Windows, lost chunks, sinks and unit keys are named; words about states are for operators that have one."""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from linattest.verify.check import promise_of
from linattest.verify.diagnosis import diagnose, unknown
from linattest.verify.evidence import Diagnosis, Evidence
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.records import Record
from linattest.verify.report.check import worst_cases
from linattest.verify.subject import Subject, hand_over

Tensor = torch.Tensor


def softmax(q: Tensor, k: Tensor, v: Tensor, first: Callable[[int], int] = lambda t: 0, sink: float = 0.0) -> Tensor:
    """Softmax attention over tokens ``first(t)`` to t, with ``sink`` added to the denominator, in float64."""
    rows: list[Tensor] = []
    for t in range(q.shape[1]):
        seen = slice(first(t), t + 1)
        scores = torch.einsum("bhk,bshk->bhs", q[:, t].double(), k[:, seen].double()) * q.shape[-1] ** -0.5
        weights = scores.exp()
        weights = weights / (weights.sum(-1, keepdim=True) + sink)
        rows.append(torch.einsum("bhs,bshv->bhv", weights, v[:, seen].double()))
    return torch.stack(rows, 1).to(v.dtype) if rows else torch.zeros_like(v)


def window(q: Tensor, k: Tensor, v: Tensor, *, size: int) -> Tensor:
    return softmax(q, k, v, lambda t: max(0, t + 1 - size))


def blocks(q: Tensor, k: Tensor, v: Tensor, *, size: int) -> Tensor:
    return softmax(q, k, v, lambda t: t // size * size)


def louder(q: Tensor, k: Tensor, v: Tensor, *, size: int) -> Tensor:
    o = softmax(q, k, v)
    return torch.cat([o[:, :size], 1.5 * o[:, size:] + 0.1], 1)


def off_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k, v, sink=1.0)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right, by a mask of all scores and a product with all values: 0 * NaN reaches earlier tokens."""
    scores = torch.einsum("bthk,bshk->bhts", q.double(), k.double()) * q.shape[-1] ** -0.5
    future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(future, -torch.inf).softmax(-1), v.double()).to(v.dtype)


def unit(q: Tensor, k: Tensor, v: Tensor, *, both: bool, epsilon: float = 0.0) -> Tensor:
    """Attention over keys, or queries too, of length 1."""
    k = k.double() * ((k.double() ** 2).sum(-1, keepdim=True) + epsilon).rsqrt()
    q = q.double() * ((q.double() ** 2).sum(-1, keepdim=True) + epsilon).rsqrt() if both else q
    return softmax(q, k, v)


def judged(function: Callable[..., Any], properties: bool = False, **knobs: Any) -> tuple[Subject, list[Record]]:
    described = Subject(function=hand_over(function), operator="softmax", dtypes=("float32",), any_dtype=True)
    subject, _, _ = prepare(described)
    sizes: dict[str, Any] = {"T": 40, "K": 8, "V": 8, "H": 2} | knobs
    case = Case(operator="softmax", structure=Structure(**sizes), seed=3, gradient=False)
    return subject, examine(Job(case, properties, subject), (subject.variant,))


def only(function: Callable[..., Any]) -> Diagnosis:
    (found,) = diagnose(*judged(function))
    return found


@pytest.mark.parametrize("size", [24, 32])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (window, "token t reads the last {} tokens alone"),
        (blocks, "each chunk of {} tokens starts from nothing"),
        (louder, "often"),
    ],
)
def test_the_token_from_which_on_it_is_wrong_is_named(function: Callable[..., Any], words: str, size: int):
    found = only(functools.partial(function, size=size))
    assert found.rule == {24: "onset", 32: "boundary"}[size]
    assert f"right before token {size}, wrong from there on: {words.format(size)}" in found.fault
    assert "state" not in found.suggestion and "decay" not in found.suggestion


def test_one_in_the_denominator_is_named():
    assert only(off_by_one).rule == "plus-one"


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_unit_queries_and_keys_are_named(both: bool, epsilon: float):
    found = only(functools.partial(unit, both=both, epsilon=epsilon))
    assert found.fault == ("q and k are L2-normalised first" if both else "k is L2-normalised first")
    assert "use_qk_l2norm_in_kernel=false" in found.suggestion


def test_nan_that_reaches_earlier_tokens_breaks_a_promise_alone():
    _, records = judged(masked, properties=True, T=70)
    failed = [record for record in records if record.failed]
    assert "nan-contained" in [record.what for record in failed]
    assert all(promise_of(record) for record in failed), failed


def test_the_worst_case_has_a_wrong_value_if_there_is_one():
    subject, (record, *_) = judged(off_by_one)
    there = msgspec.structs.replace(record.case, seed=77)
    lost = msgspec.structs.replace(record, case=there, direction="property", what="split", ratio=None)
    error = msgspec.structs.replace(record, case=there, status="error", ratio=None)
    for other in (lost, error):
        for records in ([record, other], [other, record]):
            assert "seed=3" in unknown(Evidence(subject, records), []).suggestion
            assert worst_cases(records)[0] is record
