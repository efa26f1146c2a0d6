"""The walks of a delta scan: states carried over the chunks of a segment, and over the segments of a sequence.

The state is held transposed, [values, K]: rows are independent of each other, so a program takes some of them, and
every accumulator that feeds the next dot does so as its left operand, straight from registers. Right operands come as
they were loaded: decays and beta scale results, not inputs, which stay exact in the type in which they are staged.
With E, W, Q, V [C, *] of a chunk, and what `delta_inverse` stored (Tm, reads M = scale lower(Q W^T * D * beta), d, and
f = e * beta), from the state S

    R^T = (V^T - (S E^T) * d) Tm^T,     O^T = scale (S Q^T) * d + R^T M^T,     S' = d_last S + (R^T * f) W

(d and f scale columns.) The map S -> S' of a whole segment is affine, S_end = S_start P + B: P is the walk of
the rows of the identity with V = 0, B that of rows of zeros. Nothing else is sequential.

PLANES = 2 splits each left operand into its rounding and what that leaves, a product each: about 16 bits at twice the
arithmetic and the same memory traffic, with bfloat16's range.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot_add, load_matrix, operand, put, segment, store_matrix, tile


@triton.jit
def times(acc, x, y, STAGE: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr):
    """acc + x @ y for x made here, in float32, and y exact in STAGE."""
    if PLANES == 2:
        left = operand(x - operand(x, STAGE).to(tl.float32), STAGE)
        acc = dot_add(acc, left, y, PRECISION)
    return dot_add(acc, operand(x, STAGE), y, PRECISION)


@triton.jit
def factors_of(factors, strides, b, h, t0, end, C: tl.constexpr):
    """d [C], f = e * beta [C] (0 behind the end) and d_last of the chunk at t0."""
    i = tl.arange(0, C)
    ptr = at(factors, strides, b, h, t0)
    last = tl.minimum(t0 + C, end) - 1 - t0
    d = tl.load(ptr + i * strides[1], mask=t0 + i < end, other=0.0)
    f = tl.load(ptr + i * strides[1] + 1, mask=t0 + i < end, other=0.0)
    return d, f, tl.load(ptr + last * strides[1])


@triton.jit
def times_rows(
    acc, x, rows, strides, live, C: tl.constexpr, STAGE: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr
):
    """acc + x M^T for x [*, C] made here and a stored [C, C] matrix M whose first row is at `rows`."""
    i = tl.arange(0, C)
    M = tl.trans(tile(rows, strides, i, i, live, C))  # [C, C]
    if PLANES == 2:
        left = tl.trans(tile(rows, strides, i, C + i, live, 2 * C))  # [C, C]
        acc = dot_add(acc, operand(x, STAGE), left, PRECISION)
    return times(acc, x, M, STAGE, PLANES, PRECISION)


@triton.jit
def transitions(
    maps, tm, factors, erase, write, v, strides, table, first, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """maps [segments, HV, K + V, K] float32: rows of P, then of B, of every segment but the last of a sequence.

    A program is BV rows of either. strides are those of tm, factors, erase, write, v; sizes T, segments in a row, HV,
    and value heads per head of erase and of write; `write` is None where it is beta * erase.
    """
    T, each, HV, per_erase, per_write = sizes
    tm_strides, f_strides, e_strides, w_strides, v_strides = strides
    p_blocks: tl.constexpr = (K + BV - 1) // BV
    blocks: tl.constexpr = p_blocks + (V + BV - 1) // BV
    pid = tl.program_id(0)
    block, h, s = pid % blocks, pid // blocks % HV, pid // (blocks * HV)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    last = s + 1 >= tl.load(first + n + 1) if PACKED else (s + 1) % each == 0
    if last:
        end = begin
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    of_p = block < p_blocks
    rows = tl.where(of_p, block, block - p_blocks) * BV + tl.arange(0, BV)
    S = tl.where((rows[:, None] == channels[None, :]) & of_p, 1.0, 0.0)
    width = tl.where(of_p, 0, V)  # rows of P see no values
    for t0 in range(begin, end, C):
        live = t0 + i < end
        E = tile(at(erase, e_strides, b, h // per_erase, t0), e_strides, i, channels, live, K)  # [C, BK]
        E = operand(E, STAGE)
        values = tile(at(v, v_strides, b, h, t0), v_strides, i, rows, live, width)  # [C, BV]
        d, f, kept = factors_of(factors, f_strides, b, h, t0, end, C)
        known = times(tl.zeros([BV, C], tl.float32), S, tl.trans(E), STAGE, PLANES, PRECISION)  # [BV, BK] [BK, C]
        x = tl.trans(values).to(tl.float32) - known * d[None, :]
        R, ptr = tl.zeros([BV, C], tl.float32), at(tm, tm_strides, b, h, t0)
        R = times_rows(R, x, ptr, tm_strides, live, C, STAGE, PLANES, PRECISION)  # [BV, C] [C, C]
        if write is None:
            W = E
        else:
            W = tile(at(write, w_strides, b, h // per_write, t0), w_strides, i, channels, live, K)  # [C, BK]
            W = operand(W, STAGE)
        S = times(S * kept, R * f[None, :], W, STAGE, PLANES, PRECISION)  # [BV, C] [C, BK]
    if not last:
        ptr = maps + (s.to(tl.int64) * HV + h) * ((K + V) * K) + tl.where(of_p, 0, K * K)
        store_matrix(ptr, rows, channels, S, tl.where(of_p, K, V), K)


@triton.jit
def _advance(
    prior, row_stride, column_stride, maps, rows, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """In place, rows of B of one segment's map -> of prior P + B, the state at its end."""
    channels, own = tl.arange(0, BK), maps + K * K
    S = load_matrix(own, rows, channels, V, K)  # [rows, BK]
    for k0 in range(0, K, BLOCK):
        x = k0 + tl.arange(0, BLOCK)
        mask = (rows < V)[:, None] & (x < K)[None, :]
        start = tl.load(prior + rows[:, None] * row_stride + x[None, :] * column_stride, mask=mask, other=0.0)
        P = load_matrix(maps, x, channels, K, K)
        S = dot_add(S, start, P, PRECISION)  # [rows, BLOCK] [BLOCK, BK]
    tl.debug_barrier()
    store_matrix(own, rows, channels, S, V, K)
    tl.debug_barrier()  # the next segment reads, in other threads, what was stored


