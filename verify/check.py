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
from linattest.verify.adapters import Adapter
from linattest.verify.campaign import Campaign, run_campaign
from linattest.verify.diagnosis import diagnose
from linattest.verify.evidence import Diagnosis
from linattest.verify.executors import InProcess
from linattest.verify.given import adapter_of, held_options, operator_of, unreached
from linattest.verify.grids import Job, grid, ungroup
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.records import Record
from linattest.verify.spec import DTYPES, Operator
from linattest.verify.subject import Subject, hand_over
from linattest.verify.subjects import run

SUPPORTS = {
    "packed": "packed sequences", "state": "states in and out", "grouped": "grouped heads (HV > H)",
    "rectangular": "K != V", "gradient": "gradients",
}  # fmt: skip
"""The features of a variant, in words."""


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
    result = Result(subject, campaign.records, [], not_tried, notes, campaign.seconds, campaign.interrupted)
    if result.failed and not result.interrupted:
        wrong = [record for record in result.records if not (record.failed and promise_of(record))]
        result.diagnoses = executor.submit(diagnose, subject, wrong).result()
    return result


def prepare(subject: Subject) -> tuple[Subject, list[str], list[str]]:
    """The description with what the function turns out not to take left out; that in words; and remarks.

    Signature and a few small calls decide. A feature that the signature names is never left out for raising.
    """
    operator, adapter = operator_of(subject), adapter_of(subject)
    takes, reasons = set(subject.supports), dict[str, str]()
    for feature in sorted(set(SUPPORTS) - takes):
        reasons[feature] = "as said"
    if "packed" in takes and not adapter.takes("cu_seqlens"):
        reasons["packed"] = "since the function has no cu_seqlens (--map theirs=cu_seqlens names it)"
    if not operator.states:
        takes.discard("state")
        reasons.pop("state", None)
    elif "state" in takes and not adapter.takes("initial_state"):
        reasons["state"] = "since the function has no initial_state (--map theirs=initial_state names it)"
    if subject.multiple > 1:
        reasons |= {x: f"since T must be a multiple of {subject.multiple}" for x in {"packed", "state"} & takes}
    subject = _with(subject, takes - set(reasons))
    dtypes, refused = _dtypes(subject)
    subject, one_way = _axes(msgspec.structs.replace(subject, dtypes=dtypes))
    shapes: dict[str, dict[str, Any]] = {"grouped": {"group": 2}, "rectangular": {"V": 8}}
    for feature, sizes in shapes.items():
        if feature in subject.supports and not _trial(subject) and (error := _trial(subject, **sizes)):
            reasons[feature] = f"since the function raised {error}"
    subject = _with(subject, set(subject.supports) - set(reasons))
    left_out = [f"{SUPPORTS[feature]}, {why}" for feature, why in reasons.items() if feature in SUPPORTS]
    left_out += ["properties, since they cut sequences anywhere"] * (subject.multiple > 1)
    left_out += refused + one_way + _settings(operator, subject, adapter)
    return subject, left_out, _remarks(subject, adapter)


def _with(subject: Subject, supports: Iterable[str]) -> Subject:
    return msgspec.structs.replace(subject, supports=tuple(sorted(supports)))


def _dtypes(subject: Subject) -> tuple[tuple[str, ...], list[str]]:
    """The dtypes that it takes, and why the others are not tried; all that were said, if it takes none."""
    errors = {dtype: _trial(subject, dtype) for dtype in subject.dtypes}
    taken = tuple(dtype for dtype, error in errors.items() if not error or "returned" in error)
    refused = [f"{dtype}, since the function raised {error}" for dtype, error in errors.items() if dtype not in taken]
    said = [f"{dtype}, as said" for dtype in DTYPES if dtype not in subject.dtypes]
    return (taken, said + refused) if taken else (subject.dtypes, said)


def _axes(subject: Subject) -> tuple[Subject, list[str]]:
    """The description with an axis held where the function takes one of its values only, as a gate's shape; and why."""
    operator, reasons = operator_of(subject), list[str]()
    with_a_meaning = held_options(operator, subject)
    for option in (x for x in operator.options if not x.passed and x.name in set(with_a_meaning) - set(subject.only)):
        values = list(dict.fromkeys([option.default, *(x[option.name] for x in operator.grid if option.name in x)]))
        errors = {
            value: _trial(msgspec.structs.replace(subject, only={**subject.only, option.name: value}))
            for value in values
        }
        fine = [value for value, error in errors.items() if not error]
        if len(fine) == 1 and len(values) > 1:
            subject = msgspec.structs.replace(subject, only={**subject.only, option.name: fine[0]})
            reasons += [f"{option.name}={x}, since the function gave {error}" for x, error in errors.items() if error]
    return subject, reasons


def _trial(subject: Subject, dtype: str = "", **sizes: Any) -> str:
    """What a small call raises, or returns of another shape; empty if it is well."""
    operator = operator_of(subject)
    knobs: dict[str, Any] = {"T": 16 * subject.multiple, "K": 16, "V": 16, "H": 2, **sizes}
    case = Case(
        operator=operator.name, structure=Structure(**knobs), dtype=dtype or subject.dtypes[0],
        options=operator.grid[0],
    )  # fmt: skip
    try:
        o = run(operator, operator.variant(subject.variant), build(operator, case))["o"]
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    due = case.structure.shape(operator.output)
    return "" if tuple(o.shape) == due else f"o of shape {tuple(o.shape)} for {due}"


def _settings(operator: Operator, subject: Subject, adapter: Adapter) -> list[str]:
    """Why option settings of the operator's grid are not tried, but for the axes that are held: those are said."""
    every = registry.operator(subject.operator).grid
    reasons = dict.fromkeys(why for o in every if (why := unreached(operator, subject, adapter, o)))
    return [why for why in reasons if "is held" not in why]


def _remarks(subject: Subject, adapter: Adapter) -> list[str]:
    """What a reader should know of how it was called."""
    notes: list[str] = []
    for theirs, parameter in (adapter.parameters or {}).items():
        derived = next((x.derived for x in adapter.operator.options if x.name == theirs), None)
        if derived and parameter.default is not None and theirs not in subject.fixed:
            default = "none" if parameter.default is parameter.empty else repr(parameter.default)
            notes.append(f"{theirs}={derived} is passed, since its default is {default}")
    notes += [f"{theirs} gets {ours}" for theirs, ours in subject.rename.items()]
    notes += [f"{theirs}={value} is passed" for theirs, value in subject.fixed.items()]
    notes += [f"{name} is 0 and not passed" for name in subject.drop]
    told = {
        "states are [.., V, K]": subject.transpose_state, "tensors are head-first": subject.layout == "head-first",
        "inputs are made contiguous": subject.contiguous, "an output of another dtype is cast": subject.any_dtype,
        f"T is a multiple of {subject.multiple}": subject.multiple > 1,
        f"tensors are moved to {subject.device}": subject.device != "cpu",
    }  # fmt: skip
    return notes + [words for words, holds in told.items() if holds]


def jobs_of(subject: Subject, quick: bool, full: bool, seed: int) -> list[Job]:
    """The operator's grid, cut down to what the function takes: no length or family is lost for a missing feature."""
    operator, found = operator_of(subject), dict[tuple[str, bool], Job]()
    for i, job in enumerate(grid(operator, quick=quick, full=full, seed=seed)):
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
