"""Wrongs of a known size, made from the record of any operator: its own reference in float64, run wrong on purpose.

The reference is right, so the injected wrong is all that is wrong; what it gives is rounded once, as a kernel would.

    factor    the scale is up 1%, a gate 2%, a differentiable option 0.1%
    cast      the state is rounded to a narrow type after each token, or once, where a sequence is cut in two
    dropped   a token's value or its whole update, a token's gate, the initial state; the last row is the one before it

A cast is tried twice: with the final state as the loop left it, and "hidden", with the right final state, so that the
output alone can show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from linattest.verify.inputs import Batch
from linattest.verify.sensitivity import run_copies
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Caller, Tensors, call
from linattest.verify.tolerance import TORCH_DTYPES, accumulation, unit_roundoff

SCALE, GATE, OPTION = 1.01, 1.02, 1.001
"""Factors on a derived option (the scale), on each gate, and on each differentiable option."""

OPEN = {"log_gate": 0.0, "beta": 1.0, "rate": 0.0, "level": 1.0}
"""Domains of gates, and the value of a gate that is not there. (All weights times 1.02 is no fault of a mean.)"""

CASTS = ("float32", "bfloat16", "float16")
REQUIRED_CASTS = ("bfloat16", "float16")
"""Types a state is rounded to, where they are narrower than what it is accumulated in; and those that must be seen."""


NOTHING = "nothing"
"""The name of no wrong at all, which must not be seen."""

ALWAYS, LATER = 1, 64
"""Shortest lengths from which a wrong is required to be seen. A few rows of output, rounded to bfloat16, may hide the
rounding of a state that is 8 times finer: only elements with cancellation show it, and 16 tokens may have none."""


@dataclass(frozen=True)
class Wrong:
    """One wrong: its name, what came of it in float64, and the length from which it must be seen at bfloat16."""

    name: str
    values: Tensors
    required_from: int | None = None


Changed = tuple[str, Batch, int | None]
"""A wrong made by changing the batch: its name, the changed batch, and the length from which it must be seen."""


def wrongs(operator: Operator, batch: Batch, right: Tensors) -> Iterator[Wrong]:
    """Every wrong that this operator can have on this batch.

    Args:
        batch: of one sequence, dense, with an initial state if the operator has states.
        right: the right outputs, ``"o"`` and ``"state.<name>"``, in float64.
    """
    yield Wrong(NOTHING, right)
    for name, changed, required in (*_factors(operator, batch), *_dropped(operator, batch)):
        yield Wrong(name, run_wrong(operator, changed), required)
    if operator.states_of(batch.options) and batch.state is not None:
        yield from _state_wrongs(operator, batch, right)
    stale = right["o"].clone()
    stale[:, -1:] = stale[:, -2:-1]
    yield Wrong("last row stale", right | {"o": stale})


def run_wrong(operator: Operator, batch: Batch, caller: Caller | None = None) -> Tensors:
    """The reference's forward outputs in float64, on a changed batch or called in a changed way."""
    return run_copies(operator, batch, 1, False, moved=False, caller=caller)[0].values


def _factors(operator: Operator, batch: Batch) -> Iterator[Changed]:
    for option in (x for x in operator.options if x.name in batch.options):
        value = batch.options[option.name]
        if option.derived is not None:
            width = max(batch.case.structure.K, 1)
            scaled = SCALE * (width**-0.5 if value is None else float(value))
            yield f"{option.name} x {SCALE}", batch.with_(options={**batch.options, option.name: scaled}), ALWAYS
        elif option.differentiable and isinstance(value, float):
            changed = {**batch.options, option.name: OPTION * value}
            yield f"{option.name} x {OPTION}", batch.with_(options=changed), None
    for x in operator.inputs_of(batch.options):
        if x.domain in OPEN:
            yield f"{x.name} x {GATE}", _with_input(batch, x.name, GATE * batch.tensors[x.name].double()), ALWAYS


def _dropped(operator: Operator, batch: Batch) -> Iterator[Changed]:
    middle = batch.case.structure.T // 2
    for x in operator.inputs_of(batch.options):
        values = batch.tensors[x.name].double()
        if x.name == "v":
            yield f"{x.name} of a token dropped", _with_input(batch, x.name, _put(values, middle, 0.0)), None
        elif x.domain in OPEN:
            shut = (values != OPEN[x.domain]).flatten(2).any(-1)[0, middle:]
            token = middle + int(shut.int().argmax())  # the first from the middle on that has a gate
            yield f"{x.name} of a token ignored", _with_input(batch, x.name, _put(values, token, OPEN[x.domain])), None
    if batch.state is not None:
        yield "initial state dropped", batch.with_(state=None), None


def _with_input(batch: Batch, name: str, values: torch.Tensor) -> Batch:
    return batch.with_(tensors={**batch.tensors, name: values})


def _put(x: torch.Tensor, token: int, value: float) -> torch.Tensor:
    changed = x.clone()
    changed[:, token] = value
    return changed


def _state_wrongs(operator: Operator, batch: Batch, right: Tensors) -> Iterator[Wrong]:
    length = batch.case.structure.T
    middle, every = length // 2, range(length + 1)
    wide = accumulation(batch.case.dtype)
    for dtype in (x for x in CASTS if unit_roundoff(x) > unit_roundoff(wide)):
        required = dtype in REQUIRED_CASTS
        values = run_wrong(operator, batch, _in_pieces(every, lambda _t, _before, s, d=dtype: _cast(s, d)))
        yield Wrong(f"{dtype} state", values, ALWAYS if required else None)
        yield Wrong(f"{dtype} state, hidden", right | {"o": values["o"]}, LATER if required else None)
        cut = _in_pieces((0, middle, length), lambda t, _before, s, d=dtype: _cast(s, d) if t < length else s)
        yield Wrong(f"{dtype} state at one cut", run_wrong(operator, batch, cut))
    lost = _in_pieces((0, middle, middle + 1, length), lambda t, before, s: before if t == middle + 1 else s)
    yield Wrong("update of a token dropped", run_wrong(operator, batch, lost))


def _cast(state: Tensors, dtype: str) -> Tensors:
    return {k: x.to(TORCH_DTYPES[dtype]).to(x.dtype) if x.is_floating_point() else x for k, x in state.items()}


Change = Callable[[int, Tensors, Tensors], Tensors]
"""(tokens done, the state before this piece, the state after it) to the state that is handed on."""


def _in_pieces(edges: Sequence[int], change: Change) -> Caller:
    """A caller that runs a sequence from edge to edge and hands a changed state on."""

    def caller(operator: Operator, variant: Variant, batch: Batch) -> tuple[torch.Tensor, Tensors]:
        state, rows = dict(batch.state or {}), []
        for start, stop in pairwise(edges):
            piece = {name: x[:, start:stop] for name, x in batch.tensors.items()}
            o, after = call(operator, variant, batch.with_(tensors=piece, state=state))
            state = change(stop, state, after)
            rows.append(o)
        return torch.cat(rows, dim=1), state

    return caller
