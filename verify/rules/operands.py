"""A narrow type alone is wrong, and right once the operands of matrix products may be rounded to it."""

from __future__ import annotations

import msgspec

from linattest.verify.evidence import Diagnosis, Evidence, badness
from linattest.verify.examine import examine
from linattest.verify.given import operands_of
from linattest.verify.grids import Job
from linattest.verify.records import Record
from linattest.verify.rules.precision import twice_rounded
from linattest.verify.spec import DTYPES

NARROW = ("bfloat16", "float16")

MOST_CASES = 12
"""Failing cases that are judged again, the worst first; one that still fails ends it."""


def operands(e: Evidence) -> Diagnosis | None:
    """Every failing case is right with the terms that our own kernels have for their operands."""
    bad = sorted(e.failed, key=badness, reverse=True)
    narrow = [d for d in DTYPES if any(r.case.dtype == d for r in bad)]
    wider = [d for d in DTYPES if d in {r.case.dtype for r in e.records} and d not in narrow]
    staged = operands_of(e.operator.name)
    covered = all(any(d in term.dtypes for term in staged) for d in narrow)
    errors = any(r.status == "error" for r in bad)
    if e.subject.operands or errors or not covered or not set(narrow) <= set(NARROW) or not set(wider) - set(NARROW):
        return None
    if any(twice_rounded(e, d) for d in narrow):  # the terms would cover that too
        return None
    cases = list(dict.fromkeys(r.case.key for r in bad))[:MOST_CASES]
    if not all(_passes(e, [r for r in bad if r.case.key == case]) for case in cases):
        return None
    types = " and ".join(narrow)
    return Diagnosis(
        rule="operands", fault=f"operands of its matrix products are rounded to the type, in {types} alone",
        evidence=f"{len(bad)} checks in {types} fail, none in {', '.join(wider)}; the "
        + (f"{len(cases)} worst failing inputs are" if len(cases) > 1 else "failing input is")
        + f" right with the terms for it: {', '.join(x.name for x in staged)}; worst: {bad[0].message}",
        suggestion="if that is meant, as on a tensor core: --operands; if not: keep what is computed wider than "
        + types,
    )  # fmt: skip


def _passes(e: Evidence, records: list[Record]) -> bool:
    """Whether a case passes, in all that failed of it, with the operands' terms."""
    subject = msgspec.structs.replace(e.subject, operands=True)
    failing = {(r.direction, r.what) if r.direction == "property" else (r.direction, "") for r in records}
    job = Job(records[0].case, any(r.direction == "property" for r in records), subject)
    again = examine(job, (subject.variant,))
    return not any((r.direction, r.what if r.direction == "property" else "") in failing for r in again if r.failed)
