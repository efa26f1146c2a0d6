"""Gradients of a Fenwick scan's states: from the chunks that read a node, down the tree to the chunks that wrote it.

Chunk n reads a node of height j for each set bit j of n; those of a node e are the 2^j chunks from e on. Let X_j(n) be,
behind chunk n, the gradient at height j: where bit j of n is 1, of what it and later chunks share and have read there
so far; where it is 0, of the node that n is part of. Walking back over chunks,

    X_j <- exp(sum g) X_j + [bit j] Q^T (scale lam^{c + 1 + j} d * dO),     X_j <- 0 where chunk n - 1 ends another node

and the gradient of what chunk n wrote is U = sum of X_j over the zero bits j of n. With a gradient of the state behind
the call, X_j starts from that of each bucket j.

Heights 0 to 2 stay inside a group of 8 chunks and are walked there (`carry`); for the others `gather` sums what each
group reads, and `descend` walks from group to group, all heights of some numbers of a state at a time.

A gate acts on everything that is written before it and read after it: on what passes through its chunk too. With S_i
the nodes that chunk n reads, decayed to its start, that is
exp(sum g) sum_i <S_i, X_i + X_j summed over zero bits j > i>.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot_add, load_matrix, operand, store_matrix, tile
from linattest.kernels.decay_scan import gates_of
from linattest.kernels.fenwick_layout import bits, chunks_of, height, number, place, span
from linattest.kernels.fenwick_outputs import height_of_rows, weights


@triton.jit
def inner(a, b):
    """The sum of all products of two tiles."""
    return tl.sum(tl.sum(a * b, axis=1), axis=0)


@triton.jit
def reading(X, q, do, g, lam, strides, t, left, i, x, y, level, L, scale, K: tl.constexpr, V: tl.constexpr,
            STAGE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """X + Q^T (scale lam d * dO) [BK, BV] of the `left` tokens from t on; `level` is a number, or one a token."""
    q_strides, o_strides, g_strides, l_strides = strides
    live = i < left
    queries = tile(q + t * q_strides[1], q_strides, i, x, live, K)  # [C, BK]
    upstream = tile(do + t * o_strides[1], o_strides, i, y, live, V)  # [C, BV]
    _own, since, _until = gates_of(g + t * g_strides[1], g_strides, i, left, STAGE)
    w = scale * weights(lam + t * l_strides[1], l_strides, i, live, level, L) * tl.exp(since)
    weighted = operand(upstream * w[:, None], STAGE)
    return dot_add(X, tl.trans(operand(queries, STAGE)), weighted, PRECISION)  # [BK, C] [C, BV]


@triton.jit
def gather(
    found, totals, q, do, g, lam, strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """found [groups, J, HV, K, V]: what groups of 8 chunks read at heights 3 .. J + 2; totals [groups, HV] of gates.

    A program is BV columns at one height. strides are those of q, do, g, lam; sizes T, groups in a row, HV, value heads
    per head, L, J.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L, J = sizes
    q_strides, o_strides, g_strides, l_strides = strides
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, j = pid // blocks % HV, pid // (blocks * HV) % J
    s = (pid // (blocks * HV * J)).to(tl.int64)
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end, position = place(s, table, T, each, LOG + 3, MODE)
    q, do = at(q, q_strides, b, h // G, begin), at(do, o_strides, b, h, begin)
    g, lam = at(g, g_strides, b, h, begin), at(lam, l_strides, b, h, begin)
    if pid % blocks == 0 and j == 0:
        t = tl.arange(0, 8 * C)
        own = tl.load(g + t * g_strides[1], mask=begin + t < end, other=0.0).to(tl.float32)
        tl.store(totals + s * HV + h, tl.sum(own, axis=0))
    if ((position >> (LOG + 3)) >> j) & 1 == 1:
        X = tl.zeros([BK, BV], tl.float32)
        count = chunks_of(position, end - begin, LOG)
        for m in range(0, count):
            chunk = (position >> LOG) + count - 1 - m
            t = tl.maximum(chunk * C - position, 0)
            left = tl.minimum((chunk + 1) * C - position, end - begin) - t
            own, _since, _until = gates_of(g + t * g_strides[1], g_strides, i, left, STAGE)
            X = reading(
                X * tl.exp(tl.sum(own, axis=0)), q, do, g, lam, strides, t, left, i, x, y, j + LOG + 4, L, scale, K, V,
                STAGE, PRECISION,
            )  # fmt: skip
        store_matrix(found + ((s * J + j) * HV + h) * (K * V), x, y, X, K, V)


@triton.jit
def descend(
    upper, through, found, totals, tree, outer, spans, firsts, sizes,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, HEIGHTS: tl.constexpr, LOG: tl.constexpr, C: tl.constexpr,
    MODE: tl.constexpr,
):  # fmt: skip
    """upper [groups, HV, K, V]: the gradient of the state at a group's end that later groups give; through [groups, HV,
    blocks], what passes through a group; and of the gradient of the state before the call the levels of these heights.

    A program is BLOCK numbers of a state of a sequence. tree (nodes, logs); outer (initial, dfinal, dinitial), any
    None; LOG positions in a group, C in a chunk; firsts of groups and of chunks; sizes T, groups and chunks in a row,
    HV, L, J at most HEIGHTS.
    """
    T, each, each_chunk, HV, L, J = sizes
    nodes, logs = tree
    initial, dfinal, dinitial = outer
    first, first_chunk = firsts
    blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    h, n = pid // blocks % HV, (pid // (blocks * HV)).to(tl.int64)
    x, j = pid % blocks * BLOCK + tl.arange(0, BLOCK), tl.arange(0, HEIGHTS)
    _, before, behind = span(n, spans, T, MODE)
    size = SIZE * tl.cast(HV, tl.int64)
    inside = (j < J)[:, None] & (x < SIZE)[None, :]
    level = tl.minimum(j + LOG + 1, L - 1).to(tl.int64)
    where = (n * L * HV + h) * SIZE + level[:, None] * size + x[None, :]  # in a state
    X = tl.zeros([HEIGHTS, BLOCK], tl.float32)
    if dfinal is not None:
        X = tl.load(dfinal + where, mask=inside & (((behind >> LOG) >> j) & 1 == 1)[:, None], other=0.0)
    start, stop = before >> LOG, (behind + (1 << LOG) - 1) >> LOG
    member = number(n, before, before, first, each, LOG, MODE)
    c = number(n, before, before, first_chunk, each_chunk, C, MODE) - (before >> C)
    for m in range(0, stop - start):
        group = stop - 1 - tl.cast(m, tl.int64)
        index = (member + group - start) * HV + h
        one = ((group >> j) & 1 == 1) & (j < J)
        below = tl.where(one[:, None], 0.0, X)  # nodes that the group is part of
        tl.store(upper + index * SIZE + x, tl.sum(below, axis=0).to(upper.dtype.element_ty), mask=x < SIZE)
        e = (group >> j) << j
        made = one & (e << (LOG - C) > (before >> C))
        slot = (c + (e << (LOG - C)) - 1) * HV + h
        S = tl.load(nodes + slot[:, None] * SIZE + x[None, :], mask=inside & made[:, None], other=0.0).to(tl.float32)
        if initial is not None:
            S += tl.load(initial + where, mask=inside & (one & (made == 0))[:, None], other=0.0)
        log = tl.load(logs + slot, mask=made, other=0.0)
        log = tl.sum(tl.where(j[:, None] > j[None, :], log[None, :], 0.0), axis=1)
        kept = tl.exp(tl.load(totals + index))
        Y = X + tl.cumsum(below, axis=0, reverse=True)
        passing = kept * tl.exp(log) * tl.sum(S * Y, axis=1)
        tl.store(through + index * blocks + pid % blocks, tl.sum(tl.where(one, passing, 0.0), axis=0))
        add = found + (((member + group - start) * J + j[:, None]) * HV + h) * SIZE + x[None, :]
        X = X * kept + tl.load(add, mask=inside & one[:, None], other=0.0)
        if group > start:  # at the first one every sum is still needed
            X = tl.where((group & ((2 << j) - 1) == 0)[:, None], 0.0, X)
    if dinitial is not None:
        one = ((start >> j) & 1 == 1) & (j < J)
        Y = X + tl.cumsum(tl.where(one[:, None], 0.0, X), axis=0, reverse=True)
        if before < behind:
            tl.store(dinitial + where, Y, mask=inside & one[:, None])


@triton.jit
def level_of(state, bit, L, size):
    """Where a state (addressed at level 0) keeps the bucket of a set bit of its position."""
    return state + tl.minimum(bit + 1, L - 1) * size


@triton.jit
def bucket(node, state, bit, L, size, made, where, mask):
    """A node [BK, BV], float32: one of this call, or the bucket of a set bit of the state that it starts from."""
    if state is None:
        S = tl.load(node + where, mask=mask, other=0.0).to(tl.float32)
    else:
        S = tl.zeros_like(where).to(tl.float32)
        if made:
            S = tl.load(node + where, mask=mask, other=0.0).to(tl.float32)
        else:
            S = tl.load(level_of(state, bit, L, size) + where, mask=mask, other=0.0)
    return S


@triton.jit
def load_if(wanted, ptr, where, x, y, K: tl.constexpr, V: tl.constexpr):
    """A level [BK, BV] of a state, 0 unless `wanted`."""
    mask = (x < tl.where(wanted, K, 0))[:, None] & (y < V)[None, :]
    return tl.load(ptr + where, mask=mask, other=0.0)


@triton.jit
def of_inner(
    U, kept, inputs, strides, t, left, i, x, y, before, behind, outer, size, where, mask, L, scale,
    K: tl.constexpr, V: tl.constexpr, LOG: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the buckets of a state that lie inside the call's first chunk, stored; the product of these buckets
    with the gradient of what passes through the chunk: U, or that of the state behind it if the call ends there."""
    q, do, g, lam = inputs
    initial, dfinal, dinitial = outer
    lead, tail = before & ((1 << LOG) - 1), behind & ((1 << LOG) - 1)
    passing, rest = 0.0 * kept, lead
    for _turn in range(0, bits(lead)):
        bit = height(rest)
        rest = rest & (rest - 1)
        later = U
        if dfinal is not None:
            now = height_of_rows(tl.maximum(tail ^ rest, 1))
            later += load_if(behind >> LOG == before >> LOG, level_of(dfinal, now, L, size), where, x, y, K, V)
        passing += inner(later, tl.load(level_of(initial, bit, L, size) + where, mask=mask, other=0.0))
        levels = height_of_rows((lead + i) ^ rest) + 1
        X = reading(later * kept, q, do, g, lam, strides, t, left, i, x, y, levels, L, scale, K, V, STAGE, PRECISION)
        tl.store(level_of(dinitial, bit, L, size) + where, X, mask=mask)
    return passing


@triton.jit
def carry(
    ends, through, inputs, upper, tree, outer, spans, strides, places, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """ends [chunks, HV, K, V], the gradient of the state behind each chunk; through [chunks, HV, blocks], what passes
    through it within its group or leaves that; and the levels below of the gradient of the state before the call.

    A program is BV columns of v in a group. inputs (and strides) are q, do, g, lam; upper as in `descend`, or None;
    tree (nodes, logs); outer (initial, dfinal, dinitial); places (table of groups, first of chunks); sizes T, groups
    and chunks in a row, HV, value heads per head, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, each_chunk, HV, G, L = sizes
    q, do, g, lam = inputs
    q_strides, o_strides, g_strides, l_strides = strides
    nodes, logs = tree
    initial, dfinal, dinitial = outer
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * HV), pid // blocks % HV
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end, position = place(s, table, T, each, LOG + 3, MODE)
    _, before, behind = span(n, spans, T, MODE)
    old, size = before >> LOG, K * V * tl.cast(HV, tl.int64)
    where, mask = x[:, None] * V + y[None, :], (x < K)[:, None] & (y < V)[None, :]
    own_state = (n * L * HV + h) * (K * V)
    if initial is not None:
        initial += own_state
        dinitial += own_state
    if dfinal is not None:
        dfinal += own_state
    X0, X1, X2 = tl.zeros([BK, BV], tl.float32), tl.zeros([BK, BV], tl.float32), tl.zeros([BK, BV], tl.float32)
    fade = 1.0 + tl.sum(tl.zeros([C], tl.float32), axis=0)  # of the sum of all X_j above, over zero bits
    if upper is not None:
        upper += (s.to(tl.int64) * HV + h) * (K * V)
    if dfinal is not None:
        leaves = tl.where(behind >> (LOG + 3) == position >> (LOG + 3), behind >> LOG, 0)
        X0 = load_if(leaves & 1 != 0, level_of(dfinal, LOG, L, size), where, x, y, K, V)
        X1 = load_if(leaves & 2 != 0, level_of(dfinal, LOG + 1, L, size), where, x, y, K, V)
        X2 = load_if(leaves & 4 != 0, level_of(dfinal, LOG + 2, L, size), where, x, y, K, V)
    q, do = at(q, q_strides, b, h // G, begin), at(do, o_strides, b, h, begin)
    g, lam = at(g, g_strides, b, h, begin), at(lam, l_strides, b, h, begin)
    start, count = position >> LOG, chunks_of(position, end - begin, LOG)
    c = number(n, position, before, first, each_chunk, LOG, MODE)
    for m in range(0, count):
        chunk = start + count - 1 - tl.cast(m, tl.int64)
        index = (c + chunk - start) * HV + h
        t = tl.maximum(chunk * C - position, 0)
        left = tl.minimum((chunk + 1) * C - position, end - begin) - t
        own, _since, _until = gates_of(g + t * g_strides[1], g_strides, i, left, STAGE)
        log, total = tl.sum(tl.zeros([C], tl.float32), axis=0), tl.sum(own, axis=0)
        kept = tl.exp(total)
        # from the highest bit down: the sum over zero bits above
        above = tl.zeros([BK, BV], tl.float32)
        if upper is not None:
            above = load_matrix(upper, x, y, K, V) * fade
        passing, log0 = tl.sum(tl.zeros([C], tl.float32), axis=0), log
        if (chunk & 1) == 1:
            log0 = tl.load(logs + index - HV, mask=chunk > old, other=0.0)
        log1 = log0
        if (chunk & 2) == 2:
            log1 += tl.load(logs + index - ((chunk & 1) + 1) * HV, mask=chunk - (chunk & 1) > old, other=0.0)
        if (chunk & 4) == 4:
            e = chunk - (chunk & 3)
            node = nodes + (index - (chunk - e + 1) * HV) * (K * V)
            S = bucket(node, initial, LOG + 2, L, size, e > old, where, mask)
            passing += inner(S, X2 + above) * tl.exp(log1)
        else:
            above += X2
        if (chunk & 2) == 2:
            e = chunk - (chunk & 1)
            node = nodes + (index - (chunk - e + 1) * HV) * (K * V)
            S = bucket(node, initial, LOG + 1, L, size, e > old, where, mask)
            passing += inner(S, X1 + above) * tl.exp(log0)
        else:
            above += X1
        if (chunk & 1) == 1:
            node = nodes + (index - HV) * (K * V)
            S = bucket(node, initial, LOG, L, size, chunk > old, where, mask)
            passing += inner(S, X0 + above)
        else:
            above += X0
        store_matrix(ends + index * (K * V), x, y, above, K, V)
        if initial is not None:  # noqa: SIM102 (decided when compiled; the next is not)
            if position + t == before:  # buckets inside the first chunk
                passing += of_inner(
                    above, kept, (q, do, g, lam), strides, t, left, i, x, y, before, behind,
                    (initial, dfinal, dinitial), size, where, mask, L, scale, K, V, LOG, STAGE, PRECISION,
                )  # fmt: skip
        tl.store(through + index * blocks + pid % blocks, kept * passing)
        X0, X1, X2, fade = X0 * kept, X1 * kept, X2 * kept, fade * kept
        if (chunk & 1) == 1:
            X0 = reading(X0, q, do, g, lam, strides, t, left, i, x, y, LOG + 1, L, scale, K, V, STAGE, PRECISION)
        if (chunk & 2) == 2:
            X1 = reading(X1, q, do, g, lam, strides, t, left, i, x, y, LOG + 2, L, scale, K, V, STAGE, PRECISION)
        if (chunk & 4) == 4:
            X2 = reading(X2, q, do, g, lam, strides, t, left, i, x, y, LOG + 3, L, scale, K, V, STAGE, PRECISION)
        if chunk > old:  # at a call's first chunk every sum is still needed
            X0 = tl.where(chunk & 1 == 0, 0.0, X0)
            X1 = tl.where(chunk & 3 == 0, 0.0, X1)
            X2 = tl.where(chunk & 7 == 0, 0.0, X2)
    if dinitial is not None:  # noqa: SIM102 (decided when compiled; the next is not)
        if (position == before) & (begin < end):
            high = tl.zeros([BK, BV], tl.float32)
            if upper is not None:
                high = load_matrix(upper, x, y, K, V) * fade
            if (old & 4) == 4:
                tl.store(level_of(dinitial, LOG + 2, L, size) + where, X2 + high, mask=mask)
            else:
                high += X2
            if (old & 2) == 2:
                tl.store(level_of(dinitial, LOG + 1, L, size) + where, X1 + high, mask=mask)
            else:
                high += X1
            if (old & 1) == 1:
                tl.store(level_of(dinitial, LOG, L, size) + where, X0 + high, mask=mask)
