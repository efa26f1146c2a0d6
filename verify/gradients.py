"""The gradient oracle: directional derivatives by central differences at high precision.

No adjoint is written by hand, so none can share a mistake with an implementation. The loss is
``sum(o * do) + sum(state * dstate)`` with the batch's cotangents; its derivative along a direction is the
difference of two oracle runs at inputs moved by ``+-h``, h = 2**-133 (about 1e-40), at 400 bits and more,
so that the truncation error is about 1e-80 and the proved radius of the difference far below any budget.

Directions: a random full one for each input, state and differentiable option, and for each input a single
token at one of the edges (0, C-1, C, T-1), another edge for another case (``every_edge`` takes them all).
"""

from __future__ import annotations

import inspect
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.inputs import Batch, generator
from linattest.verify.numbers import ArbContext, Context
from linattest.verify.oracle import Head, OracleError, cache_file, convert, counted, heads, keep, numbers_of, place
from linattest.verify.spec import Operator

Array = NDArray[np.float64]

CHUNK = 64
"""Chunk size whose edges get single-token directions."""

TRUNCATION = 2.0**-240
"""What is left of h**2 (2**-266) times a third derivative: the error of a central difference of an ordinary loss."""

_STEP_BITS = 133
_BASE_BITS = 2 * _STEP_BITS + 192
_FLOOR_BITS = 200
"""A radius below 2**-200 is far below the smallest subnormal of float32: good enough where the result is 0."""


@dataclass(frozen=True)
class Direction:
    """A direction in the space of one input: its name and an array of small integers / 8 (exact)."""

    input: str
    where: str
    array: Array

    @property
    def name(self) -> str:
        """For records: "k.full", "q.token 63"."""
        return f"{self.input}.{self.where}"


def directions(operator: Operator, batch: Batch, *, every_edge: bool = False) -> Iterator[Direction]:
    """The directions in which a batch's gradient is certified."""
    rng = generator(batch.case, "directions")
    length = batch.case.structure.T

    def random(shape: tuple[int, ...]) -> Array:
        return rng.integers(1, 9, shape) * rng.choice((-1.0, 1.0), shape) / 8.0  # never 0: a direction moves something

    for name, x in batch.tensors.items():
        if not x.numel():
            continue
        smooth = _smooth(_numpy(x), next(i.domain for i in operator.inputs_of(batch.options) if i.name == name))
        yield Direction(name, "full", random(tuple(x.shape)) * smooth)
        edges = sorted({0, CHUNK - 1, CHUNK, length - 1} & set(range(length)))
        for t in edges if every_edge else [edges[int(rng.integers(len(edges)))]]:
            array = np.zeros(tuple(x.shape))
            array[:, t] = random(array[:, t].shape)
            yield Direction(name, f"token {t}", array * smooth)
    for name, x in (batch.state or {}).items():
        if x.numel() and x.is_floating_point():
            yield Direction(f"state.{name}", "full", random(tuple(x.shape)))
    for option in operator.options:
        if option.differentiable and batch.options.get(option.name) is not None:
            yield Direction(option.name, "full", np.ones(()))


def _smooth(x: Array, domain: str) -> Array:
    """1, but 0 on rows [.., K] and weights that are exactly zero: a norm, and a mean of nothing, have no derivative
    there, only a stated subgradient, which the elementwise comparison checks."""
    if domain == "weight":
        return (x != 0) * 1.0
    return np.any(x != 0, axis=-1, keepdims=True) * 1.0 if x.ndim > 3 else np.ones_like(x)


