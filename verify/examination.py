"""The exact answers for one batch, and the errors that nobody can avoid: what every variant is judged against.

Where the oracle would take too long (``ORACLE_WORK``) float64 stands in, on the device that is asked about, since a GPU
takes a second where a CPU takes a minute: the token loop's outputs, the chunk form's gradients and movement. Both forms
are certified there first, by the oracle, on the same family and options at ``CERTIFIED_TOKENS`` tokens, and compared
with each other on the very input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify import gradients, staging
from linattest.verify.devices import place
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.measure import Verdict, Wanted, compare
from linattest.verify.oracle import OracleError, Truth, truth
from linattest.verify.sensitivity import Sensitivity, run_copies, sensitivity
from linattest.verify.spec import Operator, Variant
from linattest.verify.subject import Subject
from linattest.verify.subjects import device_of
from linattest.verify.tolerance import ORACLE_MARGIN, STEP, accumulation, smallest_subnormal, unit_roundoff

Array = NDArray[np.float64]

CERTIFIED_WORK = 1 << 14
"""Largest T * K * (K + V) on which the gradient oracle certifies the float64 reference's gradient."""

ORACLE_WORK = 1 << 22
"""Largest T * K * (K + V) * value heads * rows for the oracle: minutes beyond."""

CERTIFIED_TOKENS = 130
"""Length at which the forms that stand in for the oracle are certified: it has edges of chunks of every size."""


def out_of_reach(operator: Operator, case: Case) -> bool:
    """Whether a case is too large for the oracle, and the operator has a chunk form that can stand in."""
    s = case.structure
    work = s.T * s.K * (s.K + s.V) * s.H * s.group * s.B
    return work > ORACLE_WORK and any(v.name == "chunk" for v in operator.variants)


@dataclass(frozen=True)
class Examination:
    """The exact answers for one batch, each computed when first asked for; its variants run on ``device``."""

    operator: Operator
    batch: Batch
    subject: Subject | None = None
    device: str = "cpu"
    _terms: dict[str, staging.Terms] = field(default_factory=dict[str, staging.Terms])

    @cached_property
    def substituted(self) -> bool:
        """Whether float64 stands in for the oracle."""
        return out_of_reach(self.operator, self.batch.case)

    @cached_property
    def reckoned(self) -> Batch:
        """Where float64 computes: on the CPU, or, where it stands in for the oracle, on the device of the variants."""
        return place(self.batch.copy(), self.device) if self.substituted and self.device != "cpu" else self.batch

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Unavoidable error, and the float64 reference's values and gradients."""
        form = "chunk" if self.substituted else ""
        return sensitivity(self.operator, self.reckoned, backward=self.batch.case.gradient, form=form)

    @cached_property
    def whole_roundoffs(self) -> Sensitivity | None:
        """The movement by roundoffs of the accumulation type itself, not scaled up from smaller ones: what is lost to
        second order, as a square that should be 0. ``None`` where that is no finite movement, or none of float64."""
        step = unit_roundoff(accumulation(self.batch.case.dtype))
        if step < STEP:
            return None
        form, backward = "chunk" if self.substituted else "", self.batch.case.gradient
        try:
            return sensitivity(self.operator, self.reckoned, backward=backward, form=form, step=step)
        except (ArithmeticError, RuntimeError):  # RuntimeError: a moved matrix that is no longer definite
            return None

    @cached_property
    def truth(self) -> Truth:
        """The oracle's enclosure of the outputs."""
        if self.substituted:
            return stand_in(self.operator, self.batch, self.sensitivity, device_of(self.reckoned))
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
    def radius(self) -> float | None:
        """The oracle's worst radius as a fraction of the budget (0/0 = 0); ``None`` where float64 stands in."""
        if self.substituted:
            return None
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

    def wanted(self, name: str, variant: Variant, *, whole: bool = False) -> Wanted:
        """Exact value (for gradients: the certified float64 reference) and unavoidable error; if ``whole``, no less
        than ``whole_roundoffs`` has."""
        estimate = self._estimate(name)
        hi, lo = (self.truth.hi[name], self.truth.lo[name]) if name in self.truth.hi else (estimate.hi, estimate.lo)
        rms = self.sensitivity.kappa_rms(name, estimate.head_axis)
        term, kappa = self.term(name, variant, whole=whole), estimate.kappa
        if whole and self.whole_roundoffs is not None:
            kappa = np.fmax(kappa, self.whole_roundoffs.kappa(name))
            more = self.whole_roundoffs.kappa_rms(name, estimate.head_axis)
            rms = rms if rms is None or more is None else np.fmax(rms, more)
        return Wanted(hi, lo, kappa, term.most, estimate.head_axis, rms, term.rms)

    def term(self, name: str, variant: Variant, *, whole: bool) -> staging.Term:
        """The sum of a variant's staged terms for one output: what its operands may lose; all of them if ``whole``."""
        gradient = self.batch.case.gradient
        total = staging.terms(self.operator, variant, self.reckoned, gradient, self._terms, whole=whole)
        return total.get(name, staging.Term(np.zeros_like(self.sensitivity.values[name])))

    def _estimate(self, name: str) -> Wanted:
        value = self.sensitivity.values[name]
        zero = np.zeros_like(value)
        return Wanted(value, zero, self.sensitivity.kappa(name), zero, head_axis(self.operator, name))

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


