"""The error ratio of one output, and the words for it.

``ratio <= 30`` passes (tolerance.py has the formula and its sources). Pointwise and root-mean-square per
head are both measured: a bias of 20 kappa on every element passes the first and not the second, since the
movement's root mean square is about half its pointwise maximum over the patterns. 0/0 counts as 0,
anything non-finite where the truth is finite as infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.tolerance import OUTPUT_ROUNDING, THRESHOLD, smallest_subnormal, unit_roundoff

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Wanted:
    """What an output should be, and what error nobody can avoid.

    ``hi + lo`` is the exact value, ``kappa`` the unavoidable movement, ``staged`` the measured rounding of
    low-precision operands, all of the output's shape. ``head_axis`` is its axis of heads, ``kappa_rms`` the
    largest root mean square of the movement in one head (axes 0 and ``head_axis`` are left), ``None`` where
    only single elements are judged. ``staged_rms`` is what is staged in that measure, ``None`` where only single
    elements are known.
    """

    hi: Array
    lo: Array
    kappa: Array
    staged: Array
    head_axis: int
    kappa_rms: Array | None = None
    staged_rms: Array | None = None

    def budget(self, dtype: str) -> Array:
        """Allowed absolute error of every element for an output of this dtype."""
        return rounding(self.hi, dtype) + self.staged + THRESHOLD * self.kappa

    def rows(self, tokens: slice) -> Wanted:
        """The same for some tokens of a ``[B, T, ...]`` output."""
        parts = (x[:, tokens] for x in (self.hi, self.lo, self.kappa, self.staged))
        return Wanted(*parts, head_axis=self.head_axis)


@dataclass(frozen=True)
class Verdict:
    """Worst error ratio of one output, where it is, and what was found there."""

    name: str
    ratio: float
    metric: str = "pointwise"
    index: tuple[int, ...] = ()
    got: float = 0.0
    wanted: float = 0.0
    error: float = 0.0
    allowed: float = 0.0
    condition: float | None = 0.0
    bad: int = 0
    total: int = 0

    @property
    def passed(self) -> bool:
        """Whether the ratio is within the threshold."""
        return self.ratio <= THRESHOLD

    def message(self) -> str:
        """What went wrong, where, how badly, and whose fault it looks like."""
        index = "[" + ", ".join(map(str, self.index)) + "]"
        return (
            f"{self.name}{index}: got {self.got!r}, wanted {self.wanted!r}; error {self.error:.3g} is {self.ratio:.3g} "
            f"times the unavoidable error ({self.metric}; at most {THRESHOLD:g}), {self.bad} of {self.total} beyond; "
            + self._blame()
        )

    def _blame(self) -> str:
        if self.condition is None:
            reference = self.name.startswith("reference ")
            return "the float64 reference itself is wrong" if reference else "its adjoint is wrong somewhere along it"
        if not np.isfinite(self.got):
            return "a non-finite value where the exact one is finite"
        if self.condition > 1e4:
            return (
                "this input is ill-conditioned here (one rounding inside moves the output by "
                f"{self.condition:.2g} of its own roundings)"
            )
        return f"the input is well conditioned here (condition {self.condition:.2g}): the implementation is wrong"


def rounding(exact: Array, dtype: str) -> Array:
    """The one rounding of a value to its dtype: relative, or half the smallest subnormal; none for an exact zero."""
    relative = OUTPUT_ROUNDING * unit_roundoff(dtype) * np.abs(exact)
    return relative + np.where(exact != 0, OUTPUT_ROUNDING * smallest_subnormal(dtype) / 2, 0.0)


def compare(name: str, got: torch.Tensor, wanted: Wanted, dtype: str, accumulation_roundoff: float) -> Verdict:
    """Judge one output.

    Args:
        got: the implementation's value, in its own dtype.
        dtype: the dtype its last rounding was to.
        accumulation_roundoff: unit roundoff of the accumulation type, for the condition number.

    Raises:
        ValueError: ``got`` has another shape than the truth.
    """
    if tuple(got.shape) != wanted.hi.shape:
        raise ValueError(f"{name} has shape {tuple(got.shape)}, expected {wanted.hi.shape}")
    if not got.numel():
        return Verdict(name, 0.0)
    value = got.detach().double().numpy()
    with np.errstate(all="ignore"):
        error = np.abs((value - wanted.hi) - wanted.lo)
        error = np.where(np.isfinite(value), error, np.inf)
        largest = torch.finfo(got.dtype).max if got.is_floating_point() else np.inf
        overflows = np.abs(wanted.hi) > largest  # then infinity is the right answer
        error = np.where(overflows & (value == np.sign(wanted.hi) * np.inf), 0.0, error)
        error = np.where(np.isfinite(error), error, np.inf)
        free = _known(rounding(wanted.hi, dtype) + wanted.staged)
        unavoidable = _known(wanted.kappa)
        ratio = _ratio(error, free, unavoidable)
        by_head = tuple(i for i in range(ratio.ndim) if i not in (0, wanted.head_axis))
        rms = np.zeros(1)
        if wanted.kappa_rms is not None:
            known = free if wanted.staged_rms is None else _known(rounding(wanted.hi, dtype))
            error_rms, free_rms = (np.sqrt(np.mean(x * x, axis=by_head)) for x in (error, known))
            free_rms = free_rms if wanted.staged_rms is None else free_rms + _known(wanted.staged_rms)
            rms = _ratio(error_rms, free_rms, _known(wanted.kappa_rms))
    place = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst, metric = float(ratio[place]), "pointwise"
    if float(np.max(rms)) > worst:
        worst, metric = float(np.max(rms)), "root mean square of a head"
    scale = accumulation_roundoff * abs(float(wanted.hi[place]))
    return Verdict(
        name=name, ratio=worst, metric=metric, index=tuple(int(i) for i in place),
        got=float(value[place]), wanted=float(wanted.hi[place]), error=float(error[place]),
        allowed=float((free + THRESHOLD * unavoidable)[place]),
        condition=float(unavoidable[place]) / scale if scale else 0.0,
        bad=int((ratio > THRESHOLD).sum()), total=ratio.size,
    )  # fmt: skip


def _known(allowance: Array) -> Array:
    """An allowance that could not be measured (NaN or infinite) allows nothing."""
    return np.where(np.isfinite(allowance), allowance, 0.0)


def _ratio(error: Array, free: Array, unavoidable: Array) -> Array:
    excess = np.maximum(0.0, error - free)
    with np.errstate(all="ignore"):
        return np.where(excess > 0, excess / np.where(unavoidable > 0, unavoidable, 0.0), 0.0)


def compare_number(name: str, got: float, exact: float, free: float, unavoidable: float) -> Verdict:
    """Judge one number, a directional derivative: ``free`` is rounding nobody can avoid, the rest as above."""
    error = abs(got - exact) if np.isfinite(got) and np.isfinite(exact) else float("inf")
    ratio = float(_ratio(np.asarray(error), _known(np.asarray(free)), _known(np.asarray(unavoidable))))
    allowed = free + THRESHOLD * unavoidable
    return Verdict(name, ratio, "along a direction", (), got, exact, error, allowed, None, int(ratio > THRESHOLD), 1)
