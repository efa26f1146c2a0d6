"""What a chunk of the gated-delta transition reads and does to a state, token by token: for float32.

Where tokens erase again and again what an earlier one wrote, next to nothing of it is left, and each level of
log-linear attention reads that by itself. Triangular inverses and c I - N have it to a rounding of what there was; the
product of transitions, taken one after the other, to a rounding of itself. With Z = [P | Y] (notation of
fenwick_delta.py, columns of [K, V] states),

    Z <- exp(g_t) (I - beta_t k_t k_t^T) Z,   column t of Y <- beta_t k_t,   rows t of R and M = scale q_t^T Z

Columns are independent. P is kept as c = 0 and N = -P, but for chunks that erase nothing, whose c I has all digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, operand, put, store_matrix, tile
from linattest.kernels.fenwick_delta import held_rows
from linattest.kernels.fenwick_delta_final import through
from linattest.kernels.fenwick_layout import place, span


@triton.jit
def tokens(
    r, m, y, maps, keeps, inputs, strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """r, y [B, T, HV, K] (R; rows of Y^T), m [B, T, HV, C] (M); maps [chunks, HV, K, K] (N), keeps [chunks, HV] (c).

    A program is BV columns of Z, those of P first. inputs (q, k, g, beta); strides those of r, m, y and of the inputs;
    sizes T, chunks in a row, HV, value heads per head.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G = sizes
    rs, ms, ys, qs, ks, gs, bs = strides
    q, k, g, beta = inputs
    blocks: tl.constexpr = (BK + C) // BV
    pid = tl.program_id(0)
    block, h, c = pid % blocks, pid // blocks % HV, (pid // (blocks * HV)).to(tl.int64)
    x, i = tl.arange(0, BK), tl.arange(0, C)
    column = block * BV + tl.arange(0, BV)
    token = column - BK
    _, b, begin, end, _ = place(c, table, T, each, LOG, MODE)
    if begin < end:
        live = i < end - begin
        q, k, r = at(q, qs, b, h // G, begin), at(k, ks, b, h // G, begin), at(r, rs, b, h, begin)
        g, beta, m = at(g, gs, b, h, begin), at(beta, bs, b, h, begin), at(m, ms, b, h, begin)
        keys = tl.max(tl.abs(tile(k, ks, i, x, live, K).to(tl.float32)), axis=1)
        factors = tl.load(beta + i * bs[1], mask=live, other=0.0).to(tl.float32)
        erases = tl.sum(tl.where(keys * factors == 0, 0, 1), axis=0) > 0  # NaN does
        kept = tl.exp(tl.sum(tl.load(g + i * gs[1], mask=live, other=0.0).to(tl.float32), axis=0))
        Z = tl.where(x[:, None] == column[None, :], 1.0, 0.0)
        for step in range(0, end - begin):
            t = tl.cast(step, tl.int64)
            key = tl.load(k + t * ks[1] + x * ks[3], mask=x < K, other=0.0).to(tl.float32)
            query = tl.load(q + t * qs[1] + x * qs[3], mask=x < K, other=0.0).to(tl.float32)
            write = key * tl.load(beta + t * bs[1]).to(tl.float32)
            Z -= write[:, None] * tl.sum(Z * key[:, None], axis=0)[None, :]
            Z *= tl.exp(tl.load(g + t * gs[1]).to(tl.float32))
            Z += tl.where(token == t, 1.0, 0.0)[None, :] * write[:, None]
            read = scale * tl.sum(Z * query[:, None], axis=0)  # [BV]
            tl.store(r + t * rs[1] + column, read, mask=column < K)
            tl.store(m + t * ms[1] + token, read, mask=token >= 0)
        ptr = maps + (c * HV + h) * (K * K)
        Z = tl.trans(Z)  # [BV, BK]
        put(at(y, ys, b, h, begin), ys, token, x, (token >= 0) & (token < end - begin), Z, K)
        store_matrix(ptr, column, x, tl.where(erases, -Z, 0.0), K, K)
        if block == 0:
            tl.store(keeps + c * HV + h, tl.where(erases, 0.0, kept))


@triton.jit
def writes(
    found, v, y, maps, keeps, initial, spans, strides, table, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """found [chunks, HV, V, K]: B of each chunk, with what a state holds inside the call's first one.

    A program is BV rows. strides those of v and y; sizes T, chunks in a row, HV, L.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, L = sizes
    v_strides, y_strides = strides
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    h, c = pid // blocks % HV, (pid // (blocks * HV)).to(tl.int64)
    rows, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, before, _ = span(n, spans, T, MODE)
    if begin < end:
        live = i < end - begin
        values = operand(tile(at(v, v_strides, b, h, begin), v_strides, i, rows, live, V), STAGE)  # [C, BV]
        Y = operand(tile(at(y, y_strides, b, h, begin), y_strides, i, channels, live, K), STAGE)  # [C, BK]
        B = dot(tl.trans(values), Y, PRECISION)  # [BV, C] [C, BK]
        if initial is not None:
            where = (n * L * HV + h) * (K * V) + rows[:, None] + channels[None, :] * V
            mask = (rows < V)[:, None] & (channels < K)[None, :]
            inner = tl.where(position == before, before & (C - 1), 0)
            S = tl.zeros([BV, BK], tl.float32)
            S = held_rows(S, initial, K * V * tl.cast(HV, tl.int64), inner, L, where, mask)
            B += through(S, maps, keeps, c * HV + h, channels, K, STAGE, PRECISION)
        store_matrix(found + (c * HV + h) * (V * K), rows, channels, B, V, K)
