"""Shared numerics: feature map, safe norm, precision, head and chunk layout, packed sequences.

Precision. All arithmetic is float64 (`WIDE`), whatever the inputs; outputs and states are rounded once, at the end. The
chunk forms need it: a chunk of 64 delta-rule tokens loses more than ten times what the rounding of float32 inputs
explains, an inverse penalty matrix all of it. float64 inputs (`is_wide`) have no digits to spare: for them long sums
are compensated, triangular systems kept short, and every solve refined.

Layout. Inside, tensors are heads first, `[B, H, T, D]`, so that a head's tokens are the rows of one matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from linattest.impls import arguments

WIDE = torch.float64
SMALLEST_NORM = 2.0**-480  # below it, and above its inverse, squares of float64 entries leave the normal range

State = Any  # None, a tensor [N, ...], or a (named) tuple of such
P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with autocast off: its matrix products choose their own precision."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        device = args[0].device.type if args and isinstance(args[0], Tensor) else "cpu"
        with torch.autocast(device_type=device, enabled=False):
            return function(*args, **kwargs)

    return wrapper


def is_wide(x: object) -> bool:
    """Whether an argument (not checked yet) is float64 already, so that its operator has no digits to spare."""
    return isinstance(x, Tensor) and x.dtype == WIDE


# --- feature map and norm ------------------------------------------------------------------------------------


def phi(x: Tensor) -> Tensor:
    """The positive feature map ELU(x) + 1 = where(x > 0, x + 1, exp(x)), any shape, dtype of `x`.

    Not `elu(x) + 1`, which is `expm1(x) + 1` and cancels to 0 in float32 below -16.6.
    Source: VLA paper, section 2 (feature map), "Linear Transformers" (Katharopoulos et al. 2020), equation 7.
    """
    negative = torch.where(x > 0, 0, x)  # the branch not taken must not overflow, or its gradient is 0 * inf
    return torch.where(x > 0, x + 1, torch.exp(negative))


def norm(x: Tensor) -> Tensor:
    """x / |x| along the last dimension, 0 (with zero gradient) where x = 0; same shape and dtype.

    Rows whose squares would under- or overflow are divided by max|x_i| first; each row takes the path its own length
    asks for, whatever the others hold. No eps: every non-zero row has norm 1. NaN stays NaN.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    plain = (length > SMALLEST_NORM) & (length < 1 / SMALLEST_NORM)
    if arguments.readable(x) and bool(plain.all()):
        return x / length
    # x/|x| does not change with the divisor, so neither does the gradient
    largest = torch.linalg.vector_norm(x.detach(), torch.inf, dim=-1, keepdim=True)
    y = x / torch.where(largest == 0, 1, largest)
    scaled = y / torch.where(largest == 0, 1, torch.linalg.vector_norm(y, dim=-1, keepdim=True))
    scaled = torch.where(largest == 0, 0, scaled)  # not y / 1, whose gradient is not 0
    return torch.where(plain, x / torch.where(plain, length, 1), scaled)


# --- layout --------------------------------------------------------------------------------------------------


