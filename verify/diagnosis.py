"""From failing records to a likely fault in words, with the numbers that say so and what to look at.

A rule looks at the records and runs the function a few times more (evidence.py). The rules stand in order, those that
name one fault first; those that only say where something is wrong are asked when none of the others fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from linattest.verify.evidence import Diagnosis, Evidence, badness
from linattest.verify.records import Record
from linattest.verify.rules.conditions import dtype_only, together
from linattest.verify.rules.conventions import normalised, plus_one
from linattest.verify.rules.factors import factor, passed_through, sign
from linattest.verify.rules.hypotheses import (
    gate,
    heads,
    ignored,
    scale,
    state_ignored,
    state_narrow,
    state_transposed,
    triangle,
)
from linattest.verify.rules.layouts import layout, shape
from linattest.verify.rules.localisation import boundary, future, late, onset, packed, tail
from linattest.verify.rules.operands import operands
from linattest.verify.rules.orders import order
from linattest.verify.rules.parts import one_channel, one_head
from linattest.verify.rules.permuted import permuted
from linattest.verify.rules.precision import gradient, overflow, rounding_of
from linattest.verify.rules.raising import raises
from linattest.verify.rules.rows import rows
from linattest.verify.rules.symptoms import inputs_modified, no_graph, promise, unrepeatable, where
from linattest.verify.subject import Subject

Rule = Callable[[Evidence], Diagnosis | None]

SPECIFIC: tuple[Rule, ...] = (
    layout, inputs_modified, unrepeatable, shape, order, late, future, tail, boundary, state_ignored, state_transposed,
    state_narrow, heads, packed, scale, ignored, sign, gate, triangle, passed_through, rows, permuted, one_head,
    one_channel, factor, normalised, plus_one, overflow, no_graph, gradient, rounding_of, raises,
)  # fmt: skip
"""Rules that name a fault."""

GENERAL: tuple[Rule, ...] = (operands, onset, dtype_only, where, together, promise)
"""Rules that say where something is wrong."""

IMPLIED = {
    "layout": {*SPECIFIC, *GENERAL}, "order": {*SPECIFIC, *GENERAL},
    "one-head": {one_channel, factor, overflow, gradient, rounding_of}, "one-channel": {factor, gradient, rounding_of},
    "permuted": {one_head, one_channel, factor, gradient, rounding_of}, "rows": {gradient},
    "unrepeatable": {future, packed, ignored, gradient}, "ignored": {gate, factor},
    "shape": {order, raises}, "late": {future, rounding_of, factor},
    "scale": {factor}, "sign": {overflow, gradient}, "gate": {factor, passed_through}, "triangle": {factor},
    "passed-through": {factor, gradient, rounding_of}, "factor": {rounding_of},
    "normalised": {overflow, gradient, rounding_of}, "plus-one": {overflow, gradient, rounding_of},
    "state-narrow": {rounding_of}, "future": {rounding_of},
    "no-gradient": {gradient}, "overflow": {gradient}, "inputs-modified": {no_graph, gradient},
    "operands": {dtype_only, where, together, promise}, "dtype": {where, together, promise},
    "where": {together, promise}, "together": {promise},
}  # fmt: skip
"""What a fault looks like besides: rules that are not asked once it is found."""

FORWARD = {
    layout, order, late, tail, boundary, state_ignored, state_transposed, state_narrow, heads, scale, ignored, sign,
    gate, triangle, passed_through, rows, permuted, one_head, one_channel, factor, normalised, plus_one, rounding_of,
}  # fmt: skip
"""Rules of wrong outputs: not asked where every output is right."""

MOST = 3
"""Diagnoses given, the most specific ones."""


def diagnose(subject: Subject, records: list[Record], broken: tuple[str, ...] = ()) -> list[Diagnosis]:
    """The likely faults behind the failing records of a function, at most three; none if nothing fails.

    ``broken`` names the promises that are not kept; ``records`` has none of their failures.
    """
    evidence = Evidence(subject, records, broken)
    if not evidence.failed:
        return []
    found: list[Diagnosis] = []
    untried: list[str] = []
    for rules in (SPECIFIC, GENERAL):
        for rule in rules:
            implied = any(rule in IMPLIED.get(diagnosis.rule, ()) for diagnosis in found)
            if implied or (rule in FORWARD and not evidence.fails("forward")):
                continue
            try:
                answer = rule(evidence)
            except Exception as error:  # the verdict matters more than one rule
                untried.append(f"{rule.__name__} ({type(error).__name__}: {error})")
                continue
            if answer is not None:
                found.append(answer)
            if len(found) == MOST:
                return found
        if found:
            return found
    return [unknown(evidence, untried)]


def unknown(e: Evidence, untried: list[str]) -> Diagnosis:
    """No rule fits: what is known all the same."""
    counts = Counter(f"{r.direction} {r.case.dtype}" for r in e.failed)
    worst = max(e.failed, key=badness)
    right = sorted({f"{r.direction} {r.case.dtype}" for r in e.records} - set(counts))
    return Diagnosis(
        rule="unknown", fault="no rule fits",
        evidence="wrong: " + ", ".join(f"{what} ({n})" for what, n in sorted(counts.items()))
        + (f"; right throughout: {', '.join(right)}" if right else "")
        + ("" if worst.ratio is None else f"; worst: {worst.ratio:.3g} times the unavoidable error (30 passes)")
        + (f"; rules that could not be tried: {', '.join(untried)}" if untried else ""),
        suggestion=f"start from the worst case: {worst.case.describe()}",
    )  # fmt: skip
