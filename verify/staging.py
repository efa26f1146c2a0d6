"""Named budget terms for operands that an implementation rounds inside, on purpose or by contract.

A variant may declare quantities that it keeps in low precision: softmax probabilities fed to a bfloat16
matrix product, or the float32 state that a decode step hands from token to token. Each term is measured:
the float64 computation runs with that quantity moved by seeded roundings, and the largest movement of the
output is the term. It is added to the budget as it is, never times 30.

A term is a function ``(operator, batch, backward) -> {output name: Term}``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.inputs import Batch, Structure, generator
from linattest.verify.operands import BFLOAT16, TF32, TF32X3, Format, RoundedOperands
from linattest.verify.sensitivity import chunk_bytes, group_size, head_rms, run_copies
from linattest.verify.spec import Operator, Staged, Variant
from linattest.verify.subjects import (
    Caller,
    Tensors,
    decode,
    device_of,
    keywords,
    name_state,
    pack_state,
    resolve,
    spread,
)
from linattest.verify.tolerance import (
    PATTERNS,
    STAGED_PATHS,
    STAGED_PATTERNS,
    STAGED_ROW_SIGMAS,
    STAGED_SIGMAS,
    STEP,
    accumulation,
    unit_roundoff,
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Term:
    """What may be lost of one output: of every element, and in root mean square of a head (``None``: not known)."""

    most: Array
    rms: Array | None = None

    def __add__(self, other: Term) -> Term:
        rms = None if self.rms is None or other.rms is None else self.rms + other.rms
        return Term(self.most + other.most, rms)


Terms = Mapping[str, Term]


def terms(
    operator: Operator, variant: Variant, batch: Batch, backward: bool, measured: dict[str, Terms] | None = None,
    *, whole: bool = True,
) -> dict[str, Term]:  # fmt: skip
    """All that a variant stages for the dtype of a batch, by output; ``measured`` keeps terms from call to call. Those
    that seldom count (``Staged.seldom``) only if ``whole``."""
    known = {} if measured is None else measured
    total: dict[str, Term] = {}
    for staged in (x for x in variant.staged if batch.case.dtype in x.dtypes and (whole or not x.seldom)):
        if staged.function not in known:
            known[staged.function] = measure(staged, operator, batch, backward)
        for name, term in known[staged.function].items():
            total[name] = total[name] + term if name in total else term
    return total


def measure(staged: Staged, operator: Operator, batch: Batch, backward: bool) -> Terms:
    """One term, by the name of its function."""
    return resolve(staged.function)(operator, batch, backward)


# --- what a kernel feeds to a tensor core ------------------------------------------------------------------------


def bfloat16_operands(operator: Operator, batch: Batch, backward: bool) -> dict[str, Term]:
    """Everything computed that meets a matrix product is rounded to bfloat16: scores, states, decayed values, ..."""
    return _operands(operator, batch, backward, BFLOAT16)


def tf32_operands(operator: Operator, batch: Batch, backward: bool) -> dict[str, Term]:
    """The same, cut off to tf32: for float16 inputs, since what an accumulation makes may leave float16's range."""
    return _operands(operator, batch, backward, TF32)


def tf32x3_operands(operator: Operator, batch: Batch, backward: bool) -> dict[str, Term]:
    """The same, as three products of tf32 have them, for float32 inputs: a last bit or two of every operand, which
    counts where a chunk's products cancel and a token loop's do not."""
    return _operands(operator, batch, backward, TF32X3)


def _operands(operator: Operator, batch: Batch, backward: bool, form: Format) -> dict[str, Term]:
    """Measured on our own chunk form, which computes in float64 whatever its inputs: its products are those that any
    chunk form has, though not in a kernel's order. Each sample rounds every operand at random (operands.py).

    Inputs are given as float32, which holds them: float64 ones would get shorter chunks.
    """
    rng = generator(batch.case, f"operands {form.name}")
    run = functools.partial(run_copies, operator, batch, backward=backward, moved=False, form="chunk", dtype="float32")
    (base,) = run(copies=1)
    shifts: dict[str, list[Array]] = {name: [] for name in base.values}
    shapes = [batch.case.structure.shape(x.shape) for x in operator.states]
    matrices = {(m, n) for *_, m, n in (x for x in shapes if len(x) > 3) if min(m, n) > 1}
    left = STAGED_PATTERNS
    while left:
        size = min(left, _operand_copies(batch))
        with RoundedOperands(form, int(rng.integers(2**31)), matrices):
            copies = run(copies=size)
        for name, x in base.values.items():
            shifts[name] += [(copy[name].double() - x.double()).numpy() for copy in copies]
        left -= size
    axes = {f"state.{x.name}": x.head_axis or 0 for x in operator.states}
    return {name: _term(np.stack(x), axes.get(name.removeprefix("d "), 2)) for name, x in shifts.items()}


def _term(shifts: Array, head_axis: int) -> Term:
    """From samples [P, ...]: of each element ``STAGED_SIGMAS`` deviations; of a head's root mean square its mean and as
    many deviations of its own (a few roundings may move all of a head), on ``STAGED_PATHS`` paths.

    No element has less than ``STAGED_ROW_SIGMAS`` deviations of its row of channels: a kernel that multiplies in
    another order rounds other operands, whose error has the same size in a row but other directions."""
    power = np.mean(shifts * shifts, axis=0)
    most = STAGED_SIGMAS * np.sqrt(power)
    if power.ndim > 3 and power.size:
        most = np.maximum(most, STAGED_ROW_SIGMAS * np.sqrt(np.mean(power, axis=-1, keepdims=True)))
    each = head_rms(shifts, head_axis)
    if each is None or not shifts.size:
        return Term(most)
    return Term(most, STAGED_PATHS * (np.mean(each, axis=0) + STAGED_SIGMAS * np.std(each, axis=0, ddof=1)))


