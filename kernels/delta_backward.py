"""Gradients of the delta scan, chunk by chunk, from what the walks left: states, residuals and their gradients.

With S the state before a chunk and G the gradient of the one behind it (here [K, V]), R the residuals, dU the gradient
of V, dO as given (rows are tokens), w = beta * write, and C x C matrices

    dM = scale lower(dO R^T) * D,   dA = -strict_lower(dU R^T) * D
    dQ = scale d * (dO S^T) + dM w,   dE = -d * (dU S^T) + dA w,   dw = e * (R G^T) + dM^T Q + dA^T E

Where write is erase, its gradient is dE + beta * dw, and that of beta is the product of write and dw, row by row.

The gradient of a gate has four parts, each a sum of what is there, none a difference (see decay_backward.py): pairs in
the chunk, dM * (Q w^T) + dA * (E w^T); what enters with S and is read; what is written and leaves; what passes through.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot_add, load_matrix, operand, put, segment, tile
from linattest.kernels.decay_scan import gates_of
from linattest.kernels.delta_inverse import betas


@triton.jit
def _crossing(X, C: tl.constexpr):
    """X [C, C] (row t, column s): at c the sum over s <= c < t, which is what gate c + 1 acts on."""
    t = tl.arange(0, C)
    return tl.sum(tl.where(t[:, None] > t[None, :], tl.cumsum(X, axis=1), 0.0), axis=0)


@triton.jit
def _gates(pairs, read, written, through, C: tl.constexpr):
    """Gradients [C] of the gates from `_crossing`, what is read and written [C], and what passes through."""
    t = tl.arange(0, C)
    before = pairs + tl.cumsum(written, axis=0)
    shifted = tl.sum(tl.where(t[None, :] == t[:, None] - 1, before[None, :], 0.0), axis=1)
    return shifted + tl.cumsum(read, axis=0, reverse=True) + through


@triton.jit
def _products(a, b, a_strides, b_strides, live, WIDTH: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
              STAGE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A B^T [C, C] of the chunks [C, WIDTH] at addresses a and b."""
    i = tl.arange(0, C)
    acc = tl.zeros([C, C], tl.float32)
    for x0 in range(0, WIDTH, BLOCK):
        x = x0 + tl.arange(0, BLOCK)
        A = operand(tile(a, a_strides, i, x, live, WIDTH), STAGE)  # [C, BLOCK]
        B = operand(tile(b, b_strides, i, x, live, WIDTH), STAGE)  # [C, BLOCK]
        acc = dot_add(acc, A, tl.trans(B), PRECISION)  # [C, BLOCK] [BLOCK, C]
    return acc


