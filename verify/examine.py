"""Judging one case: the exact answer once, then every variant, direction and property against it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify import devices, gpu_share, gradients, registry
from linattest.verify.current import sources
from linattest.verify.devices import home, place, surroundings
from linattest.verify.examination import Examination, out_of_reach
from linattest.verify.given import batch_of, operator_of
from linattest.verify.grids import Job
from linattest.verify.inputs import Batch, Case, build, lay_out, resolve_options
from linattest.verify.measure import Verdict, compare, compare_number, rounding
from linattest.verify.probe import Finding, Probe
from linattest.verify.records import Direction, Record, Status, finite, load_bundle, save_bundle
from linattest.verify.spec import Operator, Property, Variant
from linattest.verify.subject import SubjectError
from linattest.verify.subjects import Outcome, run
from linattest.verify.tolerance import THRESHOLD, accumulation, unit_roundoff

Array = NDArray[np.float64]


def examine(job: Job, variants: tuple[str, ...] = (), bundles: Path | None = None) -> list[Record]:
    """Judge a case with all its variants (or the named ones), forward, backward, and by property.

    A variant that raises gives a record of status ``error``; nothing else is lost.
    """
    gpu_share.claim(job.device)
    try:
        return list(judged(job, variants, bundles))
    finally:
        gpu_share.release()


def judged(job: Job, variants: tuple[str, ...] = (), bundles: Path | None = None) -> Iterator[Record]:
    """The records of `examine` one at a time, each computed when it is asked for: for who stops at a failure."""
    operator = registry.operator(job.case.operator) if job.subject is None else operator_of(job.subject)
    batch = build(operator, job.case) if job.subject is None else batch_of(job.subject, job.case)
    examination = Examination(operator, batch, job.subject, job.device)
    for variant, direction, tried in planned(operator, job.case, variants, job.properties, job.device):
        record = _judge(examination, variant, direction) if tried is None else _property(examination, variant, tried)
        yield _file(record, examination, bundles)


def replay(path: Path, device: str = "cpu") -> list[Record]:
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
    examination = Examination(operator, batch, bundle.subject, device)
    if bundle.direction == "property":
        chosen = [p for p in registry.properties(operator) if p.name == bundle.what]
        return [_property(examination, variant, p) for p in chosen]
    return [_judge(examination, variant, bundle.direction)]


def planned(
    operator: Operator, case: Case, names: tuple[str, ...] = (), properties: bool = False, device: str = "cpu"
) -> Iterator[tuple[Variant, Direction, Property | None]]:
    """What there is to judge about a case on a device: (variant, direction, property)."""
    for variant in devices.chosen(operator, names, device):
        if not (runs(operator, variant, case) and judgeable(operator, variant, case)):
            continue
        if not devices.small_enough(variant, case, device):
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
    taken = case.dtype in variant.dtypes and variant.takes(resolve_options(operator, case.options))
    return taken and all(f in variant.supports for f, used in needed.items() if used)


STEP_TOKENS = 300
"""Most tokens that a decode step is driven through: more of them say no more, and what it hands on costs a token loop
for every sample."""


def judgeable(operator: Operator, variant: Variant, case: Case) -> bool:
    """Whether a variant can be held to something: the token loop cannot where it stands in for the oracle."""
    if variant.kind == "step" and case.structure.T > STEP_TOKENS:
        return False
    return variant.name != operator.reference or not out_of_reach(operator, case)


def _file(record: Record, examination: Examination, bundles: Path | None) -> Record:
    """A failing record gets a replay bundle and the command that runs it."""
    if not record.failed or bundles is None:
        return record
    try:
        path = save_bundle(bundles, record, examination.batch, examination.subject)
    except OSError as error:  # the failure matters more than its bundle
        return msgspec.structs.replace(record, replay=f"(no bundle: {error})")
    command = "verify" if examination.subject is None else "check"
    command += f" --device {examination.device}" if examination.device != "cpu" else ""
    return msgspec.structs.replace(record, replay=f"linattest {command} --replay {shlex.quote(str(path))}")


def _judge(examination: Examination, variant: Variant, direction: Direction) -> Record:
    start = time.perf_counter()

    def judge() -> list[Verdict]:
        batch = place(examination.batch.copy(), examination.device)
        outcome = home(run(examination.operator, variant, batch, backward=direction == "gradient"))
        return verdicts(examination, variant, direction, outcome)

    try:
        found = gpu_share.with_room(examination.device, judge)
    except Exception as error:
        return _error(examination, variant, direction, direction, error)
    worst = max(found, key=lambda v: v.ratio)
    message = worst.message()
    if direction == "gradient" and not examination.certificates:
        message += " (wanted is the float64 reference's gradient, which is not certified at this size)"
    return _record(examination, variant, direction, worst.name, {v.name: v.ratio for v in found}, message, start)


def verdicts(examination: Examination, variant: Variant, direction: Direction, outcome: Outcome) -> list[Verdict]:
    """What a variant returned, judged: every output, or every gradient (elementwise and along directions)."""
    judge = _forward if direction == "forward" else _gradient
    found = list(judge(examination, variant, outcome, whole=False))
    if all(v.passed for v in found):
        return found
    return list(judge(examination, variant, outcome, whole=True))  # a closer look, which costs as much again


def _forward(examination: Examination, variant: Variant, outcome: Outcome, *, whole: bool) -> Iterator[Verdict]:
    names = ["o", *(name for name in examination.truth.hi if name != "o" and "state" in variant.supports)]
    roundoff = unit_roundoff(accumulation(examination.batch.case.dtype))
    for name in names:
        if name not in outcome.values:
            raise KeyError(f"no output {name!r}; the variant returned {sorted(outcome.values)}")
        wanted = examination.wanted(name, variant, whole=whole)
        yield compare(name, outcome[name], wanted, examination.dtype_of(name), roundoff)


def _gradient(examination: Examination, variant: Variant, outcome: Outcome, *, whole: bool) -> Iterator[Verdict]:
    """Elementwise against the float64 reference; along directions, both against the gradient oracle."""
    sensitive, case = examination.sensitivity, examination.batch.case
    roundoff = unit_roundoff(accumulation(case.dtype))
    for name in (name for name in sensitive.values if name.startswith("d ")):
        wanted = examination.wanted(name, variant, whole=whole)
        yield compare(name, outcome[name], wanted, examination.dtype_of(name), roundoff)
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
        free = rounding(sensitive.values[name], examination.dtype_of(name))
        free += examination.term(name, variant, whole=whole).most
        free_sum = float(np.sum(free * np.abs(direction.array)))
        yield compare_number(
            f"d {direction.name}", float(along(got)), exact, free_sum + gradients.TRUNCATION, unavoidable
        )


def _property(examination: Examination, variant: Variant, tried: Property) -> Record:
    start = time.perf_counter()

    def look() -> list[Finding]:
        wanted = {name: examination.wanted(name, variant) for name in examination.outputs}
        probe = Probe(
            examination.operator, variant, examination.batch.copy(), wanted, registry.BY_NAME, examination.device
        )
        return list(tried.check(probe))

    try:
        findings = gpu_share.with_room(examination.device, look)
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
        truth="float64" if examination.substituted else "oracle",
        oracle_radius=None if examination.radius is None else finite(examination.radius),
        oracle_bits=examination.truth.prec, crosschecked=examination.truth.crosschecked,
        seconds=round(time.perf_counter() - start, 4), environment=surroundings(examination.device, variant.kernel),
        sources="" if examination.subject else sources(variant),
    )  # fmt: skip


def _error(examination: Examination, variant: Variant, direction: Direction, what: str, error: Exception) -> Record:
    return Record(
        case=examination.batch.case, variant=variant.name, direction=direction, what=what, status="error",
        ratio=None, message=f"{type(error).__name__}: {error}",
        environment=surroundings(examination.device, variant.kernel),
        sources="" if examination.subject else sources(variant),
    )  # fmt: skip
