"""One check of a user's function at a time, for test suites: what the pytest plugin parametrises over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from linattest.verify import registry
from linattest.verify.check import jobs_of, promise_of
from linattest.verify.diagnosis import diagnose
from linattest.verify.examine import examine, planned
from linattest.verify.given import operator_of
from linattest.verify.grids import Job
from linattest.verify.preparation import prepare
from linattest.verify.records import Record
from linattest.verify.subject import Subject, hand_over


@dataclass
class Judged:
    """A job and its records, made when the first of its checks runs."""

    job: Job
    subject: Subject

    @cached_property
    def records(self) -> dict[tuple[str, str], Record]:
        """The records by direction and, for properties, name."""
        found = examine(self.job, (self.subject.variant,))
        return {(r.direction, r.what if r.direction == "property" else ""): r for r in found}


@dataclass(frozen=True)
class CaseCheck:
    """One check. ``id`` names it; calling it passes or raises ``AssertionError`` with message and diagnosis."""

    judged: Judged
    direction: str
    what: str
    strict: bool = False

    @property
    def id(self) -> str:
        """A test id: direction or property, dtype, family and sizes, and the case's own digits."""
        case = self.judged.job.case
        s = case.structure
        return f"{self.what or self.direction}-{case.dtype}-{case.family}-T{s.T}-K{s.K}-V{s.V}-{case.key[:6]}"

    def __call__(self) -> None:
        """Judge it."""
        record = self.judged.records[self.direction, self.what]
        if record.failed and (self.strict or not promise_of(record)):
            found = diagnose(self.judged.subject, [record])
            likely = "".join(f"\nlikely: {d.fault}\n  {d.evidence}\n  look at: {d.suggestion}" for d in found)
            raise AssertionError(f"{record.case.describe()}\n{record.message}{likely}")


def cases(
    operator: str,
    function: Callable[..., Any] | str,
    *,
    full: bool,
    quick: bool,
    seed: int,
    strict: bool = False,
    **description: Any,
) -> list[CaseCheck]:
    """Every check of a function, in the order in which they are cheapest. Raises as ``check``."""
    path = function if isinstance(function, str) else hand_over(function)
    subject, _, _ = prepare(Subject(function=path, operator=registry.operator(operator).name, **description))
    found: list[CaseCheck] = []
    for job in jobs_of(subject, quick and not full, full, seed):
        judged = Judged(job, subject)
        for _, direction, tried in planned(operator_of(subject), job.case, (subject.variant,), job.properties):
            found.append(CaseCheck(judged, direction, tried.name if tried else "", strict))
    return found
