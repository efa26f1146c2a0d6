"""The Fenwick scan with the gated-delta transition: nodes of the tree over chunks, outputs, the state behind a call.

    Phi(t, s) w_s = prod_{j = t .. s + 1} exp(g_j) (I - beta_j k_j k_j^T) beta_s k_s            (k: E, beta k: W)

What a chunk, or a node of several, does to a state is affine. States are held transposed here, S [V, K]:

    S -> S P + B,    P = c I - N,    c = exp(sum g),    (P, B) of two halves: (P_l P_r, B_l P_r + B_r)

Kept is N, not P: where tokens erase little it is small, and a state meets its rounding in products only, so that tokens
that do nothing leave every bit. With Tm, d and f = e * beta of a chunk as in delta_inverse.py,
M0 = scale lower(Q W^T * D),

    N = (E^T * d) Tm^T f W,   B = V^T Tm^T f W,   M = M0 Tm,   R = scale d * Q - M (d * E)
    O = (M * H) V + sum_j lam^{c + 1 + j} * (R_j B_j^T),       R_j = R P_i^T ... over the nodes i read before j

`leaves` makes N and B of each chunk, `join` those of all nodes of one height in place (the node of two halves is kept
where its right half was), `outputs` reads them; fenwick_delta_final.py carries them to the end.

Source: [LogLinear]; [GatedDeltaNet].
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, store_matrix, tile
from linattest.kernels.delta_walk import factors_of
from linattest.kernels.fenwick_layout import bits, height, number, place, span
from linattest.kernels.fenwick_outputs import height_of_rows, mask_of_levels, weights

SOME = tl.constexpr(64)
"""Columns that are held at a time where there is no room for all."""

ROOM = tl.constexpr(256 * 16)
"""Bits of a row of N, staged: up to these, shared memory holds all of its rows. 256 in tf32 are more."""


@triton.jit
def held_rows(S, initial, stride, which, L, where, mask):
    """S [V, K] + the buckets of a state for the set bits `which` of its position; `initial` addresses level 0."""
    rest = which
    for _turn in range(0, bits(which)):
        level = tl.minimum(height(rest) + 1, L - 1)
        S += tl.load(initial + level * stride + where, mask=mask, other=0.0)
        rest = rest & (rest - 1)
    return S


@triton.jit
def written(S, x, tm, tm_strides, W, f, kept, i, live, C: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr):
    """kept S + x Tm^T f W [rows, BK], x [rows, C] made here; Tm at its first row."""
    Tm = operand(tile(tm, tm_strides, i, i, live, C), STAGE)  # [C, C]
    R = dot(operand(x, STAGE), tl.trans(Tm), PRECISION)  # [rows, C] [C, C]
    return dot_add(S * kept, operand(R * f[None, :], STAGE), W, PRECISION)  # [rows, C] [C, BK]


@triton.jit
def leaves(
    maps, writes, keeps, k, v, tm, factors, initial, spans, strides, table, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """maps [chunks, HV, K, K]: N of each chunk; writes [chunks, HV, V, K] float32: B; keeps [chunks, HV]: c.

    A program is BV rows of either. What a state holds inside the call's first chunk is written there, too. strides are
    those of k, v, tm, factors; sizes T, chunks in a row, HV, value heads per head, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    k_strides, v_strides, tm_strides, f_strides = strides
    n_blocks: tl.constexpr = (K + BV - 1) // BV
    blocks: tl.constexpr = n_blocks + (V + BV - 1) // BV
    pid = tl.program_id(0)
    block, h, c = pid % blocks, pid // blocks % HV, (pid // (blocks * HV)).to(tl.int64)
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, before, _ = span(n, spans, T, MODE)
    if begin < end:
        live = i < end - begin
        keys = at(k, k_strides, b, h // G, begin)
        E = operand(tile(keys, k_strides, i, channels, live, K), STAGE)  # [C, BK]
        d, f, kept = factors_of(factors, f_strides, b, h, begin, end, C)
        ptr, S = at(tm, tm_strides, b, h, begin), tl.zeros([BV, BK], tl.float32)
        if block < n_blocks:
            rows = block * BV + tl.arange(0, BV)
            x = tl.trans(tile(keys, k_strides, i, rows, live, K)).to(tl.float32) * d[None, :]  # [BV, C]
            S = written(S, x, ptr, tm_strides, E, f, kept, i, live, C, STAGE, PRECISION)
            store_matrix(maps + (c * HV + h) * (K * K), rows, channels, S, K, K)
        else:
            rows = (block - n_blocks) * BV + tl.arange(0, BV)
            x = tl.trans(tile(at(v, v_strides, b, h, begin), v_strides, i, rows, live, V)).to(tl.float32)  # [BV, C]
            if initial is not None:
                where = (n * L * HV + h) * (K * V) + rows[:, None] + channels[None, :] * V
                mask = (rows < V)[:, None] & (channels < K)[None, :]
                inner = tl.where(position == before, before & (C - 1), 0)
                S = held_rows(S, initial, K * V * tl.cast(HV, tl.int64), inner, L, where, mask)
                x -= dot(operand(S, STAGE), tl.trans(E), PRECISION) * d[None, :]  # [BV, BK] [BK, C]
            S = written(S, x, ptr, tm_strides, E, f, kept, i, live, C, STAGE, PRECISION)
            store_matrix(writes + (c * HV + h) * (V * K), rows, channels, S, V, K)
            if block == n_blocks:
                tl.store(keeps + c * HV + h, kept)


@triton.jit
def transposed_level(state, n, h, HV, L, level, rows, channels, K: tl.constexpr, V: tl.constexpr):
    """A level of a state [N, L, HV, K, V], as [V, K]."""
    ptr = state + ((n * L + level) * HV + h) * (K * V)
    mask = (rows < V)[:, None] & (channels < K)[None, :]
    return tl.load(ptr + rows[:, None] + channels[None, :] * V, mask=mask, other=0.0)


@triton.jit
def left_rows(writes, initial, left, made, where, rows, columns, K: tl.constexpr, V: tl.constexpr):
    """B [rows, columns] of a node's left half, or the bucket of a state where that was before the call; `where` is its
    sequence, head, heads, levels and level."""
    S = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
    if made:
        S = load_matrix(writes + left * (V * K), rows, columns, V, K)
    elif initial is not None:
        n, h, HV, L, level = where
        S = transposed_level(initial, n, h, HV, L, level, rows, columns, K, V)
    return S


@triton.jit(do_not_specialize=["HEIGHT"])
def join(
    maps, writes, keeps, initial, spans, places, sizes, HEIGHT,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """In place, the nodes of one height j = HEIGHT >= 1 from those of height j - 1; a program is a node.

    Shared memory holds N for all rows, and 64 of its columns at a time where all are more than its ROOM.
    places (table of groups of 2^j chunks, first of chunks); sizes T, groups and chunks in a row, HV, L.
    """
    T, each, each_chunk, HV, L = sizes
    table, first = places
    s, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    n, _, begin, end, position = place(s, table, T, each, LOG + HEIGHT, MODE)
    _, before, _ = span(n, spans, T, MODE)
    group, channels = position >> (LOG + HEIGHT), tl.arange(0, BK)
    COLUMNS: tl.constexpr = BK if BK * STAGE.primitive_bitwidth <= ROOM else SOME
    if (position + end - begin) >> (LOG + HEIGHT) > group:  # whole, to its end
        e = (group + 1) << HEIGHT
        right = (number(n, position, before, first, each_chunk, LOG, MODE) - (position >> LOG) + e - 1) * HV + h
        left = right - (HV << (HEIGHT - 1))
        made = e - (1 << (HEIGHT - 1)) > before >> LOG
        c = tl.load(keeps + right)
        own = maps + right * (K * K)
        where = (n, h, HV, L, LOG + HEIGHT)
        # Nothing reads columns that another turn has written. (Unrolled by the compiler: no type checker follows.)
        for first_column in tl.static_range(0, BK, COLUMNS):  # pyright: ignore[reportGeneralTypeIssues]
            columns = first_column + tl.arange(0, COLUMNS)
            N = operand(load_matrix(own, channels, columns, K, K), STAGE)  # [BK, COLUMNS]
            tl.debug_barrier()
            for r in range(0, V, BV):
                rows = r + tl.arange(0, BV)
                B = load_matrix(writes + right * (V * K), rows, columns, V, K)  # [BV, COLUMNS]
                S = left_rows(writes, initial, left, made, where, rows, channels, K, V)  # [BV, BK]
                part = S
                if COLUMNS < BK:
                    part = left_rows(writes, initial, left, made, where, rows, columns, K, V)
                B = dot_add(B + c * part, operand(-S, STAGE), N, PRECISION)  # [BV, BK] [BK, COLUMNS]
                store_matrix(writes + right * (V * K), rows, columns, B, V, K)
            if made:
                c_left = tl.load(keeps + left)
                for r in range(0, K, BV):
                    rows = r + tl.arange(0, BV)
                    P = load_matrix(own, rows, columns, K, K)
                    S = load_matrix(maps + left * (K * K), rows, channels, K, K)
                    part = S
                    if COLUMNS < BK:
                        part = load_matrix(maps + left * (K * K), rows, columns, K, K)
                    P = P.to(tl.float32) * c_left + part.to(tl.float32) * c
                    tl.debug_barrier()
                    P = dot_add(P, operand(-S, STAGE), N, PRECISION)  # [BV, BK] [BK, COLUMNS]
                    store_matrix(own, rows, columns, P, K, K)
                if first_column + COLUMNS == BK:
                    tl.debug_barrier()
                    tl.store(keeps + right, c * c_left)


@triton.jit
def chunk_reads(
    inputs, made, strides, b, h, G, begin, end, i, channels, scale,
    K: tl.constexpr, C: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """M [rows, C] and R [rows, BK] of tokens i of a chunk.

    inputs (q, k); made (tm, reads, factors); strides those of q, k, tm, reads, factors.
    """
    q_strides, k_strides, tm_strides, reads_strides, f_strides = strides
    q, k = inputs
    tm, reads, factors = made
    j = tl.arange(0, C)
    all_live, live = j < end - begin, i < end - begin
    d, _f, _kept = factors_of(factors, f_strides, b, h, begin, end, C)
    own = tl.load(at(factors, f_strides, b, h, begin) + i * f_strides[1], mask=live, other=0.0)
    Tm = operand(tile(at(tm, tm_strides, b, h, begin), tm_strides, j, j, all_live, C), STAGE)  # [C, C]
    M = operand(tile(at(reads, reads_strides, b, h, begin), reads_strides, i, j, live, C), STAGE)  # [rows, C]
    M = dot(M, Tm, PRECISION)
    E = operand(tile(at(k, k_strides, b, h // G, begin), k_strides, j, channels, all_live, K), STAGE)  # [C, BK]
    Q = tile(at(q, q_strides, b, h // G, begin), q_strides, i, channels, live, K).to(tl.float32)  # [rows, BK]
    return M, dot_add(Q * (scale * own)[:, None], operand(-M * d[None, :], STAGE), E, PRECISION)  # [rows, C] [C, BK]


@triton.jit
def outputs(
    o, inputs, v, lam, made, tree, initial, spans, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr, ROWS: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """o [B, T, HV, V]; a program is BV columns of ROWS tokens of a chunk.

    inputs (q, k), or (R, M) of all tokens if EXACT; made (tm, reads, factors); tree (maps, writes, keeps); strides are
    those of o, v, lam, and of inputs, tm, reads, factors together; places (table, first) of chunks; sizes T, chunks in
    a row, HV, value heads per head, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    o_strides, v_strides, l_strides, own_strides = strides
    maps, writes, keeps = tree
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    parts: tl.constexpr = C // ROWS
    pid = tl.program_id(0)
    c, h = (pid // (blocks * parts * HV)).to(tl.int64), pid // (blocks * parts) % HV
    rows, channels, j = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    i = pid // blocks % parts * ROWS + tl.arange(0, ROWS)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, before, _ = span(n, spans, T, MODE)
    if begin < end:
        live = i < end - begin
        chunk, start = position >> LOG, (position & (C - 1)).to(tl.int32)
        t = start + i
        if EXACT:
            r, m = inputs
            M = tile(at(m, own_strides[1], b, h, begin), own_strides[1], i, j, live, C)  # [ROWS, C]
            R = tile(at(r, own_strides[0], b, h, begin), own_strides[0], i, channels, live, K)  # [ROWS, BK]
        else:
            M, R = chunk_reads(
                inputs, made, own_strides, b, h, G, begin, end, i, channels, scale, K, C, STAGE, PRECISION
            )
        lam = at(lam, l_strides, b, h, begin)
        M *= mask_of_levels(lam, l_strides, i, live, t, start + j, L, LOG)
        M = operand(tl.where(i[:, None] >= j[None, :], M, 0.0), STAGE)  # [ROWS, C]
        values = tile(at(v, v_strides, b, h, begin), v_strides, j, rows, j < end - begin, V)  # [C, BV]
        out = dot(M, operand(values, STAGE), PRECISION)  # [ROWS, C] [C, BV]
        if initial is not None:
            lead = tl.where(position == before, before & (C - 1), 0)
            rest = lead
            for _turn in range(0, bits(lead)):
                level = tl.minimum(height(rest) + 1, L - 1)
                rest = rest & (rest - 1)
                S = operand(transposed_level(initial, n, h, HV, L, level, rows, channels, K, V), STAGE)  # [BV, BK]
                w = weights(lam, l_strides, i, live, height_of_rows(t ^ rest.to(tl.int32)) + 1, L)
                out += w[:, None] * dot(operand(R, STAGE), tl.trans(S), PRECISION)  # [ROWS, BK] [BK, BV]
        e, old = chunk, before >> LOG
        for _turn in range(0, bits(chunk)):
            bit = height(e)
            slot = (c + e - 1 - chunk) * HV + h
            staged = operand(R, STAGE)  # [C, BK]
            w = weights(lam, l_strides, i, live, bit + LOG + 1, L)
            if e > old:
                S = operand(load_matrix(writes + slot * (V * K), rows, channels, V, K), STAGE)  # [BV, BK]
                out += w[:, None] * dot(staged, tl.trans(S), PRECISION)  # [C, BK] [BK, BV]
                N = operand(load_matrix(maps + slot * (K * K), channels, channels, K, K), STAGE)  # [BK, BK]
                R = R * tl.load(keeps + slot) - dot(staged, tl.trans(N), PRECISION)  # [C, BK] [BK, BK]
            elif initial is not None:
                level = tl.minimum(bit + LOG + 1, L - 1)
                S = operand(transposed_level(initial, n, h, HV, L, level, rows, channels, K, V), STAGE)  # [BV, BK]
                out += w[:, None] * dot(staged, tl.trans(S), PRECISION)  # [C, BK] [BK, BV]
            e = e & (e - 1)
        put(at(o, o_strides, b, h, begin), o_strides, i, rows, live, out, V)
