"""Gradient ascent through the reference, many starts at once, and what makes its find small.

Adam on the logarithm of the objective (it ranges over decades), projected to the bounds after each step. Starts are
rows of one batch: each has its own gradient, so one run serves all. A cosine brings the step size down; the time
limit only cuts a run short, so that a seed means the same find on a slow machine that was given longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from linattest.verify.search.domain import InfeasibleError, Space, Tensors
from linattest.verify.search.objectives import Objective

RATE = 0.1
"""Adam's first step size: the free numbers are of the order of 1."""

_FINEST, _COARSEST = 30, 2
"""Free numbers are shortened to multiples of 2**-b, from b = 2 on."""

KEEP = 0.99
"""What shortening the numbers may cost: a hundredth of the value."""


@dataclass(frozen=True)
class Found:
    """One input: its space, free numbers (``[1, ..]``), float64 value, and how many steps were taken to find it."""

    space: Space
    free: Tensors
    value: float
    steps: int = 0
    interrupted: bool = False
    bits: int | None = None

    @property
    def tensors(self) -> Tensors:
        """The operator's inputs."""
        return self.space.values(self.free)


Progress = Callable[[int, float], None]


def ascend(
    space: Space,
    objective: Objective,
    *,
    seed: int = 0,
    starts: int = 8,
    steps: int = 400,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Found | None:
    """The best input met from ``starts`` random ones in at most ``steps`` steps or ``seconds``.

    An interruption (Ctrl-C) returns the best so far, if there is one. ``None``: no input had a finite value, or there
    was no time.
    """
    deadline = time.monotonic() + seconds
    rng = np.random.Generator(np.random.PCG64(seed))
    free = {name: x.requires_grad_() for name, x in space.draw(starts, rng).items()}
    optimiser = torch.optim.Adam(free.values(), lr=RATE)
    best: Found | None = None
    done = 0
    try:
        for step in range(steps):
            if time.monotonic() > deadline:
                break
            for group in optimiser.param_groups:
                group["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
            values = objective.measure(space, space.values(free))
            best, done = _better(best, space, free, values.detach()), step + 1
            optimiser.zero_grad()
            if values.requires_grad:
                (-values.clamp_min(torch.finfo(values.dtype).tiny).log().sum()).backward()
            optimiser.step()
            with torch.no_grad():
                for name, x in space.keep(free).items():
                    free[name].copy_(x)
            if progress is not None:
                progress(step, best.value if best else 0.0)
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, steps=done, interrupted=True)
    return best and replace(best, steps=done)


def _better(best: Found | None, space: Space, free: Tensors, values: torch.Tensor) -> Found | None:
    finite = torch.where(values.isfinite(), values, -math.inf)
    row = int(finite.argmax())
    if not math.isfinite(value := float(finite[row])) or (best is not None and value <= best.value):
        return best
    return Found(space, {name: x.detach()[row : row + 1].clone() for name, x in free.items()}, value)


def _measured(found: Found, objective: Objective, space: Space, free: Tensors, bits: int | None) -> Found:
    with torch.no_grad():
        value = float(objective.measure(space, space.values(free))[0])
    return replace(found, space=space, free=free, value=value, bits=bits)


def shorten(found: Found, objective: Objective, floor: float) -> Found:
    """The same input in numbers that print short: multiples of 2**-b with the least b that keeps the value.

    ``floor`` is the least value; rounding is towards 0, which leaves no bound. Nothing changes if 30 bits are too few.
    """
    for bits in range(_COARSEST, _FINEST + 1):
        short = {name: torch.trunc(x * 2.0**bits) / 2.0**bits for name, x in found.free.items()}
        tried = _measured(found, objective, found.space, short, bits)
        if math.isfinite(tried.value) and tried.value >= floor and _feasible(tried):
            return tried
    return found


def _feasible(found: Found) -> bool:
    """Not so where a short number is 0 and leaves a key without a direction."""
    try:
        found.space.check(found.free, found.tensors)
    except InfeasibleError:
        return False
    return True


def fewest_tokens(found: Found, objective: Objective, floor: float) -> Found:
    """Leave out tokens, long pieces first, while the value stays at least ``floor``."""
    size = found.space.T // 2
    while size >= 1:
        start = 0
        while start < found.space.T and size < found.space.T:
            kept = [t for t in range(found.space.T) if not start <= t < start + size]
            tried = _measured(found, objective, *select(found.space, found.free, kept), bits=None)
            if tried.value >= floor:
                found = tried
            else:
                start += size
        size //= 2
    return found


def select(space: Space, free: Tensors, tokens: list[int]) -> tuple[Space, Tensors]:
    """The input made of some of the tokens, and its space."""
    smaller = replace(space, T=len(tokens))
    kept: Tensors = {}
    for x in space.inputs:
        y = free[x.name]
        kept[x.name] = y if space.tied(x) else y[:, tokens][..., : smaller.structure.shape(x.shape)[-1]]
    return smaller, kept
