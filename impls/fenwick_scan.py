"""The Fenwick scan: one state per set bit of the position, each read with a weight of its own.

Definition, positions t, s counted from 0, log gate g <= 0, level(t, s) = 0 if s = t else bit_length(t XOR s):

    o_t = sum_{s <= t} lam_t^{level(t, s)} q_t^T Phi(t, s) write_s v_s^T
    Phi(t, s) = prod_{j = t .. s + 1} exp(g_j) (I - write_j erase_j^T)            (without erase keys: exp of a sum)

The tokens s < t with level(t, s) = j + 1 exist for the set bits j of t alone and are the bucket of that bit: 2^j
neighbours, from t with its bits up to j cleared. So t splits its past into popcount(t) buckets. After token t, which is
a bucket itself, the buckets of the trailing ones of t merge with it into that of the next bit: a binary counter.

State after p tokens ("merged form"): S [B, L, H, K, V], level j + 1 holds the bucket of set bit j of p, carried to p,
and all other levels are 0. L levels serve 2^(L - 1) tokens; after exactly that many the one bucket, which would be
level L and which no token can read any more, stays in level L - 1 (`slot`).

Chunk form: chunks of C = 2^c tokens are aligned to position 0 (a call that starts inside a chunk is padded in front
with tokens that change nothing), so that levels 0 .. c stay inside a chunk (`fenwick_chunk`) and each higher one is a
node of a tree over whole chunks (`fenwick_tree`). Nothing is sequential over chunks.

Source: [LogLinear]; [Fenwick94].
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from linattest.impls import features, fenwick_chunk, fenwick_tree
from linattest.impls.fenwick_chunk import Chunks
from linattest.impls.fenwick_tree import product


def set_bits(number: int) -> list[int]:
    """The set bits of a number >= 0, highest first: the order of their buckets in time."""
    return [j for j in reversed(range(number.bit_length())) if (number >> j) & 1]


def slot(bit: int, L: int) -> int:
    """The level that holds the bucket of a set bit (module docstring)."""
    return min(bit + 1, L - 1)


def bucket_start(position: int, bit: int) -> int:
    """The first token of the bucket of a set bit of `position`: its bits up to that one cleared."""
    return position >> (bit + 1) << (bit + 1)


def unused_levels(position: int, L: int) -> list[int]:
    """The levels that are exactly 0 in the merged form after `position` tokens."""
    return sorted(set(range(L)) - {slot(bit, L) for bit in set_bits(position)})


def merged(buckets: dict[int, Tensor], like: Tensor, L: int) -> Tensor:
    """buckets {bit: [B, H, K, V]} -> S [B, L, H, K, V], zeros of the shape of `like` [B, H, K, V] elsewhere."""
    levels = {slot(bit, L): bucket for bit, bucket in buckets.items()}
    return torch.stack([levels.get(level, torch.zeros_like(like)) for level in range(L)], 1)


# --- token loop: heads-first WIDE tensors, no scale -----------------------------------------------------------


def recurrent_core(
    q: Tensor,
    erase: Tensor | None,
    write: Tensor,
    v: Tensor,
    g: Tensor,
    lam: Tensor,
    S: Tensor,
    position: int,
) -> tuple[Tensor, Tensor]:
    """q, erase, write [B, H, T, K], v [B, H, T, V], g [B, H, T], lam [B, H, T, L], S [B, L, H, K, V] -> o, S.

    Only the buckets that exist are touched: popcount(t) + 1 of them at position t, kept in the order of their bits.
    """
    L = S.shape[1]
    live = S[:, [slot(bit, L) for bit in set_bits(position)]].transpose(1, 2)  # [B, H, buckets, K, V]
    outputs = []
    erases = itertools.repeat(None) if erase is None else erase.unbind(2)
    tokens = zip(q.unbind(2), write.unbind(2), v.unbind(2), g.exp().unbind(2), lam.unbind(2), strict=True)
    for t, ((q_t, w_t, v_t, decay, lam_t), e_t) in enumerate(zip(tokens, erases, strict=False), position):
        live = decay[..., None, None, None] * live
        if e_t is not None:
            live = live - w_t[:, :, None, :, None] * (e_t[:, :, None, None] @ live)
        live = torch.cat([live, (w_t[..., None] * v_t[:, :, None]).unsqueeze(2)], 2)
        used = lam_t[..., [bit + 1 for bit in set_bits(t)] + [0]]
        outputs.append((used.unsqueeze(-1) * (q_t[:, :, None, None] @ live).squeeze(3)).sum(2))
        kept = (t & (t + 1)).bit_count()  # buckets above the trailing ones of t; the others become one with the token
        live = torch.cat([live[:, :, :kept], live[:, :, kept:].sum(2, keepdim=True)], 2)
    buckets = dict(zip(set_bits(position + q.shape[2]), live.unbind(2), strict=True))
    return (torch.stack(outputs, 2) if outputs else v), merged(buckets, S[:, 0], L)


# --- chunk form -----------------------------------------------------------------------------------------------


def chunk_core(
    q: Tensor,
    erase: Tensor | None,
    write: Tensor,
    v: Tensor,
    g: Tensor,
    lam: Tensor,
    S: Tensor,
    position: int,
    *,
    chunk_size: int = 64,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `recurrent_core`, all chunks at once; `exact` for float64 inputs."""
    B, H, T, _ = q.shape
    L = S.shape[1]
    if T == 0:
        return recurrent_core(q, erase, write, v, g, lam, S, position)
    C = features.chunk_length(T, chunk_size)
    c = C.bit_length() - 1
    first, lead = divmod(position, C)
    last, tail = divmod(position + T, C)  # the chunk that the call ends in, and how many tokens of it there are
    Q, W, V, gates, weights = (_aligned(x, lead, C) for x in (q, write, v, g, lam))
    keys = None if erase is None else _aligned(erase, lead, C)
    chunks = fenwick_chunk.inside(Q, keys, W, V, gates, weights, exact=exact)

    start = {bit: S[:, slot(bit, L)].flatten(0, 1) for bit in set_bits(position)}
    low = {bit: bucket for bit, bucket in start.items() if bit < c}  # inside the first chunk
    high = {bit - c: bucket for bit, bucket in start.items() if bit >= c}
    leaves = (chunks.Y @ chunks.V)[:, : last - first]
    P = chunks.P[:, : last - first]
    if low and last > first:
        written = torch.stack(list(low.values())).sum(0)
        leaves = torch.cat([leaves[:, :1] + product(P[:, :1], written.unsqueeze(1)), leaves[:, 1:]], 1)
    heights = fenwick_tree.sweep(P, leaves, first, high, last.bit_length())

    o = _read_low(chunks, weights, low, lead)
    o = fenwick_tree.read(heights, o, chunks.R, weights[..., c + 1 :], first)
    if chunks.lost is not None:
        o = torch.where(chunks.lost, torch.nan, o)
    end = {c + j: X for j, X in fenwick_tree.collect(heights, last, chunks.P[:, -1] if tail else None).items()}
    if tail:
        end |= _last_chunk(chunks, tail, low if last == first else {}, lead)
    final = merged({bit: X.unflatten(0, (B, H)) for bit, X in end.items()}, S[:, 0], L)
    return features.from_chunks(o, B, H, o.shape[1] * C)[:, :, lead : lead + T], final


