"""Unavoidable error: how far an output moves when inputs and intermediate results move by one rounding.

The reference variant runs in float64, once as it is and ``PATTERNS`` times with every element of every
input (of the cotangents too, for gradients) and the result of every operation moved by a relative
``+-STEP`` with seeded signs (stochastic.py). The moved copies are stacked along the heads, so that one run
serves all. ``kappa`` is the pointwise maximum of the movement, scaled from ``STEP`` to the roundoff wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.inputs import Batch, Case, Scalar, generator
from linattest.verify.spec import Operator
from linattest.verify.stochastic import RandomRounding
from linattest.verify.subjects import Caller, Outcome, device_of, run
from linattest.verify.tolerance import PATTERNS, STEP, TORCH_DTYPES, accumulation, smallest_normal, unit_roundoff

Array = NDArray[np.float64]

_GROUP_BYTES = {"cpu": 1 << 29, "cuda": 1 << 30}
"""Copies run together only while the tape of a float64 run stays below about this, by device."""


@dataclass(frozen=True)
class Sensitivity:
    """Float64 values of the reference (``"o"``, ``"state.S"``, ``"d q"``, ...) and the movement of each.

    ``shifts[name][p]`` is the change in copy ``p``, already scaled to one rounding of the accumulation
    type: the directional checks of gradients need them one by one, the elementwise ones their maximum.
    """

    values: dict[str, Array]
    shifts: dict[str, Array]

    def movement(self, measure: Callable[[Array], Array], name: str) -> Array:
        """kappa of a linear function of one output: the largest |measure(change)| over the copies."""
        return np.max([np.abs(measure(shift)) for shift in self.shifts[name]], axis=0)

    def kappa(self, name: str) -> Array:
        """Unavoidable error of every element of one output, for accumulation in the case's type."""
        return np.max(np.abs(self.shifts[name]), axis=0)

    def kappa_rms(self, name: str, head_axis: int) -> Array | None:
        """Unavoidable root mean square error in each head; ``None`` for a scalar."""
        each = head_rms(self.shifts[name], head_axis)
        return None if each is None else np.max(each, axis=0)


def head_rms(shifts: Array, head_axis: int) -> Array | None:
    """Root mean square in each head of movements [copies, ...], a row a copy; ``None`` for scalars."""
    if shifts.ndim < 3:
        return None
    within = tuple(i for i in range(1, shifts.ndim) if i not in (1, head_axis + 1))
    if not shifts.size:
        return np.zeros(shifts.shape[0])
    return np.sqrt(np.mean(shifts * shifts, axis=within))


def sensitivity(operator: Operator, batch: Batch, *, backward: bool, form: str = "", step: float = STEP) -> Sensitivity:
    """Measure it: a run of the reference (or of another ``form``) as it is, and runs of ``PATTERNS`` moved copies."""
    base = run_copies(operator, batch, 1, backward, moved=False, form=form)[0]
    copies: list[Outcome] = []
    while len(copies) < PATTERNS:
        size = min(PATTERNS - len(copies), group_size(batch, backward, form))
        copies += run_copies(operator, batch, size, backward, moved=True, turn=len(copies), form=form, step=step)
    values = {name: _array(x) for name, x in base.values.items()}
    scale = unit_roundoff(accumulation(batch.case.dtype)) / step
    for name, x in values.items():
        if np.isfinite(x).all() and not all(bool(c[name].isfinite().all()) for c in copies):
            raise ArithmeticError(
                f"the float64 reference's {name} is not finite after moves of 2**{int(np.log2(step))}: this input is "
                "too ill-conditioned for an error to be judged"
            )
    shifts = {name: scale * (np.stack([_array(c[name]) for c in copies]) - x) for name, x in values.items()}
    return Sensitivity(values, shifts)