_OPERAND_BYTES = {"cpu": 1 << 29, "cuda": 1 << 30}
"""Copies run together only while the intermediate results of a chunk form stay below about this, by device."""


def _operand_copies(batch: Batch) -> int:
    return max(1, min(STAGED_PATTERNS, _OPERAND_BYTES[device_of(batch).type] // max(chunk_bytes(batch), 1)))


# --- what is handed on or saved ------------------------------------------------------------------------------------


def carried_state(operator: Operator, batch: Batch, backward: bool) -> dict[str, Term]:
    """The state handed from token to token in the accumulation type, as the calling convention has it.

    Each rounding is of the whole state, so its effect on a running sum grows with T. The reference runs one
    token at a time, its state moved between tokens.
    """
    rng = generator(batch.case, "carried state")
    scale = unit_roundoff(accumulation(batch.case.dtype)) / STEP
    worst: dict[str, Array] = {}
    left = PATTERNS
    while left:
        size = min(left, max(1, group_size(batch, backward) - 1))
        caller = _moving(rng, size + 1)
        base, *moved = run_copies(operator, batch, size + 1, backward, moved=False, caller=caller)
        for name, x in base.values.items():
            shifts = [np.abs((copy[name] - x).double().numpy()) for copy in moved]
            worst[name] = np.maximum(worst.get(name, np.zeros(tuple(x.shape))), scale * np.max(shifts, axis=0))
        left -= size
    return {name: Term(x) for name, x in worst.items()}


def _moving(rng: np.random.Generator, copies: int) -> Caller:
    """A caller that moves the state of every copy but the first after each token."""

    def move(x: torch.Tensor, axis: int | None) -> torch.Tensor:
        if axis is None:  # shared by all copies: not a quantity that rounds
            return x
        signs = torch.from_numpy(rng.integers(0, 2, tuple(x.shape)) * 2.0 - 1.0)
        signs.narrow(axis, 0, x.shape[axis] // copies).zero_()
        return x * (1 + STEP * signs.to(x.device))

    def moving(operator: Operator, variant: Variant, batch: Batch) -> tuple[torch.Tensor, Tensors]:
        function, kwargs = resolve(variant.function), keywords(operator, variant, batch)
        axes = {x.name: x.head_axis for x in operator.states}

        def advance(x: Tensors, state: object) -> tuple[torch.Tensor, object]:
            positional, optional = spread(operator, x)
            o, after = function(*positional, initial_state=state, output_final_state=True, **optional, **kwargs)
            moved = {k: move(y, axes[k]) for k, y in name_state(operator, after, batch.options).items()}
            return o, pack_state(operator, moved, batch.options)

        return decode(operator, batch, advance)

    return moving


def softmax_operands(operator: Operator, batch: Batch, backward: bool) -> dict[str, Term]:
    """Softmax probabilities, their gradients and the saved output, rounded to the input dtype (flash attention).

    With P the probabilities:  o = P v,  dv = P^T do,  D = rowsum(do * o),  dS = P * (do v^T - D),
    dq = scale dS k,  dk = scale dS^T q, each P, dS and saved o moved by one rounding (Dao 2023, algorithm 2).
    Twice the largest movement over the patterns: the worst of thousands of elements exceeds what
    ``PATTERNS`` draws show of each. With several value heads a key head, queries and keys are repeated in that dtype,
    so that what each value head contributes to their gradients is rounded before it is summed.
    """
    u = unit_roundoff(batch.case.dtype)
    rng = generator(batch.case, "softmax operands")
    q, k, v = (batch.tensors[name].double().transpose(1, 2) for name in ("q", "k", "v"))
    group = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(group, 1) for x in (q, k))
    do = batch.cotangents["o"].double().transpose(1, 2)
    scale = batch.options["scale"]
    scale = float(scale) if scale is not None else batch.case.structure.K**-0.5
    p = ((q @ k.mT) * scale).masked_fill(~_seen(batch.case.structure), -torch.inf).softmax(-1).nan_to_num(0.0)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + u * torch.from_numpy(rng.integers(0, 2, tuple(x.shape)) * 2.0 - 1.0))

    def summed(x: torch.Tensor, move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return x if group == 1 else move(x).unflatten(1, (-1, group)).sum(2)

    def results(move: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        o = move(p) @ v
        found = {"o": o}
        if backward:
            ds = move(p * (do @ v.mT - (do * move(o)).sum(-1, keepdim=True)))
            found |= {
                "d v": move(p).mT @ do,
                "d q": summed(scale * ds @ k, move),
                "d k": summed(scale * ds.mT @ q, move),
            }
        return found

    exact = results(lambda x: x)
    moved = [results(rounded) for _ in range(PATTERNS)]
    return {
        name: Term(2 * np.max([(m[name] - x).abs().transpose(1, 2).numpy() for m in moved], axis=0))
        for name, x in exact.items()
    }


def _seen(s: Structure) -> torch.Tensor:
    """Which tokens [T, T] a token attends to: those before it in its own sequence, and itself; past a pack, none."""
    past = torch.ones(s.T, s.T, dtype=torch.bool).tril()
    if s.cu_seqlens is None:
        return past
    place = torch.arange(s.T)
    sequence = torch.bucketize(place, torch.tensor(s.cu_seqlens[1:]), right=True)
    return past & (sequence[:, None] == sequence) & (place < s.cu_seqlens[-1])
