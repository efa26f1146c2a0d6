"""Gradients of a Fenwick scan, chunk by chunk, from the nodes of its tree and the gradients of states behind chunks.

With A = (Q K^T) * D * H, B_j the nodes that the chunk reads, U the gradient of what it wrote (fenwick_upstream.py), dO
as given (rows are tokens; w_j = scale lam^{c + 1 + j} d a_j as in fenwick_outputs.py):

    dQ = sum_j w_j * (dO B_j^T) + dA K,        dA = scale D * H * (dO V^T)
    dK = e * (V U^T) + dA^T Q,                 dV = e * (K U) + scale A^T dO
    dlam_t^{l} = scale sum over s with level(t, s) = l of (Q K^T * D * dO V^T)[t, s],  or scale d a_j (dO B_j^T) . q

Buckets of the state behind the call that lie inside its last chunk add their gradient to U, for their own tokens.

The gradient of a gate is as in decay_backward.py; what passes through a chunk comes from fenwick_upstream.py, and from
what later chunks of the same group of 8 read of groups before it. `gates` adds that up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot, dot_add, load_matrix, operand, put, tile
from linattest.kernels.decay_backward import gate_gradients
from linattest.kernels.decay_scan import gates_of
from linattest.kernels.fenwick_layout import bits, chunks_of, height, number, place, span
from linattest.kernels.fenwick_outputs import height_of_rows, mask_of_levels, weights
from linattest.kernels.fenwick_upstream import bucket, level_of


@triton.jit
def times_transposed(
    rows, strides, node, state, bit, L, size, made, i, x, live, BV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, C: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dO S^T [C, BK] of the rows of dO and a node, or the bucket of a set bit of a state, S [K, V]."""
    acc = tl.zeros([C, BK], tl.float32)
    for y0 in range(0, V, BV):
        y = y0 + tl.arange(0, BV)
        where, mask = x[:, None] * V + y[None, :], (x < K)[:, None] & (y < V)[None, :]
        S = operand(bucket(node, state, bit, L, size, made, where, mask), STAGE)  # [BK, BV]
        acc = dot_add(acc, operand(tile(rows, strides, i, y, live, V), STAGE), tl.trans(S), PRECISION)
    return acc


