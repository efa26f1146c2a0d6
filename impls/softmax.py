"""Causal softmax attention: the baseline that the linear operators are compared with.

Definition, scale K ** -0.5 by default:

    o_t = sum_{s <= t} exp(scale * k_s . q_t - l_t) v_s,      l_t = log sum_{s <= t} exp(scale * k_s . q_t)

Source: Vaswani et al. 2017, equation 1 with a causal mask; blockwise form: Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax".

The state is a cache of keys and values in the inputs' own dtype: sequence n's tokens are its first `length[n]` rows,
the rest is padding that is never read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, features, once
from linattest.impls.features import WIDE


class KVCache(NamedTuple):
    """k [N, L, H, K] and v [N, L, HV, V] in the inputs' dtype, and length [N], int64, at most L."""

    k: Tensor
    v: Tensor
    length: Tensor


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    initial_state: KVCache | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, KVCache | None]:
    """Token loop: an explicit log-sum-exp for every token, in float64 whatever the inputs.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float64, float32, bfloat16 or float16;
    `initial_state` a KVCache of that dtype, N = B or the number of packed sequences. Returns o [B, T, HV, V] in v's
    dtype and the cache with the new tokens appended (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, numbers, offsets or cache
    lengths. Source: module docstring.
    """
    return _run(_recurrent_core, q, k, v, scale, initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    initial_state: KVCache | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, KVCache | None]:
    """Blockwise online softmax: no score matrix larger than T x chunk_size; arguments and errors as in `recurrent`.

    `chunk_size` is a power of two.
    """
    core = functools.partial(_chunk_core, chunk_size=arguments.check_chunk_size(chunk_size))
    return _run(core, q, k, v, scale, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor, k: Tensor, v: Tensor, *, initial_state: KVCache | None = None, scale: float | None = None
) -> tuple[Tensor, KVCache]:
    """One decode token ([B, 1, H, *]): (o, longer cache); the one passed in is not modified. Errors as `recurrent`."""
    arguments.check_rank("q", q)
    arguments.check_one_token(q.shape[1])
    o, state = recurrent(q, k, v, scale=scale, initial_state=initial_state, output_final_state=True)
    assert state is not None
    return o, state


@features.full_precision
def _run(core, q, k, v, scale, initial_state, output_final_state, cu_seqlens):
    """Check, then run each sequence with its cached keys in front."""
    sizes = arguments.check_qkv(q, k, v)
    arguments.check_flag("output_final_state", output_final_state)
    factor = arguments.check_scale(scale, sizes.K)
    offsets = arguments.check_cu_seqlens(cu_seqlens, sizes.B, sizes.T)
    bounds = [(n, 0, sizes.T) for n in range(sizes.B)]
    if offsets is not None:
        bounds = [(0, start, end) for start, end in zip(offsets, offsets[1:], strict=False)]
    lengths = [0] * len(bounds)
    if initial_state is not None:
        lengths = _check_cache(initial_state, len(bounds), sizes, q)
    whole = offsets is None and len(set(lengths)) <= 1  # every row alike: one call for all
    outputs, keys, values = [], [], []
    for n, (b, start, end) in enumerate(bounds[:1] if whole else bounds):
        rows, cached = (slice(None),) * 2 if whole else (slice(b, b + 1), slice(n, n + 1))
        key, value = k[rows, start:end], v[rows, start:end]
        if initial_state is not None:
            key = torch.cat([initial_state[0][cached, : lengths[n]], key], 1)
            value = torch.cat([initial_state[1][cached, : lengths[n]], value], 1)
        query = features.heads_first(q[rows, start:end], sizes.HV)
        o = core(query, features.heads_first(key, sizes.HV), features.heads_first(value), factor)
        outputs.append(features.tokens_first(o, v.dtype))
        keys += key.split(1)
        values += value.split(1)
    if offsets is None:
        o = torch.cat(outputs) if outputs else torch.zeros_like(v)
    else:
        o = torch.cat([*outputs, v.new_zeros(1, sizes.T - offsets[-1], *v.shape[2:])], 1)
    return o, _cache(keys, values, k, v) if output_final_state else None


def _check_cache(cache: object, N: int, sizes: arguments.Sizes, q: Tensor) -> list[int]:
    arguments.check_state_tuple("initial_state", cache, KVCache)
    k, v, length = cache  # type: ignore[misc]
    L = arguments.check_rank("initial_state.k", k, "[N, L, H, K]").shape[1]
    arguments.check_same("initial_state.k", k, (N, L, sizes.H, sizes.K), "[N, L, H, K]", q)
    arguments.check_same("initial_state.v", v, (N, L, sizes.HV, sizes.V), "[N, L, HV, V]", q)
    if not isinstance(length, Tensor) or length.dtype not in (torch.int32, torch.int64):
        got = length.dtype if isinstance(length, Tensor) else type(length).__name__
        raise TypeError(f"initial_state.length is {got}, expected an int64 or int32 tensor [N]")
    arguments.check_shape("initial_state.length", length, (N,), "[N]")
    arguments.check_device("initial_state.length", length, q)
    lengths: list[int] = length.tolist()
    for n, tokens in enumerate(lengths):
        if not 0 <= tokens <= L:
            raise ValueError(f"initial_state.length[{n}] is {tokens}, expected 0 to L = {L}")
    return lengths


