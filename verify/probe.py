"""What a property sees: one variant on one batch, with the exact answer at hand.

A property never types a tolerance. It asks ``judge`` (the error ratio against the exact value),
``same_bits``, or ``within`` a bound that is itself a formula of unit roundoffs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify import devices, staging
from linattest.verify.inputs import Batch, build
from linattest.verify.measure import Wanted, compare
from linattest.verify.sensitivity import Sensitivity, sensitivity
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Caller, Outcome, resolve, run
from linattest.verify.tolerance import THRESHOLD, accumulation, unit_roundoff

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Finding:
    """One thing a property looked at: how far from true (in units that pass up to 30), and the words."""

    ratio: float
    message: str


@dataclass(frozen=True)
class Probe:
    """A variant on a batch. ``wanted`` is the exact answer; ``operators`` are the known records by name.

    Batches lie on the CPU, and so do results; in between the variant runs on ``device``.
    """

    operator: Operator
    variant: Variant
    batch: Batch
    wanted: Mapping[str, Wanted]
    operators: Mapping[str, Operator]
    device: str = "cpu"

    @property
    def interpreted(self) -> bool:
        """Whether the variant is a kernel in Triton's interpreter: a launch takes it a thousand times as long."""
        return self.variant.kernel and devices.kind(self.device) == "cpu"

    @property
    def roundoff(self) -> float:
        """Unit roundoff of the accumulation type."""
        return unit_roundoff(accumulation(self.batch.case.dtype))

    @cached_property
    def outcome(self) -> Outcome:
        """The variant's forward result on the batch itself."""
        return self.run(self.batch)

    def run(
        self, batch: Batch, *, backward: bool = False, caller: Caller | None = None, variant: Variant | None = None,
        operator: Operator | None = None,
    ) -> Outcome:  # fmt: skip
        """The variant (or another, of another operator) on another batch."""
        who = operator or self.operator, variant or self.variant
        return devices.home(run(*who, self.there(batch), backward=backward, caller=caller))

    def run_there(self, batch: Batch, *, backward: bool = False) -> Outcome:
        """The variant on a batch that lies on its device, with results that stay there: for what memory they have."""
        return run(self.operator, self.variant, batch, backward=backward)

    def there(self, batch: Batch) -> Batch:
        """The batch on the variant's device."""
        return devices.place(batch, self.device)

    def accepts(self, keyword: str) -> bool:
        """Whether the variant's function takes this keyword."""
        return keyword in inspect.signature(resolve(self.variant.function)).parameters

    def sibling(self, seed: int = 1, family: str = "random") -> Batch:
        """Other values in the same structure."""
        case = msgspec.structs.replace(self.batch.case, seed=self.batch.case.seed + seed, family=family)
        return build(self.operator, case)

    def sensitivity(self, batch: Batch) -> Sensitivity:
        """Unavoidable error of another batch, forward."""
        return sensitivity(self.operator, batch, backward=False)

    def against(self, batch: Batch, name: str, exact: Array, axis: int = 2) -> Wanted:
        """What an output of another batch should be, if that is known, and the error allowed there."""
        sensitive, zero = self.sensitivity(batch), np.zeros_like(exact)
        term = staging.terms(self.operator, self.variant, batch, False, whole=False).get(name, staging.Term(zero))
        return Wanted(exact, zero, sensitive.kappa(name), term.most, axis, sensitive.kappa_rms(name, axis), term.rms)

    def judge(self, name: str, got: torch.Tensor, what: str, rows: slice = slice(None)) -> Finding:
        """The error ratio of an output (or of some of its tokens) against the exact value."""
        wanted = self.wanted[name]
        if rows != slice(None):
            wanted = wanted.rows(rows)
        dtype = self.batch.case.dtype if name == "o" else accumulation(self.batch.case.dtype)
        verdict = compare(name, got, wanted, dtype, self.roundoff)
        return Finding(verdict.ratio, f"{what}: {verdict.message()}")

    def judge_parts(self, name: str, got: torch.Tensor, what: str, parts: Sequence[Batch]) -> Finding:
        """`judge` of what was computed in parts, each handing its state to the next.

        A part stages operands at edges of its own, which the terms of the whole do not know: those are measured where
        the whole's budget is too small."""
        found = self.judge(name, got, what)
        if found.ratio <= THRESHOLD or not self.variant.staged:
            return found
        terms = [staging.terms(self.operator, self.variant, part, False)[name].most for part in parts]
        wanted = self.wanted[name]
        more = np.concatenate(terms, axis=1) if name == "o" else terms[-1]
        wanted = replace(wanted, staged=wanted.staged + more, staged_rms=None)
        dtype = self.batch.case.dtype if name == "o" else accumulation(self.batch.case.dtype)
        verdict = compare(name, got, wanted, dtype, self.roundoff)
        return Finding(verdict.ratio, f"{what}: {verdict.message()}")

    def within(self, value: float, bound: float, what: str) -> Finding:
        """A number that may not exceed a bound: the finding's ratio is 30 at the bound."""
        ratio = 0.0 if value <= 0 else float("inf") if bound <= 0 or not np.isfinite(value) else 30 * value / bound
        return Finding(ratio, f"{what}: {value:.6g}, at most {bound:.6g}")

    def holds(self, value: float, bound: float, what: str) -> Finding:
        """An inequality: nothing or everything."""
        return Finding(0.0 if value <= bound else float("inf"), f"{what}: {value:.9g}, at most {bound:.9g}")

    def same_bits(self, got: torch.Tensor, wanted: torch.Tensor, what: str) -> Finding:
        """Equal bit for bit, NaN equal to NaN."""
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return Finding(float("inf"), f"{what}: {got.shape} {got.dtype}, expected {wanted.shape} {wanted.dtype}")
        got, wanted = got.cpu(), wanted.cpu()
        same = (got == wanted) | (got.isnan() & wanted.isnan())
        if bool(same.all()):
            return Finding(0.0, f"{what}: same bits")
        index = tuple(int(i) for i in (~same).nonzero()[0])
        return Finding(
            float("inf"),
            f"{what}: {int((~same).sum())} of {same.numel()} differ, first at {list(index)}: "
            f"got {got[index].item()!r}, wanted {wanted[index].item()!r}",
        )
