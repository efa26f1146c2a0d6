"""The walks of a delta scan's backward: states again, chunk by chunk, and their gradients from the other end.

States are transposed, [values, K], and M, Tm, d, f are what a forward kept, as in delta_walk.py. From G, the gradient
of the state after a chunk, that of the state before it is

    dR^T = dO^T M + (G W^T) * f,     dU^T = dR^T Tm,     G' = d_last G + scale (dO^T * d) Q - (dU^T * d) E

where dU is the gradient of V. Nothing of dR has cancelled yet when it meets Tm (a forward's residuals have), so a
bfloat16 rounding of Tm would be most of the error where keys resemble each other: there are two planes of it.

So the map of a segment is the transpose of the forward's: G_start = G_end P^T + what its own outputs give. P is the
forward's, so a backward walks rows of V alone. A sequence's last segment starts from the gradient of its final state,
whatever the others do, and needs no map.
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
from linattest.kernels.delta_walk import factors_of, start_of


@triton.jit
def residuals(
    starts, rest, erase, write, v, tm, factors, maps, initial, strides, places, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """starts [chunks, HV, V, K], the state before each chunk, and rest [B, T, HV, V], the residuals R.

    A program is BV columns of v in a segment. places is (table, first); strides are those of rest, erase, write, v, tm,
    factors; sizes T, segments in a row, HV, and value heads per head of erase and of write.
    """
    T, each, HV, per_erase, per_write = sizes
    r_strides, e_strides, w_strides, v_strides, tm_strides, f_strides = strides
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, s = pid // blocks % HV, pid // (blocks * HV)
    rows, i, channels = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, C), tl.arange(0, BK)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    S = start_of(maps, initial, first, each, s, n, h, HV, rows, channels, K, V, PACKED)
    starts += (first_chunk(s, table, T, each, LENGTH, C, PACKED) * HV + h) * (V * K)
    for t0 in range(begin, end, C):
        store_matrix(starts, rows, channels, S, V, K)
        starts += HV * (V * K)
        live = t0 + i < end
        E = tile(at(erase, e_strides, b, h // per_erase, t0), e_strides, i, channels, live, K)  # [C, BK]
        E = operand(E, STAGE)
        values = tile(at(v, v_strides, b, h, t0), v_strides, i, rows, live, V)  # [C, BV]
        d, f, kept = factors_of(factors, f_strides, b, h, t0, end, C)
        known = dot(operand(S, STAGE), tl.trans(E), PRECISION)  # [BV, BK] [BK, C]
        x = tl.trans(values).to(tl.float32) - known * d[None, :]
        Tm = operand(tile(at(tm, tm_strides, b, h, t0), tm_strides, i, i, live, C), STAGE)  # [C, C]
        R = dot(operand(x, STAGE), tl.trans(Tm), PRECISION)  # [BV, C] [C, C]
        put(at(rest, r_strides, b, h, t0), r_strides, i, rows, live, tl.trans(R), V)
        if write is None:
            W = E
        else:
            W = tile(at(write, w_strides, b, h // per_write, t0), w_strides, i, channels, live, K)  # [C, BK]
            W = operand(W, STAGE)
        S = dot_add(S * kept, operand(R * f[None, :], STAGE), W, PRECISION)  # [BV, C] [C, BK]


@triton.jit
def _back(
    G, inputs, strides, per, b, h, t0, end, rows, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, STAGE: tl.constexpr, PLANES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """G behind the chunk at t0 -> before it, both [BV, BK], and dU^T [BV, C]."""
    erase, write, q, do, tm, reads, factors = inputs
    e_strides, w_strides, q_strides, do_strides, tm_strides, reads_strides, f_strides = strides
    per_query, per_erase, per_write = per
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    live = t0 + i < end
    E = operand(tile(at(erase, e_strides, b, h // per_erase, t0), e_strides, i, channels, live, K), STAGE)  # [C, BK]
    if write is None:
        W = E
    else:
        W = tile(at(write, w_strides, b, h // per_write, t0), w_strides, i, channels, live, K)  # [C, BK]
        W = operand(W, STAGE)
    d, f, kept = factors_of(factors, f_strides, b, h, t0, end, C)
    upstream = tl.trans(tile(at(do, do_strides, b, h, t0), do_strides, i, rows, live, V))  # [BV, C]
    M = operand(tile(at(reads, reads_strides, b, h, t0), reads_strides, i, i, live, C), STAGE)  # [C, C]
    dR = dot(operand(G, STAGE), tl.trans(W), PRECISION) * f[None, :]  # [BV, BK] [BK, C]
    dR = dot_add(dR, operand(upstream, STAGE), M, PRECISION)  # [BV, C] [C, C]
    staged, ptr = operand(dR, STAGE), at(tm, tm_strides, b, h, t0)
    dU = dot(staged, tile(ptr, tm_strides, i, i, live, C), PRECISION)  # [BV, C] [C, C]
    if PLANES == 2:
        dU = dot_add(dU, staged, tile(ptr, tm_strides, i, C + i, live, 2 * C), PRECISION)  # [BV, C] [C, C]
    Q = operand(tile(at(q, q_strides, b, h // per_query, t0), q_strides, i, channels, live, K), STAGE)  # [C, BK]
    G = dot_add(G * kept, operand(upstream * (scale * d)[None, :], STAGE), Q, PRECISION)  # [BV, C] [C, BK]
    return dot_add(G, operand(-dU * d[None, :], STAGE), E, PRECISION), dU  # [BV, C] [C, BK]


@triton.jit
def _of_final(dfinal, n, h, HV, rows, channels, last, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
              BK: tl.constexpr):  # fmt: skip
    """The gradient [BV, BK] of the final state if this is the last segment, and 0 if not."""
    G = tl.zeros([BV, BK], tl.float32)
    if dfinal is not None:
        mask = (rows < tl.where(last, V, 0))[:, None] & (channels < K)[None, :]
        ptr = dfinal + (n.to(tl.int64) * HV + h) * (K * V)
        G = tl.load(ptr + rows[:, None] + channels[None, :] * V, mask=mask, other=0.0)
    return G


@triton.jit
def accumulate(
    upper, dfinal, inputs, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """upper [segments, HV, V, K] float32, but of a sequence's first segment: the gradient of the state at its start
    that its own outputs give, and for the last one dfinal.

    A program is BV columns of v in a segment. inputs (and strides) are erase, write, q, do, tm, reads, factors; places
    (table, first); sizes T, segments in a row, HV, and value heads per head of q, of erase and of write.
    """
    T, each, HV, per_query, per_erase, per_write = sizes
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, s = pid // blocks % HV, pid // (blocks * HV)
    rows, channels = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    earliest = s == tl.load(first + n) if PACKED else s % each == 0
    last = s + 1 == tl.load(first + n + 1) if PACKED else (s + 1) % each == 0
    if earliest:
        end = begin
    G = _of_final(dfinal, n, h, HV, rows, channels, last, K, V, BV, BK)
    chunks = tl.cdiv(end - begin, C)
    for j in range(0, chunks):
        t0 = begin + (chunks - 1 - j) * C
        G, _ = _back(
            G, inputs, strides, (per_query, per_erase, per_write), b, h, t0, end, rows, scale,
            K, V, BK, C, STAGE, PLANES, PRECISION,
        )  # fmt: skip
    if not earliest:
        store_matrix(upper + (s.to(tl.int64) * HV + h) * (V * K), rows, channels, G, V, K)


@triton.jit
def scan(
    upper, maps, first, each, HV,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """In place, from the last segment but one to the second: what `accumulate` left -> the whole gradient."""
    blocks: tl.constexpr = (V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    rows, channels = pid % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, BK)
    h, n = pid // blocks % HV, (pid // (blocks * HV)).to(tl.int64)
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    if BLOCK < BK:
        for j in range(0, end - begin - 2):
            index = (end - 2 - j) * HV + h
            own, P = upper + index * (V * K), maps + index * ((K + V) * K)
            G = load_matrix(own, rows, channels, V, K)  # [ROWS, BK]
            for k0 in range(0, K, BLOCK):
                x = k0 + tl.arange(0, BLOCK)
                behind = load_matrix(own + HV * (V * K), rows, x, V, K)  # [ROWS, BLOCK]
                turned = tl.trans(load_matrix(P, channels, x, K, K))
                G = dot_add(G, behind, turned, PRECISION)  # [ROWS, BLOCK] [BLOCK, BK]
            tl.debug_barrier()
            store_matrix(own, rows, channels, G, V, K)
            tl.debug_barrier()  # the segment before it reads, in other threads, what was stored
    elif begin + 2 < end:  # in registers, so the next map is read ahead
        G = load_matrix(upper + ((end - 1) * HV + h) * (V * K), rows, channels, V, K)  # [ROWS, BK]
        for j in range(0, end - begin - 2):
            index = (end - 2 - j) * HV + h
            own, P = upper + index * (V * K), maps + index * ((K + V) * K)
            turned = tl.trans(load_matrix(P, channels, channels, K, K))
            G = dot_add(load_matrix(own, rows, channels, V, K), G, turned, PRECISION)  # [ROWS, BK] [BK, BK]
            store_matrix(own, rows, channels, G, V, K)


@triton.jit
def carry(
    du, ends, upper, outer, inputs, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """du [B, T, HV, V] and ends [chunks, HV, V, K], the gradient of the state behind each chunk; outer is
    (dfinal, dinitial [N, HV, K, V], of sequences that have tokens).

    The rest is as in `accumulate`; strides begin with those of du.
    """
    T, each, HV, per_query, per_erase, per_write = sizes
    du_strides, e_strides, w_strides, q_strides, do_strides, tm_strides, reads_strides, f_strides = strides
    dfinal, dinitial = outer
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, s = pid // blocks % HV, pid // (blocks * HV)
    rows, i, channels = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, C), tl.arange(0, BK)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    earliest = s == tl.load(first + n) if PACKED else s % each == 0
    last = s + 1 >= tl.load(first + n + 1) if PACKED else (s + 1) % each == 0
    G = _of_final(dfinal, n, h, HV, rows, channels, last, K, V, BV, BK)
    ptr = upper + ((s.to(tl.int64) + 1) * HV + h) * (V * K)
    G += load_matrix(ptr, rows, channels, tl.where(last, 0, V), K)
    ends += (first_chunk(s, table, T, each, LENGTH, C, PACKED) * HV + h) * (V * K)
    chunks = tl.cdiv(end - begin, C)
    for j in range(0, chunks):
        number = tl.cast(chunks - 1 - j, tl.int64)
        t0 = begin + (chunks - 1 - j) * C
        store_matrix(ends + number * HV * (V * K), rows, channels, G, V, K)
        G, dU = _back(
            G, inputs, (e_strides, w_strides, q_strides, do_strides, tm_strides, reads_strides, f_strides),
            (per_query, per_erase, per_write), b, h, t0, end, rows, scale, K, V, BK, C, STAGE, PLANES, PRECISION,
        )  # fmt: skip
        put(at(du, du_strides, b, h, t0), du_strides, i, rows, t0 + i < end, tl.trans(dU), V)
    ptr = dinitial + (n.to(tl.int64) * HV + h) * (K * V)
    mask = (rows < tl.where(earliest & (begin < end), V, 0))[:, None] & (channels < K)[None, :]
    tl.store(ptr + rows[:, None] + channels[None, :] * V, G, mask=mask)
