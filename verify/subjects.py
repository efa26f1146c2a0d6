"""Running an implementation: one way to call every variant, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from linattest.verify.inputs import Batch
from linattest.verify.spec import Operator, Variant
from linattest.verify.tolerance import TORCH_DTYPES, accumulation

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a variant returned: ``"o"``, ``"state.<name>"``, and after a backward ``"d <input>"``."""

    values: Tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.values[name]


_PROVIDED: dict[str, Callable[..., Any]] = {}


def provide(path: str, function: Callable[..., Any]) -> None:
    """Let ``resolve`` answer a path with a function that no import finds: a user's own, adapted."""
    _PROVIDED[path] = function


def resolve(path: str) -> Callable[..., Any]:
    """The object behind "module:name". Raises ``ImportError`` or ``AttributeError`` naming it."""
    return _PROVIDED[path] if path in _PROVIDED else _imported(path)


@cache
def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def name_state(operator: Operator, state: Any, options: Mapping[str, Any]) -> Tensors:
    """A returned state as named tensors: a single tensor, or (nested) tuples in the order of the record."""
    if not operator.states or state is None:
        return {}
    leaves, live = list(_leaves(state)), operator.states_of(options)
    if len(leaves) != len(live):
        raise TypeError(f"state has {len(leaves)} tensors, expected {[x.name for x in live]}")
    return {x.name: leaf for x, leaf in zip(live, leaves, strict=True)}


