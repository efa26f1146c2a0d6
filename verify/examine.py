"""Judging one case: the exact answer once, then every variant, direction and property against it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify import gradients, registry
from linattest.verify.environment import environment
from linattest.verify.given import batch_of, operator_of
from linattest.verify.grids import Job
from linattest.verify.inputs import Batch, Case, build, lay_out, resolve_options
from linattest.verify.measure import Verdict, Wanted, compare, compare_number, rounding
from linattest.verify.oracle import Truth, truth
from linattest.verify.probe import Finding, Probe
from linattest.verify.records import Direction, Record, Status, finite, load_bundle, save_bundle
from linattest.verify.sensitivity import Sensitivity, sensitivity
from linattest.verify.spec import Operator, Property, Variant
from linattest.verify.subject import Subject, SubjectError
from linattest.verify.subjects import Outcome, resolve, run
from linattest.verify.tolerance import THRESHOLD, accumulation, smallest_subnormal, unit_roundoff

Array = NDArray[np.float64]

CERTIFIED_WORK = 1 << 14
"""Largest T * K * (K + V) on which the gradient oracle certifies the float64 reference's gradient."""


@dataclass(frozen=True)
class Examination:
    """The exact answers for one batch, each computed when first asked for."""

    operator: Operator
    batch: Batch
    subject: Subject | None = None

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Unavoidable error, and the float64 reference's values and gradients."""
        return sensitivity(self.operator, self.batch, backward=self.batch.case.gradient)

    @cached_property
    def truth(self) -> Truth:
        """The oracle's enclosure of the outputs."""
        return truth(self.operator, self.batch, self.budget)

    @cached_property
    def budget(self) -> dict[str, Array]:
        """Allowed error by output, with nothing staged: the strictest any variant is held to."""
        return {name: self._estimate(name).budget(self.dtype_of(name)) for name in self.outputs}

    @property
    def outputs(self) -> list[str]:
        """Names of the forward outputs."""
        return [name for name in self.sensitivity.values if not name.startswith("d ")]

    @property
    def radius(self) -> float:
        """The oracle's worst radius as a fraction of the budget (0/0 = 0)."""
        worst = 0.0
        floor = smallest_subnormal(self.batch.case.dtype)
        for name, radius in self.truth.radius.items():
            if radius.size:
                worst = max(worst, float(np.max(radius / np.maximum(self.budget[name], floor))))
        return worst

    def dtype_of(self, name: str) -> str:
        """The dtype an output is rounded to: states and scalars are kept in the accumulation type."""
        case = self.batch.case
        inner = name.removeprefix("d ")
        return case.dtype if inner == "o" or inner in self.batch.tensors else accumulation(case.dtype)

    def wanted(self, name: str, variant: Variant) -> Wanted:
        """Exact value (for gradients: the certified float64 reference) and unavoidable error."""
        estimate = self._estimate(name)
        hi, lo = (self.truth.hi[name], self.truth.lo[name]) if name in self.truth.hi else (estimate.hi, estimate.lo)
        rms = self.sensitivity.kappa_rms(name, estimate.head_axis)
        return Wanted(hi, lo, estimate.kappa, self.staged(name, variant), estimate.head_axis, rms)

    def staged(self, name: str, variant: Variant) -> Array:
        """The sum of a variant's staged terms for one output."""
        total = np.zeros_like(self.sensitivity.values[name])
        for term in variant.staged:
            if self.batch.case.dtype in term.dtypes:
                if term.function not in self._terms:
                    measure = resolve(term.function)
                    self._terms[term.function] = measure(self.operator, self.batch, self.batch.case.gradient)
                total = total + self._terms[term.function].get(name, 0.0)
        return total

    @cached_property
    def _terms(self) -> dict[str, dict[str, Array]]:
        return {}

    def _estimate(self, name: str) -> Wanted:
        value = self.sensitivity.values[name]
        axes = {f"state.{x.name}": x.head_axis or 0 for x in self.operator.states}
        axis = axes.get(name.removeprefix("d "), 2)
        zero = np.zeros_like(value)
        return Wanted(value, zero, self.sensitivity.kappa(name), zero, axis)

    @cached_property
    def certificates(self) -> list[tuple[gradients.Direction, float]]:
        """Exact directional derivatives, where the case is small enough for the gradient oracle."""
        s = self.batch.case.structure
        if s.T * s.K * (s.K + s.V) > CERTIFIED_WORK:
            return []
        return [
            (d, gradients.derivative(self.operator, self.batch, d))
            for d in gradients.directions(self.operator, self.batch)
        ]