@triton.jit
def gradients(
    results, inputs, walked, strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Gradients [B, T, HV, K] of q, erase and write, and [B, T, HV] of g and beta: `results`, absent as those are.

    A program is a chunk of a head. inputs are q, erase, write, g, beta, do; walked starts, ends [chunks, HV, V, K],
    residuals, du [B, T, HV, V]; strides those of the results, of the inputs, and of residuals, du; sizes T,
    chunks in a row, HV, and value heads per head of q, of erase and of write.
    """
    T, each, HV, per_query, per_erase, per_write = sizes
    dqs, des, dws, dgs, dbs, qs, es, ws, gs, bs, os, rs, us = strides
    dq, derase, dwrite, dg, dbeta = results
    q, erase, write, g, beta, do = inputs
    starts, ends, rest, du = walked
    c, h, i = tl.program_id(0) // HV, tl.program_id(0) % HV, tl.arange(0, C)
    _, b, t0, end = segment(c, table, T, each, C, PACKED)
    live = t0 + i < end
    q, erase = at(q, qs, b, h // per_query, t0), at(erase, es, b, h // per_erase, t0)
    if write is not None:
        write = at(write, ws, b, h // per_write, t0)
    do, rest, du = at(do, os, b, h, t0), at(rest, rs, b, h, t0), at(du, us, b, h, t0)
    starts += (c.to(tl.int64) * HV + h) * (V * K)
    ends += (c.to(tl.int64) * HV + h) * (V * K)

    row, column = i[:, None], i[None, :]
    factor = betas(beta, bs, b, h, t0, end, C)
    w, w_strides = (erase, es) if write is None else (write, ws)
    dA = -_products(du, rest, us, rs, live, V, BV, C, STAGE, PRECISION)
    dA = tl.where(row > column, dA, 0.0)
    pairs, since, until = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    own = tl.zeros([C], tl.float32)
    if g is not None:
        own, since, until = gates_of(at(g, gs, b, h, t0), gs, i, end - t0, STAGE)
        dA *= decays(own, C, STAGE)
        X = _products(erase, w, es, w_strides, live, K, BK, C, STAGE, PRECISION)
        pairs = _crossing(dA * X * factor[None, :], C)
    dA = operand(dA, STAGE)
    dM = _products(do, rest, os, rs, live, V, BV, C, STAGE, PRECISION)
    dM = tl.where(row >= column, dM, 0.0)
    if g is not None:
        dM *= decays(own, C, STAGE)
        # anew: what the forward kept of it is rounded, which gates of coherent keys show (terms that cancel)
        X = _products(q, w, qs, w_strides, live, K, BK, C, STAGE, PRECISION)
        pairs += _crossing(scale * dM * X * factor[None, :], C)
    dM = operand(scale * dM, STAGE)
    d, e = tl.exp(since), tl.exp(until)

    read, written, of_beta = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    through = tl.sum(tl.zeros([C], tl.float32), axis=0)
    for k0 in range(0, K, BK):
        x = k0 + tl.arange(0, BK)
        dQ, dE = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
        dW = tl.zeros([C, BK], tl.float32)
        for v0 in range(0, V, BV):
            y = v0 + tl.arange(0, BV)
            S, G = load_matrix(starts, y, x, V, K), load_matrix(ends, y, x, V, K)  # [BV, BK] both
            if g is not None:
                through += tl.sum(tl.sum(S.to(tl.float32) * G.to(tl.float32), axis=1), axis=0)
            S, G = operand(S, STAGE), operand(G, STAGE)
            dQ = dot_add(dQ, operand(tile(do, os, i, y, live, V), STAGE), S, PRECISION)  # [C, BV] [BV, BK]
            dE = dot_add(dE, operand(tile(du, us, i, y, live, V), STAGE), S, PRECISION)  # [C, BV] [BV, BK]
            dW = dot_add(dW, operand(tile(rest, rs, i, y, live, V), STAGE), G, PRECISION)  # [C, BV] [BV, BK]
        dQ, dE, dW = dQ * (scale * d)[:, None], dE * -d[:, None], dW * e[:, None]
        Q, E = tile(q, qs, i, x, live, K), tile(erase, es, i, x, live, K)  # [C, BK] both
        W = E if write is None else tile(write, ws, i, x, live, K)  # [C, BK]
        if g is not None:
            read += tl.sum(dQ * Q + dE * E, axis=1)
            written += tl.sum(dW * W, axis=1) * factor
        weighted = operand(W if beta is None else W * factor[:, None], STAGE)
        dQ = dot_add(dQ, dM, weighted, PRECISION)  # [C, C] [C, BK], also those below
        put(at(dq, dqs, b, h, t0), dqs, i, x, live, dQ, K)
        dE = dot_add(dE, dA, weighted, PRECISION)
        dW = dot_add(dW, tl.trans(dM), operand(Q, STAGE), PRECISION)
        dW = dot_add(dW, tl.trans(dA), operand(E, STAGE), PRECISION)
        if beta is not None:
            of_beta += tl.sum(dW * W, axis=1)
            dW *= factor[:, None]
        if write is None:
            put(at(derase, des, b, h, t0), des, i, x, live, dE + dW, K)
        else:
            put(at(derase, des, b, h, t0), des, i, x, live, dE, K)
            put(at(dwrite, dws, b, h, t0), dws, i, x, live, dW, K)
    if g is not None:
        gates = _gates(pairs, read, written, through * tl.exp(tl.sum(own, axis=0)), C)
        tl.store(at(dg, dgs, b, h, t0) + i * dgs[1], gates.to(dg.dtype.element_ty), mask=live)
    if beta is not None:
        tl.store(at(dbeta, dbs, b, h, t0) + i * dbs[1], of_beta.to(dbeta.dtype.element_ty), mask=live)