def _cache(keys: list[Tensor], values: list[Tensor], k: Tensor, v: Tensor) -> KVCache:
    lengths = [key.shape[1] for key in keys]
    L = max(lengths, default=0)
    rows = [[torch.cat([x, x.new_zeros(1, L - x.shape[1], *x.shape[2:])], 1) for x in part] for part in (keys, values)]
    empty = [part.new_zeros(0, L, *part.shape[2:]) for part in (k, v)]
    joined = [torch.cat([*part, none]) for part, none in zip(rows, empty, strict=True)]
    return KVCache(joined[0], joined[1], torch.tensor(lengths, dtype=torch.int64, device=k.device))


# --- cores: equally long sequences, heads first; the last T of the L keys are the queries' own -----------------


def _recurrent_core(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [B, H, T, K], k [B, H, L, K], v [B, H, L, V]."""
    T, before = q.shape[2], k.shape[2] - q.shape[2]
    outputs = []
    for t in range(T):
        seen = before + t + 1
        scores = scale * (k[:, :, :seen] @ q[:, :, t, :, None]).squeeze(-1)
        weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
        outputs.append((weights.unsqueeze(2) @ v[:, :, :seen]).squeeze(2))
    return torch.stack(outputs, 2) if outputs else v[:, :, :0]


def _chunk_core(q: Tensor, k: Tensor, v: Tensor, scale: float, *, chunk_size: int) -> Tensor:
    """As `_recurrent_core`, blockwise. Keys are aligned to the end, so that query and key blocks share their edges."""
    B, H, T, _ = q.shape
    if T == 0:
        return v[:, :, :0]
    C = features.chunk_length(T, chunk_size)
    pad = -(k.shape[2] - T) % C
    Q = features.into_chunks(q, C)
    keys, values = (features.into_chunks(torch.cat([x.new_zeros(B, H, pad, x.shape[3]), x], 2), C) for x in (k, v))
    return features.from_chunks(_Blockwise.apply(Q, keys, values, scale, pad), B, H, T)


class _Blockwise(torch.autograd.Function):
    """(Q [G, N, C, K], keys [G, M + N, C, K], values [G, M + N, C, V], scale, pad) -> o [G, N, C, V].

    All query blocks at once meet the key blocks at distance 0, 1, 2, ... before them. Distance 0 comes first and holds
    the token itself, so the running maximum is finite from the start. The backward computes each block of weights
    again from the log-sum-exp: nothing quadratic in T is kept.
    """

    @staticmethod
    def forward(ctx: Any, Q: Tensor, keys: Tensor, values: Tensor, scale: float, pad: int) -> Tensor:
        G, N, C, _ = Q.shape
        top = torch.full((G, N, C, 1), -torch.inf, dtype=WIDE, device=Q.device)
        total, o = torch.zeros_like(top), torch.zeros(G, N, C, values.shape[3], dtype=WIDE, device=Q.device)
        for first, meets in _distances(N, keys.shape[1]):
            scores = _scores(Q, keys, scale, pad, first, meets)
            old = top[:, first:]
            new = torch.maximum(old, scores.amax(-1, keepdim=True))
            weights, shrink = torch.exp(scores - new), torch.exp(old - new)
            o[:, first:] = o[:, first:] * shrink + weights @ values[:, meets]
            total[:, first:] = total[:, first:] * shrink + weights.sum(-1, keepdim=True)
            top[:, first:] = new
        o /= total
        ctx.scale, ctx.pad = scale, pad
        ctx.save_for_backward(Q, keys, values, top, total)
        return o

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        Q, keys, values, top, total = ctx.saved_tensors
        with torch.no_grad():
            blocks = list(_distances(Q.shape[1], keys.shape[1]))

            def weighed(first: int, meets: slice) -> tuple[Tensor, Tensor]:
                scores = _scores(Q, keys, ctx.scale, ctx.pad, first, meets)
                weights = torch.exp(scores - top[:, first:]) / total[:, first:]
                return weights, upstream[:, first:] @ values[:, meets].mT

            # The mean of the weights' gradients, from those very numbers. upstream . o equals it, but where one
            # weight is nearly 1 its rounding does not cancel against theirs.
            mean = torch.zeros_like(top)
            for first, meets in blocks:
                weights, slopes = weighed(first, meets)
                mean[:, first:] += (weights * slopes).sum(-1, keepdim=True)
            gradients = tuple(torch.zeros_like(x) for x in (Q, keys, values))
            for first, meets in blocks:
                weights, slopes = weighed(first, meets)
                inner = ctx.scale * weights * (slopes - mean[:, first:])
                gradients[0][:, first:] += inner @ keys[:, meets]
                gradients[1][:, meets] += inner.mT @ Q[:, first:]
                gradients[2][:, meets] += weights.mT @ upstream[:, first:]
        return (*once.once_only(gradients, Q, keys, values, upstream), None, None)


def _distances(N: int, blocks: int) -> Iterator[tuple[int, slice]]:
    """(first query block, the key blocks that it and the later ones meet) for each distance, nearest first."""
    M = blocks - N  # key blocks before the first query's
    for distance in range(blocks):
        first = max(distance - M, 0)
        yield first, slice(first + M - distance, N + M - distance)


def _scores(Q: Tensor, keys: Tensor, scale: float, pad: int, first: int, meets: slice) -> Tensor:
    """Scores of query blocks from `first` on with the key blocks they meet; -inf for later tokens and padding."""
    scores = scale * (Q[:, first:] @ keys[:, meets].mT)
    rows = torch.arange(Q.shape[2], device=Q.device)
    if meets.stop == keys.shape[1]:  # distance 0
        scores.masked_fill_(rows[:, None] < rows, -torch.inf)
    if meets.start == 0 and pad:
        scores[:, 0].masked_fill_(rows < pad, -torch.inf)
    return scores
