"""What a failure takes: a failing case run again with one thing after another as in an ordinary case.

Cases of a sample differ in several things at once, so what the failing ones have in common need not be the cause. A
condition is named only where the same case, ordinary in that respect alone, is well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.given import batch_of
from linattest.verify.inputs import Case, resolve_options
from linattest.verify.records import Record
from linattest.verify.rules.precision import twice_rounded
from linattest.verify.shrink import allowed, simpler

PLAIN: dict[str, tuple[Any, str]] = {
    "cu_seqlens": (None, "packed sequences"), "group": (1, "grouped heads"),
    "initial_state": (False, "an initial state"), "B": (1, "several rows of a batch"), "H": (1, "several heads"),
    "layout": ("contiguous", "inputs that are not contiguous"),
}  # fmt: skip
"""By field of a structure: its ordinary value, and any other in words."""

WIDTH = 16
"""An ordinary width."""

MOST_RUNS = 150
"""Runs that a smaller case is looked for with; what fails is over early."""


def size(case: Case) -> int:
    """How much a case is to look at."""
    s = case.structure
    return s.T * s.K * s.V * s.B * s.H * s.group


def ordinary(e: Evidence, case: Case) -> Iterator[tuple[str, list[Case]]]:
    """(what a case has, in words; the same case without that alone, in every other way)."""
    others = [msgspec.structs.replace(case, dtype=d) for d in e.subject.dtypes if d != case.dtype]
    if others:
        yield case.dtype, others
    for name, value in resolve_options(e.operator, case.options).items():
        free = name not in e.subject.only
        grid = dict.fromkeys(o[name] for o in e.operator.grid if name in o and o[name] != value) if free else {}
        kept = {x: y for x, y in case.options.items() if x != name}
        settings = [kept] * (free and name in case.options) + [{**kept, name: x} for x in grid]
        found = [msgspec.structs.replace(case, options=x) for x in settings]
        if found := [x for x in found if allowed(x) and x.options != case.options]:
            yield f"{name}={value}", found
    if case.family != "random":
        yield f"values of the family {case.family}", [msgspec.structs.replace(case, family="random")]
    for name, (plain, words) in PLAIN.items():
        if getattr(case.structure, name) != plain:
            structure = msgspec.structs.replace(case.structure, **{name: plain})
            yield words, [msgspec.structs.replace(case, structure=structure)]
    sides: tuple[tuple[str, ...], ...] = (("K",), ("V",)) if e.supports("rectangular") else (("K", "V"),)
    for names in sides:
        if any(getattr(case.structure, name) > WIDTH for name in names):
            structure = msgspec.structs.replace(case.structure, **dict.fromkeys(names, WIDTH))
            words = ", ".join(f"{name} = {getattr(case.structure, name)}" for name in names)
            yield words, [msgspec.structs.replace(case, structure=structure)]


def needed(e: Evidence, case: Case, fails: Callable[[Case], bool]) -> tuple[list[str], list[str]]:
    """What a failing case needs to fail, in words, and what it does not: it fails without that too."""
    takes: list[str] = []
    idle: list[str] = []
    for words, others in ordinary(e, case):
        (idle if any(fails(x) for x in others) else takes).append(words)
    return takes, idle


def smallest(e: Evidence, case: Case, fails: Callable[[Case], bool]) -> Case:
    """A case that fails, made simpler one thing at a time as long as it fails."""
    runs = 0
    while True:
        for other in simpler(case):
            s = other.structure
            fits = s.T % e.subject.multiple == 0 and (s.K == s.V or e.supports("rectangular"))
            if not (fits and allowed(other) and e.subject.only.items() <= other.options.items()):
                continue
            runs += 1
            if fails(other):
                case = other
                break
            if runs >= MOST_RUNS:
                return case
        else:
            return case


def dtype_only(e: Evidence) -> Diagnosis | None:
    """All wrong values are of one dtype, and the same inputs in the others are right."""
    bad, failing, others = _by_dtype(e)
    if len(failing) != 1 or not others or e.base.off:
        return None
    (dtype,) = failing
    worst = max(bad, key=lambda r: math.inf if r.ratio is None else r.ratio)
    fails = _failing(e, worst)
    takes, _ = needed(e, worst.case, fails) if fails(worst.case) else ([], [])
    if takes != [dtype]:
        return None
    same = ", ".join(x for x in e.subject.dtypes if x != dtype)
    return Diagnosis(
        rule="dtype", fault=f"wrong only for {dtype}",
        evidence=f"{len(bad)} checks in {dtype} fail, none in {', '.join(others)}; the worst case is right in {same}; "
        f"worst: {worst.message}",
        suggestion=twice_rounded(e, dtype)
        or f"look at the casts on the {dtype} path, its range, and what is accumulated in it",
    )  # fmt: skip


def _by_dtype(e: Evidence) -> tuple[list[Record], set[str], list[str]]:
    """The wrong values, their dtypes, and those that are right; properties are tried in one dtype anyway."""
    values = [r for r in e.records if r.direction != "property"]
    bad = [r for r in values if r.status == "fail"]
    failing = {r.case.dtype for r in bad}
    return bad, failing, sorted({r.case.dtype for r in values} - failing)


def _failing(e: Evidence, record: Record) -> Callable[[Case], bool]:
    backward = record.direction == "gradient"

    def fails(case: Case) -> bool:
        return e.look(batch_of(e.subject, case), backward=backward).off

    return fails


def together(e: Evidence) -> Diagnosis | None:
    """Right as such, and wrong where several things come together."""
    bad = [r for r in e.failed if r.direction != "property" and r.status == "fail" and r.case.structure.T]
    if e.base.off or not bad:
        return None
    record = min(bad, key=lambda r: size(r.case))
    fails = _failing(e, record)
    if not fails(record.case):
        return None
    takes, idle = needed(e, record.case, fails)
    if not takes:
        return None
    look: Look = e.look(batch_of(e.subject, record.case), backward=record.direction == "gradient")
    off = look.error or ", ".join(f"{name} off by {look.worst(name)}" for name in look.bad)
    return Diagnosis(
        rule="together", fault=f"wrong only for {' with '.join(takes)}",
        evidence=f"{record.case.describe()}: {off}; the same case is right without "
        f"{' and without '.join(takes)}" + (f", and as wrong without {', '.join(idle)}" if idle else ""),
        suggestion=f"what is done for {' with '.join(takes)} alone",
    )  # fmt: skip
