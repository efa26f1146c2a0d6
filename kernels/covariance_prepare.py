"""What the covariance's gradients need of each token, from its segment's start: a walk without the scatter.

With S_t = P_t / W_t (P_t itself while the state is empty) a chunk's covariance is a gated linear attention whose gates
and values are of the size of the keys, however much has been forgotten:

    S_t = f_t S_{t-1} + v_t d_t^T,   v_t = eps_t d_t,   f_t = W'_t / W_t,   gamma_t = w_t / W_t,   eps_t = gamma_t f_t

and q~_t = q_t + S_t q'_t with q'_t = -lam_t q_t (equations of W, W' and d: covariance_scan.py). A token that finds the
state empty has d = 0, and f_t = exp(g_t) / W_t (exp(g_t) if it leaves it empty), since nothing was divided before.

Source: as covariance_scan.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, load_matrix, operand, put, segment, store_matrix, tile
from linattest.kernels.covariance_outputs import centred, in_chunk
from linattest.kernels.covariance_scan import (
    LEAST,
    START_COUNT,
    START_MEAN,
    START_REFERENCE,
    gates,
    mean_of,
    pair,
    renewed,
    shifted,
    weights,
)

GATE, MEAN_GATE, GAMMA, FACTOR, COUNT, GATE_GRADIENT, VALUE_GRADIENT, READ = (tl.constexpr(n) for n in range(8))
"""Numbers of a token, planes [B, H, T] of float32: log f; log of what passes from mean to mean; gamma; f; W, negative
at a new reference and 0 if empty. Of covariance_gradients.py: the gradients of log f and eps, and lam dlam."""

PLANES = 8

NEVER = tl.constexpr(-1e4)
"""The log of a factor of 0, without an infinity."""

MOST = tl.constexpr(40.0)
"""The largest log f: f exceeds 1 where a scatter without a count meets a first weight below 1."""


@triton.jit
def log_kept(kept, w):
    """log(kept / (kept + w)) for a normal `kept`; accurate to a rounding also where w is little of it."""
    x = tl.minimum(w / tl.maximum(kept, LEAST), 1e37)
    total = 1.0 + x
    return ((total - 1.0) - x) / total - tl.log(total)


@triton.jit
def factors(own, w, kept, before, after):
    """Of a chunk's tokens [C]: log f, log of what passes from mean to mean, gamma, f, the signed count, eps."""
    found, holds = before >= LEAST, after >= LEAST
    total = tl.where(holds, after, 1.0)
    passes = found & holds & (kept >= LEAST)
    mean_gate = tl.where(passes, log_kept(kept, w), NEVER)
    gate = tl.where(found, mean_gate, tl.minimum(tl.maximum(own, NEVER) - tl.log(total), MOST))
    rho, gamma = tl.where(passes, kept / total, 0.0), tl.where(holds, w / total, 0.0)
    count = tl.where(holds, tl.where(found, after, -after), 0.0)
    return gate, mean_gate, gamma, tl.where(found, rho, tl.exp(gate)), count, gamma * rho


@triton.jit
def prepare(
    q, k, lam, cov_g, weight, records, results, strides, table, sizes,
    K: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, RECORD: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, FORGET: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """q', d and v [B, T, H, K], five planes, and S at segments' starts [segments, H, K, K]."""
    turned, deltas, values, planes, edges = results
    qs, ks, ls, gs, ws, own_strides = strides
    T, each, H, size = sizes
    size = tl.cast(size, tl.int64)
    blocks: tl.constexpr = (K + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * H), pid // blocks % H
    part, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    ptr = records + (s.to(tl.int64) * H + h) * RECORD
    origin, _whole = pair(ptr + K * K + START_REFERENCE * K, part, channels, 1, K)
    mean, _whole = pair(ptr + K * K + START_MEAN * K, part, channels, 1, K)
    W = tl.load(ptr + K * K + 6 * K + START_COUNT)
    start = load_matrix(ptr, part, channels, K, K) / tl.where(W < LEAST, 1.0, W)  # [BV, BK]
    store_matrix(edges + (s.to(tl.int64) * H + h) * (K * K), part, channels, start, K, K)
    planes += (tl.cast(b, tl.int64) * H + h) * T
    if not WEIGHTED:
        origin = renewed(k, ks, b, h, begin, part, (W == 0) & (begin < end), origin, K)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        own, since, until = gates(cov_g, gs, b, h, t0, end, C, FORGET)
        w, first = weights(weight, ws, b, h, t0, end, C, WEIGHTED)
        if WEIGHTED:
            fresh = (W == 0) & (first < t0 + C)
            origin = renewed(k, ks, b, h, first, part, fresh, origin, K)
            mean = tl.where(fresh, 0.0, mean)
        e, decay = w, 1.0
        if FORGET:
            e, decay = tl.exp(until) * w, tl.exp(tl.sum(own, axis=0))
        _decays, held, kept = in_chunk(own, since, w, W, t0 + i, C, FORGET)
        W_next = decay * W + tl.sum(e, axis=0)
        after = kept + w
        earlier = tl.sum(tl.where(i[:, None] == i[None, :] - 1, after[:, None], 0.0), axis=0)
        before = tl.where(i == 0, W, earlier)
        gate, mean_gate, gamma, factor, count, eps = factors(own, w, kept, before, after)
        y = shifted(k, ks, b, h, t0, live, part, origin, mean, C, K)  # [BV, C]
        mean += mean_of(y, e, W_next)
        delta = centred(y, held, kept, STAGE, PRECISION, FORGET or WEIGHTED, True)  # [BV, C] [C, C]
        delta = tl.trans(tl.where((before >= LEAST)[None, :], delta, 0.0))  # [C, BV]
        reads = live & (after >= LEAST)  # an empty state is not read
        rate = tl.load(at(lam, ls, b, h, t0) + i * ls[1], mask=reads, other=0.0).to(tl.float32)
        queries = tile(at(q, qs, b, h, t0), qs, i, part, live, K).to(tl.float32)  # [C, BV]
        put(at(turned, own_strides, b, h, t0), own_strides, i, part, live, operand(queries * -rate[:, None], STAGE), K)
        put(at(deltas, own_strides, b, h, t0), own_strides, i, part, live, operand(delta, STAGE), K)
        put(at(values, own_strides, b, h, t0), own_strides, i, part, live, operand(delta * eps[:, None], STAGE), K)
        if pid % blocks == 0:
            here = planes + t0 + i
            tl.store(here + GATE * size, gate, mask=live)
            tl.store(here + MEAN_GATE * size, mean_gate, mask=live)
            tl.store(here + GAMMA * size, gamma, mask=live)
            tl.store(here + FACTOR * size, factor, mask=live)
            tl.store(here + COUNT * size, count, mask=live)
        W = W_next
