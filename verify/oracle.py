"""Running a page's oracle over a batch: precision, cross-check, and cache.

The oracle runs in Arb balls; the precision doubles until the proved radius is below
``ORACLE_MARGIN`` of the budget everywhere. Where ``T K (K + V) <= CROSSCHECK`` it runs again in mpmath,
at more bits, and each mpmath value must lie in its ball. Results are cached by a hash of the oracle's
source, the inputs' bits and the options.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify import numbers
from linattest.verify.inputs import Batch, Structure
from linattest.verify.numbers import ArbContext, Context, MpContext
from linattest.verify.spec import Operator, State
from linattest.verify.tolerance import ORACLE_MARGIN, smallest_subnormal

Array = NDArray[np.float64]

CROSSCHECK = 1 << 17
"""Largest T * K * (K + V) for which mpmath runs beside Arb."""

_MOST_BITS = 1 << 14
_GUARD_BITS = 64


class OracleError(ArithmeticError):
    """The oracle could not answer: the two contexts disagree, or no precision was enough."""


@dataclass(frozen=True)
class Head:
    """What a page's oracle sees: one sequence, one value head, in numbers of the context.

    ``inputs[name][t]`` is a vector, or a number for inputs without a width. ``state`` is ``None`` or
    has a matrix or vector for each tensor of the state.
    """

    inputs: dict[str, list[Any]]
    options: dict[str, Any]
    state: dict[str, Any] | None
    T: int
    K: int
    V: int
    L: int = 0

    def __getattr__(self, name: str) -> list[Any]:
        try:
            return self.__dict__["inputs"][name]
        except KeyError:
            raise AttributeError(f"head has inputs {sorted(self.__dict__.get('inputs', {}))}, not {name!r}") from None


@dataclass(frozen=True)
class Truth:
    """Exact values: ``hi + lo`` within ``radius`` (proved), for ``"o"`` and each ``"state.<name>"``."""

    hi: dict[str, Array]
    lo: dict[str, Array]
    radius: dict[str, Array]
    prec: int
    crosschecked: bool


def truth(operator: Operator, batch: Batch, budget: dict[str, Array]) -> Truth:
    """The exact output of a batch, with a radius below ``ORACLE_MARGIN`` of the budget.

    Args:
        budget: allowed absolute error of every element, by output name.

    Raises:
        OracleError: mpmath and Arb disagree, or 2**14 bits were not enough.
    """
    structure = batch.case.structure
    path = cache_file(operator, batch)
    stored = _load(path)
    if stored is not None and not _too_wide(stored, budget, batch.case.dtype):
        return stored
    checked = structure.T * structure.K * (structure.K + structure.V) <= CROSSCHECK
    prec = 192 + structure.T
    while prec <= _MOST_BITS:
        try:
            answer = _enclose(operator, batch, prec, checked)
        except ZeroDivisionError:
            answer = None  # a ball met a singular matrix
        if answer is not None and not _too_wide(answer, budget, batch.case.dtype):
            _save(path, answer)
            return answer
        prec *= 2
    raise OracleError(
        f"{operator.name}: radius above 2**-20 of the budget at {_MOST_BITS} bits: {batch.case.describe()}"
    )


def heads(
    operator: Operator, batch: Batch, ctx: Context, number: Callable[[str, Array], Any] | None = None
) -> Iterator[tuple[int, int, Head]]:
    """(sequence, value head, head) for every head of a batch, converted exactly into the context."""
    structure = batch.case.structure
    arrays = {name: x.double().numpy() for name, x in batch.tensors.items()}
    states = None if batch.state is None else {name: x.double().numpy() for name, x in batch.state.items()}
    options = {name: _option(ctx, operator, name, value, structure.K) for name, value in batch.options.items()}
    per_value = {x.name: x.per_value_head for x in operator.inputs_of(batch.options)}
    kept = {x.name: x for x in operator.states_of(batch.options)}
    for n, (row, start, stop) in enumerate(structure.sequences):
        for h in range(structure.H * structure.group):
            inputs: dict[str, list[Any]] = {}
            for name, x in arrays.items():
                column = x[row, start:stop, h if per_value[name] else h // structure.group]
                inputs[name] = [convert(ctx, value) for value in column]
            state = None
            if states is not None:
                state = {k: _convert_state(ctx, kept[k], x[place(kept[k], n, h, structure)]) for k, x in states.items()}
            yield n, h, Head(inputs, options, state, stop - start, structure.K, structure.V, structure.sizes()["L"])


def place(x: State, n: int, h: int, structure: Structure) -> tuple[Any, ...]:
    """Where the state of sequence n and value head h lies in the tensor of that state."""
    if x.head_axis is None:
        return (n,)
    return (n, *[slice(None)] * (x.head_axis - 1), h if x.per_value_head else h // structure.group)


def counted(x: State, h: int, structure: Structure) -> bool:
    """Whether a value head is the one that stands for this state: the first of those that share it."""
    return h == 0 if x.head_axis is None else x.per_value_head or h % structure.group == 0


def convert(ctx: Context, x: Any) -> Any:
    """A float, a vector, a matrix or a stack of matrices of floats as exact numbers of the context."""
    if np.ndim(x) == 0:
        return ctx.number(float(x))
    if np.ndim(x) == 1:
        return ctx.vector(x.tolist())
    if np.ndim(x) == 2:
        return ctx.matrix(x.tolist()) if np.any(x) else ctx.zeros(*x.shape)
    return [convert(ctx, layer) for layer in x]


def _convert_state(ctx: Context, kind: State, x: Any) -> Any:
    return int(x) if kind.whole else convert(ctx, x)


def numbers_of(ctx: Context, value: Any) -> list[Any]:
    """The numbers of a matrix, a vector, a number, or a stack of matrices, in order."""
    if isinstance(value, int):
        return [ctx.number(value)]
    if isinstance(value, list):
        return [x for layer in value for x in ctx.entries(layer)]
    return ctx.entries(value) if hasattr(value, "transpose") else [value]


def _option(ctx: Context, operator: Operator, name: str, value: Any, width: int) -> Any:
    derived = next(option.derived for option in operator.options if option.name == name)
    if value is None and derived == "K**-0.5":
        return 1 / ctx.sqrt(ctx.number(max(width, 1)))
    if isinstance(value, torch.Tensor):
        return ctx.number(float(value))
    return ctx.number(value) if isinstance(value, float) else value


def _enclose(operator: Operator, batch: Batch, prec: int, checked: bool) -> Truth | None:
    """One run at a precision; ``None`` when a ball grew until it met a singularity."""
    structure = batch.case.structure
    kept = operator.states_of(batch.options)
    shapes = {"o": structure.shape(operator.output)} | {f"state.{x.name}": structure.shape(x.shape) for x in kept}
    parts = [{name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(3)]
    arb, mp = ArbContext(prec), MpContext(2 * prec + _GUARD_BITS)
    others = heads(operator, batch, mp) if checked else None
    with arb.working():
        for n, h, head in heads(operator, batch, arb):
            rows, final = operator.oracle(arb, head)
            twin = operator.oracle(mp, next(others)[2]) if others is not None else None
            row, start, _ = structure.sequences[n]
            places = [("o", (row, start + t, h), value) for t, value in enumerate(rows)]
            places += [
                (f"state.{x.name}", place(x, n, h, structure), final[x.name]) for x in kept if counted(x, h, structure)
            ]
            for index, (name, where, value) in enumerate(places):
                balls = numbers_of(arb, value)
                if not all(ball.is_finite() for ball in balls):
                    return None
                if twin is not None:
                    other = twin[0][index] if name == "o" else twin[1][name.removeprefix("state.")]
                    _overlap(operator, batch, name, balls, numbers_of(mp, other), prec)
                target = parts[0][name][where].shape
                for part, column in zip(parts, zip(*map(numbers.split_ball, balls), strict=True), strict=True):
                    part[name][where] = np.reshape(column, target)
    return Truth(parts[0], parts[1], parts[2], prec, checked)


def _overlap(operator: Operator, batch: Batch, name: str, balls: list[Any], values: list[Any], prec: int) -> None:
    for ball, value in zip(balls, values, strict=True):
        if not numbers.encloses(ball, value, prec):
            raise OracleError(
                f"{operator.name}: mpmath gives {value} for {name}, outside Arb's {ball}: {batch.case.describe()}"
            )


def _too_wide(answer: Truth, budget: dict[str, Array], dtype: str) -> bool:
    floor = smallest_subnormal(dtype)
    return any(
        bool(np.any(radius > ORACLE_MARGIN * np.maximum(budget[name], floor))) for name, radius in answer.radius.items()
    )


@cache
def _source_hash(module: str) -> bytes:
    digest = hashlib.sha256()
    for name in (module, numbers.__name__, __name__):
        digest.update(inspect.getsource(sys.modules[name]).encode())
    return digest.digest()


def cache_file(operator: Operator, batch: Batch, *more: bytes) -> Path:
    """Where what the oracle says of a batch is kept, or (with what else it depends on) something made of that."""
    digest = hashlib.sha256(_source_hash(operator.oracle.__module__))
    structure = batch.case.structure
    options = {k: float(v).hex() if isinstance(v, torch.Tensor) else v for k, v in sorted(batch.options.items())}
    digest.update(repr((operator.name, structure.sequences, structure.group, options)).encode())
    for group in (batch.tensors, batch.state or {}):
        for name, x in group.items():
            digest.update(f"{name}{tuple(x.shape)}{x.dtype}".encode())
            digest.update(x.double().contiguous().numpy().tobytes())
    for part in more:
        digest.update(part)
    root = os.environ.get("LINATTEST_CACHE") or Path.home() / ".cache" / "linattest"
    return Path(root) / f"{operator.name}-{digest.hexdigest()[:40]}.npz"


def _load(path: Path) -> Truth | None:
    try:
        with path.open("rb") as file, np.load(file) as data:
            names = [key[3:] for key in data.files if key.startswith("hi.")]
            hi, lo, radius = ({name: data[f"{part}.{name}"] for name in names} for part in ("hi", "lo", "rd"))
            return Truth(hi, lo, radius, int(data["prec"]), bool(data["crosschecked"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _save(path: Path, answer: Truth) -> None:
    arrays = {f"hi.{k}": x for k, x in answer.hi.items()} | {f"lo.{k}": x for k, x in answer.lo.items()}
    arrays |= {f"rd.{k}": x for k, x in answer.radius.items()}
    keep(path, prec=answer.prec, crosschecked=answer.crosschecked, **arrays)


def keep(path: Path, **arrays: Any) -> None:
    """Write arrays and numbers through a temporary file, so that a reader never sees half of one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(file.name, path)
    except OSError:  # a read-only or full cache only costs time
        return
