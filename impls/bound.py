"""An operator with its arguments bound: checked and widened, ready to run, and able to read with another query.

Every operator that keeps a memory S of keys and values does the same around its own recurrence: check, widen, run each
packed sequence by itself, scale, round once. `bind` of an operator's module does the first two and returns a `Bound`;
`run` and `step` here do the rest. CCQ, which changes the query of *any* of these operators, takes their `Bound` and
puts its own core around theirs: so it works on the float64 numbers and not on rounded outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, features
from linattest.impls.features import WIDE, State

Core = Callable[..., tuple[Tensor, State]]


class Bound(NamedTuple):
    """One call of an operator, less its state and its packing.

    q: the query as given (dtype and device). inputs: heads-first WIDE tensors, q and k at HV heads first.
    core: (read, *inputs, state) -> (o, final state), where `read` [B, HV, T, K] stands in for q wherever the memory S
    is read; a normalised operator still has q itself in its denominator. factor: the output's scale.
    check_state: (name, state, N, sizes, q) -> the state as a value of its own type, or TypeError or ValueError.
    """

    sizes: arguments.Sizes
    q: Tensor
    inputs: Sequence[Tensor]
    core: Core
    factor: float
    check_state: Callable[[str, object, int, arguments.Sizes, Tensor], State]


def reader(core: Core) -> Core:
    """A core (q, ...) whose q does nothing but read, as a core (read, q, ...)."""
    return lambda read, _, *rest: core(read, *rest)


def form(chunk_size: int | None, recurrent_core: Core, chunk_core: Core) -> Core:
    """The core that `bind` was asked for: the token loop without a (checked) chunk size."""
    return recurrent_core if chunk_size is None else functools.partial(chunk_core, chunk_size=chunk_size)


def check_memory(name: str, state: object, N: int, sizes: arguments.Sizes, like: Tensor) -> State:
    """The state of an operator that keeps S and nothing else."""
    arguments.check_state(name, state, (N, sizes.HV, sizes.K, sizes.V), "[N, HV, K, V]", like)
    return state


def run(
    operator: Bound, initial_state: State, output_final_state: bool, cu_seqlens: Tensor | None
) -> tuple[Tensor, State]:
    """(o [B, T, HV, V] in q's dtype, final state or None): each sequence by itself, everything rounded once."""
    arguments.check_flag("output_final_state", output_final_state)
    sizes, q = operator.sizes, operator.q
    offsets = arguments.check_cu_seqlens(cu_seqlens, sizes.B, sizes.T)
    state = None
    if initial_state is not None:
        N = sizes.B if offsets is None else len(offsets) - 1
        state = features.to_state(operator.check_state("initial_state", initial_state, N, sizes, q), WIDE)
    with torch.autocast(device_type=q.device.type, enabled=False):  # matrix products choose their own precision
        o, state = features.over_sequences(lambda q, *rest: operator.core(q, q, *rest), operator.inputs, state, offsets)
    final = features.to_state(state, arguments.compute_dtype(q.dtype)) if output_final_state else None
    return features.tokens_first(o * operator.factor, q.dtype), final


def step(operator: Bound, initial_state: State) -> tuple[Tensor, State]:
    """(o, new state) of one token."""
    arguments.check_one_token(operator.sizes.T)
    return run(operator, initial_state, True, None)
