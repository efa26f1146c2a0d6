"""What a Fenwick scan gives out, chunk by chunk from the nodes of its tree: outputs, and the state behind the call.

In a chunk, with D[t, s] the decay from s to t, d_t that from its start, H[t, s] = lam_t^{level(t, s)} (0 above the
diagonal), and the node B_j of each set bit j of the chunk's number, decayed by a_j to the chunk's start,

    O = scale ((Q K^T * D * H) V + sum_j (lam^{c + 1 + j} d a_j) * (Q B_j))          (c = 6 bits inside a chunk)

Buckets of the state that a call starts from take part as the nodes left of its first chunk; those that lie inside that
chunk are read with the level that their first token has. A level that `level_weights` does not have counts as NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot, load_matrix, operand, put, tile
from linattest.kernels.decay_scan import gates_of
from linattest.kernels.fenwick_layout import bits, height, number, place, span


@triton.jit
def weights(lam, strides, i, live, level, L):
    """lam [C] of one level for tokens i: 0 where not `live`, NaN without such a level; `lam` addresses the first token.

    `level` may also be a level for each token.
    """
    there = level + 0 * i < L
    found = tl.load(lam + i * strides[1] + level * strides[3], mask=live & there, other=0.0).to(tl.float32)
    return tl.where(live & (there == 0), float("nan"), found)


@triton.jit
def mask_of_levels(lam, strides, i, live, t, s, L, LOG: tl.constexpr):
    """H [rows, C] of the module docstring: row i is token i of a chunk, at place t in it, and columns are at places s.

    Entries above the diagonal are no matter.
    """
    apart = t[:, None] ^ s[None, :]
    H = weights(lam, strides, i, live, 0, L)[:, None] + tl.zeros_like(apart).to(tl.float32)
    for bit in tl.static_range(0, LOG):  # pyright: ignore[reportGeneralTypeIssues]  (unrolled by the compiler)
        H = tl.where(apart >> bit != 0, weights(lam, strides, i, live, bit + 1, L)[:, None], H)
    return H


@triton.jit
def outputs(
    o, q, k, v, g, lam, nodes, logs, initial, spans, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """o [B, T, HV, V]; a program is BV columns of a chunk.

    strides are those of o, q, k, v, g, lam; places (table, first) of chunks; sizes T, chunks in a row, HV, value heads
    per head, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    o_strides, q_strides, k_strides, v_strides, g_strides, l_strides = strides
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    c, h = (pid // (blocks * HV)).to(tl.int64), pid // blocks % HV
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, before, _ = span(n, spans, T, MODE)
    live = i < end - begin
    chunk, t = position >> LOG, (position & (C - 1)).to(tl.int32) + i
    Q = tile(at(q, q_strides, b, h // G, begin), q_strides, i, x, live, K)  # [C, BK]
    keys = tile(at(k, k_strides, b, h // G, begin), k_strides, i, x, live, K)  # [C, BK]
    values = tile(at(v, v_strides, b, h, begin), v_strides, i, y, live, V)  # [C, BV]
    own, since, _until = gates_of(at(g, g_strides, b, h, begin), g_strides, i, end - begin, STAGE)
    lam = at(lam, l_strides, b, h, begin)
    scores = (
        dot(Q, tl.trans(keys), PRECISION)
        * decays(own, C, STAGE)
        * mask_of_levels(lam, l_strides, i, live, t, t, L, LOG)
    )
    scores = operand(tl.where(i[:, None] >= i[None, :], scores, 0.0), STAGE)  # [C, C]
    out = dot(scores, operand(values, STAGE), PRECISION)  # [C, C] [C, BV]
    Q = operand(Q, STAGE)
    size = K * V * tl.cast(HV, tl.int64)
    where, inside = x[:, None] * V + y[None, :], (x < K)[:, None] & (y < V)[None, :]
    if initial is not None:
        initial += (n * L * HV + h) * (K * V)
        lead = tl.where(position == before, before & (C - 1), 0)
        rest = lead
        for _turn in range(0, bits(lead)):
            bit = height(rest)
            rest = rest & (rest - 1)
            S = tl.load(initial + tl.minimum(bit + 1, L - 1) * size + where, mask=inside, other=0.0)  # [BK, BV]
            apart = (t ^ rest.to(tl.int32)).to(tl.int64)
            w = weights(lam, l_strides, i, live, height_of_rows(apart) + 1, L) * tl.exp(since)
            out += w[:, None] * dot(Q, operand(S, STAGE), PRECISION)  # [C, BK] [BK, BV]
    e, log = chunk, tl.sum(tl.zeros([C], tl.float32), axis=0)
    old = before >> LOG
    for _turn in range(0, bits(chunk)):
        bit = height(e)
        index = (c + e - 1 - chunk) * HV + h
        made = e > old
        S = operand(load_matrix(nodes + index * (K * V), x, y, tl.where(made, K, 0), V), STAGE)  # [BK, BV]
        if initial is not None:
            level = tl.minimum(bit + LOG + 1, L - 1)
            given = (x < tl.where(made, 0, K))[:, None] & (y < V)[None, :]
            S += operand(tl.load(initial + level * size + where, mask=given, other=0.0), STAGE)
        w = weights(lam, l_strides, i, live, bit + LOG + 1, L) * tl.exp(since + log)
        out += w[:, None] * dot(Q, S, PRECISION)  # [C, BK] [BK, BV]
        log += tl.load(logs + index, mask=made, other=0.0)
        e = e & (e - 1)
    put(at(o, o_strides, b, h, begin), o_strides, i, y, live, out * scale, V)


@triton.jit
def height_of_rows(x):
    """The highest set bit of each x in 1 .. C - 1."""
    return (x.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def final_state(
    final, k, v, g, logs, initial, spans, strides, places, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """final [N, L, HV, K, V], in which nodes are already that are a bucket of it, not decayed beyond their own end.

    A program is BV columns of one level. strides are those of k, v, g; places (table, first) of chunks; sizes T, chunks
    in a row, HV, value heads per head, L. Too few levels for the position behind the call: the last one is NaN.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    k_strides, v_strides, g_strides = strides
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, level = pid // blocks % HV, pid // (blocks * HV) % L
    n = (pid // (blocks * HV * L)).to(tl.int64)
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    start, before, behind = span(n, spans, T, MODE)
    b = 0 * n if MODE == 1 else n
    # the tokens of the chunk that the call ends in
    count = tl.minimum(behind & (C - 1), behind - before)
    begin, t = start + behind - before - count, ((behind - count) & (C - 1)).to(tl.int32) + i
    own, _since, until = gates_of(at(g, g_strides, b, h, begin), g_strides, i, count, STAGE)
    log = tl.sum(own, axis=0)
    size = K * V * tl.cast(HV, tl.int64)
    where, inside = x[:, None] * V + y[None, :], (x < K)[:, None] & (y < V)[None, :]
    at_level = (n * L * HV + h) * (K * V) + level * size
    # the set bit whose bucket is in this level, or none
    bit = level.to(tl.int64) - 1 + tl.where(level == L - 1, (behind >> (L - 1)) & 1, 0)
    filled = (bit >= 0) & ((behind >> tl.maximum(bit, 0)) & 1 == 1)
    bit = tl.maximum(bit, 0)
    S = tl.zeros([BK, BV], tl.float32)
    if filled & (bit >= LOG):
        e = behind >> LOG
        c = number(n, e << LOG, before, first, each, LOG, MODE) - e
        for _turn in range(0, bits(e & ((1 << (bit - LOG)) - 1))):
            log += tl.load(logs + (c + e - 1) * HV + h, mask=e > (before >> LOG), other=0.0)
            e = e & (e - 1)
        if e > (before >> LOG):
            S = tl.load(final + at_level + where, mask=inside, other=0.0)
        elif initial is not None:
            S = tl.load(initial + at_level + where, mask=inside, other=0.0)
        S *= tl.exp(log)
    if filled & (bit < LOG):
        tail = (behind & (C - 1)).to(tl.int32)
        first_token = (tail >> (bit + 1)) << (bit + 1)
        live = (i < count) & (t >= first_token) & (t < first_token + (1 << bit))
        keys = tile(at(k, k_strides, b, h // G, begin), k_strides, i, x, live, K)  # [C, BK]
        values = tile(at(v, v_strides, b, h, begin), v_strides, i, y, live, V)  # [C, BV]
        weighted = operand(values * tl.exp(until)[:, None], STAGE)
        S = dot(tl.trans(operand(keys, STAGE)), weighted, PRECISION)  # [BK, C] [C, BV]
        if initial is not None:
            held = tl.where(before >> LOG == behind >> LOG, before & (C - 1), 0)
            kept = tl.zeros([BK, BV], tl.float32)
            for _turn in range(0, bits(held)):
                own_bit = height(held)
                held = held & (held - 1)
                now = height_of_rows((tail ^ held.to(tl.int32)).to(tl.int64))
                if now == bit:
                    source = initial + (n * L * HV + h) * (K * V) + tl.minimum(own_bit + 1, L - 1) * size
                    kept += tl.load(source + where, mask=inside, other=0.0)
            S += kept * tl.exp(log)
    if (behind >> tl.minimum(L - 1, 62) > tl.where(behind & (behind - 1) == 0, 1, 0)) & (level == L - 1):
        S += float("nan")
    tl.store(final + at_level + where, S, mask=inside)