def heads_first(x: Tensor, heads: int | None = None) -> Tensor:
    """[B, T, H, ...] -> a fresh contiguous WIDE [B, heads, T, ...]; head h of the result is head h // (heads // H).

    The copy is unconditional: strides and storage offsets of the caller's tensor must not choose the code path of a
    matrix product, or bits would depend on them.
    """
    copy = x.transpose(1, 2).to(dtype=WIDE, memory_format=torch.contiguous_format, copy=True)
    if heads is None or heads == copy.shape[1]:
        return copy
    return copy.repeat_interleave(heads // copy.shape[1], dim=1)


def tokens_first(o: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, T, ...] -> contiguous [B, T, H, ...], rounded once to `dtype`."""
    return o.transpose(1, 2).to(dtype=dtype, memory_format=torch.contiguous_format, copy=True)


def to_state(state: State, dtype: torch.dtype) -> State:
    """Every tensor of a state converted to `dtype` (a copy: a returned state never aliases the one passed in)."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.to(dtype=dtype, memory_format=torch.contiguous_format, copy=True)
    parts = [to_state(part, dtype) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def chunk_length(T: int, chunk_size: int) -> int:
    """`chunk_size`, or the smallest power of two that holds a shorter sequence."""
    return min(chunk_size, 1 << max(T - 1, 0).bit_length())


def into_chunks(x: Tensor, C: int) -> Tensor:
    """[B, H, T, ...] -> [B * H, N, C, ...], the last chunk padded with zeros (a zero token changes nothing)."""
    B, H, T = x.shape[:3]
    N = -(-T // C)
    if N * C != T:
        x = torch.cat([x, x.new_zeros(B, H, N * C - T, *x.shape[3:])], dim=2)
    return x.reshape(B * H, N, C, *x.shape[3:])


def from_chunks(x: Tensor, B: int, H: int, T: int) -> Tensor:
    """[B * H, N, C, ...] -> [B, H, T, ...], padding dropped."""
    return x.reshape(B, H, x.shape[1] * x.shape[2], *x.shape[3:])[:, :, :T]


# --- running sums --------------------------------------------------------------------------------------------


def add(total: Tensor, lost: Tensor, term: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a compensated running sum whose value is `total + lost`; gradients flow through `total` alone."""
    with torch.no_grad():
        shadow = (total + term) - total
        lost = lost + ((total - (total + term - shadow)) + (term - shadow))  # Knuth's TwoSum
    return total + term, lost


def prefix_sums(terms: Tensor, start: Tensor, *, exact: bool = False) -> Tensor:
    """terms [G, N, ...], start [G, ...] -> [G, N + 1, ...]: entry n is start + the sum of the first n terms.

    `exact` compensates for rounding, so that even N equal float64 terms do not drift.
    """
    return _PrefixSums.apply(terms, start, exact)


class _PrefixSums(torch.autograd.Function):
    """A loop over N additions: faster than a strided `cumsum`. Its backward is the same from the other end."""

    @staticmethod
    def forward(ctx: Any, terms: Tensor, start: Tensor, exact: bool) -> Tensor:
        sums = terms.new_empty(terms.shape[0], terms.shape[1] + 1, *terms.shape[2:])
        sums[:, 0], total, lost = start, start, torch.zeros_like(start)
        for n, term in enumerate(terms.unbind(1)):
            if exact:
                total, lost = add(total, lost, term)
                torch.add(total, lost, out=sums[:, n + 1])
            else:
                torch.add(sums[:, n], term, out=sums[:, n + 1])
        return sums

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        after = upstream.flip(1).cumsum(1).flip(1)  # plain operations: differentiable again
        return after[:, 1:], after[:, 0], None


# --- packed sequences ----------------------------------------------------------------------------------------


def _slice_state(state: State, n: int) -> State:
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state[n : n + 1]
    parts = tuple(_slice_state(part, n) for part in state)
    return type(state)(*parts) if hasattr(state, "_fields") else parts


def _join_states(states: Sequence[State]) -> State:
    if isinstance(states[0], Tensor):
        return torch.cat(list(states))
    return type(states[0])(*(_join_states(parts) for parts in zip(*states, strict=True)))


def over_sequences(
    core: Callable[..., tuple[Tensor, State]], inputs: Sequence[Tensor], state: State, offsets: list[int] | None
) -> tuple[Tensor, State]:
    """Run `core(*inputs, state) -> (o, state)` on each packed sequence by itself.

    inputs are [B, H, T, ...]; without `offsets` there is one call. With them (B = 1), sequence n is rows
    offsets[n] .. offsets[n + 1] - 1 and starts from state[n]; rows beyond the last offset give o = 0 and, being read
    by nobody, have zero gradient. No sequence can see another: each has its own call.
    """
    if offsets is None:
        return core(*inputs, state)
    outputs, states = [], []
    if len(offsets) == 1:  # no sequence at all: an empty run gives the shapes
        o, final = core(*(x[:, :, :0] for x in inputs), None)
        outputs, states = [o], [_slice_state(final, 1)]
    for n, (start, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
        o, final = core(*(x[:, :, start:end].contiguous() for x in inputs), _slice_state(state, n))
        outputs.append(o)
        states.append(final)
    tail = inputs[0].shape[2] - offsets[-1]
    B, H, _, *rest = outputs[0].shape
    outputs.append(outputs[0].new_zeros(B, H, tail, *rest))
    return torch.cat(outputs, dim=2), _join_states(states)
