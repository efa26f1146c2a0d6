"""The diagnosis tries the other layout, tells one head or channel from all, and counts what came back."""

from pathlib import Path
from typing import Any

import pytest

from linattest.verify.diagnosis import diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.records import Record
from linattest.verify.subject import Subject

FILE = str(Path(__file__).with_name("user_layouts.py"))
HEAD_FIRST: dict[str, Any] = {"layout": "head-first", "rename": {"gk": "g"}}


def judged(name: str, **described: Any) -> tuple[Subject, list[str], list[Record]]:
    described = {"dtypes": ("float32",)} | described
    subject, not_tried, _ = prepare(Subject(function=f"{FILE}:{name}", operator="gla", **described))
    structure = Structure(T=40, K=8, V=8, H=2, initial_state="state" in subject.supports)
    case = Case(operator="gla", structure=structure, seed=3, options=dict(subject.only))
    return subject, not_tried, examine(Job(case, False, subject), (subject.variant,))


def diagnosed(name: str, **described: Any) -> list[Diagnosis]:
    subject, _, records = judged(name, **described)
    return diagnose(subject, records)


def test_a_right_function_of_the_other_layout_is_told_the_option_with_which_it_agrees():
    (found,) = diagnosed("turned", rename={"gk": "g"}, transpose_state=True)
    assert found.rule == "layout" and "[B, H, T, ..] and it was given [B, T, H, ..]" in found.fault
    assert "with --head-first, it agrees: all 4" in found.evidence
    assert found.suggestion.startswith("run it again with --head-first; in Python: layout='head-first'")


def test_both_options_are_proposed_where_both_are_needed():
    (found,) = diagnosed("turned", rename={"gk": "g"})
    assert "with --head-first --transpose-state, it agrees" in found.evidence
    assert found.suggestion.endswith("layout='head-first', transpose_state=True")


def test_an_option_that_was_given_is_proposed_to_be_left_out_not_to_be_given():
    (found,) = diagnosed("straight", layout="head-first")
    assert found.rule == "layout" and found.suggestion.startswith("run it again without --head-first")
    found, *_ = diagnosed("straight_state", transpose_state=True)
    assert found.rule == "state-transposed" and found.suggestion.endswith("leave out --transpose-state")


def test_no_layout_is_proposed_that_does_not_make_it_right():
    for name in ("last_head", "half_turned"):
        rename = {"gk": "g"} if name == "half_turned" else {}
        assert "layout" not in {found.rule for found in diagnosed(name, rename=rename)}


def test_a_wrong_shape_is_said_in_the_layout_of_the_function():
    subject, not_tried, records = judged("half_turned", **HEAD_FIRST)
    assert subject.only == {"gate": "channel"}  # it runs, with a wrong shape; gate=head raises
    assert any(line.startswith("gate=head, since the function raised IndexError") for line in not_tried)
    assert records[0].message.endswith("returned o of shape [1, 40, 2, 8], expected [1, 2, 40, 8] = [B, HV, T, V]")
    (found,) = diagnose(subject, records)
    assert found.rule == "shape" and "[1, 70, 2, 16], expected [1, 2, 70, 16] = [B, HV, T, V]" in found.evidence
    assert "if the inputs" not in found.suggestion and "gate=channel" in found.evidence


def test_a_wrong_shape_is_no_reason_to_leave_out_dtypes_or_features():
    subject, not_tried, _ = judged("half_turned_narrow", **HEAD_FIRST, dtypes=("float32", "float64"))
    assert subject.dtypes == ("float32",) and "rectangular" in subject.supports
    assert "float64, since the function raised ValueError: no float64" in not_tried


PARTS = {
    "last_head": ("one-head", "only head 3 of 4 is wrong (the last one, of 2 and 3 heads too), by a factor 1.01"),
    "copied_head": ("one-head", "only head 1 of 4 is wrong: it has the answer of head 0"),
    "odd_heads": ("one-head", "only heads 1, 3 of 4 are wrong"),
    "last_value_channel": ("one-channel", "only channel 15 of 16 is wrong in the output: it is 0 throughout"),
    "last_key_channel": ("one-channel", "channel 15 of 16 of q is left out"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_alone_is_wrong_is_named(name: str):
    (found,) = diagnosed(name)
    assert (found.rule, found.fault) == PARTS[name]
    assert found.evidence and found.suggestion


def test_a_value_too_many_is_counted_on_both_sides():
    _, _, records = judged("three_values")
    assert {record.status for record in records} == {"error"}
    (found,) = diagnosed("three_values")
    assert found.fault == "it returns what is not due on every input"
    assert "three_values returned 3 values" in found.evidence and "expected 2 at most: o or (o, final" in found.evidence


@pytest.mark.parametrize(("name", "rename", "proposed"), [
    ("negated", {"gk": "g"}, "--map gk=-g"), ("straight_gk", {"gk": "-g"}, "--map gk=g"),
])  # fmt: skip
def test_a_gate_of_the_other_sign_is_proposed_under_its_own_name(name: str, rename: dict[str, str], proposed: str):
    found, *_ = diagnosed(name, rename=rename)
    assert found.rule == "sign" and found.suggestion.endswith(proposed)