@triton.jit
def scan(
    maps, initial, first, each, HV,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """In place: B of every segment but a sequence's last -> the state [V, K] at its end. initial [N, HV, K, V]."""
    blocks: tl.constexpr = (V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    rows = pid % blocks * ROWS + tl.arange(0, ROWS)
    h, n = pid // blocks % HV, (pid // (blocks * HV)).to(tl.int64)
    SIZE: tl.constexpr = (K + V) * K
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    if BLOCK < BK:
        if initial is not None:  # noqa: SIM102 (decided when compiled; the next is not, and has no pointer if absent)
            if begin + 1 < end:
                own = maps + (begin * HV + h) * SIZE
                _advance(initial + (n * HV + h) * (K * V), 1, V, own, rows, K, V, BK, BLOCK, PRECISION)
        for s in range(begin + 1, end - 1):
            own = maps + (s * HV + h) * SIZE
            _advance(own - HV * SIZE + K * K, K, 1, own, rows, K, V, BK, BLOCK, PRECISION)
    elif begin + 1 < end:  # the state stays in registers, so the next segment's map is read ahead
        channels = tl.arange(0, BK)
        own = maps + (begin * HV + h) * SIZE
        S = load_matrix(own + K * K, rows, channels, V, K)  # [ROWS, BK]
        if initial is not None:
            mask = (rows < V)[:, None] & (channels < K)[None, :]
            ptr = initial + (n * HV + h) * (K * V)
            start = tl.load(ptr + rows[:, None] + channels[None, :] * V, mask=mask, other=0.0)
            S = dot_add(S, start, load_matrix(own, channels, channels, K, K), PRECISION)  # [ROWS, BK] [BK, BK]
            store_matrix(own + K * K, rows, channels, S, V, K)
        for s in range(begin + 1, end - 1):
            own = maps + (s * HV + h) * SIZE
            P = load_matrix(own, channels, channels, K, K)
            S = dot_add(load_matrix(own + K * K, rows, channels, V, K), S, P, PRECISION)  # [ROWS, BK] [BK, BK]
            store_matrix(own + K * K, rows, channels, S, V, K)


@triton.jit
def start_of(
    maps, initial, first, each, s, n, h, HV, rows, channels, K: tl.constexpr, V: tl.constexpr, PACKED: tl.constexpr
):
    """The state [rows, channels] at the start of segment s of sequence n: initial, 0, or the end of the one before."""
    inner = s > tl.load(first + n) if PACKED else s % each != 0
    ptr = maps + ((s.to(tl.int64) - 1) * HV + h) * ((K + V) * K) + K * K
    S = load_matrix(ptr, rows, channels, tl.where(inner, V, 0), K)
    if initial is not None:
        mask = (rows < tl.where(inner, 0, V))[:, None] & (channels < K)[None, :]
        ptr = initial + (n.to(tl.int64) * HV + h) * (K * V)
        S += tl.load(ptr + rows[:, None] + channels[None, :] * V, mask=mask, other=0.0)
    return S


@triton.jit
def outputs(
    o, q, erase, write, v, divisor, tm, reads, factors, maps, ends, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """o [B, T, HV, V], and the state [N, HV, K, V] after each sequence that has tokens.

    A program is BV columns of v in a segment. divisor [B, T, HV] float32, or None, is what each token's o is divided
    by; ends is (initial, final), either may be None; places (table, first); strides are those of o, q, erase, write, v,
    divisor, tm, reads, factors; sizes T, segments in a row, HV, and value heads per head of q, of erase and of write.
    """
    T, each, HV, per_query, per_erase, per_write = sizes
    o_strides, q_strides, e_strides, w_strides, v_strides, ds, tm_strides, reads_strides, f_strides = strides
    initial, final = ends
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, s = pid // blocks % HV, pid // (blocks * HV)
    rows, i, channels = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, C), tl.arange(0, BK)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    S = start_of(maps, initial, first, each, s, n, h, HV, rows, channels, K, V, PACKED)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        E = tile(at(erase, e_strides, b, h // per_erase, t0), e_strides, i, channels, live, K)  # [C, BK]
        E = operand(E, STAGE)
        values = tile(at(v, v_strides, b, h, t0), v_strides, i, rows, live, V)  # [C, BV]
        d, f, kept = factors_of(factors, f_strides, b, h, t0, end, C)
        known = times(tl.zeros([BV, C], tl.float32), S, tl.trans(E), STAGE, PLANES, PRECISION)  # [BV, BK] [BK, C]
        x = tl.trans(values).to(tl.float32) - known * d[None, :]
        R, ptr = tl.zeros([BV, C], tl.float32), at(tm, tm_strides, b, h, t0)
        R = times_rows(R, x, ptr, tm_strides, live, C, STAGE, PLANES, PRECISION)  # [BV, C] [C, C]
        Q = tile(at(q, q_strides, b, h // per_query, t0), q_strides, i, channels, live, K)  # [C, BK]
        Q = operand(Q, STAGE)
        out = times(tl.zeros([BV, C], tl.float32), S, tl.trans(Q), STAGE, PLANES, PRECISION)  # [BV, BK] [BK, C]
        ptr = at(reads, reads_strides, b, h, t0)
        out = times_rows(
            out * (scale * d)[None, :], R, ptr, reads_strides, live, C, STAGE, PLANES, PRECISION
        )  # [BV, C] [C, C]
        if divisor is not None:
            out /= tl.load(at(divisor, ds, b, h, t0) + i * ds[1], mask=live, other=1.0)[None, :]
        put(at(o, o_strides, b, h, t0), o_strides, i, rows, live, tl.trans(out), V)
        if write is None:
            W = E
        else:
            W = tile(at(write, w_strides, b, h // per_write, t0), w_strides, i, channels, live, K)  # [C, BK]
            W = operand(W, STAGE)
        S = times(S * kept, R * f[None, :], W, STAGE, PLANES, PRECISION)  # [BV, C] [C, BK]
    if final is not None:
        last = s + 1 == tl.load(first + n + 1) if PACKED else (s + 1) % each == 0
        ptr = final + (n.to(tl.int64) * HV + h) * (K * V)
        mask = (rows < tl.where(last, V, 0))[:, None] & (channels < K)[None, :]
        tl.store(ptr + rows[:, None] + channels[None, :] * V, S, mask=mask)
