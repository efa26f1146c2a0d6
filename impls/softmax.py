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
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, features
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

    `chunk_size` is a power of two. (With gradients, the saved blocks of all steps together are still quadratic in T.)
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
    factor = arguments.check_scale(scale, sizes.K)
    offsets = arguments.check_cu_seqlens(cu_seqlens, sizes.B, sizes.T)
    bounds = [(n, 0, sizes.T) for n in range(sizes.B)]
    if offsets is not None:
        bounds = [(0, start, end) for start, end in zip(offsets, offsets[1:], strict=False)]
    lengths = [0] * len(bounds)
    if initial_state is not None:
        lengths = _check_cache(initial_state, len(bounds), sizes, q)
    outputs, keys, values = [], [], []
    for n, (b, start, end) in enumerate(bounds):
        key, value = k[b : b + 1, start:end], v[b : b + 1, start:end]
        if initial_state is not None:
            key = torch.cat([initial_state[0][n : n + 1, : lengths[n]], key], 1)
            value = torch.cat([initial_state[1][n : n + 1, : lengths[n]], value], 1)
        query = features.heads_first(q[b : b + 1, start:end], sizes.HV)
        o = core(query, features.heads_first(key, sizes.HV), features.heads_first(value), factor)
        outputs.append(features.tokens_first(o, v.dtype))
        keys.append(key)
        values.append(value)
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


# --- cores: one sequence, heads first; the last T of the L keys are the queries' own --------------------------


def _recurrent_core(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [1, H, T, K], k [1, H, L, K], v [1, H, L, V]."""
    T, before = q.shape[2], k.shape[2] - q.shape[2]
    outputs = []
    for t in range(T):
        seen = before + t + 1
        scores = scale * (k[:, :, :seen] @ q[:, :, t, :, None]).squeeze(-1)
        weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
        outputs.append((weights.unsqueeze(2) @ v[:, :, :seen]).squeeze(2))
    return torch.stack(outputs, 2) if outputs else v[:, :, :0]


def _chunk_core(q: Tensor, k: Tensor, v: Tensor, scale: float, *, chunk_size: int) -> Tensor:
    """As `_recurrent_core`: all query blocks at once meet the key blocks at distance 0, 1, 2, ... before them.

    Keys are aligned to the end: block distance j pairs query row i of its block with key rows j * C earlier. Distance
    0 comes first and holds the token itself, so the running maximum is finite from the start.
    """
    _, H, T, K = q.shape
    before = k.shape[2] - T
    if T == 0:
        return v[:, :, :0]
    C = features.chunk_length(T, chunk_size)
    N, pad = -(-T // C), -before % C
    Q = features.into_chunks(q, C)
    blocks = [features.into_chunks(torch.cat([x.new_zeros(1, H, pad, x.shape[3]), x], 2), C) for x in (k, v)]
    M = blocks[0].shape[1] - N  # key blocks before the first query's
    rows = torch.arange(C, device=q.device)
    top = torch.full((H, N, C, 1), -torch.inf, dtype=WIDE, device=q.device)
    total, o = torch.zeros_like(top), torch.zeros(H, N, C, v.shape[3], dtype=WIDE, device=q.device)
    for distance in range(N + M):
        first = max(distance - M, 0)  # query blocks that have a key block this far before them
        keys, values = (x[:, first + M - distance : N + M - distance] for x in blocks)
        scores = scale * (Q[:, first:] @ keys.mT)
        if distance == 0:
            scores = scores.masked_fill(rows[:, None] < rows, -torch.inf)
        elif distance >= M and pad:
            block = torch.arange(first, N, device=q.device) + (M - distance)
            scores = scores.masked_fill(((block == 0)[:, None] & (rows < pad))[:, None, :], -torch.inf)
        block_top = torch.maximum(top[:, first:], scores.detach().amax(-1, keepdim=True))
        weights = torch.exp(scores - block_top)
        shrink = torch.exp(top[:, first:] - block_top)
        o = torch.cat([o[:, :first], o[:, first:] * shrink + weights @ values], 1)
        total = torch.cat([total[:, :first], total[:, first:] * shrink + weights.sum(-1, keepdim=True)], 1)
        top = torch.cat([top[:, :first], block_top], 1)
    return features.from_chunks(o / total, 1, H, T)
