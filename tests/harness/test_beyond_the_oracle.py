"""Where the oracle would take too long, float64 stands in: certified first, and as strict."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from linattest.impls import gla
from linattest.verify import examination, registry
from linattest.verify.examination import Examination
from linattest.verify.examine import examine, planned
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.oracle import OracleError
from linattest.verify.spec import Operator

REGISTERED = registry.operator("gla")
GLA = dataclasses.replace(REGISTERED, variants=tuple(v for v in REGISTERED.variants if not v.kernel))


def up_a_little(*x: torch.Tensor, **given: Any) -> Any:
    """Wrong by a thousand roundings of float32."""
    o, state = gla.chunk(*x, **given)
    return o * (1 + 1e-4), state


def nearly_right(*x: torch.Tensor, **given: Any) -> Any:
    """A float64 form that lost half its digits."""
    o, state = gla.chunk(*x, **given)
    return o + 1e-9 * o.detach().abs().max(), state


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch):
    """Everything but what certifies is out of reach."""
    monkeypatch.setattr(examination, "ORACLE_WORK", 130 * 8 * 14 * 2)
    monkeypatch.setattr(examination, "_certified", set())


def planted(form: str, function: str) -> Operator:
    path = f"{__name__}:{function}"
    return dataclasses.replace(
        GLA, variants=tuple(dataclasses.replace(v, function=path) if v.name == form else v for v in GLA.variants)
    )


def long_case(**changes: Any) -> Case:
    known: dict[str, Any] = {"structure": Structure(T=200, K=8, V=8, group=2), "dtype": "float32", **changes}
    return Case(operator="gla", **known)


def test_large_inputs_are_judged_by_float64_and_say_so():
    records = examine(Job(long_case()), ("recurrent", "chunk", "step"))
    assert {(r.variant, r.truth) for r in records} == {("chunk", "float64"), ("step", "float64")}
    assert [r.message for r in records if r.failed] == []
    assert all(r.oracle_radius is None and not r.certified for r in records)
    small = examine(Job(Case(operator="gla", structure=Structure(T=9, K=3, V=2), dtype="float32")), ("chunk",))
    assert {r.truth for r in small} == {"oracle"} and all(r.oracle_radius is not None for r in small)


def test_an_operator_with_a_number_that_has_a_gradient_is_judged_there_too():
    case = Case(operator="ridge_solve", structure=Structure(T=200, K=8, V=8, H=2), dtype="float32")
    records = examine(Job(case), ("chunk",))
    assert {(r.direction, r.status, r.truth) for r in records} == {
        ("forward", "pass", "float64"), ("gradient", "pass", "float64")
    }  # fmt: skip


def test_a_token_loop_is_not_judged_by_itself_and_no_step_is_driven_for_ever():
    assert [v.name for v, *_ in planned(GLA, long_case(gradient=False))] == ["chunk", "step"]
    longer = long_case(structure=Structure(T=400, K=8, V=8), gradient=False)
    assert [v.name for v, *_ in planned(GLA, longer)] == ["chunk"]


def test_a_wrong_form_is_seen_without_the_oracle(monkeypatch: pytest.MonkeyPatch):
    wrong = dataclasses.replace(GLA.variant("chunk"), name="triton", function=f"{__name__}:up_a_little")
    monkeypatch.setitem(registry.BY_NAME, "gla", dataclasses.replace(GLA, variants=(*GLA.variants, wrong)))
    assert {r.status for r in examine(Job(long_case()), ("triton",)) if r.direction == "forward"} == {"fail"}


@pytest.mark.parametrize(("form", "function"), [("chunk", "nearly_right"), ("recurrent", "nearly_right")])
def test_forms_that_stand_in_are_held_to_the_oracle_first(form: str, function: str):
    operator = planted(form, function)
    with pytest.raises(OracleError, match=f"float64 {form} cannot stand in for the oracle"):
        examination.certify(operator, long_case())
    assert examination._certified == set()
    examination.certify(GLA, long_case())
    assert len(examination._certified) == 1


def test_forms_that_stand_in_are_compared_on_the_very_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(examination, "certify", lambda *_: None)
    operator = planted("chunk", "nearly_right")
    with pytest.raises(OracleError, match="the chunk form cannot stand in"):
        _ = Examination(operator, build(operator, long_case())).truth
