"""Search where no gradient leads: Hypothesis draws cases and its ``target`` climbs.

``error``  the error ratio of a variant, forward and backward, as ``verify`` judges it (30 is the most that passes).
``kappa``  the condition of a token's output: how many of its own roundings one rounding inside moves it by.

Cases come from the strategies that the fuzz tests use: structure, value family, options and a seed. With ``at_least``
Hypothesis also shrinks, to the smallest case that still reaches it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
import msgspec
import numpy as np

from linattest.verify.examine import examine, runs
from linattest.verify.grids import Job
from linattest.verify.inputs import Batch, Case, build
from linattest.verify.records import Record
from linattest.verify.search.ascent import Progress
from linattest.verify.sensitivity import sensitivity
from linattest.verify.spec import Operator
from linattest.verify.strategies import cases
from linattest.verify.tolerance import accumulation, smallest_normal, unit_roundoff

MEASURED = {
    "error": "error ratio of a variant (at most 30 passes)",
    "kappa": "condition: how many of its own roundings one rounding inside moves a token's output by",
}
"""Objectives that are measured, not differentiated, by name."""

_CAP = 1e300
"""What an infinite ratio counts as: ``target`` takes finite numbers."""


@dataclass(frozen=True)
class Reached:
    """A case and what was measured on it; ``record`` is the judgement behind an error ratio."""

    case: Case
    value: float
    record: Record | None = None

    @property
    def size(self) -> tuple[int, ...]:
        """What shrinking makes less: heads and tokens, then widths."""
        s = self.case.structure
        return s.B * s.H * s.group * s.T, s.K * s.V, s.T


@dataclass
class Explored:
    """The case of the largest value, and the smallest that reaches the threshold."""

    best: Reached | None = None
    smallest: Reached | None = None
    tried: int = 0
    interrupted: bool = False
    at_least: float | None = None

    def add(self, reached: Reached) -> bool:
        """Take one measurement in; whether it reaches the threshold."""
        self.tried += 1
        if self.best is None or reached.value > self.best.value:
            self.best = reached
        enough = self.at_least is not None and reached.value >= self.at_least
        if enough and (self.smallest is None or reached.size < self.smallest.size):
            self.smallest = reached
        return enough


_SLOW = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.data_too_large)
"""A case takes what it takes, and some are of a kind that the variant does not run."""


class _OutOfTime(BaseException):
    """Ends Hypothesis at once: it catches every ``Exception``."""


class _Enough(Exception):
    """What Hypothesis shrinks: a case that reaches the threshold."""


def error_ratio(case: Case, variant: str) -> Reached:
    """The worst error ratio of a variant on a case; infinite where it raised, 0 where a failure is a known one."""
    records = [r for r in examine(Job(case), (variant,)) if r.status != "known"]
    if not records:
        return Reached(case, 0.0)
    ratios = [math.inf if r.ratio is None else r.ratio for r in records]
    worst = max(range(len(records)), key=lambda i: ratios[i])
    return Reached(case, ratios[worst], records[worst])


def condition(operator: Operator, batch: Batch) -> float:
    """The largest |kappa_t| / (u |o_t|) over tokens and heads; 0 if there are none.

    Outputs near the smallest numbers of the type are left out: underflow moves them, whatever the operator does.
    """
    measured, wide = sensitivity(operator, batch, backward=False), accumulation(batch.case.dtype)
    o, kappa = (np.linalg.norm(x, axis=-1) for x in (measured.values["o"], measured.kappa("o")))
    ordinary = o > smallest_normal(wide) / unit_roundoff(wide)
    if not ordinary.any():
        return 0.0
    return float((kappa[ordinary] / o[ordinary]).max() / unit_roundoff(wide))


def measure_of(objective: str, operator: Operator, variant: str) -> Callable[[Case], Reached]:
    """The measurement behind an objective's name. Raises ``KeyError`` for a name that is none of ``MEASURED``."""
    if objective not in MEASURED:
        raise KeyError(f"no measured objective {objective!r}; known: {sorted(MEASURED)}")
    if objective == "error":
        return lambda case: error_ratio(case, variant)

    def conditioned(case: Case) -> Reached:
        forward = msgspec.structs.replace(case, gradient=False)
        try:
            return Reached(forward, condition(operator, build(operator, forward)))
        except ArithmeticError:  # beyond what sensitivity can measure
            return Reached(forward, 0.0)

    return conditioned


def explore(
    operator: Operator,
    objective: str,
    *,
    variant: str = "chunk",
    dtype: str = "float32",
    tokens: int = 64,
    width: int = 16,
    seed: int = 0,
    seconds: float = math.inf,
    most: int = 2000,
    at_least: float | None = None,
    progress: Progress | None = None,
) -> Explored:
    """Climb for at most ``seconds`` or ``most`` cases of up to ``tokens`` tokens and widths up to ``width``.

    An interruption (Ctrl-C) returns what was found so far.
    """
    measure, explored = measure_of(objective, operator, variant), Explored(at_least=at_least)
    deadline = time.monotonic() + seconds
    phases = [hypothesis.Phase.generate, hypothesis.Phase.target, hypothesis.Phase.shrink]
    profile = hypothesis.settings(
        max_examples=most, database=None, deadline=None, phases=phases, print_blob=False, derandomize=False,
        suppress_health_check=_SLOW, report_multiple_bugs=False,
    )  # fmt: skip

    @hypothesis.seed(seed)
    @profile
    @hypothesis.given(cases(operator, tokens=tokens, width=width, heads=1, dtypes=(dtype,)))
    def attempt(case: Case) -> None:
        if time.monotonic() > deadline:
            raise _OutOfTime
        if not runs(operator, operator.variant(variant), case):
            hypothesis.reject()
        reached = measure(case)
        enough = explored.add(reached)
        hypothesis.target(math.log1p(min(reached.value, _CAP)), label=objective)
        if progress is not None:
            progress(explored.tried, explored.best.value if explored.best else 0.0)
        if enough:
            raise _Enough

    try:
        attempt()
    except (_Enough, _OutOfTime):
        pass
    except KeyboardInterrupt:
        explored.interrupted = True
    return explored
