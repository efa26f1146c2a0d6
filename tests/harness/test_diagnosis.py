"""Every rule of the diagnosis names the fault that was planted for it, with numbers; a right function gets none."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from linattest.verify.diagnosis import FORWARD, GENERAL, SPECIFIC, diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.examine import examine
from linattest.verify.given import operator_of
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.subject import Subject, hand_over


def user_kernels() -> ModuleType:
    """The functions of a user, imported by their file."""
    path = Path(__file__).with_name("user_kernels.py")
    spec = importlib.util.spec_from_file_location("user_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_kernels"] = module
    spec.loader.exec_module(module)
    return module


KERNELS = user_kernels()

PLAIN: dict[str, Any] = {"T": 40, "K": 8, "V": 8, "H": 2}
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "tail": ({}, "tail", "chunks of 32"),
    "tail_rows": ({}, "tail", "chunks of 64"),
    "unscaled": ({}, "scale", "4 = sqrt(K) times"),
    "state_ignored": ({"initial_state": True}, "state-ignored", "ignored in o"),
    "state_transposed": ({}, "state-transposed", "final state is transposed"),
    "state_bfloat16": ({}, "state-narrow", "bfloat16 numbers"),
    "strict": ({}, "triangle", "own token is missing"),
    "twice": ({}, "triangle", "counted twice"),
    "late": ({}, "triangle", "after the token is added"),
    "shifted": ({}, "triangle", "one token late"),
    "ungated": ({}, "ignored", "g is not applied"),
    "base_two": ({}, "gate", "base 2"),
    "leaky": ({}, "future", "inside a chunk of 16"),
    "edge": ({}, "boundary", "each chunk of 32 tokens starts from nothing"),
    "packs_leak": ({"cu_seqlens": (0, 5, 40)}, "packed", "without boundaries"),
    "wrong_heads": ({"group": 2}, "heads", "h % H"),
    "random": ({}, "unrepeatable", "other bits"),
    "in_place": ({}, "inputs-modified", "2240 of 2240 entries of q"),
    "narrow": ({}, "precision", "inputs (but g) rounded to bfloat16"),
    "gate_gradient": ({}, "gradient", "1.442695 = 1/ln 2"),
    "no_key_gradient": ({}, "gradient", "d k is missing"),
    "detached": ({}, "no-gradient", "detached"),
    "overflowing": ({}, "overflow", "mask before exp"),
    "odd_widths": ({"K": 12}, "where", "K = 12, no power of two"),
    "only_half": ({"dtype": "float16"}, "dtype", "wrong only for float16"),
    "strided": ({"layout": "transposed"}, "where", "strides"),
    "empty_refused": ({"T": 0}, "raises", "T = 0"),
    "not_a_tensor": ({}, "raises", "returned a dict"),
}
"""By function: the case that shows its fault, the rule that names it, words of the first diagnosis."""


def diagnosed(name: str, *, dtype: str = "float32", properties: bool = False, **sizes: Any) -> list[Diagnosis]:
    subject, _, _ = prepare(Subject(function=hand_over(getattr(KERNELS, name)), operator="gla", only={"gate": "head"}))
    sizes = PLAIN | sizes
    case = Case(operator="gla", structure=Structure(**sizes), dtype=dtype, seed=3)
    assert operator_of(subject).variant(subject.variant)
    plain = Case(operator="gla", structure=Structure(T=3, K=8, V=8), seed=3)
    jobs = [Job(case, properties, subject), Job(plain, subject=subject)]
    return diagnose(subject, [record for job in jobs for record in examine(job, (subject.variant,))])


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_named_first(name: str):
    sizes, rule, words = FAULTS[name]
    first, *_ = diagnosed(name, **sizes)
    assert first.rule == rule, first
    assert words in f"{first.fault} {first.evidence} {first.suggestion}"
    assert first.evidence and first.suggestion


def test_a_small_leak_of_the_future_is_not_taken_for_rounding(monkeypatch: pytest.MonkeyPatch):
    def leaks(q: Any, k: Any, v: Any, g: Any) -> Any:
        return KERNELS.right(q, k, v + 0.03 * v.roll(-1, 1), g)[0]

    monkeypatch.setattr(KERNELS, "leaks", leaks, raising=False)
    rules = [found.rule for found in diagnosed("leaks")]
    assert rules[0] == "future" and "precision" not in rules


def test_right_function_gets_no_diagnosis():
    assert diagnosed("right", initial_state=True) == []


def test_broken_promise_of_right_values_is_told_apart_from_wrong_values():
    (found,) = diagnosed("spread_nan", properties=True, T=70)
    assert found.rule == "promise" and "nan-contained" in found.fault and "every value is right" in found.fault


def test_every_rule_has_a_planted_fault():
    named = {rule for _, rule, _ in FAULTS.values()} | {"promise", "factor", "sign", "late", "shape"}
    named |= {"layout", "one-head", "one-channel"}  # test_diagnosis_layouts.py
    named |= {"order", "passed-through", "rows", "permuted", "together"}  # test_diagnosis_causes.py
    named |= {"operands", "onset", "normalised", "plus-one"}  # test_check_operands.py, test_diagnosis_softmax.py
    assert len(named) == len({*SPECIFIC, *GENERAL})
    assert set(SPECIFIC) >= FORWARD
