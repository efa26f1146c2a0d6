"""Gradients of a Fenwick scan with the gated-delta transition, chunk by chunk, from those of what leaves a chunk.

Of a chunk (rows are tokens; notation of fenwick_delta.py, W = beta E, e the decay to the chunk's end, G = M0) with

    A = strict_lower(E W^T * D),   Tm = (I + A)^{-1},   M = G Tm,   Y = Tm^T (e * W)
    N = (d * E)^T Y,   B = V^T Y,   R = scale d * Q - M (d * E),   O = (M * H) V + what R reads

are given dO, and by fenwick_delta_upstream.py U of B, dP (-dN), dR. `pairs` makes what two tokens share,

    dY = V U - (d * E) dP,   dM = lower(dO V^T * H) - dR (d * E)^T,   dlam from dO V^T * M
    dTm = (e * W) dY^T + G^T dM,   dG = dM Tm^T,   dA = -strict_lower(Tm^T dTm Tm^T)

and `ends` what one token has: dV = (M * H)^T dO + Y U^T, and

    dE = -d * (M^T dR + Y dP^T) + (dA * D) W,   dW = e * (Tm dY) + (dA * D)^T E + scale (dG * D)^T Q
    dQ = scale d * dR + scale (dG * D) W,   dk = dE + beta dW,   dbeta = E . dW

Gates as in delta_backward.py. Buckets of the state behind the call inside its last chunk add to U, for their tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot, dot_add, load_matrix, operand, put, tile
from linattest.kernels.decay_scan import gates_of
from linattest.kernels.delta_inverse import betas
from linattest.kernels.delta_walk import factors_of
from linattest.kernels.fenwick_backward import levels_of
from linattest.kernels.fenwick_delta import transposed_level
from linattest.kernels.fenwick_layout import bits, height, place, span
from linattest.kernels.fenwick_outputs import mask_of_levels


@triton.jit
def tails(
    acc, left, dfinal, tail, t, n, h, HV, L, rows, channels, of_values: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + left F (F^T if `of_values`), F [rows, channels] of the bucket behind the call that each token is in."""
    rest = tail
    for _turn in range(0, bits(tail)):
        bit = height(rest)
        rest = rest & (rest - 1)
        F = transposed_level(dfinal, n, h, HV, L, tl.minimum(bit + 1, L - 1), rows, channels, K, V)
        F = operand(F, STAGE)
        inside = ((t >= rest) & (t < rest + (1 << bit)))[:, None]
        acc += tl.where(inside, dot(left, tl.trans(F) if of_values else F, PRECISION), 0.0)
    return acc