def examine(job: Job, variants: tuple[str, ...] = (), bundles: Path | None = None) -> list[Record]:
    """Judge a case with all its variants (or the named ones), forward, backward, and by property.

    A variant that raises gives a record of status ``error``; nothing else is lost.
    """
    return list(judged(job, variants, bundles))


def judged(job: Job, variants: tuple[str, ...] = (), bundles: Path | None = None) -> Iterator[Record]:
    """The records of `examine` one at a time, each computed when it is asked for: for who stops at a failure."""
    operator = registry.operator(job.case.operator) if job.subject is None else operator_of(job.subject)
    batch = build(operator, job.case) if job.subject is None else batch_of(job.subject, job.case)
    examination = Examination(operator, batch, job.subject)
    for variant, direction, tried in planned(operator, job.case, variants, job.properties):
        record = _judge(examination, variant, direction) if tried is None else _property(examination, variant, tried)
        yield _file(record, examination, bundles)


def replay(path: Path) -> list[Record]:
    """Run again what a bundle saved, on the very tensors it holds.

    Raises:
        ValueError: not a bundle, or of an operator or variant that is unknown here.
    """
    bundle, tensors = load_bundle(path)
    try:
        operator = registry.operator(bundle.case.operator) if bundle.subject is None else operator_of(bundle.subject)
        variant = operator.variant(bundle.variant)
    except (KeyError, SubjectError) as error:
        raise ValueError(f"{path}: {error.args[0]}") from error
    case = bundle.case
    cu_seqlens = build(operator, case).cu_seqlens
    options = resolve_options(operator, case.options)
    inputs = {x.name: lay_out(tensors["input"][x.name], case.structure.layout) for x in operator.inputs_of(options)}
    batch = Batch(case, inputs, tensors["initial"] or None, options, tensors["cotangent"], cu_seqlens)
    examination = Examination(operator, batch, bundle.subject)
    if bundle.direction == "property":
        chosen = [p for p in registry.properties(operator) if p.name == bundle.what]
        return [_property(examination, variant, p) for p in chosen]
    return [_judge(examination, variant, bundle.direction)]


def planned(
    operator: Operator, case: Case, names: tuple[str, ...] = (), properties: bool = False
) -> Iterator[tuple[Variant, Direction, Property | None]]:
    """What there is to judge about a case: (variant, direction, property)."""
    for variant in operator.variants:
        if (names and variant.name not in names) or not runs(operator, variant, case):
            continue
        yield variant, "forward", None
        if case.gradient and "gradient" in variant.supports:
            yield variant, "gradient", None
        if properties:
            for tried in registry.properties(operator):
                if tried.needs <= variant.supports:
                    yield variant, "property", tried


def runs(operator: Operator, variant: Variant, case: Case) -> bool:
    """Whether a variant takes this kind of input."""
    s = case.structure
    needed = {"packed": s.cu_seqlens is not None, "grouped": s.group > 1, "rectangular": s.K != s.V}
    needed["state"] = s.initial_state and bool(operator.states)
    return case.dtype in variant.dtypes and all(f in variant.supports for f, used in needed.items() if used)


def _file(record: Record, examination: Examination, bundles: Path | None) -> Record:
    """A failing record gets a replay bundle and the command that runs it."""
    if not record.failed or bundles is None:
        return record
    try:
        path = save_bundle(bundles, record, examination.batch, examination.subject)
    except OSError as error:  # the failure matters more than its bundle
        return msgspec.structs.replace(record, replay=f"(no bundle: {error})")
    command = "verify" if examination.subject is None else "check"
    return msgspec.structs.replace(record, replay=f"linattest {command} --replay {shlex.quote(str(path))}")


def _judge(examination: Examination, variant: Variant, direction: Direction) -> Record:
    start = time.perf_counter()
    try:
        outcome = run(examination.operator, variant, examination.batch.copy(), backward=direction == "gradient")
        found = verdicts(examination, variant, direction, outcome)
    except Exception as error:
        return _error(examination, variant, direction, direction, error)
    worst = max(found, key=lambda v: v.ratio)
    message = worst.message()
    if direction == "gradient" and not examination.certificates:
        message += " (wanted is the float64 reference's gradient, which is not certified at this size)"
    return _record(examination, variant, direction, worst.name, {v.name: v.ratio for v in found}, message, start)


