"""The covariance of the keys in Triton, in two levels of segments and chunks: device code of `covariance_contract`.

Per head, with log-forgetting g, weights w and x = k - reference (`linattest.impls.covariance_contract`):

    W'_t = exp(g_t) W_{t-1},    W_t = W'_t + w_t,    d_t = x_t - m_{t-1},    m_t = m_{t-1} + (w_t/W_t) d_t
    P_t = exp(g_t) P_{t-1} + beta_t d_t d_t^T,     beta_t = w_t W'_t / W_t,     q~_t = q_t - lam_t P_t q_t / W_t

`states` gives (W, m, P) of each segment alone, relative to a key of its own; its chunks merge by Chan's formula, each
centred on its own mean. `scan` merges segments the same way into the state at each segment's start. `outputs`
(covariance_outputs.py) walks a segment's chunks of C tokens from there. In a chunk, with y = x - m relative to the mean
at its start, D[t, s] the decay from s to t, c_t that from the start to t and e_s that from s to the end (rows of Q, Y,
Delta are tokens):

    Delta = Y - (tril_(D * w) Y) / W',               P Q = c * (Q P_0) + (Q Delta^T * D * beta) Delta,
    P_1 = c_last P_0 + Delta^T (e * beta * Delta)

Only terms of one sign are summed: nothing cancels, however far the keys lie from the origin.

A segment's record is `record(K)` float32 values: the scatter [K, K] of its own keys (after `scan`: that at its start),
then vectors [K] and numbers, in the order of the constants below.

Sources: [CCQ] (definition), [ChanGolubLeVeque83] (merging), [Welford62] and [West79] (d and beta).
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot_add, load_matrix, operand, segment, store_matrix

REFERENCE, MEAN, ANEW, EMPTIED, START_REFERENCE, START_MEAN = (tl.constexpr(n) for n in range(6))
"""Vectors of a record: own reference, own mean, the key that is the reference after the segment if it finds the state
empty, or if it empties it, and reference and mean at its start. Means are relative to the reference before them."""

GATES, WEIGHT, HAS_ANEW, HAS_EMPTIED, START_COUNT = (tl.constexpr(n) for n in range(5))
"""Numbers of a record: sum of gates, weight, whether ANEW and EMPTIED hold a key (1 or 0), the count at its start."""

LEAST = tl.constexpr(2.0**-126)
"""The least normal float32: a count below it is as good as forgotten."""


def record(K: int) -> int:
    """float32 values of a segment's record: a matrix, six vectors and five numbers, filled up."""
    return K * K + 6 * K + 8


@triton.jit
def gates(g, strides, b, h, t0, end, C: tl.constexpr, FORGET: tl.constexpr):
    """Gates [C] of a chunk that starts at t0, their sums up to each token and after it; zeros without FORGET."""
    i = tl.arange(0, C)
    own = tl.zeros([C], tl.float32)
    if FORGET:
        ptr = at(g, strides, b, h, t0)
        own = tl.load(ptr + i * strides[1], mask=t0 + i < end, other=0.0).to(tl.float32)
        later = (t0 + i + 1 < end) & (i + 1 < C)
        after = tl.load(ptr + (i + 1) * strides[1], mask=later, other=0.0).to(tl.float32)
        return own, tl.cumsum(own, axis=0), tl.cumsum(after, axis=0, reverse=True)
    return own, own, own


@triton.jit
def weights(weight, strides, b, h, t0, end, C: tl.constexpr, WEIGHTED: tl.constexpr):
    """Weights [C] of a chunk, 0 behind the end, and the first token with one (t0 + C if there is none)."""
    i = tl.arange(0, C)
    live = t0 + i < end
    if WEIGHTED:
        w = tl.load(at(weight, strides, b, h, t0) + i * strides[1], mask=live, other=0.0).to(tl.float32)
        return w, t0 + tl.min(tl.where(w > 0, i, C), axis=0)
    return tl.where(live, 1.0, 0.0), t0