def head_axis(operator: Operator, name: str) -> int:
    """Which axis of an output, or of its gradient, counts heads."""
    axes = {f"state.{x.name}": x.head_axis or 0 for x in operator.states}
    return axes.get(name.removeprefix("d "), 2)


# --- where the oracle does not reach -------------------------------------------------------------------------------

_certified: set[tuple[object, ...]] = set()


def stand_in(operator: Operator, batch: Batch, sensitive: Sensitivity, device: torch.device | None = None) -> Truth:
    """The outputs of the float64 token loop in place of the oracle's.

    Args:
        sensitive: of the chunk form, on this batch.
        device: where the chunk form ran; the token loop runs on the CPU, a GPU would be slower at its small steps.

    Raises:
        OracleError: the token loop and the chunk form disagree here, or one of them with the oracle at
            ``CERTIFIED_TOKENS`` tokens.
    """
    certify(operator, batch.case, device)
    (outcome,) = run_copies(operator, batch, 1, False, moved=False)
    hi = {name: x.double().numpy() for name, x in outcome.values.items()}
    # As far apart as float64 may leave them, or as the oracle's radius may be: that fraction of the budget.
    scale = max(unit_roundoff("float64") / unit_roundoff(accumulation(batch.case.dtype)), ORACLE_MARGIN)
    for name, x in hi.items():
        zero = np.zeros_like(x)
        wanted = Wanted(x, zero, scale * sensitive.kappa(name), zero, head_axis(operator, name))
        _agree(batch.case, "the chunk form", _verdict(name, sensitive.values[name], wanted))
    return Truth(hi, {name: np.zeros_like(x) for name, x in hi.items()}, {}, 53, False)


def certify(operator: Operator, case: Case, device: torch.device | None = None) -> None:
    """Hold the float64 token loop, and the chunk form on ``device`` (the CPU if None), to the oracle, on a small case
    like this one; once a process.

    Raises:
        OracleError: one of them fails; its message says where.
    """
    s = case.structure
    key = (operator.name, case.family, *sorted(case.options.items()), s.group, s.initial_state, device)
    if key in _certified:
        return
    small = Structure(T=CERTIFIED_TOKENS, K=8, V=6, H=1, group=s.group, initial_state=s.initial_state)
    like = msgspec.structs.replace(case, structure=small, dtype="float64", gradient=True)
    examination = Examination(operator, build(operator, like))
    for form in (operator.reference, "chunk"):
        here = device is None or form == operator.reference
        batch = examination.batch if here else place(examination.batch.copy(), str(device))
        (outcome,) = run_copies(operator, batch, 1, True, moved=False, form=form)
        for name in examination.sensitivity.values:
            wanted = examination.wanted(name, operator.variant(form))
            _agree(like, f"float64 {form}", _verdict(name, outcome[name].numpy(), wanted))
    _certified.add(key)


def _verdict(name: str, got: Array, wanted: Wanted) -> Verdict:
    return compare(name, torch.from_numpy(np.asarray(got, order="C")), wanted, "float64", unit_roundoff("float64"))


def _agree(case: Case, who: str, verdict: Verdict) -> None:
    if not verdict.passed:
        raise OracleError(f"{case.describe()}: {who} cannot stand in for the oracle: {verdict.message()}")
