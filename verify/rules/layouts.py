"""Rules about the order of axes: heads before tokens, an output of another shape than is due."""

from __future__ import annotations

from typing import Any

import msgspec

from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.preparation import hold_axes
from linattest.verify.subject import Subject

SMALL: tuple[dict[str, Any], ...] = ({"T": 9, "H": 3}, {"T": 33, "H": 2, "B": 2}, {"T": 5, "H": 4, "K": 8})
"""Inputs on which another layout is tried: T, H and B differ, so that no two axes can be taken for each other."""


def layout(e: Evidence) -> Diagnosis | None:
    """It is right in the other layout: [B, H, T, ..] for [B, T, H, ..]."""
    if not e.base.off:
        return None
    other = "seq-first" if e.subject.layout == "head-first" else "head-first"
    for turned in (e.subject.transpose_state, not e.subject.transpose_state):
        if turned != e.subject.transpose_state and not e.supports("state"):
            continue
        subject, _ = hold_axes(msgspec.structs.replace(e.subject, layout=other, transpose_state=turned))
        looks = _small(Evidence(subject, []))
        if any(look.off for look in looks):
            continue
        there, here = _axes(subject), _axes(e.subject)
        words = _advice(e.subject, subject)
        what = e.base.error or f"o is off by {e.base.relative():.2g} of the largest"
        return Diagnosis(
            rule="layout", fault=f"it is right, but its tensors are {there} and it was given {here}",
            evidence=f"{words}, it agrees: all {len(looks)} small inputs come out right "
            f"({looks[0].batch.case.describe()}, ...); as it was called, {what}",
            suggestion=f"run it again {words}; in Python: layout={other!r}"
            + (f", transpose_state={turned}" if turned != e.subject.transpose_state else ""),
        )  # fmt: skip
    return None


def _small(e: Evidence) -> list[Look]:
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
    return Diagnosis(
        rule="shape", fault=f"{'the output' if what == 'o' else what} has another shape than is due" + how,
        evidence=f"{what} has shape {list(got)}, expected {list(due)} = {axes} for {e.base.batch.case.describe()}",
        suggestion=advice if swapped else f"return {what} as {axes}",
    )  # fmt: skip
