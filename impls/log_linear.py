"""Log-linear attention: a growing number of states, one per bucket of a Fenwick tree, each read with its own weight.

Definition, per value head, positions t, s counted from the sequence's first token, log gate g <= 0, scale K ** -0.5 by
default, level(t, s) = 0 if s = t else bit_length(t XOR s):

    o_t = scale * sum_{s <= t} lam_t^{level(t, s)} (q_t^T Phi(t, s) w_s) v_s
    without beta:   w = k,       Phi(t, s) = exp(g_{s+1} + ... + g_t)                                   (Mamba-2)
    with beta:      w = beta k,  Phi(t, s) = prod_{j = t .. s + 1} exp(g_j) (I - beta_j k_j k_j^T)      (Gated DeltaNet)

With all weights 1 these are exactly the gated and the gated-delta recurrence. `lam` is the argument `level_weights`
(see `impls.level_weights` for the ways to make it). The past of token t has one bucket per set bit of t, so a decode
step reads popcount(t) + 1 states; see `fenwick_scan` for the buckets, their merging, and the chunk form.

Source: [LogLinear]; [AdaptiveDecay] for the weights.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, delta_scan, features, fenwick_scan
from linattest.impls.features import WIDE


class FenwickState(NamedTuple):
    """S [N, L, HV, K, V] and position [N], int64: how many tokens the state has seen.

    Level j + 1 holds the bucket of set bit j of `position`, carried to that position; all other levels are exactly 0.
    L levels serve 2^(L - 1) tokens; after exactly that many the only bucket, which would be level L, is in level L - 1.
    """

    S: Tensor
    position: Tensor


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    level_weights: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: FenwickState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, FenwickState | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float64, float32, bfloat16 or float16;
    g, beta [B, T, HV] and level_weights [B, T, HV, L] of that dtype or float32, L at least
    bit_length(max(position + T - 1, 0)) + 1; beta and level_weights any finite numbers. `initial_state` is a
    FenwickState with S float32 (float64 for float64 inputs), the same L, and position int64 or int32, which may differ
    between rows. Returns o [B, T, HV, V] in v's dtype and the final state (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, a positive or NaN gate, a
    weight or beta that is not finite, too few levels, a negative position, a state with an entry outside the buckets
    of its position, bad offsets. Source: module docstring.
    """
    core = fenwick_scan.recurrent_core
    return _run(core, q, k, v, g, level_weights, beta, scale, initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    level_weights: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: FenwickState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, FenwickState | None]:
    """Chunk-parallel form (a tree over chunks aligned to position 0); arguments and errors as in `recurrent`.

    `chunk_size` is a power of two; with beta, float64 inputs get at most 16 (see `delta_scan.block_size`).
    """
    size = arguments.check_chunk_size(chunk_size)
    block = size if beta is None else delta_scan.block_size(size, q)
    core = functools.partial(fenwick_scan.chunk_core, chunk_size=block, exact=features.is_wide(q))
    return _run(core, q, k, v, g, level_weights, beta, scale, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    level_weights: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: FenwickState | None = None,
    scale: float | None = None,
) -> tuple[Tensor, FenwickState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    arguments.check_rank("q", q)
    arguments.check_one_token(q.shape[1])
    o, state = recurrent(
        q, k, v, g, level_weights, beta=beta, scale=scale, initial_state=initial_state, output_final_state=True
    )
    assert state is not None
    return o, state


@features.full_precision
def _run(core, q, k, v, g, level_weights, beta, scale, initial_state, output_final_state, cu_seqlens):
    """Check, widen, run each sequence, round once."""
    sizes = arguments.check_qkv(q, k, v)
    L = _check(sizes, q, g, level_weights, beta)
    arguments.check_flag("output_final_state", output_final_state)
    factor = arguments.check_scale(scale, sizes.K)
    offsets = arguments.check_cu_seqlens(cu_seqlens, sizes.B, sizes.T)
    lengths = [sizes.T] * sizes.B if offsets is None else [b - a for a, b in zip(offsets, offsets[1:], strict=False)]
    positions = [0] * len(lengths)
    if initial_state is not None:
        positions = _check_state(initial_state, (len(lengths), L, sizes.HV, sizes.K, sizes.V), q)
    for position, T in zip(positions, lengths, strict=True):
        arguments.check_levels(level_weights, L, position, T)
    if initial_state is not None:
        _check_buckets(initial_state[0], positions)
    inputs = [features.heads_first(x, sizes.HV) for x in (q, k, v)]
    inputs += [features.heads_first(x) for x in (g, level_weights) + (() if beta is None else (beta,))]
    core = functools.partial(_by_position, functools.partial(_core, core))
    o, state = features.over_sequences(core, inputs, _convert(initial_state, WIDE), offsets)
    final = _convert(state, arguments.compute_dtype(q.dtype)) if output_final_state else None
    return features.tokens_first(o * factor, v.dtype), final


def _check(sizes: arguments.Sizes, q: Tensor, g: object, level_weights: object, beta: object) -> int:
    """Everything but q, k, v and the state; returns L."""
    heads = (sizes.B, sizes.T, sizes.HV)
    arguments.check_gate_values("g", arguments.check_per_head("g", g, {"[B, T, HV]": heads}, q))
    L = arguments.check_rank("level_weights", level_weights, "[B, T, HV, L]").shape[-1]
    weights = arguments.check_per_head("level_weights", level_weights, {"[B, T, HV, L]": (*heads, L)}, q)
    arguments.check_finite_values("level_weights", weights)
    if beta is not None:
        arguments.check_finite_values("beta", arguments.check_per_head("beta", beta, {"[B, T, HV]": heads}, q))
    return L


def _check_state(state: object, shape: tuple[int, ...], like: Tensor) -> list[int]:
    """Shapes, dtypes and positions of a state; returns the positions."""
    arguments.check_state_tuple("initial_state", state, FenwickState)
    S, position = state  # type: ignore[misc]
    arguments.check_state("initial_state.S", S, shape, "[N, L, HV, K, V] with level_weights' L", like)
    if not isinstance(position, Tensor) or position.dtype not in (torch.int32, torch.int64):
        got = position.dtype if isinstance(position, Tensor) else type(position).__name__
        raise TypeError(f"initial_state.position is {got}, expected a tensor of torch.int64 or torch.int32")
    arguments.check_shape("initial_state.position", position, shape[:1], "[N]")
    arguments.check_device("initial_state.position", position, like)
    positions: list[int] = position.tolist()
    for n, p in enumerate(positions):
        if p < 0:
            raise ValueError(f"initial_state.position[{n}] is {p}, expected a number of tokens >= 0")
    return positions


def _check_buckets(S: Tensor, positions: list[int]) -> None:
    """Only the buckets of each row's position may hold anything (reads values)."""
    for n, p in enumerate(positions):
        unused = fenwick_scan.unused_levels(p, S.shape[1])
        held = (S[n, unused] != 0).flatten(1).any(1).tolist()
        for level in (level for level, nonzero in zip(unused, held, strict=True) if nonzero):
            raise ValueError(
                f"initial_state.S[{n}, {level}] has a value that is not 0, expected only zeros: level {level} holds "
                f"no bucket after initial_state.position[{n}] = {p} tokens"
            )


def _convert(state: FenwickState | None, dtype: torch.dtype) -> FenwickState | None:
    """A copy with S in `dtype`, position in int64."""
    if state is None:
        return None
    S, position = state
    return FenwickState(features.to_state(S, dtype), position.to(torch.int64, copy=True))


def _by_position(core, *parts) -> tuple[Tensor, FenwickState]:
    """`core(*inputs, S, position)` for each group of batch rows at one position; parts = (*inputs, state or None)."""
    *inputs, state = parts
    q, _, v, _, lam = inputs[:5]
    if state is None:
        S = torch.zeros(*q.shape[:1], lam.shape[-1], q.shape[1], q.shape[-1], v.shape[-1], dtype=WIDE, device=q.device)
        state = FenwickState(S, torch.zeros(q.shape[0], dtype=torch.int64, device=q.device))
    S, position = state
    groups: dict[int, list[int]] = {}
    for row, p in enumerate(position.tolist()):
        groups.setdefault(p, []).append(row)
    if len(groups) <= 1:
        o, S = core(*inputs, S, next(iter(groups), 0))
    else:
        results = [core(*(x[rows] for x in (*inputs, S)), p) for p, rows in groups.items()]
        order = torch.tensor([row for rows in groups.values() for row in rows], device=q.device).argsort()
        o, S = (torch.cat(each)[order] for each in zip(*results, strict=True))
    return o, FenwickState(S, position + q.shape[2])


def _core(walk, q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, *rest) -> tuple[Tensor, Tensor]:
    """q, k [B, HV, T, K], v [B, HV, T, V], g [B, HV, T], lam [B, HV, T, L], beta [B, HV, T] or none, S, position."""
    *beta, S, position = rest
    erase, write = (k, k * beta[0].unsqueeze(-1)) if beta else (None, k)
    return walk(q, erase, write, v, g, lam, S, position)