@triton.jit
def pairs(
    results, inputs, made, upper, dp, dr, outer, spans, strides, table, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """results y, dy [B, T, HV, K]; da, dg [B, T, HV, C], rows of dA * D and scale dG * D; crossing [B, T, HV], what
    pairs of tokens give to gates; levels 0 .. LOG of dlam.

    A program is a chunk. inputs (k, v, g, lam, beta, do); made (tm, reads, factors); outer (dfinal, of_levels of
    fenwick_delta_upstream.inner, M if it was made before, scale); strides those of results, inputs, made, dr, M; sizes
    T, chunks in a row, HV, value heads per head, L. BV is the block of values and of keys.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    y, dy, da, dg, crossing, dlam = results
    ys, dys, das, dgs, cs, dls, ks, vs, gs, ls, bs, os, tms, rs, fs, drs, mms = strides
    k, v, g, lam, beta, do = inputs
    tm, reads, factors = made
    dfinal, of_levels, m, scale = outer
    c, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    i = tl.arange(0, C)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, before, behind = span(n, spans, T, MODE)
    if begin < end:
        live, t = i < end - begin, (position & (C - 1)).to(tl.int32) + i
        row, column, slot = i[:, None], i[None, :], c * HV + h
        k, v, do = at(k, ks, b, h // G, begin), at(v, vs, b, h, begin), at(do, os, b, h, begin)
        lam, dr, dlam = at(lam, ls, b, h, begin), at(dr, drs, b, h, begin), at(dlam, dls, b, h, begin)
        d, f, _kept = factors_of(factors, fs, b, h, begin, end, C)
        own, _since, _until = gates_of(at(g, gs, b, h, begin), gs, i, end - begin, STAGE)
        D, factor = decays(own, C, STAGE), betas(beta, bs, b, h, begin, end, C)
        Tm = operand(tile(at(tm, tms, b, h, begin), tms, i, i, live, C), STAGE)  # [C, C]
        reading = tile(at(reads, rs, b, h, begin), rs, i, i, live, C)  # [C, C]
        if m is None:
            M = dot(operand(reading, STAGE), Tm, PRECISION)
        else:
            M = tile(at(m, mms, b, h, begin), mms, i, i, live, C)  # [C, C]
        dM = tl.zeros([C, C], tl.float32)
        for v0 in range(0, V, BV):
            w = v0 + tl.arange(0, BV)
            upstream, values = tile(do, os, i, w, live, V), tile(v, vs, i, w, live, V)  # [C, BV]
            dM = dot_add(dM, operand(upstream, STAGE), tl.trans(operand(values, STAGE)), PRECISION)
        dM = tl.where(row >= column, dM, 0.0)
        inside = tl.zeros([C, 8], tl.float32)
        if of_levels is not None:  # noqa: SIM102 (decided when compiled; the next is not)
            if position == before:
                inside = tl.load(of_levels + ((n * HV + h) * C + row) * 8 + tl.arange(0, 8)[None, :])
        levels_of(dlam, dls, i, live, t, L, dM * M, inside, LOG)
        H = mask_of_levels(lam, ls, i, live, t, t, L, LOG)
        dM = tl.where(row >= column, dM * H, 0.0)

        faded = operand(Tm.to(tl.float32) * f[:, None], STAGE)
        dTm, A = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
        tail = tl.where(behind >> LOG == position >> LOG, behind & (C - 1), 0)
        for k0 in range(0, K, BV):
            x = k0 + tl.arange(0, BV)
            E = operand(tile(k, ks, i, x, live, K), STAGE)  # [C, BV]
            A = dot_add(A, E, tl.trans(E), PRECISION)
            dR = operand(tile(dr, drs, i, x, live, K), STAGE)  # [C, BV]
            dM = dot_add(dM, dR, tl.trans(operand(-E.to(tl.float32) * d[:, None], STAGE)), PRECISION)
            put(at(y, ys, b, h, begin), ys, i, x, live, dot(tl.trans(faded), E, PRECISION), K)
            dY = tl.zeros([C, BV], tl.float32)
            for z0 in range(0, K, BV):
                z = z0 + tl.arange(0, BV)
                other = operand(tile(k, ks, i, z, live, K), STAGE)  # [C, BV]
                dP = operand(load_matrix(dp + slot * (K * K), z, x, K, K), STAGE)  # [BV, BV]
                dY = dot_add(dY, other, dP, PRECISION)
            dY *= -d[:, None]
            for v0 in range(0, V, BV):
                w = v0 + tl.arange(0, BV)
                values = operand(tile(v, vs, i, w, live, V), STAGE)  # [C, BV]
                U = operand(load_matrix(upper + slot * (V * K), w, x, V, K), STAGE)  # [BV, BV]
                dY = dot_add(dY, values, U, PRECISION)
                if dfinal is not None:
                    dY = tails(dY, values, dfinal, tail, t, n, h, HV, L, w, x, False, K, V, STAGE, PRECISION)
            put(at(dy, dys, b, h, begin), dys, i, x, live, dY, K)
            dTm = dot_add(dTm, E, tl.trans(operand(dY, STAGE)), PRECISION)  # [C, BV] [BV, C]
        dM = tl.where(row >= column, dM, 0.0)
        dTm = dot_add(dTm * f[:, None], tl.trans(operand(reading, STAGE)), operand(dM, STAGE), PRECISION)
        dG = tl.where(row >= column, dot(operand(dM, STAGE), tl.trans(Tm), PRECISION), 0.0)
        dA = dot(operand(dot(tl.trans(Tm), operand(dTm, STAGE), PRECISION), STAGE), tl.trans(Tm), PRECISION)
        dA = tl.where(row > column, -dA, 0.0)
        X = dG * reading.to(tl.float32) + dA * A * D * factor[None, :]
        X = tl.sum(tl.where(row > column, tl.cumsum(X, axis=1), 0.0), axis=0)
        tl.store(at(crossing, cs, b, h, begin) + i * cs[1], X, mask=live)
        put(at(da, das, b, h, begin), das, i, i, live, dA * D, C)
        put(at(dg, dgs, b, h, begin), dgs, i, i, live, scale * dG * D, C)


@triton.jit
def ends(
    results, inputs, made, shared, upper, dp, dr, outer, spans, strides, table, sizes,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LOG: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """results dq, dk [B, T, HV, K], dv [B, T, HV, V], dg, dbeta [B, T, HV].

    A program is a chunk. inputs (q, k, g, lam, beta, do); made (tm, reads, factors); shared (y, dy, da, dg, crossing)
    of `pairs`; outer (dfinal, scale); strides those of results, inputs, made, shared, dr; the rest as in `pairs`.
    """
    C: tl.constexpr = 1 << LOG
    T, each, HV, G, L = sizes
    dq, dk, dv, dg, dbeta = results
    dqs, dks, dvs, dgs, dbs, qs, ks, gs, ls, bs, os, tms, rs, fs, ys, dys, das, dms, cs, drs = strides
    q, k, g, lam, beta, do = inputs
    tm, reads, factors = made
    y, dy, da, dm, crossing = shared
    dfinal, scale = outer
    c, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    i = tl.arange(0, C)
    n, b, begin, end, position = place(c, table, T, each, LOG, MODE)
    _, _, behind = span(n, spans, T, MODE)
    if begin < end:
        live, t = i < end - begin, (position & (C - 1)).to(tl.int32) + i
        row, column, slot = i[:, None], i[None, :], c * HV + h
        q, k, do = at(q, qs, b, h // G, begin), at(k, ks, b, h // G, begin), at(do, os, b, h, begin)
        y, dy, dr = at(y, ys, b, h, begin), at(dy, dys, b, h, begin), at(dr, drs, b, h, begin)
        d, _f, kept = factors_of(factors, fs, b, h, begin, end, C)
        own, _since, until = gates_of(at(g, gs, b, h, begin), gs, i, end - begin, STAGE)
        e, factor = tl.exp(until), betas(beta, bs, b, h, begin, end, C)
        Tm = operand(tile(at(tm, tms, b, h, begin), tms, i, i, live, C), STAGE)  # [C, C]
        M = dot(operand(tile(at(reads, rs, b, h, begin), rs, i, i, live, C), STAGE), Tm, PRECISION)
        tail = tl.where(behind >> LOG == position >> LOG, behind & (C - 1), 0)

        H = mask_of_levels(at(lam, ls, b, h, begin), ls, i, live, t, t, L, LOG)
        weighted = operand(tl.where(row >= column, M * H, 0.0), STAGE)
        for v0 in range(0, V, BV):
            w = v0 + tl.arange(0, BV)
            upstream = operand(tile(do, os, i, w, live, V), STAGE)  # [C, BV]
            dV = dot(tl.trans(weighted), upstream, PRECISION)
            for k0 in range(0, K, BV):
                x = k0 + tl.arange(0, BV)
                Y = operand(tile(y, ys, i, x, live, K), STAGE)  # [C, BV]
                U = operand(load_matrix(upper + slot * (V * K), w, x, V, K), STAGE)  # [BV, BV]
                dV = dot_add(dV, Y, tl.trans(U), PRECISION)
                if dfinal is not None:
                    dV = tails(dV, Y, dfinal, tail, t, n, h, HV, L, w, x, True, K, V, STAGE, PRECISION)
            put(at(dv, dvs, b, h, begin), dvs, i, w, live, dV, V)

        dA = tile(at(da, das, b, h, begin), das, i, i, live, C).to(tl.float32)  # [C, C]
        dG = tile(at(dm, dms, b, h, begin), dms, i, i, live, C).to(tl.float32)  # [C, C]
        to_w = tl.trans(operand(dA, STAGE)), tl.trans(operand(dG, STAGE))
        dA, dG = operand(dA * factor[None, :], STAGE), operand(dG * factor[None, :], STAGE)
        M = tl.trans(operand(-M, STAGE))
        read, written, of_beta = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
        for k0 in range(0, K, BV):
            x = k0 + tl.arange(0, BV)
            E, Q = tile(k, ks, i, x, live, K), tile(q, qs, i, x, live, K)  # [C, BV]
            dR = tile(dr, drs, i, x, live, K)  # [C, BV]
            dE = dot(M, operand(dR, STAGE), PRECISION)
            for z0 in range(0, K, BV):
                z = z0 + tl.arange(0, BV)
                Y = operand(tile(y, ys, i, z, live, K), STAGE)  # [C, BV]
                dP = operand(-load_matrix(dp + slot * (K * K), x, z, K, K), STAGE)  # [BV, BV]
                dE = dot_add(dE, Y, tl.trans(dP), PRECISION)
            dE *= d[:, None]
            dQ = dR * (scale * d)[:, None]
            dW = dot(Tm, operand(tile(dy, dys, i, x, live, K), STAGE), PRECISION) * e[:, None]
            read += tl.sum(dE * E + dQ * Q, axis=1)
            written += tl.sum(dW * E, axis=1) * factor
            E, Q = operand(E, STAGE), operand(Q, STAGE)
            dQ = dot_add(dQ, dG, E, PRECISION)  # [C, C] [C, BV], also those below
            dE = dot_add(dE, dA, E, PRECISION)
            dW = dot_add(dot_add(dW, to_w[0], E, PRECISION), to_w[1], Q, PRECISION)
            of_beta += tl.sum(dW * E.to(tl.float32), axis=1)
            put(at(dq, dqs, b, h, begin), dqs, i, x, live, dQ, K)
            put(at(dk, dks, b, h, begin), dks, i, x, live, dE + dW * factor[:, None], K)
        x = tl.arange(0, BK)
        through = tl.sum(tl.load(dp + slot * (K * K) + x * (K + 1), mask=x < K, other=0.0), axis=0) * kept
        crossed = tl.load(at(crossing, cs, b, h, begin) + i * cs[1], mask=live, other=0.0) + tl.cumsum(written, axis=0)
        before = tl.sum(tl.where(column == row - 1, crossed[None, :], 0.0), axis=1)
        gates = before + tl.cumsum(read, axis=0, reverse=True) + through
        tl.store(at(dg, dgs, b, h, begin) + i * dgs[1], gates.to(dg.dtype.element_ty), mask=live)
        tl.store(at(dbeta, dbs, b, h, begin) + i * dbs[1], of_beta.to(dbeta.dtype.element_ty), mask=live)
