"""Gradients of the states of a Fenwick scan with the gated-delta transition, one height of the tree at a time.

S_i(n) is the node that chunk n reads for its set bit i, carried to its start; X_j(n) the gradient behind chunk n at
height j, as in fenwick_upstream.py: of what has been read there where bit j of n is 1, of the node that n is part of
where it is 0. States are transposed, [V, K], and with N, c, R of each chunk as in fenwick_delta.py

    S <- S P = c S - S N,        X <- X P^T + [bit j] (lam^{c + 1 + j} * dO)^T R

`walks` makes both, for one height, in all its pairs of nodes at once; `collect` adds to what a chunk needs of them,
from the highest height down: U, the sum of X_j over zero bits, and for set bits

    dP += S_j^T (X_j + U),       dR += (lam^{c + 1 + j} * dO) S_j,      dlam^{c + 1 + j} = R . (dO S_j)

`inner` does that for the buckets of a state that lie inside a call's first chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, store_matrix, tile
from linattest.kernels.fenwick_backward import put_column
from linattest.kernels.fenwick_delta import chunk_reads, transposed_level
from linattest.kernels.fenwick_delta_final import back, through
from linattest.kernels.fenwick_layout import bits, chunks_of, height, number, place, span
from linattest.kernels.fenwick_outputs import height_of_rows, weights


@triton.jit
def rows(
    r, inputs, made, strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """r [B, T, HV, K]: R of every chunk. inputs (q, k); made (tm, reads, factors); strides those of r, and of q, k, tm,
    reads, factors together; sizes T, chunks in a row, HV, value heads per head."""
    C: tl.constexpr = 1 << LOG
    T, each, HV, G = sizes
    r_strides, own_strides = strides
    c, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    channels, i = tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end, _ = place(c, table, T, each, LOG, MODE)
    if begin < end:
        _M, R = chunk_reads(inputs, made, own_strides, b, h, G, begin, end, i, channels, scale, K, C, STAGE, PRECISION)
        put(at(r, r_strides, b, h, begin), r_strides, i, channels, i < end - begin, R, K)


@triton.jit(do_not_specialize=["HEIGHT"])
def walks(
    carried, behind_chunks, starts, leaves, tree, inputs, outer, spans, strides, places, sizes, HEIGHT,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """carried [chunks, HV, V, K], S_j of each chunk with bit j = HEIGHT; behind_chunks likewise, X_j of all; and
    starts [N, HV, V, K], X_j before the first one, if there is a state.

    A program is BV rows of either in a pair of nodes. leaves (maps, keeps) of chunks; tree (writes) of nodes; inputs
    (r, do, lam) and their strides; outer (initial, dfinal); places (table of groups of 2^(j + 1) chunks, first of
    chunks); sizes T, groups and chunks in a row, HV, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, each_chunk, HV, L = sizes
    r, do, lam = inputs
    r_strides, o_strides, l_strides = strides
    maps, keeps = leaves
    initial, dfinal = outer
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    forwards, h = pid // blocks % 2, pid // (2 * blocks) % HV
    s = (pid // (2 * blocks * HV)).to(tl.int64)
    y, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end, position = place(s, table, T, each, LOG + HEIGHT + 1, MODE)
    _, before, behind = span(n, spans, T, MODE)
    start, count = position >> LOG, chunks_of(position, end - begin, LOG)
    c = number(n, position, before, first, each_chunk, LOG, MODE) - start
    half = tl.cast(1, tl.int64) << HEIGHT
    middle = ((start >> (HEIGHT + 1)) << (HEIGHT + 1)) + half  # the first chunk of the right node
    level = tl.minimum(HEIGHT + LOG + 1, L - 1)
    S = tl.zeros([BV, BK], tl.float32)
    if (forwards == 1) & (start + count > middle):
        if middle > before >> LOG:
            S = load_matrix(tree + ((c + middle - 1) * HV + h) * (V * K), y, channels, V, K)
        elif initial is not None:
            S = transposed_level(initial, n, h, HV, L, level, y, channels, K, V)
        begin_at = tl.maximum(start, middle)
        for m in range(0, start + count - begin_at):
            slot = (c + begin_at + m) * HV + h
            store_matrix(carried + slot * (V * K), y, channels, S, V, K)
            S = through(S, maps, keeps, slot, channels, K, STAGE, PRECISION)
    if (forwards == 0) & (count > 0):
        if dfinal is not None:
            last = behind >> LOG
            if (last >> (HEIGHT + 1) == start >> (HEIGHT + 1)) & ((last & half) != 0):
                S = transposed_level(dfinal, n, h, HV, L, level, y, channels, K, V)
        r, do, lam = at(r, r_strides, b, h, begin), at(do, o_strides, b, h, begin), at(lam, l_strides, b, h, begin)
        for m in range(0, count):
            chunk = start + count - 1 - m
            slot = (c + chunk) * HV + h
            store_matrix(behind_chunks + slot * (V * K), y, channels, S, V, K)
            S = back(S, maps, keeps, slot, channels, K, STAGE, PRECISION)
            if chunk >= middle:
                t = tl.maximum(chunk * C - position, 0)
                live = i < tl.minimum((chunk + 1) * C - position, end - begin) - t
                w = weights(lam + t * l_strides[1], l_strides, i, live, HEIGHT + LOG + 1, L)
                upstream = tile(do + t * o_strides[1], o_strides, i, y, live, V)  # [C, BV]
                R = operand(tile(r + t * r_strides[1], r_strides, i, channels, live, K), STAGE)  # [C, BK]
                S = dot_add(S, tl.trans(operand(upstream * w[:, None], STAGE)), R, PRECISION)  # [BV, C] [C, BK]
        if starts is not None:  # noqa: SIM102 (decided when compiled; the next is not)
            if position == before:
                store_matrix(starts + (n * HV + h) * (V * K), y, channels, S, V, K)


@triton.jit(do_not_specialize=["HEIGHT"])
def collect(
    upper, dp, dr, dlam, carried, behind_chunks, inputs, spans, strides, table, sizes, HEIGHT,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Added to: upper [chunks, HV, V, K] (U), dp [chunks, HV, K, K], dr [B, T, HV, K]; level HEIGHT + LOG + 1 of dlam.

    A program is a chunk. inputs (r, do, lam); strides those of dr, dlam, r, do, lam; sizes T, chunks in a row, HV, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, L = sizes
    r, do, lam = inputs
    dr_strides, dl_strides, r_strides, o_strides, l_strides = strides
    c, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    channels, i = tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    slot, live = c * HV + h, i < end - begin
    if begin < end:
        if ((position >> LOG) >> HEIGHT) & 1 == 1:
            dP, dR = tl.zeros([BK, BK], tl.float32), tl.zeros([C, BK], tl.float32)
            for y0 in range(0, V, BV):
                y = y0 + tl.arange(0, BV)
                S = operand(load_matrix(carried + slot * (V * K), y, channels, V, K), STAGE)  # [BV, BK]
                X = load_matrix(behind_chunks + slot * (V * K), y, channels, V, K).to(tl.float32)  # [BV, BK]
                X += load_matrix(upper + slot * (V * K), y, channels, V, K)
                dP = dot_add(dP, tl.trans(S), operand(X, STAGE), PRECISION)  # [BK, BV] [BV, BK]
                upstream = operand(tile(at(do, o_strides, b, h, begin), o_strides, i, y, live, V), STAGE)  # [C, BV]
                dR = dot_add(dR, upstream, S, PRECISION)  # [C, BV] [BV, BK]
            own = dp + slot * (K * K)
            store_matrix(own, channels, channels, dP + load_matrix(own, channels, channels, K, K), K, K)
            level = HEIGHT + LOG + 1
            R = tile(at(r, r_strides, b, h, begin), r_strides, i, channels, live, K).to(tl.float32)
            put_column(at(dlam, dl_strides, b, h, begin), dl_strides, i, live, level, L, tl.sum(R * dR, axis=1))
            dR *= weights(at(lam, l_strides, b, h, begin), l_strides, i, live, level, L)[:, None]
            ptr = at(dr, dr_strides, b, h, begin)
            put(ptr, dr_strides, i, channels, live, dR + tile(ptr, dr_strides, i, channels, live, K), K)
        else:
            for y0 in range(0, V, BV):
                y = y0 + tl.arange(0, BV)
                own = upper + slot * (V * K)
                X = load_matrix(behind_chunks + slot * (V * K), y, channels, V, K).to(tl.float32)
                store_matrix(own, y, channels, X + load_matrix(own, y, channels, V, K), V, K)


@triton.jit
def inner(
    dinitial, of_levels, upper, dp, dr, leaves, inputs, outer, spans, strides, places, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """dinitial [N, L, HV, K, V] at the levels of buckets inside a call's first chunk; added to dp and dr, and to
    of_levels [N, HV, C, 8], the gradients of their weights.

    A program is a head of a sequence. leaves (maps, keeps); inputs (r, do, lam); outer (initial, dfinal); strides those
    of dr, r, do, lam; places (table, first) of chunks; sizes T, chunks in a row, HV, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, L = sizes
    r, do, lam = inputs
    dr_strides, r_strides, o_strides, l_strides = strides
    maps, keeps = leaves
    initial, dfinal = outer
    table, first = places
    n, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    channels, i, columns = tl.arange(0, BK), tl.arange(0, C), tl.arange(0, 8)
    start, before, behind = span(n, spans, T, MODE)
    b = 0 * n if MODE == 1 else n
    lead, tail = before & (C - 1), behind & (C - 1)
    if (behind > before) & (lead > 0):
        slot = number(n, before, before, first, each, LOG, MODE) * HV + h
        live = i < tl.minimum(C - lead, behind - before)
        r, do, lam = at(r, r_strides, b, h, start), at(do, o_strides, b, h, start), at(lam, l_strides, b, h, start)
        R = tile(r, r_strides, i, channels, live, K).to(tl.float32)  # [C, BK]
        found = tl.zeros([C, 8], tl.float32)
        for y0 in range(0, V, BV):
            y = y0 + tl.arange(0, BV)
            upstream = tile(do, o_strides, i, y, live, V)  # [C, BV]
            rest = lead
            for _turn in range(0, bits(lead)):
                level = tl.minimum(height(rest) + 1, L - 1)
                rest = rest & (rest - 1)
                X = load_matrix(upper + slot * (V * K), y, channels, V, K)  # [BV, BK]
                if dfinal is not None:  # noqa: SIM102 (decided when compiled; the next is not)
                    if behind >> LOG == before >> LOG:
                        now = tl.minimum(height_of_rows(tl.maximum(tail ^ rest, 1)) + 1, L - 1)
                        X += transposed_level(dfinal, n, h, HV, L, now, y, channels, K, V)
                S = operand(transposed_level(initial, n, h, HV, L, level, y, channels, K, V), STAGE)  # [BV, BK]
                own = dp + slot * (K * K)
                dP = load_matrix(own, channels, channels, K, K)
                tl.debug_barrier()
                dP = dot_add(dP, tl.trans(S), operand(X, STAGE), PRECISION)  # [BK, BV] [BV, BK]
                store_matrix(own, channels, channels, dP, K, K)
                levels = height_of_rows((lead + i) ^ rest) + 1
                dR = dot(operand(upstream, STAGE), S, PRECISION)  # [C, BV] [BV, BK]
                here = levels[:, None] == columns[None, :]
                found += tl.where(here, tl.sum(R * dR, axis=1)[:, None], 0.0)
                w = weights(lam, l_strides, i, live, levels, L)
                ptr = at(dr, dr_strides, b, h, start)
                dR = dR * w[:, None] + tile(ptr, dr_strides, i, channels, live, K)
                tl.debug_barrier()
                put(ptr, dr_strides, i, channels, live, dR, K)
                tl.debug_barrier()
                X = back(X, maps, keeps, slot, channels, K, STAGE, PRECISION)
                weighted = tl.trans(operand(upstream * w[:, None], STAGE))
                X = dot_add(X, weighted, operand(R, STAGE), PRECISION)  # [BV, C] [C, BK]
                ptr = dinitial + ((n * L + level) * HV + h) * (K * V)
                mask = (y < V)[:, None] & (channels < K)[None, :]
                tl.store(ptr + y[:, None] + channels[None, :] * V, X, mask=mask)
        tl.store(of_levels + ((n * HV + h) * C + i[:, None]) * 8 + columns[None, :], found)
