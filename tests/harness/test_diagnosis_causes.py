"""A cause is tried before it is named: what failing cases have in common is not said where it is something else."""

from pathlib import Path
from typing import Any

import pytest

from linattest.verify.check import Result, jobs_of
from linattest.verify.diagnosis import diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.records import Record
from linattest.verify.report.check import page
from linattest.verify.subject import Subject

FILE = str(Path(__file__).with_name("user_causes.py"))
CHANNEL = {"gate": "channel"}


def judged(name: str, *cases: dict[str, Any]) -> tuple[Subject, list[Record]]:
    """A function and the records of some small cases; one plain case if none is given."""
    subject, _, _ = prepare(Subject(function=f"{FILE}:{name}", operator="gla", dtypes=("float32", "bfloat16")))
    records: list[Record] = []
    for knobs in cases or ({},):
        fields: dict[str, Any] = {"gradient": False} | {
            x: knobs[x] for x in ("dtype", "options", "gradient") if x in knobs
        }
        sizes: dict[str, Any] = {"T": 9, "K": 4, "V": 4, "H": 2} | {x: y for x, y in knobs.items() if x not in fields}
        case = Case(operator="gla", structure=Structure(**sizes), **fields)
        records += examine(Job(case, False, subject), (subject.variant,))
    return subject, records


def diagnosed(name: str, *cases: dict[str, Any], broken: tuple[str, ...] = ()) -> list[Diagnosis]:
    return diagnose(*judged(name, *cases), broken)


def test_a_dtype_is_not_blamed_for_the_option_that_was_drawn_with_it():
    (found,) = diagnosed("gate_mean", {}, {"dtype": "bfloat16", "options": CHANNEL})
    assert found.fault == "wrong only for gate=channel" and "bfloat16" in found.evidence.partition("Right for")[2]


def test_two_things_that_it_takes_together_are_both_named():
    (found,) = diagnosed("gate_mean_of_rows", {"B": 2}, {"dtype": "bfloat16", "options": CHANNEL, "B": 2})
    assert found.rule == "together" and found.fault == "wrong only for gate=channel with several rows of a batch"
    assert "as wrong without bfloat16, several heads" in found.evidence


def test_rows_of_a_batch_that_are_mixed_up_are_said_to_be():
    cases = ({"B": 2}, {"dtype": "bfloat16"})
    (found,) = diagnosed("row_1", *cases, broken=("permutation", "modes"))
    assert found.fault == "the rows of a batch are mixed up: row 1 of 3 has the output of row 0"
    assert "not kept either: permutation" in found.evidence and "modes" not in found.evidence
    (found,) = diagnosed("rows_summed", *cases)
    assert found.fault == "the rows of a batch depend on each other"


def test_values_are_blamed_for_what_it_raises_not_the_length_of_those_that_have_them():
    (found,) = diagnosed("strict_gates", {"T": 1, "H": 1}, {}, {"T": 40})
    assert found.fault == "it raises for some values of g, at any length"
    assert "with every g = -0.5 or -8 or -inf in their place it ran, with 0 it raised" in found.evidence
    assert "the smallest such case: B=1 T=" in found.suggestion and "T=9" not in found.suggestion


def test_what_raises_is_counted_among_what_fails():
    (found,) = diagnosed("strict_gates", {}, {"T": 40})
    assert found.evidence.startswith("2 of the 2 checks that fail ended in")


@pytest.mark.parametrize(
    ("name", "words", "shape"),
    [
        ("time_first", "tokens come first, before the batch", "q [T, B, H, K]"),
        ("features_first", "features come before heads", "v [B, T, V, HV]; g [B, T, HV]; o [B, T, V, HV]"),
        ("gate_token_first", "heads come before tokens, but for a gate", "v [B, HV, T, V]; g [B, T, HV]"),
    ],
)
def test_another_order_of_axes_is_named_where_it_makes_it_right(name: str, words: str, shape: str):
    (found,) = diagnosed(name, {"B": 2})
    assert found.rule == "order" and found.fault.startswith("it is right") and words in found.fault
    assert shape in found.evidence


def test_a_layout_and_one_factor_are_found_together():
    (found,) = diagnosed("head_first_unscaled")
    assert "tensors are [B, H, T, ..] and it was given [B, T, H, ..]" in found.fault
    assert "besides, the output is 4 = sqrt(K) times what is due" in found.fault
    assert found.suggestion.startswith("run it again with --head-first")


def test_sizes_that_do_not_fit_are_said_beside_the_shapes_that_were_given():
    (found,) = diagnosed("flat")
    assert found.rule == "raises" and "= [B, T, H, K]; k [1, " in found.suggestion


@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("gate_itself", "sign", "it expects the gate itself, exp(g), not its log"),
        ("gate_sigmoid", "passed-through", "the gate is sigmoid(g), where exp(g) is due"),
        ("gate_summed", "passed-through", "g is summed over the tokens before it is applied"),
        ("gate_clamped", "passed-through", "g is clamped from below, at -1"),
        ("heads_reversed", "permuted", "the heads of the output are reversed: head 0 has the answer of 3, 1 has"),
        ("heads_rolled", "permuted", "the heads of the output are rolled by one"),
        ("values_swapped", "permuted", "channel 0 has the answer of 1, 1 has the answer of 0"),
        ("keys_flipped", "permuted", "the channels of k are taken in another order: reversed"),
        ("odd_heads_nan", "one-head", "only heads 1, 3 of 4 are wrong"),
        ("state_first", "shape", "the wrong way round: the second one has o's shape"),
    ],
)
def test_one_fault_is_named_once_and_nothing_else(name: str, rule: str, words: str):
    (found,) = diagnosed(name)
    assert found.rule == rule and words in found.fault
    assert "nan of" not in found.evidence


@pytest.mark.parametrize("name", ["finite_gates", "narrow_keys"])
def test_a_first_impression_has_resets_and_a_width_beyond_64(name: str):
    subject, _, _ = prepare(Subject(function=f"{FILE}:{name}", operator="gla", dtypes=("float32",)))
    jobs = [x for x in jobs_of(subject, True, False, 0) if x.case.family == "resets" or x.case.structure.K > 64]
    records = [record for job in jobs for record in examine(job, (subject.variant,))]
    wrong = {r.case.family for r in records if r.failed}
    assert wrong == {"resets" if name == "finite_gates" else "random"}
    words = {"finite_gates": "with -inf it raised", "narrow_keys": "wrong only for K = 72"}[name]
    assert any(words in f"{d.fault} {d.evidence}" for d in diagnose(subject, records))


def test_a_page_is_folded_at_the_width_it_is_printed_at():
    subject, records = judged("gate_clamped")
    result = Result(subject, records, diagnose(subject, records), ["float64, since " + "so " * 60])
    for width in (60, 80):
        first, *lines = page(result, width).splitlines()
        assert first.startswith("WRONG: ") and max(map(len, lines)) <= width


def test_a_feature_that_an_operator_has_not_is_not_tried_of_a_function():
    subject, not_tried, _ = prepare(Subject(function="linattest.impls.vla:chunk", operator="vla"))
    assert "grouped" not in subject.supports and not any("grouped" in line for line in not_tried)
    assert all(job.case.structure.group == 1 for job in jobs_of(subject, True, False, 0))
