"""The decay scan in Triton, one gate a head: gated linear attention in two levels, segments and chunks.

    S_t = exp(g_t) S_{t-1} + k_t v_t^T,      o_t = scale S_t^T q_t          (state S [K, V] per value head)

A sequence is cut into segments. `states` gives what each segment alone adds to a state, `scan` the state at each
segment's start, `outputs` walks a segment's chunks of C tokens from there. In a chunk, with D[t, s] the decay from s
to t, d_t from its start to t, e_s from s to its end (rows of Q, K, V are tokens):

    O = d * (Q S) + (Q K^T * D) V,      S' = d_last S + K^T (e * V)

Every decay is the exp of its own segment's sum of gates, never a difference of running sums. The backward
(decay_backward.py) is the same scan from the other end, so `states`, `scan` and `walk` run either way.

`outputs` keeps its state transposed, [V, K]: the result of one product is then the left operand of the next, which a
tensor core reads from registers. The other walks only add to theirs, and keep it as it is stored.

Sources: [GLA], [Mamba2] (chunk form).
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import (
    at,
    dot,
    dot_add,
    finite,
    first_chunk,
    load_matrix,
    operand,
    put,
    segment,
    store_matrix,
    tile,
    until_decays,
)


@triton.jit
def gates_of(g, strides, i, left, STAGE: tl.constexpr):
    """Gates [C] of a chunk at address g with `left` tokens to its segment's end, and the logs of d [C] and e [C]; of
    one scan where products are of bfloat16 (see `blocks.decays`)."""
    own = tl.load(g + i * strides[1], mask=i < left, other=0.0).to(tl.float32)
    if STAGE.is_bf16():
        own = finite(own)
        since = tl.cumsum(own, axis=0)
        return own, since, tl.sum(tl.where(i == i.shape[0] - 1, since, 0.0), axis=0) - since
    after = tl.load(g + (i + 1) * strides[1], mask=(i + 1 < left) & (i + 1 < i.shape[0]), other=0.0).to(tl.float32)
    return own, tl.cumsum(own, axis=0), tl.cumsum(after, axis=0, reverse=True)


@triton.jit
def advance(S, left, rows, row_strides, columns, column_strides, g, g_strides, i, x, y, scale, K: tl.constexpr,
            V: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr, REVERSED: tl.constexpr):  # fmt: skip
    """The state [BK, BV] after one chunk at the given addresses (before it, if reversed), and its sum of gates."""
    live = i < left
    own, since, until = gates_of(g, g_strides, i, left, STAGE)
    kept = tl.sum(own, axis=0)
    weight = tl.exp(since if REVERSED else until)
    a = tile(rows, row_strides, i, x, live, K)  # [C, BK]
    b = tile(columns, column_strides, i, y, live, V)  # [C, BV]
    weighted = operand(b * (scale * weight)[:, None], STAGE)
    return dot_add(S * tl.exp(kept), tl.trans(operand(a, STAGE)), weighted, PRECISION), kept  # [BK, C] [C, BV]


@triton.jit
def states(
    k, v, g, states, totals, k_strides, v_strides, g_strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """What a segment adds: states [segments, HV, K, V], totals [segments, HV] its sum of gates; float32.

    Forward, `scale` is 1. Reversed, k is q and v the upstream gradient of o: what it adds to the gradient of the state
    before it.
    """
    T, each, HV, G = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * HV), pid // blocks % HV
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    rows, columns, gates = (
        at(k, k_strides, b, h // G, begin),
        at(v, v_strides, b, h, begin),
        at(g, g_strides, b, h, begin),
    )
    S = tl.zeros([BK, BV], tl.float32)
    total = tl.sum(tl.zeros([C], tl.float32), axis=0)
    chunks = tl.cdiv(end - begin, C)
    for j in range(0, chunks):
        t = tl.cast((chunks - 1 - j if REVERSED else j) * C, tl.int64)
        S, kept = advance(
            S, end - begin - t, rows + t * k_strides[1], k_strides, columns + t * v_strides[1], v_strides,
            gates + t * g_strides[1], g_strides, i, x, y, scale, K, V, STAGE, PRECISION, REVERSED,
        )  # fmt: skip
        total += kept
    index = s.to(tl.int64) * HV + h
    store_matrix(states + index * (K * V), x, y, S, K, V)
    if pid % blocks == 0:
        tl.store(totals + index, total)


@triton.jit
def scan(
    states, totals, initial, final, first, each, HV,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_INITIAL: tl.constexpr, PACKED: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """In place: what segments add -> the state at each segment's start; the state after the last into `final`.

    Reversed: at each segment's end, from the last segment; the one before the first into `final`.
    """
    blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    n, h = (pid // (blocks * HV)).to(tl.int64), pid // blocks % HV
    x = pid % blocks * BLOCK + tl.arange(0, BLOCK)
    live = x < SIZE
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    S = tl.zeros([BLOCK], tl.float32)
    if HAS_INITIAL:
        S = tl.load(initial + (n * HV + h) * SIZE + x, mask=live, other=0.0)
    for j in range(0, end - begin):
        index = (end - 1 - j if REVERSED else begin + j) * HV + h
        added = tl.load(states + index * SIZE + x, mask=live, other=0.0)
        tl.store(states + index * SIZE + x, S, mask=live)
        S = S * tl.exp(tl.load(totals + index)) + added
    tl.store(final + (n * HV + h) * SIZE + x, S, mask=live)


@triton.jit
def outputs(
    q, k, v, g, o, starts, q_strides, k_strides, v_strides, g_strides, o_strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """o [B, T, HV, V] of a segment, from the state at its start."""
    T, each, HV, G = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * HV), pid // blocks % HV
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    q, k = at(q, q_strides, b, h // G, begin), at(k, k_strides, b, h // G, begin)
    v, g, o = at(v, v_strides, b, h, begin), at(g, g_strides, b, h, begin), at(o, o_strides, b, h, begin)
    S = tl.trans(load_matrix(starts + (s.to(tl.int64) * HV + h) * (K * V), x, y, K, V))  # [BV, BK]
    for t in range(0, end - begin, C):
        live = i < end - begin - t
        queries = tile(q, q_strides, i, x, live, K)  # [C, BK]
        keys = tile(k, k_strides, i, x, live, K)  # [C, BK]
        values = tile(v, v_strides, i, y, live, V)  # [C, BV]
        own, since, until = gates_of(g, g_strides, i, end - begin - t, STAGE)
        scores = dot(keys, tl.trans(queries), PRECISION) * until_decays(own, C, STAGE)  # [C, C], from s (rows) to t
        out = dot(operand(S, STAGE), operand(tl.trans(queries), STAGE), PRECISION) * tl.exp(since)[None, :]  # [BV, C]
        out = dot_add(out, operand(tl.trans(values), STAGE), operand(scores, STAGE), PRECISION)
        put(o, o_strides, i, y, live, tl.trans(out * scale), V)
        weighted = operand(values * tl.exp(until)[:, None], STAGE)
        S = dot_add(S * tl.exp(tl.sum(own, axis=0)), tl.trans(weighted), operand(keys, STAGE), PRECISION)
        q += C * q_strides[1]
        k += C * k_strides[1]
        v += C * v_strides[1]
        g += C * g_strides[1]
        o += C * o_strides[1]


@triton.jit
def walk(
    k, v, g, edges, chunks, k_strides, v_strides, g_strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """States at every chunk's start (reversed: at its end) into chunks [chunks, HV, K, V], from those of segments."""
    T, each, HV, G = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * HV), pid // blocks % HV
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    rows, columns, gates = (
        at(k, k_strides, b, h // G, begin),
        at(v, v_strides, b, h, begin),
        at(g, g_strides, b, h, begin),
    )
    chunks += (first_chunk(s, table, T, each, LENGTH, C, PACKED) * HV + h) * (K * V)
    S = load_matrix(edges + (s.to(tl.int64) * HV + h) * (K * V), x, y, K, V)  # [BK, BV]
    count = tl.cdiv(end - begin, C)
    for j in range(0, count):
        n = tl.cast(count - 1 - j if REVERSED else j, tl.int64)
        t = n * C
        store_matrix(chunks + n * HV * (K * V), x, y, S, K, V)
        S, kept = advance(
            S, end - begin - t, rows + t * k_strides[1], k_strides, columns + t * v_strides[1], v_strides,
            gates + t * g_strides[1], g_strides, i, x, y, scale, K, V, STAGE, PRECISION, REVERSED,
        )  # fmt: skip