@triton.jit
def gradients(
    results, inputs, tree, ends, outer, spans, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """results dq, dk [B, T, HV, K], dv [B, T, HV, V], dlam [B, T, HV, L] (zeros before), dg [B, T, HV] without what
    passes through a chunk, high [chunks, HV], what a chunk reads above its group, times what comes from above.

    A program is a chunk of a head. inputs are q, k, v, g, lam, do; tree (nodes, logs); outer (initial, dfinal), any
    None; strides those of dq, dk, dv, dlam, dg and of the inputs; places (table, first) of chunks; sizes T, chunks in a
    row, HV, value heads per head, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    dqs, dks, dvs, dls, dgs, qs, ks, vs, gs, ls, os = strides
    dq, dk, dv, dlam, dg, high = results
    q, k, v, g, lam, do = inputs
    nodes, logs = tree
    initial, dfinal = outer
    table, first = places
    pid = tl.program_id(0)
    c, h = (pid // HV).to(tl.int64), pid % HV
    x, i = tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, before, behind = span(n, spans, T, MODE)
    live, chunk, t = i < end - begin, position >> LOG, (position & (C - 1)).to(tl.int32) + i
    size = K * V * tl.cast(HV, tl.int64)
    if initial is not None:
        initial += (n * L * HV + h) * (K * V)
    if dfinal is not None:
        dfinal += (n * L * HV + h) * (K * V)
    queries = tile(at(q, qs, b, h // G, begin), qs, i, x, live, K)  # [C, BK]
    keys = tile(at(k, ks, b, h // G, begin), ks, i, x, live, K)  # [C, BK]
    own, since, until = gates_of(at(g, gs, b, h, begin), gs, i, end - begin, STAGE)
    lam, dlam = at(lam, ls, b, h, begin), at(dlam, dls, b, h, begin)
    v, do, dv = at(v, vs, b, h, begin), at(do, os, b, h, begin), at(dv, dvs, b, h, begin)

    # values, keys, and pairs inside the chunk
    products = dot(queries, tl.trans(keys), PRECISION)  # [C, C]
    D, H = decays(own, C, STAGE), mask_of_levels(lam, ls, i, live, t, t, L, LOG)
    H = tl.where(i[:, None] >= i[None, :], H, 0.0)
    scores = operand(scale * products * D * H, STAGE)
    dA, dK = tl.zeros([C, C], tl.float32), tl.zeros([C, BK], tl.float32)
    tail = tl.where(behind >> LOG == chunk, behind & (C - 1), 0)
    for y0 in range(0, V, BV):
        y = y0 + tl.arange(0, BV)
        values = operand(tile(v, vs, i, y, live, V), STAGE)  # [C, BV]
        upstream = operand(tile(do, os, i, y, live, V), STAGE)  # [C, BV]
        U = load_matrix(ends + (c * HV + h) * (K * V), x, y, K, V)  # [BK, BV]
        dA = dot_add(dA, upstream, tl.trans(values), PRECISION)
        of_keys = dot(values, operand(tl.trans(U), STAGE), PRECISION)  # [C, BV] [BV, BK]
        of_values = dot(operand(keys, STAGE), operand(U, STAGE), PRECISION)  # [C, BK] [BK, BV]
        if dfinal is not None:
            rest = tail
            for _turn in range(0, bits(tail)):
                bit = height(rest)
                rest = rest & (rest - 1)
                where, mask = x[:, None] * V + y[None, :], (x < K)[:, None] & (y < V)[None, :]
                F = operand(tl.load(level_of(dfinal, bit, L, size) + where, mask=mask, other=0.0), STAGE)  # [BK, BV]
                inside = ((t >= rest) & (t < rest + (1 << bit)))[:, None]
                of_keys += tl.where(inside, dot(values, tl.trans(F), PRECISION), 0.0)
                of_values += tl.where(inside, dot(operand(keys, STAGE), F, PRECISION), 0.0)
        dK += of_keys
        dV = dot_add(of_values * tl.exp(until)[:, None], tl.trans(scores), upstream, PRECISION)
        put(dv, dvs, i, y, live, dV, V)
    dK = dK * tl.exp(until)[:, None]
    written = tl.sum(dK * keys, axis=1)

    # what is read of nodes, and of buckets inside the chunk
    dQ, inner = tl.zeros([C, BK], tl.float32), tl.zeros([C, 8], tl.float32)
    if initial is not None:
        lead = tl.where(position == before, before & (C - 1), 0)
        rest = lead
        for _turn in range(0, bits(lead)):
            bit = height(rest)
            rest = rest & (rest - 1)
            held = level_of(initial, bit, L, size)
            P = times_transposed(do, os, held, None, 0, L, size, True, i, x, live, BV, K, V, BK, C, STAGE, PRECISION)
            P = P * (scale * tl.exp(since))[:, None]
            levels = height_of_rows(t ^ rest) + 1
            inner += tl.where(levels[:, None] == tl.arange(0, 8)[None, :], tl.sum(P * queries, axis=1)[:, None], 0.0)
            dQ += P * weights(lam, ls, i, live, levels, L)[:, None]
    above = tl.sum(tl.zeros([C], tl.float32), axis=0)
    e, log = chunk, above
    for _turn in range(0, bits(chunk)):
        bit = height(e)
        made = e > (before >> LOG)
        node = nodes + ((c + e - 1 - chunk) * HV + h) * (K * V)
        P = times_transposed(
            do, os, node, initial, bit + LOG, L, size, made, i, x, live, BV, K, V, BK, C, STAGE, PRECISION
        )
        P = P * (scale * tl.exp(since + log))[:, None]
        of_weight = tl.sum(P * queries, axis=1)
        w = weights(lam, ls, i, live, bit + LOG + 1, L)
        put_column(dlam, dls, i, live, bit + LOG + 1, L, of_weight)
        dQ += P * w[:, None]
        above += tl.where(bit > 2, tl.sum(w * of_weight, axis=0), 0.0)
        log += tl.load(logs + (c + e - 1 - chunk) * HV + h, mask=made, other=0.0)
        e = e & (e - 1)
    tl.store(high + c * HV + h, above)
    read = tl.sum(dQ * queries, axis=1)

    dA = scale * dA * D  # of what H weights
    levels_of(dlam, dls, i, live, t, L, dA * products, inner, LOG)
    dA = dA * H
    gates = gate_gradients(dA * products, read, written, 0.0, C)
    tl.store(at(dg, dgs, b, h, begin) + i * dgs[1], gates, mask=live)
    staged = operand(dA, STAGE)
    put(at(dq, dqs, b, h, begin), dqs, i, x, live, dot_add(dQ, staged, operand(keys, STAGE), PRECISION), K)
    put(at(dk, dks, b, h, begin), dks, i, x, live, dot_add(dK, tl.trans(staged), operand(queries, STAGE), PRECISION), K)


@triton.jit
def put_column(ptr, strides, i, live, level, L, value):
    """Store [C] as one level of [.., L], if there is such a level; the mirror image of `weights`."""
    there = level + 0 * i < L
    tl.store(ptr + i * strides[1] + level * strides[3], value.to(ptr.dtype.element_ty), mask=live & there)


@triton.jit
def levels_of(dlam, strides, i, live, t, L, X, inner, LOG: tl.constexpr):
    """Store the gradients of levels 0 .. LOG: sums of X [C, C] over each, and what `inner` [C, 8] has for it."""
    apart, level = t[:, None] ^ t[None, :], tl.arange(0, 8)[None, :]
    own = tl.sum(tl.where(apart == 0, X, 0.0), axis=1)
    put_column(dlam, strides, i, live, 0, L, own)
    for bit in tl.static_range(0, LOG):  # pyright: ignore[reportGeneralTypeIssues]  (unrolled by the compiler)
        found = tl.sum(tl.where(apart >> bit == 1, X, 0.0), axis=1)
        found += tl.sum(tl.where(level == bit + 1, inner, 0.0), axis=1)
        put_column(dlam, strides, i, live, bit + 1, L, found)


@triton.jit
def gates(
    dg, partial, high, passing, through, strides, spans, places, sizes,
    LOG: tl.constexpr, BLOCKS: tl.constexpr, MANY: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """dg [B, T, HV], from `partial` and `high` (see `gradients`), and what passes through chunks and groups.

    A program is a group of 8 chunks of a head. passing [chunks, HV, blocks of them], through [groups, HV, blocks] or
    None; strides those of dg and partial; places (table of groups, first of chunks); sizes T, groups and chunks in a
    row, HV, and the blocks of both.
    """
    C: tl.constexpr = 1 << LOG
    T, each, each_chunk, HV, few, many = sizes
    ds, ps = strides
    table, first = places
    s, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    i, x = tl.arange(0, C), tl.arange(0, BLOCKS)
    n, b, begin, end, position = place(s, table, T, each, LOG + 3, MODE)
    _, before, _ = span(n, spans, T, MODE)
    dg, partial = at(dg, ds, b, h, begin), at(partial, ps, b, h, begin)
    later = tl.sum(tl.zeros([C], tl.float32), axis=0)
    if through is not None:
        y = tl.arange(0, MANY)
        later += tl.sum(tl.load(through + (s * HV + h) * many + y, mask=y < many, other=0.0), axis=0)
    start, count = position >> LOG, chunks_of(position, end - begin, LOG)
    c = number(n, position, before, first, each_chunk, LOG, MODE)
    for m in range(0, count):
        chunk = start + count - 1 - m
        index = (c + chunk - start) * HV + h
        t = tl.maximum(chunk * C - position, 0)
        left = tl.minimum((chunk + 1) * C - position, end - begin) - t
        here = tl.sum(tl.load(passing + index * few + x, mask=x < few, other=0.0), axis=0)
        found = tl.load(partial + (t + i) * ps[1], mask=i < left, other=0.0) + (here + later)
        tl.store(dg + (t + i) * ds[1], found.to(dg.dtype.element_ty), mask=i < left)
        later += tl.load(high + index)
