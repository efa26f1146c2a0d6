"""The reading pass of the covariance of the keys: q~ of every token, chunk by chunk (equations: covariance_scan.py)."""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot, dot_add, load_matrix, operand, put, segment, tile
from linattest.kernels.covariance_scan import (
    START_COUNT,
    START_MEAN,
    START_REFERENCE,
    gates,
    mean_of,
    pair,
    ratio,
    renewed,
    shifted,
    weights,
)


@triton.jit
def outputs(
    q, k, lam, cov_g, weight, o, records, q_strides, k_strides, l_strides, g_strides, w_strides, o_strides, table,
    sizes,
    K: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, RECORD: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, FORGET: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """q~ [B, T, H, K] of a segment, from the state at its start.

    Tiles are transposed, channels by tokens: an accumulator then feeds the next product from its registers.
    """
    T, each, H = sizes
    blocks: tl.constexpr = (K + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * H), pid // blocks % H
    part, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    ptr = records + (s.to(tl.int64) * H + h) * RECORD
    P = load_matrix(ptr, part, channels, K, K)  # [BV, BK]
    origin_v, origin = pair(ptr + K * K + START_REFERENCE * K, part, channels, 1, K)
    mean_v, mean = pair(ptr + K * K + START_MEAN * K, part, channels, 1, K)
    W = tl.load(ptr + K * K + 6 * K + START_COUNT)
    if not WEIGHTED:  # then a state is empty before its first token or never
        origin = renewed(k, k_strides, b, h, begin, channels, (W == 0) & (begin < end), origin, K)
        origin_v = renewed(k, k_strides, b, h, begin, part, (W == 0) & (begin < end), origin_v, K)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        own, since, until = gates(cov_g, g_strides, b, h, t0, end, C, FORGET)
        w, first = weights(weight, w_strides, b, h, t0, end, C, WEIGHTED)
        if WEIGHTED:
            fresh = (W == 0) & (first < t0 + C)
            origin = renewed(k, k_strides, b, h, first, channels, fresh, origin, K)
            origin_v = renewed(k, k_strides, b, h, first, part, fresh, origin_v, K)
            mean, mean_v = tl.where(fresh, 0.0, mean), tl.where(fresh, 0.0, mean_v)
        e, decay = w, 1.0
        if FORGET:
            e, decay = tl.exp(until) * w, tl.exp(tl.sum(own, axis=0))
        D, earlier, kept = in_chunk(own, since, w, W, t0 + i, C, FORGET)
        beta, after = w * ratio(kept, kept + w), kept + w
        W_next = decay * W + tl.sum(e, axis=0)
        y = shifted(k, k_strides, b, h, t0, live, channels, origin, mean, C, K)  # [BK, C]
        mean += mean_of(y, e, W_next)
        delta = centred(y, earlier, kept, STAGE, PRECISION, FORGET or WEIGHTED, False)  # [BK, C] [C, C]
        if BV == BK:
            delta_v = delta
        else:
            y_v = shifted(k, k_strides, b, h, t0, live, part, origin_v, mean_v, C, K)  # [BV, C]
            mean_v += mean_of(y_v, e, W_next)
            delta_v = centred(y_v, earlier, kept, STAGE, PRECISION, FORGET or WEIGHTED, False)  # [BV, C] [C, C]
        staged, values = operand(delta, STAGE), times(delta_v, beta)
        queries = operand(tile(at(q, q_strides, b, h, t0), q_strides, i, channels, live, K), STAGE)  # [C, BK]
        scores = operand(tl.trans(dot(queries, staged, PRECISION)) * D, STAGE)  # [C, BK] [BK, C], scores[s, t]
        if FORGET:
            image = times(dot(operand(P, STAGE), tl.trans(queries), PRECISION), tl.exp(since))  # [BV, BK] [BK, C]
            image = dot_add(image, operand(values, STAGE), scores, PRECISION)  # [BV, C] [C, C]
            P, values = P * decay, times(values, tl.exp(until))
        else:
            image = dot(operand(values, STAGE), scores, PRECISION)  # [BV, C] [C, C]
            image = dot_add(image, operand(P, STAGE), tl.trans(queries), PRECISION)  # [BV, BK] [BK, C]
        P = dot_add(P, operand(values, STAGE), tl.trans(staged), PRECISION)  # [BV, C] [C, BK]
        rate = tl.load(at(lam, l_strides, b, h, t0) + i * l_strides[1], mask=live, other=0.0).to(tl.float32)
        plain = tile(at(q, q_strides, b, h, t0), q_strides, i, part, live, K).to(tl.float32)  # [C, BV]
        clean = plain - tl.trans(image) * (rate * ratio(1.0, after))[:, None]
        clean = tl.where(((rate == 0) | (after == 0))[:, None], plain, clean)
        put(at(o, o_strides, b, h, t0), o_strides, i, part, live, clean, K)
        W = W_next


@triton.jit
def in_chunk(own, since, w, W, t, C: tl.constexpr, FORGET: tl.constexpr):
    """D [C, C], D[s, t] the decay from s to t or 0; what earlier tokens weigh at t [C, C], and with the state W'_t [C].

    `t` are the tokens: masks made of them are made anew in each chunk, and not kept in registers throughout the loop.
    """
    if FORGET:
        D, found = tl.trans(decays(own, C, tl.float32)), tl.exp(since) * W
    else:
        D, found = tl.where(t[:, None] <= t[None, :], 1.0, 0.0), tl.zeros([C], tl.float32) + W
    earlier = tl.where(t[:, None] < t[None, :], D * w[:, None], 0.0)
    kept = found + tl.sum(earlier, axis=0)
    return D, earlier, kept


@triton.jit
def times(x, factor):
    """x [BK, C] with token s times factor[s]. Transposed, so that the factor is not spread out in memory."""
    return tl.trans(tl.trans(x) * factor[:, None])


@triton.jit
def centred(
    y, earlier, kept, STAGE: tl.constexpr, PRECISION: tl.constexpr, UNEVEN: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """y [BK, C], each token less the mean of those before it (which weigh `earlier` [C, C], in all `kept` [C]).

    Keys that come near the mean are small beside y: `WHOLE` takes y's last digits into the sum, and weights that are
    not all 1 (`UNEVEN`) too, since keys that are forgotten may lie far from others.
    """
    over = 1.0 / tl.maximum(kept, 2e-38)  # where `kept` is 0, a difference counts for nothing: any finite number does
    if y.dtype == STAGE:
        if UNEVEN:
            return y - dot(y, earlier * over[None, :], "tf32x3")
        return y - times(dot(y, earlier, "tf32x3"), over)
    y_head = operand(y, STAGE)
    if not UNEVEN:
        ones = operand(earlier, STAGE)
        found = dot(y_head, ones, PRECISION)
        if WHOLE:
            found = dot_add(found, operand(y - y_head.to(tl.float32), STAGE), ones, PRECISION)
        return y - times(found, over)
    a = earlier * over[None, :]
    a_head = operand(a, STAGE)
    found = dot(y_head, operand(a - a_head.to(tl.float32), STAGE), PRECISION)
    found = dot_add(found, operand(y - y_head.to(tl.float32), STAGE), a_head, PRECISION)
    return y - dot_add(found, y_head, a_head, PRECISION)
