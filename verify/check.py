"""Bring your own kernel: a function of a user, judged as one of the operators. This runs the given code.

from linattest.verify.executors import InProcess
from linattest.verify.check import check

result = check(my_function, "gla", rename={"gk": "g"})
assert result.passed, str(result)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from linattest.verify import registry
from linattest.verify.campaign import Campaign, run_campaign
from linattest.verify.diagnosis import diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.executors import InProcess
from linattest.verify.given import operator_of
from linattest.verify.grids import Job, grid, settings, ungroup
from linattest.verify.inputs import Case, Structure, resolve_options
from linattest.verify.preparation import prepare
from linattest.verify.records import Record
from linattest.verify.signature import Input
from linattest.verify.spec import Operator
from linattest.verify.subject import Subject, hand_over, source


@dataclass
class Result:
    """What was found of a function: its records, the likely faults, and what was not tried (with the reason)."""

    subject: Subject
    records: list[Record] = field(default_factory=list[Record])
    diagnoses: list[Diagnosis] = field(default_factory=list[Diagnosis])
    not_tried: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    interrupted: bool = False
    died: bool = False
    strict: bool = False

    @property
    def failed(self) -> list[Record]:
        """The records that fail; broken promises only if ``strict``."""
        return [x for x in self.records if x.failed and (self.strict or not promise_of(x))]

    @property
    def broken(self) -> dict[str, list[Record]]:
        """What fails beyond the values, by promise: a caller may or may not rely on it."""
        found: dict[str, list[Record]] = {}
        for record in self.records:
            if record.failed and (name := promise_of(record)):
                found.setdefault(name, []).append(record)
        return found

    def kept(self) -> list[Record]:
        """The records for a file: a broken promise is a known failure there, unless ``strict``."""
        wrong = {id(record) for record in self.failed}
        return [
            x if id(x) in wrong or not x.failed else msgspec.structs.replace(x, status="known") for x in self.records
        ]

    @property
    def passed(self) -> bool:
        """Whether something was tried and nothing failed."""
        return bool(self.records) and not (self.failed or self.interrupted or self.died)

    def __str__(self) -> str:
        from linattest.verify.report.check import page

        return page(self)


def promise_of(record: Record) -> str:
    """The promise that a failing record breaks; empty if a value is wrong."""
    if record.case.structure.T == 0:
        return "empty sequences"
    promised = {p.name for p in registry.properties(registry.operator(record.case.operator)) if p.promise}
    return record.what if record.direction == "property" and record.what in promised else ""


def check(
    function: Callable[..., Any] | str, operator: str, *, quick: bool = True, full: bool = False, seed: int = 0,
    bundles: Path | None = None, executor: Executor | None = None, strict: bool = False, **description: Any,
) -> Result:  # fmt: skip
    """Judge a function as an operator: forward, gradients, properties, every dtype and feature that it takes.

    Args:
        function: the function, or "module:function"; it is run.
        operator: the operator's name, as ``linattest info`` lists them.
        quick: a first impression (the default here); ``quick=False`` takes the sample of ``linattest verify``.
        bundles: a folder for replay bundles of what fails.
        executor: where to run; here, if none is given.
        strict: whether a broken promise (``Property.promise``, an empty sequence) counts as wrong.
        description: fields of ``Subject``: ``rename``, ``fixed``, ``only``, ``dtypes``, ``supports``, ...

    Raises:
        KeyError: no such operator.
        SubjectError: the function cannot be found, or its signature does not fit the operator.
    """
    path = function if isinstance(function, str) else hand_over(function)
    subject = Subject(function=path, operator=registry.operator(operator).name, **description)
    result = examine_subject(subject, executor or InProcess(), quick=quick, full=full, seed=seed, bundles=bundles)
    result.strict = strict
    return result


Progress = Callable[[list[Record]], None]


def unwatched(jobs: list[Job], run: Callable[[Progress], Campaign]) -> Campaign:
    """Run without a progress bar."""
    return run(lambda _: None)


def examine_subject(
    subject: Subject, executor: Executor, *, quick: bool = False, full: bool = False, seed: int = 0,
    bundles: Path | None = None, watch: Callable[[list[Job], Callable[[Progress], Campaign]], Campaign] = unwatched,
) -> Result:  # fmt: skip
    """Find out what a function takes, judge it, and say what is wrong with it; all of it where ``executor`` runs.

    ``watch`` is given the jobs and what runs them, so that it can show how far that is.
    """
    subject, not_tried, notes = executor.submit(prepare, subject).result()
    jobs = executor.submit(jobs_of, subject, quick, full, seed).result()
    campaign = watch(
        jobs,
        lambda progress: run_campaign(jobs, executor, variants=(subject.variant,), bundles=bundles, progress=progress),
    )
    place = executor.submit(source, subject.function).result()
    records = [msgspec.structs.replace(record, source=place) for record in campaign.records]
    result = Result(subject, records, [], not_tried, notes, campaign.seconds, campaign.interrupted)
    if result.failed and not result.interrupted:
        wrong = [record for record in result.records if not (record.failed and promise_of(record))]
        result.diagnoses = executor.submit(diagnose, subject, wrong, tuple(result.broken)).result()
    return result


RESETS = Structure(T=20, K=8, V=5, H=2)
"""Small inputs in which some log-gates are -inf, which is legal (a reset) and no family of the operators draws."""

WIDE = Structure(T=2, K=72, V=72)
"""More channels than a block of 64 has: the grid of a first impression has none, and a sample others."""


def besides(operator: Operator, quick: bool, seed: int) -> list[Job]:
    """Jobs of a user's function beside the operator's grid, in every setting with a gate, or in the first."""
    common: dict[str, Any] = {"operator": operator.name, "dtype": "float32", "seed": seed, "gradient": False}
    gated = [o for o in settings(operator) if any(x.domain == "log_gate" for x in _inputs(operator, o))]
    found = [Case(structure=RESETS, family="resets", options=o, **common) for o in gated]
    if quick:
        found.append(Case(structure=WIDE, options=operator.grid[0], **common))
    return [Job(case) for case in found]


def _inputs(operator: Operator, options: Any) -> Iterable[Input]:
    return operator.inputs_of(resolve_options(operator, options))


def jobs_of(subject: Subject, quick: bool, full: bool, seed: int) -> list[Job]:
    """The operator's grid, cut down to what the function takes: no length or family is lost for a missing feature."""
    operator, found = operator_of(subject), dict[tuple[str, bool], Job]()
    for i, job in enumerate([*grid(operator, quick=quick, full=full, seed=seed), *besides(operator, quick, seed)]):
        s, supports = job.case.structure, subject.supports
        if s.cu_seqlens is not None and "packed" not in supports:
            continue
        if "grouped" not in supports:
            s = ungroup(s)
        sizes: dict[str, Any] = {"T": -(-s.T // subject.multiple) * subject.multiple}
        if "rectangular" not in supports:
            sizes["V"] = s.K
        if "state" not in supports and operator.states:
            sizes["initial_state"] = False
        dtype = job.case.dtype if job.case.dtype in subject.dtypes else subject.dtypes[i % len(subject.dtypes)]
        case = msgspec.structs.replace(
            job.case, structure=msgspec.structs.replace(s, **sizes), dtype=dtype,
            gradient=job.case.gradient and "gradient" in supports,
        )  # fmt: skip
        properties = job.properties and subject.multiple == 1  # they cut sequences where they like
        found[case.key, properties] = Job(case, properties, subject)
    return sorted(found.values(), key=lambda job: -job.work)
