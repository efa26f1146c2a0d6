"""The diagnosis fits numbers: a factor of an input, the sign of a gate, the N of which T must be a multiple,
a shift by one token, an output's shape."""

from pathlib import Path

import pytest

from linattest.verify.diagnosis import diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.subject import Subject

FILE = str(Path(__file__).with_name("user_factors.py"))

FAULTS = {
    "gate_up": ("factor", "g is multiplied by 1.02"),
    "gate_down": ("factor", "g is multiplied by 0.97"),
    "gate_tenth": ("factor", "g is multiplied by 0.1"),
    "beta_up": ("factor", "beta is multiplied by 1.1"),
    "key_up": ("factor", "k is multiplied by 1.05"),
    "output_up": ("scale", "1.02 times the exact output"),
    "wrong_sign": ("sign", "--map g=-g"),
    "one_late": ("late", "token t has the answer of t - 1"),
    "one_early": ("late", "token t has the answer of t + 1"),
    "head_first": ("shape", "heads come before tokens"),
    "whole_chunks": ("raises", "--multiple-of 32"),
}
"""By function: the rule that names its fault, words of the first diagnosis."""


def diagnosed(name: str, dtype: str = "float32", T: int = 40) -> list[Diagnosis]:
    subject = Subject(function=f"{FILE}:{name}", operator="gated_delta_net", dtypes=(dtype,))
    subject, _, _ = prepare(subject)
    case = Case(operator="gated_delta_net", structure=Structure(T=T, K=8, V=8, H=2), dtype=dtype, seed=3)
    return diagnose(subject, examine(Job(case, False, subject), (subject.variant,)))


@pytest.mark.parametrize("name", FAULTS)
def test_a_number_too_many_is_named(name: str):
    rule, words = FAULTS[name]
    found, *others = diagnosed(name)
    assert found.rule == rule and (not others or rule == "late"), (found, others)
    assert words in f"{found.fault} {found.evidence} {found.suggestion}"


def test_a_factor_is_fitted_to_the_precision_that_there_is():
    (found,) = diagnosed("beta_up", "float64")
    assert (found.rule, found.fault) == ("factor", "beta is multiplied by 1.1")


def test_no_factor_is_given_where_none_fits():
    assert "factor" not in {found.rule for found in diagnosed("wavy_gate")}


def test_no_multiple_is_proposed_where_none_fits():
    (found,) = diagnosed("short_only")
    assert found.rule == "raises" and "multiple" not in f"{found.fault} {found.suggestion}"


def test_a_limit_of_the_length_is_named():
    subject, _, _ = prepare(Subject(function=f"{FILE}:short_only", operator="gated_delta_net", dtypes=("float32",)))
    cases = [Case(operator="gated_delta_net", structure=Structure(T=T, K=8, V=8, H=2), seed=3) for T in (9, 40)]
    records = [record for case in cases for record in examine(Job(case, False, subject), (subject.variant,))]
    (found,) = diagnose(subject, records)
    assert found.fault == "it raises for long sequences: it ran up to T = 16 and raised from T = 24 on"


def test_a_factor_of_long_sequences_alone_is_not_said_of_every_output():
    found, *_ = diagnosed("long_scale", T=70)
    assert found.rule == "scale" and "wrong scale of long sequences alone" in found.fault
    assert "all outputs for T = 64 are right" in found.evidence and "--set" not in found.suggestion


def test_what_is_nan_everywhere_is_not_called_an_input_without_effect():
    assert "ignored" not in {found.rule for found in diagnosed("no_number")}