@triton.jit
def key(k, strides, b, h, t, channels, exists, K: tl.constexpr):
    """Key t as float32 [BK]; zeros unless it exists."""
    mask = (channels < K) & (channels * 0 < tl.where(exists, 1, 0))
    return tl.load(at(k, strides, b, h, t) + channels * strides[3], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _turned(ptr, strides, tokens, channels, live, K: tl.constexpr):
    """[channels, tokens] of a tensor whose address is of token 0; 0 where `live` (of tokens) is false."""
    mask = (channels < K)[:, None] & live[None, :]
    return tl.load(ptr + tokens[None, :] * strides[1] + channels[:, None] * strides[3], mask=mask, other=0.0)


@triton.jit
def renewed(k, strides, b, h, t, channels, fresh, origin, K: tl.constexpr):
    """`origin` [BK], or key t in float32 if `fresh`."""
    return tl.where(fresh, key(k, strides, b, h, t, channels, fresh, K), origin)


@triton.jit
def shifted(k, strides, b, h, t0, live, channels, origin, mean, C: tl.constexpr, K: tl.constexpr):
    """Keys [BK, C] of a chunk, transposed, less `origin` and then `mean` [BK], float32; zeros behind the end."""
    keys = _turned(at(k, strides, b, h, t0), strides, tl.arange(0, C), channels, live, K).to(tl.float32)
    return tl.where(live[None, :], keys - origin[:, None] - mean[:, None], 0.0)


@triton.jit
def ratio(a, b):
    """a / b, and 0 where b >= 0 is less than a normal number: 1 / b would not be finite, and times 0 be NaN."""
    return tl.where(b < LEAST, 0.0, a / tl.where(b < LEAST, 1.0, b))


@triton.jit
def pair(ptr, rows, columns, stride, K: tl.constexpr):
    """Two parts of one vector [K], in float32: at `rows` and at `columns`; 0 behind the end."""
    first = tl.load(ptr + rows * stride, mask=rows < K, other=0.0).to(tl.float32)
    return first, tl.load(ptr + columns * stride, mask=columns < K, other=0.0).to(tl.float32)


@triton.jit
def mirrored(ptr, rows, columns, K: tl.constexpr):
    """Rows [ROWS, BK] of (M + M^T)/2 for a contiguous matrix M [K, K]."""
    mask = (rows < K)[:, None] & (columns < K)[None, :]
    turned = tl.load(ptr + columns[None, :] * K + rows[:, None], mask=mask, other=0.0)
    return (load_matrix(ptr, rows, columns, K, K) + turned) * 0.5


@triton.jit
def mean_of(y, e, total):
    """sum_s e_s y_s / total: [BK, C], [C] -> [BK]."""
    return tl.sum(y * e[None, :], axis=1) * ratio(1.0, total)


@triton.jit
def merged(mean, added, kept, weight):
    """The mean of what weighs `kept` and has `mean` with what weighs `weight` and has `added`.

    From the heavier side: mean + (added - mean) would lose the last digits of `added` where that is most of it.
    """
    base = tl.where(weight <= kept, mean, added)
    return base + ratio(tl.where(weight <= kept, weight, -kept), kept + weight) * (added - mean)


@triton.jit
def _renewals(g, weight, g_strides, w_strides, b, h, t0, end, W, total, w, C: tl.constexpr, WEIGHTED: tl.constexpr):
    """The last tokens of a chunk that meet an empty state: (if the segment did, if its gates emptied it), or -1.

    `W` and `total` are what the segment's keys before the chunk weigh and the sum of their gates.
    """
    i = tl.arange(0, C)
    earlier = (t0 + i - 1 < end) & (i > 0)
    own = tl.load(at(g, g_strides, b, h, t0) + (i - 1) * g_strides[1], mask=earlier, other=0.0).to(tl.float32)
    before_w = tl.where(earlier, 1.0, 0.0)
    if WEIGHTED:
        before_w = tl.load(at(weight, w_strides, b, h, t0) + (i - 1) * w_strides[1], mask=earlier, other=0.0)
    since = tl.cumsum(own, axis=0)
    before = tl.sum(decays(own, C, tl.float32) * before_w.to(tl.float32)[None, :], axis=1) + tl.exp(since) * W
    anew = (before == 0) & (w > 0)
    emptied = anew & (tl.exp(total + since) == 0)
    return tl.max(tl.where(anew, t0 + i, -1), axis=0), tl.max(tl.where(emptied, t0 + i, -1), axis=0)


@triton.jit
def states(
    k, cov_g, weight, records, k_strides, g_strides, w_strides, table, sizes,
    K: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, RECORD: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, FORGET: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """The records [segments, H, RECORD] of segments, but for what holds at their starts."""
    T, each, H = sizes
    blocks: tl.constexpr = (K + BV - 1) // BV
    pid = tl.program_id(0)
    s, h = pid // (blocks * H), pid // blocks % H
    part, channels, i = pid % blocks * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    P = tl.zeros([BV, BK], tl.float32)
    origin, mean = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
    origin_v, mean_v = tl.zeros([BV], tl.float32), tl.zeros([BV], tl.float32)
    W, total, anew, emptied = 0.0, 0.0, -1, -1
    if not WEIGHTED:
        origin = renewed(k, k_strides, b, h, begin, channels, begin < end, origin, K)
        origin_v = renewed(k, k_strides, b, h, begin, part, begin < end, origin_v, K)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        own, since, until = gates(cov_g, g_strides, b, h, t0, end, C, FORGET)
        w, first = weights(weight, w_strides, b, h, t0, end, C, WEIGHTED)
        if FORGET:
            last, last_emptied = _renewals(cov_g, weight, g_strides, w_strides, b, h, t0, end, W, total, w, C, WEIGHTED)
            anew, emptied = tl.maximum(anew, last), tl.maximum(emptied, last_emptied)
        if WEIGHTED:
            fresh = (W == 0) & (first < t0 + C)
            origin = renewed(k, k_strides, b, h, first, channels, fresh, origin, K)
            origin_v = renewed(k, k_strides, b, h, first, part, fresh, origin_v, K)
        e, decay = w, 1.0
        if FORGET:
            e, decay = tl.exp(until) * w, tl.exp(tl.sum(own, axis=0))
        here = tl.sum(e, axis=0)
        kept = decay * W
        x = shifted(k, k_strides, b, h, t0, live, channels, origin, 0.0 * mean, C, K)  # [BK, C]
        centre = mean_of(x, e, here)
        y = x - centre[:, None]
        if BV == BK:
            y_v, centre_v = y, centre
        else:
            x_v = shifted(k, k_strides, b, h, t0, live, part, origin_v, 0.0 * mean_v, C, K)  # [BV, C]
            centre_v = mean_of(x_v, e, here)
            y_v = x_v - centre_v[:, None]
        between = ratio(kept * here, kept + here)
        P = P * decay + (between * (centre_v - mean_v))[:, None] * (centre - mean)[None, :]
        P = dot_add(P, operand(y_v, STAGE), tl.trans(operand(y * e[None, :], STAGE)), PRECISION)  # [BV, C] [C, BK]
        mean, mean_v = merged(mean, centre, kept, here), merged(mean_v, centre_v, kept, here)
        W, total = kept + here, total + tl.sum(own, axis=0)
    ptr = records + (s.to(tl.int64) * H + h) * RECORD
    store_matrix(ptr, part, channels, P, K, K)
    vectors, numbers = ptr + K * K + part, ptr + K * K + 6 * K
    inside = part < K
    tl.store(vectors + REFERENCE * K, origin_v, mask=inside)
    tl.store(vectors + MEAN * K, mean_v, mask=inside)
    if FORGET:
        tl.store(vectors + ANEW * K, key(k, k_strides, b, h, anew, part, anew >= 0, K), mask=inside)
        tl.store(vectors + EMPTIED * K, key(k, k_strides, b, h, emptied, part, emptied >= 0, K), mask=inside)
    else:
        tl.store(vectors + ANEW * K, origin_v, mask=inside)
        tl.store(vectors + EMPTIED * K, origin_v, mask=inside)
        anew = tl.where(W > 0, 0, -1)
    tl.store(numbers + GATES, total)
    tl.store(numbers + WEIGHT, W)
    tl.store(numbers + HAS_ANEW, tl.where(anew >= 0, 1.0, 0.0))
    tl.store(numbers + HAS_EMPTIED, tl.where(emptied >= 0, 1.0, 0.0))


@triton.jit
def scan(
    records, count, reference, mean, scatter, end_count, end_reference, end_mean, end_scatter, first, each, H,
    K: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, RECORD: tl.constexpr, HAS_INITIAL: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """What holds at each segment's start, into its record; the state after the last one into end_*. [N, H, ...]."""
    blocks: tl.constexpr = (K + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    n, h = (pid // (blocks * H)).to(tl.int64), pid // blocks % H
    rows, columns = pid % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, BK)
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    own = n * H + h
    W, P = 0.0, tl.zeros([ROWS, BK], tl.float32)
    r, r_v = tl.zeros([ROWS], tl.float32), tl.zeros([BK], tl.float32)
    m, m_v = tl.zeros([ROWS], tl.float32), tl.zeros([BK], tl.float32)
    if HAS_INITIAL:
        W = tl.load(count + own)
        P = load_matrix(scatter + own * (K * K), rows, columns, K, K)
        r, r_v = pair(reference + own * K, rows, columns, 1, K)
        m, m_v = pair(mean + own * K, rows, columns, 1, K)
        if begin < end:  # else the state passes through
            P = mirrored(scatter + own * (K * K), rows, columns, K)
            m, m_v = tl.where(W == 0, 0.0, m), tl.where(W == 0, 0.0, m_v)
    for s in range(begin, end):
        ptr = records + (s * H + h) * RECORD
        vectors, numbers = ptr + K * K, ptr + K * K + 6 * K
        added = load_matrix(ptr, rows, columns, K, K)  # [ROWS, BK]
        store_matrix(ptr, rows, columns, P, K, K)
        tl.store(vectors + START_REFERENCE * K + rows, r, mask=rows < K)
        tl.store(vectors + START_MEAN * K + rows, m, mask=rows < K)
        tl.store(numbers + START_COUNT, W)
        decay, w = tl.exp(tl.load(numbers + GATES)), tl.load(numbers + WEIGHT)
        kept = decay * W
        renewal = tl.where(W == 0, tl.load(numbers + HAS_ANEW), tl.load(numbers + HAS_EMPTIED)) > 0
        key, key_v = pair(vectors + tl.where(W == 0, ANEW, EMPTIED) * K, rows, columns, 1, K)
        from_r, from_v = pair(vectors + REFERENCE * K, rows, columns, 1, K)
        own_m, own_m_v = pair(vectors + MEAN * K, rows, columns, 1, K)
        between = ratio(kept * w, kept + w)
        P = P * decay + added
        P += (between * (from_r - r + own_m - m))[:, None] * (from_v - r_v + own_m_v - m_v)[None, :]
        m = tl.where(renewal, from_r - key + own_m, merged(m, from_r - r + own_m, kept, w))
        m_v = tl.where(renewal, from_v - key_v + own_m_v, merged(m_v, from_v - r_v + own_m_v, kept, w))
        r, r_v = tl.where(renewal, key, r), tl.where(renewal, key_v, r_v)
        W = kept + w
        m, m_v = tl.where(W == 0, 0.0, m), tl.where(W == 0, 0.0, m_v)
    store_matrix(end_scatter + own * (K * K), rows, columns, P, K, K)
    tl.store(end_reference + own * K + rows, r, mask=rows < K)
    tl.store(end_mean + own * K + rows, m, mask=rows < K)
    tl.store(end_count + own, W)