def derivative(operator: Operator, batch: Batch, direction: Direction) -> float:
    """The exact derivative of the loss along a direction, to double precision; kept, as the oracle's values are.

    Raises:
        OracleError: the proved radius is not below one rounding of the result.
    """
    path = cache_file(operator, batch, *_depends_on(batch, direction))
    try:
        with path.open("rb") as file, np.load(file) as data:
            return float(data["derivative"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        exact = _derivative(operator, batch, direction)
        keep(path, derivative=exact)
        return exact


def _depends_on(batch: Batch, direction: Direction) -> Iterator[bytes]:
    """What a derivative depends on beside what the oracle's values do."""
    yield inspect.getsource(sys.modules[__name__]).encode()
    yield direction.name.encode() + direction.array.tobytes()
    for name, x in batch.cotangents.items():
        yield name.encode() + _numpy(x).tobytes()


def _derivative(operator: Operator, batch: Batch, direction: Direction) -> float:
    ctx = ArbContext(_BASE_BITS + batch.case.structure.T)
    with ctx.working():
        h = ctx.number(2.0**-_STEP_BITS)
        total = ctx.number(0.0)
        for n, h_index, head in heads(operator, batch, ctx):
            moving = _part(operator, batch, direction, n, h_index)
            if not moving.any():
                continue
            for sign in (1, -1):
                moved = _move(ctx, head, direction, moving, h * sign)
                total += sign * _loss(operator, batch, ctx, moved, n, h_index)
        ball = total / (2 * h)
        if not (ball.is_finite() and ball.rad() <= abs(ball.mid()) * 2.0**-53 + 2.0**-_FLOOR_BITS):
            raise OracleError(f"{operator.name}: derivative along {direction.name} is only known as {ball}")
        return float(ball.mid())


def _part(operator: Operator, batch: Batch, direction: Direction, n: int, h: int) -> Array:
    """The direction's part in one head: a head that it leaves alone (all zeros) adds exactly nothing."""
    structure, name = batch.case.structure, direction.input
    if direction.array.ndim == 0:
        return direction.array
    if name.startswith("state."):
        kind = next(x for x in operator.states_of(batch.options) if x.name == name.removeprefix("state."))
        return direction.array[place(kind, n, h, structure)]
    per_value = next(x.per_value_head for x in operator.inputs_of(batch.options) if x.name == name)
    row, start, stop = structure.sequences[n]
    return direction.array[row, start:stop, h if per_value else h // structure.group]


def _move(ctx: Context, head: Head, direction: Direction, part: Array, step: Any) -> Head:
    """The head with one input moved by step * part, exactly."""
    name = direction.input
    if part.ndim == 0 and name in head.options:
        return replace(head, options={**head.options, name: head.options[name] + step})
    if name.startswith("state."):
        key, delta = name.removeprefix("state."), convert(ctx, part)
        assert head.state is not None
        old = head.state[key]
        moved = [x + d * step for x, d in zip(old, delta, strict=True)] if isinstance(old, list) else old + delta * step
        return replace(head, state={**head.state, key: moved})
    rows = [x + convert(ctx, d) * step if np.any(d) else x for x, d in zip(head.inputs[name], part, strict=True)]
    return replace(head, inputs={**head.inputs, name: rows})


def _loss(operator: Operator, batch: Batch, ctx: Context, head: Head, n: int, h: int) -> Any:
    """sum(o * do) + sum(state * dstate) of one head; a state of a key head is counted at its first value head."""
    structure = batch.case.structure
    rows, final = operator.oracle(ctx, head)
    row, start, _ = structure.sequences[n]
    total = ctx.number(0.0)
    weights = _numpy(batch.cotangents["o"])
    for t, value in enumerate(rows):
        total += _weigh(ctx, value, weights[row, start + t, h])
    for x in operator.states_of(batch.options):
        if not x.whole and counted(x, h, structure):
            cotangent = _numpy(batch.cotangents[f"state.{x.name}"])
            total += _weigh(ctx, final[x.name], cotangent[place(x, n, h, structure)])
    return total


def _weigh(ctx: Context, value: Any, weights: Array) -> Any:
    pairs = zip(numbers_of(ctx, value), weights.reshape(-1).tolist(), strict=True)
    return sum((x * ctx.number(w) for x, w in pairs), ctx.number(0.0))


def _numpy(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()
