"""The Fenwick scan in Triton, one gate a head: the nodes of the tree over chunks, by an up-sweep.

    o_t = scale sum_{s <= t} lam_t^{level(t, s)} exp(g_{s+1} + ... + g_t) (q_t . k_s) v_s
    level(t, s) = 0 if s = t else bit_length(t XOR s)                        (t, s: absolute positions)

Chunks of C = 64 tokens are aligned to position 0. Node e (e = 1, 2, ..., height j the trailing zeros of e) is what
chunks e - 2^j .. e - 1 wrote, decayed to the end of chunk e - 1: a Fenwick tree, one node a chunk, kept where chunk
e - 1 is. Chunk n reads nodes n, n without its lowest set bit, and so on: one for each set bit (fenwick_outputs.py).

`states` walks 8 chunks with four sums: of this chunk, and of those since the last multiple of 2, 4 and 8. The one that
is complete is the node; the last one is the group's. `sweep` does the same with groups, then with groups of those, each
time in an eighth of the steps. All sums are float32; a node is rounded once, as the operand that it will be.

A call may start from a state: its buckets are the nodes left of the call's first chunk, and what is left of the first
token in that chunk. Each sum starts from those buckets that lie in it.

Source: [LogLinear]; [Fenwick94].
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, operand, store_matrix, tile
from linattest.kernels.decay_scan import gates_of
from linattest.kernels.fenwick_layout import bits, height, number, place, span


@triton.jit
def held(like, initial, stride, which, L, where, mask):
    """like + the buckets of a state for the set bits `which` of its position; `initial` addresses level 0."""
    rest = which
    for _turn in range(0, bits(which)):
        level = tl.minimum(height(rest) + 1, L - 1)
        like += tl.load(initial + level * stride + where, mask=mask, other=0.0)
        rest = rest & (rest - 1)
    return like


@triton.jit
def chosen(r, own, pair, four, eight):
    """The node that ends with member r of a group of 8."""
    return tl.where(r % 2 == 0, own, tl.where(r % 4 == 1, pair, tl.where(r == 3, four, eight)))


@triton.jit
def keep(final, e, behind, L, stride, where, mask, value, LOG: tl.constexpr):
    """Store node e, which ends before group e of 2^LOG positions, in the state behind the call if that has it."""
    if final is not None:
        j = height(e)
        if (((behind >> LOG) >> j) << j == e) & (j <= 3):
            level = tl.minimum(j + LOG + 1, L - 1)
            tl.store(final + level * stride + where, value, mask=mask)


@triton.jit
def states(
    nodes, logs, roots, totals, k, v, g, initial, final, spans, strides, places, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """nodes [chunks, HV, K, V] and logs [chunks, HV], their sums of gates; roots and totals of groups of 8 chunks.

    A program is BV columns of v in a group; only whole chunks have nodes. initial, final [N, L, HV, K, V] or None;
    strides are those of k, v, g; places (table of groups, first of chunks); sizes T, groups and chunks in a row, HV,
    value heads per head, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, each_chunk, HV, G, L = sizes
    k_strides, v_strides, g_strides = strides
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * HV), pid // blocks % HV
    y, x, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end, position = place(s, table, T, each, LOG + 3, MODE)
    _, before, behind = span(n, spans, T, MODE)
    where, mask = x[:, None] * V + y[None, :], (x < K)[:, None] & (y < V)[None, :]
    size = K * V * tl.cast(HV, tl.int64)
    own_state = (n * L * HV + h) * (K * V)
    pair, four = tl.zeros([BK, BV], tl.float32), tl.zeros([BK, BV], tl.float32)
    eight, low = tl.zeros([BK, BV], tl.float32), tl.zeros([BK, BV], tl.float32)
    if initial is not None:
        initial += own_state
        held_bits = tl.where(position == before, before, 0)
        low = held(low, initial, size, held_bits & (C - 1), L, where, mask)
        pair = held(pair, initial, size, held_bits & C, L, where, mask)
        four = held(pair, initial, size, held_bits & (2 * C), L, where, mask)
        eight = held(four, initial, size, held_bits & (4 * C), L, where, mask)
    if final is not None:
        final += own_state
    k, v, g = at(k, k_strides, b, h // G, begin), at(v, v_strides, b, h, begin), at(g, g_strides, b, h, begin)
    c = number(n, position, before, first, each_chunk, LOG, MODE)
    log_pair, log_four = tl.sum(tl.zeros([C], tl.float32), axis=0), tl.sum(tl.zeros([C], tl.float32), axis=0)
    log_eight = tl.sum(tl.zeros([C], tl.float32), axis=0)
    start = position >> LOG
    for m in range(start, (position + end - begin) >> LOG):
        chunk = tl.cast(m, tl.int64)
        t = tl.maximum(chunk * C - position, 0)
        left = (chunk + 1) * C - position - t
        keys = tile(k + t * k_strides[1], k_strides, i, x, i < left, K)  # [C, BK]
        values = tile(v + t * v_strides[1], v_strides, i, y, i < left, V)  # [C, BV]
        own, _since, until = gates_of(g + t * g_strides[1], g_strides, i, left, STAGE)
        log = tl.sum(own, axis=0)
        kept = tl.exp(log)
        weighted = operand(values * tl.exp(until)[:, None], STAGE)
        leaf = dot(tl.trans(operand(keys, STAGE)), weighted, PRECISION)  # [BK, C] [C, BV]
        if initial is not None:
            leaf += kept * low
            low = tl.zeros([BK, BV], tl.float32)
        r = chunk & 7
        pair = tl.where(r % 2 == 0, 0.0, pair * kept) + leaf
        four = tl.where(r % 4 == 0, 0.0, four * kept) + leaf
        eight = tl.where(r == 0, 0.0, eight * kept) + leaf
        log_pair = tl.where(r % 2 == 0, 0.0, log_pair) + log
        log_four = tl.where(r % 4 == 0, 0.0, log_four) + log
        log_eight = tl.where(r == 0, 0.0, log_eight) + log
        index = (c + chunk - start) * HV + h
        node = chosen(r, leaf, pair, four, eight)
        store_matrix(nodes + index * (K * V), x, y, node, K, V)
        if pid % blocks == 0:
            tl.store(logs + index, chosen(r, log, log_pair, log_four, log_eight))
        keep(final, chunk + 1, behind, L, size, where, mask, node, LOG)
    if roots is not None:
        index = s.to(tl.int64) * HV + h
        store_matrix(roots + index * (K * V), x, y, eight, K, V)
        if pid % blocks == 0:
            tl.store(totals + index, log_eight)


@triton.jit
def sweep(
    nodes, logs, below, totals_below, roots, totals, initial, final, spans, places, sizes,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Nodes between the groups of 2^LOG positions in each group of 8 of them, and that group's root.

    below, totals_below are the roots of the smaller groups; a program is BLOCK numbers of a state (SIZE = K V of them).
    places (table of groups, first of the smaller ones, first of chunks); sizes T, groups, smaller ones and chunks in a
    row, HV, L.
    """
    T, each, each_below, each_chunk, HV, L = sizes
    table, first, first_chunk = places
    blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    s, h = pid // (blocks * HV), pid // blocks % HV
    x = pid % blocks * BLOCK + tl.arange(0, BLOCK)
    live = x < SIZE
    n, _, begin, end, position = place(s, table, T, each, LOG + 3, MODE)
    _, before, behind = span(n, spans, T, MODE)
    size = SIZE * tl.cast(HV, tl.int64)
    own_state = (n * L * HV + h) * SIZE
    pair, four, eight = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    if initial is not None:
        initial += own_state
        held_bits = tl.where(position == before, before, 0)
        pair = held(pair, initial, size, held_bits & (1 << LOG), L, x, live)
        four = held(pair, initial, size, held_bits & (2 << LOG), L, x, live)
        eight = held(four, initial, size, held_bits & (4 << LOG), L, x, live)
    if final is not None:
        final += own_state
    member = number(n, position, before, first, each_below, LOG, MODE)
    c = number(n, position, before, first_chunk, each_chunk, C, MODE) - (position >> C)
    none = tl.sum(tl.zeros([BLOCK], tl.float32), axis=0)
    log_pair, log_four, log_eight = none, none, none
    start = position >> LOG
    for m in range(start, (position + end - begin) >> LOG):
        group = tl.cast(m, tl.int64)
        index = (member + group - start) * HV + h
        own, log = tl.load(below + index * SIZE + x, mask=live, other=0.0), tl.load(totals_below + index)
        kept, r = tl.exp(log), group & 7
        pair = tl.where(r % 2 == 0, 0.0, pair * kept) + own
        four = tl.where(r % 4 == 0, 0.0, four * kept) + own
        eight = tl.where(r == 0, 0.0, eight * kept) + own
        log_pair = tl.where(r % 2 == 0, 0.0, log_pair) + log
        log_four = tl.where(r % 4 == 0, 0.0, log_four) + log
        log_eight = tl.where(r == 0, 0.0, log_eight) + log
        node = chosen(r, own, pair, four, eight)
        if r % 2 == 1:  # the others are roots: nodes already
            index = (c + (((group + 1) << LOG) >> C) - 1) * HV + h
            tl.store(nodes + index * SIZE + x, node.to(nodes.dtype.element_ty), mask=live)
            if pid % blocks == 0:
                tl.store(logs + index, chosen(r, log, log_pair, log_four, log_eight))
            keep(final, group + 1, behind, L, size, x, live, node, LOG)
    if roots is not None:
        index = s.to(tl.int64) * HV + h
        tl.store(roots + index * SIZE + x, eight, mask=live)
        if pid % blocks == 0:
            tl.store(totals + index, log_eight)