def group_size(batch: Batch, backward: bool, form: str = "") -> int:
    """How many copies share a run of the token loop, or of the chunk form."""
    s = batch.case.structure
    one = chunk_bytes(batch) if form == "chunk" else 8 * s.B * max(s.T, 1) * s.H * s.group * s.K * (s.K + s.V)
    return max(1, min(PATTERNS, _GROUP_BYTES[device_of(batch).type] // max((4 if backward else 0) * one, 1)))


def chunk_bytes(batch: Batch) -> int:
    """About what the intermediate results of a chunk form take in float64."""
    s, chunk = batch.case.structure, 64
    return 8 * s.B * s.T * s.H * s.group * (3 * chunk + 4 * (s.K + s.V) + s.K * s.V // chunk)


def run_copies(
    operator: Operator,
    batch: Batch,
    copies: int,
    backward: bool,
    *,
    moved: bool,
    turn: int = 0,
    caller: Caller | None = None,
    form: str = "",
    dtype: str = "float64",
    step: float = STEP,
) -> list[Outcome]:
    """One float64 run of the reference on copies stacked along the heads, cut apart again; on the batch's device, with
    results on the CPU.

    ``moved`` moves inputs and operations; ``turn`` makes another run's signs differ; ``form`` names another variant
    than the reference, ``dtype`` another type of the inputs.
    """
    rng = generator(batch.case, f"signs {turn}") if moved else None

    def stack(x: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.cat([_move(x.to(TORCH_DTYPES[dtype]), rng, step) for _ in range(copies)], dim=axis)

    tensors = {name: stack(x, 2) for name, x in batch.tensors.items()}
    axes = {f"state.{x.name}": x.head_axis for x in operator.states}
    state = None
    if batch.state is not None:  # what all heads share is not moved
        places = {name: axes[f"state.{name}"] for name in batch.state}
        state = {k: x if (axis := places[k]) is None else stack(x, axis) for k, x in batch.state.items()}
    cotangents = {name: stack(x, axes.get(name, 2) or 0) for name, x in batch.cotangents.items()}
    options: dict[str, Scalar | torch.Tensor | None] = dict(batch.options)
    for option in operator.options:
        value = options.get(option.name)
        if option.differentiable and isinstance(value, float):
            one = torch.tensor([value], dtype=TORCH_DTYPES[dtype], device=device_of(batch))
            heads = batch.case.structure.shape(option.shape)
            options[option.name] = torch.cat([_move(one, rng, step).expand(heads) for _ in range(copies)])
    stacked = Batch(_widened(batch.case, copies, dtype), tensors, state, options, cotangents, batch.cu_seqlens)
    accumulate = accumulation(batch.case.dtype)
    tiny = smallest_normal(accumulate) * step / unit_roundoff(accumulate)
    with RandomRounding(int(rng.integers(2**31)), tiny, step) if rng is not None else nullcontext():
        variant = operator.variant(form or operator.reference)
        outcome = run(operator, variant, stacked, backward=backward, caller=caller)
    return _cut(outcome, copies, options, axes)


def _cut(
    outcome: Outcome, copies: int, options: dict[str, Scalar | torch.Tensor | None], axes: dict[str, int | None]
) -> list[Outcome]:
    """The copies of a stacked outcome; gradients of a scalar option are summed over a copy's heads."""
    pieces: list[dict[str, torch.Tensor]] = [{} for _ in range(copies)]
    for name, x in outcome.values.items():
        inner = name.removeprefix("d ")
        scalar = inner in options
        axis = 0 if scalar else axes.get(inner, 2)
        parts = [x] * copies if axis is None else x.chunk(copies, dim=axis)
        for piece, part in zip(pieces, parts, strict=True):
            piece[name] = (part.sum() if scalar else part).cpu()
    return [Outcome(piece) for piece in pieces]


def _widened(case: Case, copies: int, dtype: str) -> Case:
    structure = msgspec.structs.replace(case.structure, H=case.structure.H * copies)
    return msgspec.structs.replace(case, structure=structure, dtype=dtype)


def _move(x: torch.Tensor, rng: np.random.Generator | None, step: float) -> torch.Tensor:
    """Every element times 1 + step or 1 - step; unchanged without a generator."""
    if rng is None:
        return x
    signs = torch.from_numpy(rng.integers(0, 2, tuple(x.shape)) * 2.0 - 1.0)
    return x * (1 + step * signs.to(x.device))


def _array(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()
