"""The decay scan in Triton, a gate per key channel (GLA): states and outputs, of chunks prepared by `channel_decays`.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,      o_t = scale S_t^T q_t          (state S [K, V] per value head)

With reads, writes, A of `channel_decays` a chunk is linear attention without gates but for one factor:

    O = reads S + A V,      S' = d_last S + writes^T V

`states` gives what each segment of chunks alone adds to a state, `scan` the state at each segment's start, `outputs`
walks a segment's chunks from there. All three run backwards in time too, for gradients (`channel_backward`).

States are [V, K] inside, so that a state feeds the next product from registers, and [K, V] at the interface.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import (
    at,
    dot,
    dot_add,
    first_chunk,
    load_matrix,
    operand,
    put,
    segment,
    store_matrix,
    tile,
)


@triton.jit
def states(
    writes, v, totals, edges, kept, saved, v_strides, table, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, REVERSED: tl.constexpr, SAVE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """What a segment adds: edges [segments, HV, V, K] float32, kept [segments, H, K] its sums of gates.

    With SAVE: from the states at the segments' starts (edges), that before each chunk into saved [chunks, HV, V, K].
    """
    T, each, HV, G = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = (pid // (blocks * HV)).to(tl.int64), pid // blocks % HV
    columns, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    number = first_chunk(s, table, T, each, LENGTH, C, PACKED)
    H = HV // G
    rows = (T * H * K, H * K, K, 1)
    S = tl.zeros([BV, BK], tl.float32)
    total = tl.zeros([BK], tl.float32)
    if SAVE:
        S = load_matrix(edges + (s * HV + h) * (K * V), columns, channels, V, K)
    count = (end - begin + C - 1) // C
    for n in range(0, count):
        c = count - 1 - n if REVERSED else n
        t0 = begin + c * C
        live = t0 + i < end
        keys = tile(at(writes, rows, b, h // G, t0), rows, i, channels, live, K)  # [C, BK]
        values = tile(at(v, v_strides, b, h, t0), v_strides, i, columns, live, V)  # [C, BV]
        own = tl.load(totals + ((number + c) * H + h // G) * K + channels, mask=channels < K, other=0.0)
        if SAVE:
            store_matrix(saved + ((number + c) * HV + h) * (K * V), columns, channels, S, V, K)
        total += own
        S *= tl.exp(own)[None, :]
        S = dot_add(S, operand(tl.trans(values), STAGE), operand(keys, STAGE), PRECISION)  # [BV, C] [C, BK]
    if not SAVE:
        store_matrix(edges + (s * HV + h) * (K * V), columns, channels, S, V, K)
        # Every value head and block of a key head writes the same bits.
        tl.store(kept + (s * H + h // G) * K + channels, total, mask=channels < K)


@triton.jit
def scan(
    edges, kept, initial, final, first, each, sizes, K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
    HAS_INITIAL: tl.constexpr, REVERSED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """In place: what segments add -> the state at each segment's start; the state after the last into `final`.

    `initial` and `final` are [N, HV, K, V]. With REVERSED time runs backwards: starts are ends.
    """
    HV, G = sizes
    SIZE: tl.constexpr = K * V
    blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    n, h = (pid // (blocks * HV)).to(tl.int64), pid // blocks % HV
    x = pid % blocks * BLOCK + tl.arange(0, BLOCK)
    live = x < SIZE
    channel = x % K
    outside = (n * HV + h) * SIZE + channel * V + x // K
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    S = tl.zeros([BLOCK], tl.float32)
    if HAS_INITIAL:
        S = tl.load(initial + outside, mask=live, other=0.0)
    for c in range(0, end - begin):
        s = end - 1 - c if REVERSED else begin + c
        ptr = edges + (s * HV + h) * SIZE + x
        added = tl.load(ptr, mask=live, other=0.0)
        decay = tl.exp(tl.load(kept + (s * (HV // G) + h // G) * K + channel, mask=live, other=0.0))
        tl.store(ptr, S, mask=live)
        S = S * decay + added
    tl.store(final + outside, S, mask=live)


@triton.jit
def outputs(
    reads, writes, v, scores, o, totals, starts, saved, v_strides, o_strides, table, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, REVERSED: tl.constexpr, SAVE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """o [B, T, HV, V] of a segment, from the state at its start. SAVE as in `states`.

    With REVERSEDD: the gradient of v from that of o (`v` here), from the gradient of the state at the segment's end.
    """
    T, each, HV, G = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = (pid // (blocks * HV)).to(tl.int64), pid // blocks % HV
    columns, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    number = first_chunk(s, table, T, each, LENGTH, C, PACKED)
    H = HV // G
    rows, pairs = (T * H * K, H * K, K, 1), (T * H * C, H * C, C, 1)
    S = load_matrix(starts + (s * HV + h) * (K * V), columns, channels, V, K)
    count = (end - begin + C - 1) // C
    for n in range(0, count):
        c = count - 1 - n if REVERSED else n
        t0 = begin + c * C
        live = t0 + i < end
        queries = tile(at(reads, rows, b, h // G, t0), rows, i, channels, live, K)  # [C, BK]
        keys = tile(at(writes, rows, b, h // G, t0), rows, i, channels, live, K)  # [C, BK]
        values = operand(tl.trans(tile(at(v, v_strides, b, h, t0), v_strides, i, columns, live, V)), STAGE)  # [BV, C]
        A = operand(tile(at(scores, pairs, b, h // G, t0), pairs, i, i, live, C), STAGE)  # [C, C]
        own = tl.load(totals + ((number + c) * H + h // G) * K + channels, mask=channels < K, other=0.0)
        if SAVE:
            store_matrix(saved + ((number + c) * HV + h) * (K * V), columns, channels, S, V, K)
        out = dot(operand(S, STAGE), operand(tl.trans(queries), STAGE), PRECISION)  # [BV, C]
        out = dot_add(out, values, A if REVERSED else tl.trans(A), PRECISION)
        put(at(o, o_strides, b, h, t0), o_strides, i, columns, live, tl.trans(out), V)
        S *= tl.exp(own)[None, :]
        S = dot_add(S, values, operand(keys, STAGE), PRECISION)  # [BV, C] [C, BK]
