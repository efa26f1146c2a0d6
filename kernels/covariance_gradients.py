"""The covariance's gradients, chunk by chunk: of q and lam, and of d, eps and log f for covariance_adjoint.py.

With S the state at a chunk's start (symmetric), dS the gradient of the one at its end, N = dO d^T, R = Q' d^T
(equations of q', d, eps, f: covariance_prepare.py; D, c_t, e_s the decays s to t, start to t, s to end; rows are
tokens):

    dQ' = c * (dO S) + (N * D * eps) d,       dQ = dO - lam dQ',        dlam = -<q, dQ'>
    dd = eps * (e * (d (dS + dS^T)) + (N * D)^T Q' + (R * D)^T dO),     deps = <d, dd> / (2 eps)

A covariance's keys and values are the same up to eps: so one product serves both, and deps is made of what dd is.

Source: the chunk form of `linattest.impls.covariance_contract`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot_add, load_matrix, operand, put, segment, tile
from linattest.kernels.covariance_prepare import COUNT, FACTOR, GAMMA, GATE_GRADIENT, READ, VALUE_GRADIENT
from linattest.kernels.decay_backward import gate_gradients
from linattest.kernels.decay_scan import gates_of


@triton.jit
def gradients(
    q, lam, do, turned, deltas, planes, starts, ends, dq, dlam, dd, strides, table, sizes,
    K: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K], dlam [B, T, H], dd [B, T, H, K] and three planes of a chunk; starts, ends [chunks, H, K, K]."""
    qs, ls, os, xs, gs, dqs, dls = strides  # xs: of turned, deltas and dd
    T, each, H, size = sizes
    size = tl.cast(size, tl.int64)
    pid = tl.program_id(0)
    c, h = pid // H, pid % H
    i = tl.arange(0, C)
    _, b, begin, end = segment(c, table, T, each, C, PACKED)
    live = i < end - begin
    q, lam, do, dq = at(q, qs, b, h, begin), at(lam, ls, b, h, begin), at(do, os, b, h, begin), at(dq, dqs, b, h, begin)
    turned, deltas, dd = at(turned, xs, b, h, begin), at(deltas, xs, b, h, begin), at(dd, xs, b, h, begin)
    planes = at(planes, gs, b, h, begin)
    starts += (c.to(tl.int64) * H + h) * (K * K)
    ends += (c.to(tl.int64) * H + h) * (K * K)
    own, since, until = gates_of(planes, gs, i, end - begin, tl.float32)
    count = tl.load(planes + COUNT * size + i, mask=live, other=0.0)
    eps = tl.load(planes + GAMMA * size + i, mask=live, other=0.0)
    eps *= tl.load(planes + FACTOR * size + i, mask=live & (count > 0), other=0.0)
    rate = tl.load(lam + i * ls[1], mask=live & (count != 0), other=0.0).to(tl.float32)
    D = decays(own, C, tl.float32)
    products, N = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    for x0 in range(0, K, BX):
        x = x0 + tl.arange(0, BX)
        keys = tile(deltas, xs, i, x, live, K)  # [C, BX]
        products = dot_add(products, tile(turned, xs, i, x, live, K), tl.trans(keys), PRECISION)  # [C, BX] [BX, C]
        N = dot_add(N, operand(tile(do, os, i, x, live, K), STAGE), tl.trans(keys), PRECISION)  # [C, BX] [BX, C]
    products *= D
    pairs = N * products  # [C, C]
    from_reads, to_values = operand(N * D, STAGE), operand(products, STAGE)
    weighted = operand(N * D * eps[None, :], STAGE)
    zero = tl.zeros([C], tl.float32)
    # of pairs in the chunk first: [C, C] tiles need not live through what follows
    gates, value = gate_gradients(pairs * eps[None, :], zero, zero, 0.0, C), tl.sum(pairs, axis=0)
    read, written, image, through = zero, zero, zero, tl.sum(zero, axis=0)
    for y0 in range(0, K, BV):
        y = y0 + tl.arange(0, BV)
        dQ, dD = tl.zeros([C, BV], tl.float32), tl.zeros([C, BV], tl.float32)
        for x0 in range(0, K, BX):
            x = x0 + tl.arange(0, BX)
            S, dS = load_matrix(starts, x, y, K, K), load_matrix(ends, x, y, K, K)  # [BX, BV]
            turned_dS = load_matrix(ends, y, x, K, K)  # [BV, BX]
            through += tl.sum(tl.sum(S.to(tl.float32) * dS.to(tl.float32), axis=1), axis=0)
            dQ = dot_add(dQ, operand(tile(do, os, i, x, live, K), STAGE), operand(S, STAGE), PRECISION)
            keys = tile(deltas, xs, i, x, live, K)  # [C, BX]
            dD = dot_add(dD, keys, operand(dS, STAGE), PRECISION)  # [C, BX] [BX, BV]
            dD = dot_add(dD, keys, tl.trans(operand(turned_dS, STAGE)), PRECISION)  # [C, BX] [BX, BV]
        keys, queries = tile(deltas, xs, i, y, live, K), tile(turned, xs, i, y, live, K)  # [C, BV]
        upstream = tile(do, os, i, y, live, K)  # [C, BV]
        dQ *= tl.exp(since)[:, None]
        read += tl.sum(dQ * queries.to(tl.float32), axis=1)
        dQ = dot_add(dQ, weighted, keys, PRECISION)  # [C, C] [C, BV]
        image -= tl.sum(tile(q, qs, i, y, live, K).to(tl.float32) * dQ, axis=1)
        put(dq, dqs, i, y, live, upstream.to(tl.float32) - rate[:, None] * dQ, K)
        dD *= tl.exp(until)[:, None]
        written += 0.5 * tl.sum(dD * keys.to(tl.float32), axis=1)
        dD = dot_add(dD, tl.trans(from_reads), queries, PRECISION)  # [C, C] [C, BV]
        dD = dot_add(dD, tl.trans(to_values), operand(upstream, STAGE), PRECISION)  # [C, C] [C, BV]
        put(dd, xs, i, y, live, dD * eps[:, None], K)
    earlier = tl.sum(tl.where(i[None, :] < i[:, None], (eps * written)[None, :], 0.0), axis=1)
    gates += earlier + tl.cumsum(read, axis=0, reverse=True) + through * tl.exp(tl.sum(own, axis=0))
    tl.store(planes + GATE_GRADIENT * size + i, gates, mask=live)
    tl.store(planes + VALUE_GRADIENT * size + i, written + value, mask=live)
    tl.store(planes + READ * size + i, rate * image, mask=live)
    image = tl.where(count == 0, 0.0, image)
    tl.store(at(dlam, dls, b, h, begin) + i * dls[1], image.to(dlam.dtype.element_ty), mask=live)
