"""Rules about the order of axes: heads before tokens, an output of another shape than is due."""

from __future__ import annotations

from typing import Any

import msgspec

from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.preparation import hold_axes
from linattest.verify.rules.factors import CHANGES
from linattest.verify.rules.hypotheses import constant, in_words
from linattest.verify.subject import Subject

SMALL: tuple[dict[str, Any], ...] = ({"T": 9, "H": 3}, {"T": 33, "H": 2, "B": 2}, {"T": 5, "H": 4, "K": 8})
"""Inputs on which another layout is tried: T, H and B differ, so that no two axes can be taken for each other."""


def layout(e: Evidence) -> Diagnosis | None:
    """It is right in the other layout, [B, H, T, ..] for [B, T, H, ..], but for one simple factor if need be."""
    if not e.base.off:
        return None
    other = "seq-first" if e.subject.layout == "head-first" else "head-first"
    for turned in (e.subject.transpose_state, not e.subject.transpose_state):
        if turned != e.subject.transpose_state and not e.supports("state"):
            continue
        subject, _ = hold_axes(msgspec.structs.replace(e.subject, layout=other, transpose_state=turned))
        there = Evidence(subject, [])
        looks = small(there)
        besides = "" if not any(look.off for look in looks) else simply_off(there, looks)
        if any(look.off for look in looks) and not besides:
            continue
        words = _advice(e.subject, subject)
        agrees = f"it agrees but for that: in all {len(looks)} small inputs" if besides else "it agrees: all " + (
            f"{len(looks)} small inputs come out right"
        )  # fmt: skip
        return Diagnosis(
            rule="layout", fault=f"{'its' if besides else 'it is right, but its'} tensors are {_axes(subject)} and it "
            f"was given {_axes(e.subject)}" + (f"; besides, {besides}" if besides else ""),
            evidence=f"{words}, {agrees} ({looks[0].batch.case.describe()}, ...); as it was called, {as_called(e)}",
            suggestion=f"run it again {words}; in Python: layout={other!r}"
            + (f", transpose_state={turned}" if turned != e.subject.transpose_state else "")
            + ("; that page says more of the factor" if besides else ""),
        )  # fmt: skip
    return None


def simply_off(e: Evidence, looks: list[Look]) -> str:
    """In words, the one simple thing by which all are off: the output by a factor, or what the gate enters as."""
    if any(look.error for look in looks):
        return ""
    factors = [constant(look) for look in looks]
    first, K = factors[0], looks[0].batch.case.structure.K
    if first is not None and None not in factors:
        return f"the output is {in_words(first, K)} times what is due for K = {K}"
    gates = [x.name for x in e.operator.inputs_of(looks[0].batch.options) if x.domain == "log_gate"]
    for name in gates:
        for words, change in CHANGES.items():
            made = [e.exact(e.changed(x.batch, **{name: change(x.batch.tensors[name].double())})) for x in looks]
            if all(e.explains(look, answer) for look, answer in zip(looks, made, strict=True)):
                return words.format(g=name)
    return ""


def as_called(e: Evidence) -> str:
    """What came of the plain case in the layout that was said."""
    return e.base.error or f"o is off by {e.base.worst()}"


def small(e: Evidence) -> list[Look]:
    """Runs on small inputs, with a state where it takes one."""
    looks = [e.look(**sizes) for sizes in SMALL]
    if e.supports("state") and e.operator.states:
        looks.append(e.look(T=9, H=3, V=8, initial_state=True))
    return looks


def _axes(subject: Subject) -> str:
    return "[B, H, T, ..]" if subject.layout == "head-first" else "[B, T, H, ..]"


def _advice(given: Subject, right: Subject) -> str:
    """The options to add, or to leave out."""
    flags = {"--head-first": (given.layout == "head-first", right.layout == "head-first"),
             "--transpose-state": (given.transpose_state, right.transpose_state)}  # fmt: skip
    added = " ".join(flag for flag, (was, now) in flags.items() if now and not was)
    dropped = " ".join(flag for flag, (was, now) in flags.items() if was and not now)
    return " and ".join([f"with {added}"] * bool(added) + [f"without {dropped}"] * bool(dropped))


def shape(e: Evidence) -> Diagnosis | None:
    """An output of another shape than is due, said in the layout of the function."""
    found = e.base.shape
    if found is None:
        return None
    got, due, axes, what = found.got, found.due, found.axes, found.what
    swapped = what == "o" and len(got) == 4 and (got[0], got[2], got[1], got[3]) == due
    head_first = e.subject.layout == "head-first"
    how = f": {'tokens come before heads' if head_first else 'heads come before tokens'}" if swapped else ""
    advice = f"transpose(1, 2) the output: with --head-first it is {axes}, as the inputs are"
    if not head_first:
        advice = "transpose(1, 2) the output; if the inputs are [B, H, T, ..] too: --head-first"
    if found.swapped:
        return Diagnosis(
            rule="shape", fault="it returns its values the wrong way round: the second one has o's shape",
            evidence=f"the first has shape {list(got)}, the second {list(due)} = {axes}, for "
            f"{e.base.batch.case.describe()}",
            suggestion="return (o, final state)",
        )  # fmt: skip
    return Diagnosis(
        rule="shape", fault=f"{'the output' if what == 'o' else what} has another shape than is due" + how,
        evidence=f"{what} has shape {list(got)}, expected {list(due)} = {axes} for {e.base.batch.case.describe()}",
        suggestion=advice if swapped else f"return {what} as {axes}",
    )  # fmt: skip