def _leaves(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif state is not None:
        for part in state:
            yield from _leaves(part)


def pack_state(operator: Operator, state: Mapping[str, torch.Tensor] | None, options: Mapping[str, Any]) -> Any:
    """The named tensors as the implementation's own state: a tensor, a tuple, or a tuple of parts."""
    if state is None:
        return None
    parts: dict[str | None, list[torch.Tensor]] = {}
    for x in operator.states_of(options):
        parts.setdefault(x.part, []).append(state[x.name])
    packed = [leaves[0] if len(leaves) == 1 else tuple(leaves) for leaves in parts.values()]
    return packed[0] if len(packed) == 1 else tuple(packed)


def keywords(operator: Operator, variant: Variant, batch: Batch) -> dict[str, Any]:
    """The keywords to pass: options but derived ones and axes of the harness, then what the variant fixes."""
    axes = {option.name for option in operator.options if not option.passed}
    chosen = {name: value for name, value in batch.options.items() if value is not None and name not in axes}
    return chosen | dict(variant.options)


def spread(operator: Operator, tensors: Tensors) -> tuple[list[torch.Tensor], Tensors]:
    """Input tensors as positional arguments and, those that may be left out, as keywords."""
    optional = {x.name for x in operator.inputs if x.when is not None}
    positional = [x for name, x in tensors.items() if name not in optional]
    return positional, {name: x for name, x in tensors.items() if name in optional}


Caller = Callable[[Operator, Variant, Batch], tuple[torch.Tensor, Tensors]]


def run(
    operator: Operator, variant: Variant, batch: Batch, *, backward: bool = False, caller: Caller | None = None
) -> Outcome:
    """Run a variant forward, and backward from the batch's cotangents if asked.

    ``caller`` replaces ``call``, for measurements that need the forward run done in another way. The inputs
    are never modified here; a variant that modifies them is caught by a property.
    """
    forward = caller or call
    if not backward:
        with torch.no_grad():
            o, state = forward(operator, variant, batch)
        return Outcome({"o": o} | {f"state.{name}": x for name, x in state.items()})
    leaves = {name: x.detach().requires_grad_() for name, x in batch.tensors.items()}
    state = None
    if batch.state is not None:
        state = {name: x.detach() for name, x in batch.state.items()}
        leaves |= {f"state.{name}": x.requires_grad_() for name, x in state.items() if x.is_floating_point()}
    options = dict(batch.options)
    for option in operator.options:
        value = options.get(option.name)
        if option.differentiable and value is not None:
            dtype = TORCH_DTYPES[accumulation(batch.case.dtype)]
            number = not isinstance(value, torch.Tensor)
            leaf = torch.tensor(value, dtype=dtype, device=device_of(batch)) if number else value.detach()
            leaves[option.name] = leaf.requires_grad_()
            options[option.name] = leaves[option.name]  # type: ignore[assignment]
    tensors = {name: leaves[name] for name in batch.tensors}
    o, final = forward(operator, variant, batch.with_(tensors=tensors, state=state, options=options))
    values: Tensors = {"o": o} | {f"state.{name}": x for name, x in final.items()}
    reached = {name: x for name, x in values.items() if x.requires_grad}
    grads = torch.autograd.grad(
        list(reached.values()),
        list(leaves.values()),
        [batch.cotangents[name] for name in reached],
        allow_unused=True,
    ) if reached else [None] * len(leaves)  # fmt: skip
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        values[f"d {name}"] = torch.zeros_like(leaf) if grad is None else grad
    return Outcome({name: x.detach() for name, x in values.items()})


def call(operator: Operator, variant: Variant, batch: Batch) -> tuple[torch.Tensor, Tensors]:
    """Output and named final state of one forward call."""
    function, kwargs = resolve(variant.function), keywords(operator, variant, batch)
    if variant.kind == "step":

        def advance(x: Tensors, state: Any) -> tuple[torch.Tensor, Any]:
            positional, optional = spread(operator, x)
            return function(*positional, initial_state=state, **optional, **kwargs)

        return decode(operator, batch, advance)
    if "packed" in variant.supports and batch.cu_seqlens is not None:
        kwargs["cu_seqlens"] = batch.cu_seqlens
    if operator.states and "state" in variant.supports:
        kwargs["initial_state"] = pack_state(operator, batch.state, batch.options)
        kwargs["output_final_state"] = True
    positional, optional = spread(operator, batch.tensors)
    o, state = function(*positional, **optional, **kwargs)
    return o, name_state(operator, state, batch.options)


Advance = Callable[[Tensors, Any], tuple[torch.Tensor, Any]]
"""One token: inputs ``[B, 1, ...]`` and the state before it (or None) to the output and the state after."""


def decode(operator: Operator, batch: Batch, advance: Advance) -> tuple[torch.Tensor, Tensors]:
    """Drive a one-token function through every sequence, from its own slice of the initial state."""
    structure = batch.case.structure
    packed = structure.cu_seqlens is not None
    rows: list[torch.Tensor] = []
    finals: list[Tensors] = []
    for n, (_, start, stop) in enumerate(structure.sequences if packed else [(0, 0, structure.T)]):
        state: Any = None
        if batch.state is not None:
            mine = {name: x[n : n + 1] if packed else x for name, x in batch.state.items()}
            state = pack_state(operator, mine, batch.options)
        for t in range(start, stop):
            o, state = advance({name: x[:, t : t + 1] for name, x in batch.tensors.items()}, state)
            rows.append(o)
        blank = blank_state(operator, batch, packed) if state is None else None
        finals.append(blank or name_state(operator, state, batch.options))
    done = sum(o.shape[1] for o in rows)
    o = torch.cat([*rows, blank_output(operator, batch)[:, done:]], dim=1)
    names = finals[0].keys() if finals else []
    return o, {name: torch.cat([final[name] for final in finals]) for name in names}


def blank_output(operator: Operator, batch: Batch) -> torch.Tensor:
    """An all-zero output of the case's shape and dtype."""
    structure = batch.case.structure
    return torch.zeros(structure.shape(operator.output), dtype=TORCH_DTYPES[batch.case.dtype], device=device_of(batch))


def blank_state(operator: Operator, batch: Batch, one: bool) -> Tensors:
    """The all-zero state, of one sequence or of every row."""
    structure = batch.case.structure
    dtype = TORCH_DTYPES[accumulation(batch.case.dtype)]
    shapes = {x: structure.shape(x.shape) for x in operator.states_of(batch.options)}
    return {
        x.name: torch.zeros(
            (1, *shape[1:]) if one else shape, dtype=torch.int64 if x.whole else dtype, device=device_of(batch)
        )
        for x, shape in shapes.items()
    }


def device_of(batch: Batch) -> torch.device:
    """Where a batch's tensors lie; the CPU if it has none."""
    return next((x.device for x in batch.tensors.values()), torch.device("cpu"))
