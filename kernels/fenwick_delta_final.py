"""The state behind a Fenwick scan with the gated-delta transition: the buckets of its position, carried to the end.

Equations in fenwick_delta.py. `final_state` carries a bucket through the nodes that follow it, `final_walk` through
each token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, tile
from linattest.kernels.delta_walk import factors_of
from linattest.kernels.fenwick_delta import ROOM, transposed_level, written
from linattest.kernels.fenwick_layout import bits, height, number, span
from linattest.kernels.fenwick_outputs import height_of_rows


@triton.jit
def halves(x):
    """The left and the right half of a matrix's columns."""
    return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), [0, 2, 1]))


@triton.jit
def _carried(
    S, maps, keeps, slot, channels, K: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr, BACK: tl.constexpr
):
    """S P, or S P^T if BACK.

    Where N is more than shared memory's ROOM, it is read a quarter of the channels that are summed over at a time.
    """
    BK: tl.constexpr = S.shape[1]
    ptr = maps + slot * (K * K)
    if BK * STAGE.primitive_bitwidth > ROOM:
        left, right = halves(S)
        kept = S * tl.load(keeps + slot)
        parts = halves(left) + halves(right)
        for j in tl.static_range(4):  # pyright: ignore[reportGeneralTypeIssues]
            x = j * (BK // 4) + tl.arange(0, BK // 4)
            if BACK:
                N = tl.trans(operand(load_matrix(ptr, channels, x, K, K), STAGE))  # [BK / 4, BK]
            else:
                N = operand(load_matrix(ptr, x, channels, K, K), STAGE)  # [BK / 4, BK]
            kept = dot_add(kept, operand(-parts[j], STAGE), N, PRECISION)  # [rows, BK / 4] [BK / 4, BK]
        return kept
    N = operand(load_matrix(ptr, channels, channels, K, K), STAGE)  # [BK, BK]
    if BACK:
        N = tl.trans(N)
    return dot_add(S * tl.load(keeps + slot), operand(-S, STAGE), N, PRECISION)  # [rows, BK] [BK, BK]


@triton.jit
def through(S, maps, keeps, slot, channels, K: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr):
    """S P of one node, or chunk: S [rows, BK]."""
    return _carried(S, maps, keeps, slot, channels, K, STAGE, PRECISION, False)


@triton.jit
def back(X, maps, keeps, slot, channels, K: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr):
    """X P^T of one chunk: X [rows, BK]."""
    return _carried(X, maps, keeps, slot, channels, K, STAGE, PRECISION, True)


@triton.jit
def final_state(
    final, k, v, tm, factors, tree, initial, spans, strides, places, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """final [N, L, HV, K, V]; a program is BV columns of one level.

    strides are those of k, v, tm, factors; the rest as in `outputs`. The last chunk, if it is not whole, has its map in
    the tree too. Too few levels for the position behind the call: the last one is NaN.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    k_strides, v_strides, tm_strides, f_strides = strides
    maps, writes, keeps = tree
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, level = pid // blocks % HV, pid // (blocks * HV) % L
    n = (pid // (blocks * HV * L)).to(tl.int64)
    rows, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    start, before, behind = span(n, spans, T, MODE)
    b = 0 * n if MODE == 1 else n
    old, last = before >> LOG, behind >> LOG
    bit = level.to(tl.int64) - 1 + tl.where(level == L - 1, (behind >> (L - 1)) & 1, 0)
    filled = (bit >= 0) & ((behind >> tl.maximum(bit, 0)) & 1 == 1)
    bit = tl.maximum(bit, 0)
    S = tl.zeros([BV, BK], tl.float32)
    count = tl.minimum(behind & (C - 1), behind - before)  # tokens of the last chunk
    c = number(n, last << LOG, before, first, each, LOG, MODE) - last
    if filled & (bit >= LOG):
        e = last >> (bit - LOG) << (bit - LOG)
        if e > old:
            S = load_matrix(writes + ((c + e - 1) * HV + h) * (V * K), rows, channels, V, K)
        elif initial is not None:
            S = transposed_level(initial, n, h, HV, L, level, rows, channels, K, V)
        rest = last - e
        for _turn in range(0, bits(rest)):  # nodes that follow, in order
            high = tl.cast(1, tl.int64) << height_of_rows(rest)
            e, rest = e + high, rest - high
            if e > old:
                S = through(S, maps, keeps, (c + e - 1) * HV + h, channels, K, STAGE, PRECISION)
        if count > 0:
            S = through(S, maps, keeps, (c + last) * HV + h, channels, K, STAGE, PRECISION)
    if filled & (bit < LOG):
        tail = (behind & (C - 1)).to(tl.int32)
        if initial is not None:
            held = tl.where(old == last, before & (C - 1), 0)
            for _turn in range(0, bits(held)):
                source = tl.minimum(height(held) + 1, L - 1)
                held = held & (held - 1)
                if height_of_rows((tail ^ held.to(tl.int32)).to(tl.int64)) == bit:
                    S += transposed_level(initial, n, h, HV, L, source, rows, channels, K, V)
        if count > 0:
            begin, t = start + behind - before - count, ((behind - count) & (C - 1)).to(tl.int32) + i
            live = i < count
            d, f, kept = factors_of(factors, f_strides, b, h, begin, begin + count, C)
            E = operand(tile(at(k, k_strides, b, h // G, begin), k_strides, i, channels, live, K), STAGE)  # [C, BK]
            token = (tail >> (bit + 1)) << (bit + 1)
            own = live & (t >= token) & (t < token + (1 << bit))
            x = tl.trans(tile(at(v, v_strides, b, h, begin), v_strides, i, rows, own, V)).to(tl.float32)  # [BV, C]
            x -= dot(operand(S, STAGE), tl.trans(E), PRECISION) * d[None, :]  # [BV, BK] [BK, C]
            S = written(S, x, at(tm, tm_strides, b, h, begin), tm_strides, E, f, kept, i, live, C, STAGE, PRECISION)
    if (behind >> tl.minimum(L - 1, 62) > tl.where(behind & (behind - 1) == 0, 1, 0)) & (level == L - 1):
        S += float("nan")
    ptr = final + ((n * L + level) * HV + h) * (K * V)
    mask = (rows < V)[:, None] & (channels < K)[None, :]
    tl.store(ptr + rows[:, None] + channels[None, :] * V, S, mask=mask)


@triton.jit
def final_walk(
    final, inputs, writes, initial, spans, strides, places, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """As `final_state`, each bucket carried token by token: for float32, whose digits c S - S N does not keep.

    Where tokens erase again and again what a bucket holds, next to nothing is left of it, and nothing is written there:
    a difference has that to a rounding of what there was. inputs (k, v, g, beta) and their strides.
    """
    T, each, HV, G, L = sizes
    k, v, g, beta = inputs
    k_strides, v_strides, g_strides, b_strides = strides
    table, first = places
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, level = pid // blocks % HV, pid // (blocks * HV) % L
    n = (pid // (blocks * HV * L)).to(tl.int64)
    rows, channels = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK)
    start, before, behind = span(n, spans, T, MODE)
    b = 0 * n if MODE == 1 else n
    bit = level.to(tl.int64) - 1 + tl.where(level == L - 1, (behind >> (L - 1)) & 1, 0)
    filled = (bit >= 0) & ((behind >> tl.maximum(bit, 0)) & 1 == 1)
    bit = tl.maximum(bit, 0)
    token = (behind >> (bit + 1)) << (bit + 1)  # the bucket's first token, and the one behind it
    stop = token + (tl.cast(1, tl.int64) << bit)
    S = tl.zeros([BV, BK], tl.float32)
    t = tl.maximum(before, tl.where(bit < LOG, token, stop))
    if filled & (bit >= LOG) & (stop > before):
        c = number(n, stop - 1, before, first, each, LOG, MODE)
        S = load_matrix(writes + (c * HV + h) * (V * K), rows, channels, V, K)
    elif filled:  # noqa: SIM102 (the next is decided when compiled)
        if initial is not None:
            held = before
            for _turn in range(0, bits(before)):
                source = tl.minimum(height(held) + 1, L - 1)
                held = held & (held - 1)
                if (held >= token) & (held < stop):
                    S += transposed_level(initial, n, h, HV, L, source, rows, channels, K, V)
    k, v = at(k, k_strides, b, h // G, start), at(v, v_strides, b, h, start)
    g, beta = at(g, g_strides, b, h, start), at(beta, b_strides, b, h, start)
    if filled:
        for place_of in range(t - before, behind - before):
            i = tl.cast(place_of, tl.int64)
            key = tl.load(k + i * k_strides[1] + channels * k_strides[3], mask=channels < K, other=0.0).to(tl.float32)
            width = tl.where((bit < LOG) & (before + i < stop), V, 0)
            value = tl.load(v + i * v_strides[1] + rows * v_strides[3], mask=rows < width, other=0.0).to(tl.float32)
            factor = tl.load(beta + i * b_strides[1]).to(tl.float32)
            S *= tl.exp(tl.load(g + i * g_strides[1]).to(tl.float32))
            change = value - tl.sum(S * key[None, :], axis=1)  # [BV]
            S += (factor * change)[:, None] * key[None, :]
    if (behind >> tl.minimum(L - 1, 62) > tl.where(behind & (behind - 1) == 0, 1, 0)) & (level == L - 1):
        S += float("nan")
    ptr = final + ((n * L + level) * HV + h) * (K * V)
    mask = (rows < V)[:, None] & (channels < K)[None, :]
    tl.store(ptr + rows[:, None] + channels[None, :] * V, S, mask=mask)