def _aligned(x: Tensor, lead: int, C: int) -> Tensor:
    """[B, H, T, ...] -> [B * H, N, C, ...] after `lead` zero tokens (a zero token changes nothing)."""
    if lead:
        x = torch.cat([x.new_zeros(*x.shape[:2], lead, *x.shape[3:]), x], 2)
    return features.into_chunks(x, C)


def _read_low(chunks: Chunks, weights: Tensor, low: Mapping[int, Tensor], lead: int) -> Tensor:
    """O of all chunks, the first one with what it reads of the buckets inside it, `lead` tokens from its start."""
    if not low:
        return chunks.O
    tokens = torch.arange(chunks.O.shape[2], device=weights.device)
    O = chunks.O[:, 0]
    for bit, bucket in low.items():
        level = fenwick_chunk.levels(tokens, tokens.new_tensor([bucket_start(lead, bit)]))
        O = O + weights[:, 0].gather(-1, level.expand(len(O), -1, -1)) * (chunks.R[:, 0] @ bucket)
    return torch.cat([O.unsqueeze(1), chunks.O[:, 1:]], 1)


def _last_chunk(chunks: Chunks, tail: int, low: Mapping[int, Tensor], lead: int) -> dict[int, Tensor]:
    """The buckets inside the last chunk after `tail` tokens of it: its own tokens and, if it is the first, `low`."""
    Y, P, V = chunks.Y[:, -1], chunks.P[:, -1], chunks.V[:, -1]
    spans = {bit: slice(bucket_start(tail, bit), bucket_start(tail, bit) + (1 << bit)) for bit in set_bits(tail)}
    end = {bit: Y[..., span] @ V[:, span] for bit, span in spans.items()}
    for bit, bucket in low.items():
        now = (tail ^ bucket_start(lead, bit)).bit_length() - 1  # the bit whose bucket this one is part of by now
        end[now] = end[now] + product(P, bucket)
    return end