def verdicts(examination: Examination, variant: Variant, direction: Direction, outcome: Outcome) -> list[Verdict]:
    """What a variant returned, judged: every output, or every gradient (elementwise and along directions)."""
    return list((_forward if direction == "forward" else _gradient)(examination, variant, outcome))


def _forward(examination: Examination, variant: Variant, outcome: Outcome) -> Iterator[Verdict]:
    names = ["o", *(name for name in examination.truth.hi if name != "o" and "state" in variant.supports)]
    roundoff = unit_roundoff(accumulation(examination.batch.case.dtype))
    for name in names:
        if name not in outcome.values:
            raise KeyError(f"no output {name!r}; the variant returned {sorted(outcome.values)}")
        yield compare(name, outcome[name], examination.wanted(name, variant), examination.dtype_of(name), roundoff)


def _gradient(examination: Examination, variant: Variant, outcome: Outcome) -> Iterator[Verdict]:
    """Elementwise against the float64 reference; along directions, both against the gradient oracle."""
    sensitive, case = examination.sensitivity, examination.batch.case
    roundoff = unit_roundoff(accumulation(case.dtype))
    for name in (name for name in sensitive.values if name.startswith("d ")):
        yield compare(name, outcome[name], examination.wanted(name, variant), examination.dtype_of(name), roundoff)
    for direction, exact in examination.certificates:
        name = f"d {direction.input}"

        def along(x: Array, d: Array = direction.array) -> Array:
            return np.asarray(np.sum(x * d))

        unavoidable = float(sensitive.movement(along, name))
        reference = float(along(sensitive.values[name]))
        scale = unit_roundoff("float64") / roundoff
        yield compare_number(
            f"reference d {direction.name}", reference, exact, gradients.TRUNCATION, unavoidable * scale
        )
        if np.any(np.abs(sensitive.values[name]) > torch.finfo(outcome[name].dtype).max):
            continue  # infinity is the right answer there, as the elementwise comparison knows; it has no sum
        got = outcome[name].double().numpy()
        free = rounding(sensitive.values[name], examination.dtype_of(name)) + examination.staged(name, variant)
        free_sum = float(np.sum(free * np.abs(direction.array)))
        yield compare_number(
            f"d {direction.name}", float(along(got)), exact, free_sum + gradients.TRUNCATION, unavoidable
        )


def _property(examination: Examination, variant: Variant, tried: Property) -> Record:
    start = time.perf_counter()
    try:
        wanted = {name: examination.wanted(name, variant) for name in examination.outputs}
        probe = Probe(examination.operator, variant, examination.batch.copy(), wanted, registry.BY_NAME)
        findings: list[Finding] = list(tried.check(probe))
    except Exception as error:
        return _error(examination, variant, "property", tried.name, error)
    worst = max(findings, key=lambda f: f.ratio, default=Finding(0.0, "nothing to try on this case"))
    ratios = {"findings": float(len(findings)), tried.name: worst.ratio}
    return _record(examination, variant, "property", tried.name, ratios, worst.message, start)


def _record(
    examination: Examination, variant: Variant, direction: Direction, what: str,
    ratios: Mapping[str, float], message: str, start: float,
) -> Record:  # fmt: skip
    case = examination.batch.case
    ratio = max((x for name, x in ratios.items() if name != "findings"), default=0.0)
    status: Status = "pass" if ratio <= THRESHOLD else "fail"
    known = next(
        (
            x
            for x in examination.operator.limitations
            if x.covers(variant.name, case.dtype, case.family, direction, what)
        ),
        None,
    )
    if status == "fail" and known is not None and ratio <= known.most:
        status, message = "known", f"{message} (known: {known.why})"
    return Record(
        case=case, variant=variant.name, direction=direction, what=what, status=status, ratio=finite(ratio),
        ratios={name: finite(x) for name, x in ratios.items()}, message="" if status == "pass" else message,
        oracle_radius=finite(examination.radius), oracle_bits=examination.truth.prec,
        crosschecked=examination.truth.crosschecked, seconds=round(time.perf_counter() - start, 4),
        environment=environment(),
    )  # fmt: skip


def _error(examination: Examination, variant: Variant, direction: Direction, what: str, error: Exception) -> Record:
    return Record(
        case=examination.batch.case, variant=variant.name, direction=direction, what=what, status="error",
        ratio=None, message=f"{type(error).__name__}: {error}", environment=environment(),
    )  # fmt: skip
