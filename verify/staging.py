"""Named budget terms for operands that an implementation rounds inside, on purpose or by contract.

A variant may declare quantities that it keeps in low precision: softmax probabilities fed to a bfloat16
matrix product, or the float32 state that a decode step hands from token to token. Each term is measured:
the float64 computation runs with that quantity moved by seeded roundings, and the largest movement of the
output is the term. It is added to the budget as it is, never times 30.

A term is a function ``(operator, batch, backward) -> {output name: error}``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.inputs import Batch, generator
from linattest.verify.sensitivity import group_size, run_copies
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Caller, Tensors, decode, keywords, name_state, pack_state, resolve, spread
from linattest.verify.tolerance import PATTERNS, STEP, accumulation, unit_roundoff

Array = NDArray[np.float64]


def carried_state(operator: Operator, batch: Batch, backward: bool) -> dict[str, Array]:
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
    return worst


def _moving(rng: np.random.Generator, copies: int) -> Caller:
    """A caller that moves the state of every copy but the first after each token."""

    def move(x: torch.Tensor, axis: int | None) -> torch.Tensor:
        if axis is None:  # shared by all copies: not a quantity that rounds
            return x
        signs = torch.from_numpy(rng.integers(0, 2, tuple(x.shape)) * 2.0 - 1.0)
        signs.narrow(axis, 0, x.shape[axis] // copies).zero_()
        return x * (1 + STEP * signs)

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


def softmax_operands(operator: Operator, batch: Batch, backward: bool) -> dict[str, Array]:
    """Softmax probabilities, their gradients and the saved output, rounded to the input dtype (flash attention).

    With P the probabilities:  o = P v,  dv = P^T do,  D = rowsum(do * o),  dS = P * (do v^T - D),
    dq = scale dS k,  dk = scale dS^T q, each P, dS and saved o moved by one rounding (Dao 2023, algorithm 2).
    Twice the largest movement over the patterns: the worst of thousands of elements exceeds what
    ``PATTERNS`` draws show of each.
    """
    u = unit_roundoff(batch.case.dtype)
    rng = generator(batch.case, "softmax operands")
    q, k, v = (batch.tensors[name].double().transpose(1, 2) for name in ("q", "k", "v"))
    do = batch.cotangents["o"].double().transpose(1, 2)
    scale = batch.options["scale"]
    scale = float(scale) if scale is not None else batch.case.structure.K**-0.5
    length = batch.case.structure.T
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    p = ((q @ k.mT) * scale).masked_fill(future, -torch.inf).softmax(-1)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + u * torch.from_numpy(rng.integers(0, 2, tuple(x.shape)) * 2.0 - 1.0))

    def results(move: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        o = move(p) @ v
        found = {"o": o}
        if backward:
            ds = move(p * (do @ v.mT - (do * move(o)).sum(-1, keepdim=True)))
            found |= {"d v": move(p).mT @ do, "d q": scale * ds @ k, "d k": scale * ds.mT @ q}
        return found

    exact = results(lambda x: x)
    moved = [results(rounded) for _ in range(PATTERNS)]
    return {
        name: 2 * np.max([(m[name] - x).abs().transpose(1, 2).numpy() for m in moved], axis=0)
        for name, x in exact.items()
    }
