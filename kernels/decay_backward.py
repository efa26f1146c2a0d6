"""Gradients of the decay scan, chunk by chunk, from the states at each chunk's start and their gradients at its end.

With A = (Q K^T) * D, S the state before a chunk, dS the gradient of the one after it, dO as given (rows are tokens):

    dQ = scale d * (dO S^T) + dA K,   dK = e * (V dS^T) + dA^T Q,   dA = scale D * (dO V^T)
    dV = e * (K dS) + scale A^T dO

A gate g_t acts on what passes from a token s < t to a token t' >= t. So its gradient has four parts, each a sum of what
is there, none a difference: pairs inside the chunk, X = dA * (Q K^T) summed over t' >= t > s; what enters with S and is
read at t' >= t; what is written at s < t and leaves with dS; and what passes through, exp(sum g) <S, dS>.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot, dot_add, load_matrix, operand, put, segment, tile
from linattest.kernels.decay_scan import gates_of


@triton.jit
def gate_gradients(X, read, written, through, C: tl.constexpr):
    """Gradients [C] of the gates: X [C, C] (row t', column s), read and written [C], through a number."""
    t = tl.arange(0, C)
    row, column = t[:, None], t[None, :]
    pairs = tl.cumsum(X, axis=1)  # [t', c]: over s <= c
    before = tl.sum(tl.where(row > column, pairs, 0.0), axis=0) + tl.cumsum(written, axis=0)  # [c]: of gate c + 1
    shifted = tl.sum(tl.where(column == row - 1, before[None, :], 0.0), axis=1)
    return shifted + tl.cumsum(read, axis=0, reverse=True) + through


@triton.jit
def gradients(
    q, k, v, g, do, starts, ends, dq, dk, dv, dg, strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dq, dk [B, T, HV, K], dv [B, T, HV, V], dg [B, T, HV] of one chunk; starts, ends [chunks, HV, K, V]."""
    qs, ks, vs, gs, os, dqs, dks, dvs, dgs = strides
    T, each, HV, G = sizes
    pid = tl.program_id(0)
    c, h = pid // HV, pid % HV
    x, i = tl.arange(0, BK), tl.arange(0, C)
    _, b, begin, end = segment(c, table, T, each, C, PACKED)
    live = i < end - begin
    queries = tile(at(q, qs, b, h // G, begin), qs, i, x, live, K)  # [C, BK]
    keys = tile(at(k, ks, b, h // G, begin), ks, i, x, live, K)  # [C, BK]
    own, since, until = gates_of(at(g, gs, b, h, begin), gs, i, end - begin, STAGE)
    products = dot(queries, tl.trans(keys), PRECISION)  # [C, C]
    D = decays(own, C, STAGE)
    scores = operand(scale * products * D, STAGE)
    v, do, dv = at(v, vs, b, h, begin), at(do, os, b, h, begin), at(dv, dvs, b, h, begin)
    starts += (c.to(tl.int64) * HV + h) * (K * V)
    ends += (c.to(tl.int64) * HV + h) * (K * V)
    dA = tl.zeros([C, C], tl.float32)
    dQ = tl.zeros([C, BK], tl.float32)
    dK = tl.zeros([C, BK], tl.float32)
    through = tl.sum(tl.zeros([C], tl.float32), axis=0)
    for y0 in range(0, V, BV):
        y = y0 + tl.arange(0, BV)
        values = operand(tile(v, vs, i, y, live, V), STAGE)  # [C, BV]
        upstream = operand(tile(do, os, i, y, live, V), STAGE)  # [C, BV]
        S = load_matrix(starts, x, y, K, V)  # [BK, BV]
        dS = load_matrix(ends, x, y, K, V)  # [BK, BV]
        through += tl.sum(tl.sum(S.to(tl.float32) * dS.to(tl.float32), axis=1), axis=0)
        dA = dot_add(dA, upstream, tl.trans(values), PRECISION)
        dQ = dot_add(dQ, upstream, operand(tl.trans(S), STAGE), PRECISION)
        dK = dot_add(dK, values, operand(tl.trans(dS), STAGE), PRECISION)
        dV = dot(operand(keys, STAGE), operand(dS, STAGE), PRECISION) * tl.exp(until)[:, None]
        put(dv, dvs, i, y, live, dot_add(dV, tl.trans(scores), upstream, PRECISION), V)
    dA = scale * dA * D
    dQ = scale * dQ * tl.exp(since)[:, None]
    dK = dK * tl.exp(until)[:, None]
    read, written = tl.sum(dQ * queries, axis=1), tl.sum(dK * keys, axis=1)
    gates = gate_gradients(dA * products, read, written, through * tl.exp(tl.sum(own, axis=0)), C)
    tl.store(at(dg, dgs, b, h, begin) + i * dgs[1], gates.to(dg.dtype.element_ty), mask=live)
    staged = operand(dA, STAGE)
    put(at(dq, dqs, b, h, begin), dqs, i, x, live, dot_add(dQ, staged, operand(keys, STAGE), PRECISION), K)
    put(at(dk, dks, b, h, begin), dks, i, x, live, dot_add(dK, tl.trans(staged), operand(queries, STAGE), PRECISION), K)
