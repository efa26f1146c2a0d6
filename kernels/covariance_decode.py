"""One token of the covariance of the keys: a decode step reads the scatter (and its transpose) and writes it, once."""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, store_matrix
from linattest.kernels.covariance_scan import merged, mirrored, pair, ratio


@triton.jit
def covariance_step(
    q, k, lam, cov_g, weight, o, count, reference, mean, scatter, ends, strides, H,
    K: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, HAS_STATE: tl.constexpr, FORGET: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """o [B, 1, H, K] and the new (count, reference, mean, scatter) in `ends`, from contiguous ones."""
    qs, ks, ls, gs, ws, os = strides
    end_count, end_reference, end_mean, end_scatter = ends
    blocks: tl.constexpr = (K + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    b, h = (pid // (blocks * H)).to(tl.int64), pid // blocks % H
    rows, columns = pid % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, BK)
    own = b * H + h
    W, P = 0.0, tl.zeros([ROWS, BK], tl.float32)
    r, r_c = tl.zeros([ROWS], tl.float32), tl.zeros([BK], tl.float32)
    m, m_c = tl.zeros([ROWS], tl.float32), tl.zeros([BK], tl.float32)
    if HAS_STATE:
        W, P = tl.load(count + own), mirrored(scatter + own * (K * K), rows, columns, K)
        r, r_c = pair(reference + own * K, rows, columns, 1, K)
        m, m_c = pair(mean + own * K, rows, columns, 1, K)
    key, key_c = pair(at(k, ks, b, h, 0), rows, columns, ks[3], K)
    query, query_c = pair(at(q, qs, b, h, 0), rows, columns, qs[3], K)
    rate = tl.load(at(lam, ls, b, h, 0)).to(tl.float32)
    w, decay = 1.0, 1.0
    if WEIGHTED:
        w = tl.load(at(weight, ws, b, h, 0)).to(tl.float32)
    if FORGET:
        decay = tl.exp(tl.load(at(cov_g, gs, b, h, 0)).to(tl.float32))
    empty = W == 0
    r, r_c = tl.where(empty & (w > 0), key, r), tl.where(empty & (w > 0), key_c, r_c)
    m, m_c = tl.where(empty, 0.0, m), tl.where(empty, 0.0, m_c)
    kept = decay * W
    after = kept + w
    x, x_c = key - r, key_c - r_c
    P = P * decay + (w * ratio(kept, after) * (x - m))[:, None] * (x_c - m_c)[None, :]
    image = tl.sum(P * query_c[None, :], axis=1) * ratio(1.0, after)
    clean = tl.where((rate == 0) | (after == 0), query, query - rate * image)
    inside = rows < K
    tl.store(at(o, os, b, h, 0) + rows * os[3], clean.to(o.dtype.element_ty), mask=inside)
    store_matrix(end_scatter + own * (K * K), rows, columns, P, K, K)
    tl.store(end_reference + own * K + rows, r, mask=inside)
    tl.store(end_mean + own * K + rows, tl.where(after == 0, 0.0, merged(m, x, kept, w)), mask=inside)
    tl.store(end_count + own, after)
