"""Decays of a gate per key channel: what a chunk of the decay scan makes of q, k and g before any value is read.

For a chunk of C tokens, with D[t, s] the decays from s to t [K], d_t from its start to t, e_s from s to its end:

    reads_t = scale d_t * q_t,     writes_s = e_s * k_s,     A[t, s] = scale sum_i q_t[i] D[t, s][i] k_s[i]  (s <= t)

A product of matrices needs D as a product of a factor of t and one of s, that is an anchor between them. Where the
gates after a chunk's first token sum to more than -REACH in every channel, one anchor, the chunk's end, serves all
pairs: factors exp(-until_t) and exp(until_s), whose exponents are off by at most REACH units of 2**-24. Otherwise
(`tree`) pairs meet in the tree of anchors of `impls.decay_scan.channel_decays`: in a block of 2 m tokens those of the
right half with those of the left, through the middle, with two factors of at most 1; from m = C / 2 down, until blocks
of m tokens may have one anchor each. Every exponent is the sum of its own segment's gates; a token's pair with itself
has none and meets no rounding of operands.

Sums of gates are products with matrices of 0 and 1; each gate is split into bfloat16 pieces that add up to it. -inf is
taken as -1e30: sums stay finite (0 times it is 0) and their exp is 0.

Sources: [GLA] (chunk form, anchors); the tree is ours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, operand, put, segment, tile

LOWEST = tl.constexpr(-1e30)
"""Stands for a gate of -inf: a whole segment of them does not overflow, and exp of one is 0."""


@triton.jit
def gates(g, strides, rows, channels, live, WIDTH: tl.constexpr):
    """Log gates [rows, channels], -inf replaced: bfloat16 where they are stored so, float32 else."""
    raw = tile(g, strides, rows, channels, live, WIDTH)
    wide = raw.to(tl.float32)
    return tl.where(wide < LOWEST, LOWEST, wide).to(tl.bfloat16 if raw.dtype == tl.bfloat16 else tl.float32)


@triton.jit
def wide(x, strides, rows, channels, live, WIDTH: tl.constexpr):
    """[rows, channels] of a tensor in float32, before any arithmetic rounds it."""
    return tile(x, strides, rows, channels, live, WIDTH).to(tl.float32)


@triton.jit
def ones(chosen):
    """1 where `chosen`, else 0, as an operand; no other form of a truth becomes a bfloat16 in the interpreter."""
    return chosen.to(tl.float32).to(tl.bfloat16)


@triton.jit
def sums(ones, x, STAGE: tl.constexpr):
    """Sums of x's rows: ones [R, C] (of 0 and 1) @ x [C, N], in float32. x is split into exact bfloat16 pieces.

    Two pieces hold 16 bits of a float32 gate, enough beside bfloat16 operands; three hold all 24.
    """
    if x.dtype == tl.bfloat16:
        return dot(ones, x, "tf32")
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    total = dot_add(dot(ones, high, "tf32"), ones, middle, "tf32")
    if tl.bfloat16 == STAGE:
        return total
    return dot_add(total, ones, (rest - middle.to(tl.float32)).to(tl.bfloat16), "tf32")


@triton.jit
def halves(m, C: tl.constexpr):
    """Which tokens of a chunk lie in the right half of their block of 2 m: [C]."""
    return (tl.arange(0, C) & m) != 0


@triton.jit
def toward_middle(m, C: tl.constexpr):
    """[t, j]: 1 where gate j lies between token t and the middle of its block of 2 m tokens.

    Written so that nothing as large as [C, C] is the same at every level: kept over a loop, it would cost registers.
    """
    t, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    left = ((t & m) == 0).to(tl.int32)
    sign = 1 - 2 * left  # in a right half up to t, in a left half from t + 1
    return ones(((t & -m) == (j & -m)) & (sign * j <= sign * t - left))


@triton.jit
def across(m, C: tl.constexpr):
    """[t, s]: whether t and s lie in the two halves of one block of 2 m tokens."""
    t, s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return ((t & (-2 * m)) == (s & (-2 * m))) & ((t & -m) != (s & -m))


@triton.jit
def prepare(
    q, k, g, reads, writes, scores, totals, reached, q_strides, k_strides, g_strides, table, sizes, scale,
    K: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """reads, writes [B, T, H, K], scores [B, T, H, C] and totals [chunks, H, K] (sums of gates) of one chunk.

    `reached` [chunks, H]: the largest sum of gates that its anchor had to bridge.
    """
    T, each, H = sizes
    pid = tl.program_id(0)
    chunk, h = pid // H, pid % H
    _, b, t0, end = segment(chunk, table, T, each, C, PACKED)
    if t0 < end:
        i = tl.arange(0, C)
        t, s = i[:, None], i[None, :]
        live = t0 + i < end
        rows, pairs = (T * H * K, H * K, K, 1), (T * H * C, H * C, C, 1)
        q, k, g = at(q, q_strides, b, h, t0), at(k, k_strides, b, h, t0), at(g, g_strides, b, h, t0)
        reads, writes = at(reads, rows, b, h, t0), at(writes, rows, b, h, t0)
        totals += tl.cast(pid, tl.int64) * K
        A, own_pair, far = tl.zeros([C, C], tl.float32), tl.zeros([C], tl.float32), 0.0
        for block in range(0, K, BLOCK):
            channels = block + tl.arange(0, BLOCK)
            own = gates(g, g_strides, i, channels, live, K)  # [C, BLOCK]
            tl.store(totals + channels, tl.sum(own.to(tl.float32), axis=0), mask=channels < K)
            queries = wide(q, q_strides, i, channels, live, K) * scale  # [C, BLOCK]
            put(reads, rows, i, channels, live, queries * tl.exp(sums(ones(t >= s), own, STAGE)), K)
            until = sums(ones(t < s), own, STAGE)  # [C, BLOCK]
            keys = wide(k, k_strides, i, channels, live, K)  # [C, BLOCK]
            write = operand(keys * tl.exp(until), STAGE)
            put(writes, rows, i, channels, live, write, K)
            far = tl.maximum(far, tl.max(tl.abs(until)))
            A = dot_add(A, operand(queries * tl.exp(-until), STAGE), tl.trans(write), PRECISION)
            own_pair += tl.sum(queries * keys, axis=1)
        A = tl.where(t > s, A, tl.where(t == s, own_pair[:, None], 0.0))
        put(at(scores, pairs, b, h, t0), pairs, i, i, live, A, C)
        tl.store(reached + pid, far)


@triton.jit
def tree(
    q, k, g, scores, reached, q_strides, k_strides, g_strides, table, sizes, scale, programs,
    K: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, REACH: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """scores [B, T, H, C] again where one anchor was too far. A program looks after every `programs`-th chunk."""
    T, each, H, items = sizes
    pairs = (T * H * C, H * C, C, 1)
    i = tl.arange(0, C)
    for item in range(tl.program_id(0), items, programs):
        chunk, h = item // H, item % H
        _, b, t0, end = segment(chunk, table, T, each, C, PACKED)
        if (t0 < end) & (tl.load(reached + item) > REACH):
            live = t0 + i < end
            A = tree_scores(
                at(q, q_strides, b, h, t0), at(k, k_strides, b, h, t0), at(g, g_strides, b, h, t0),
                q_strides, k_strides, g_strides, live, scale, K, BLOCK, C, REACH, STAGE, PRECISION,
            )  # fmt: skip
            put(at(scores, pairs, b, h, t0), pairs, i, i, live, A, C)


@triton.jit
def tree_scores(
    q, k, g, q_strides, k_strides, g_strides, live, scale, K: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
    REACH: tl.constexpr, STAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A [C, C] of a chunk: blocks of m tokens while they need a tree, then an anchor a block."""
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    A = tl.zeros([C, C], tl.float32)
    m, far = C, REACH + 1.0
    while far > REACH:
        m, far = m // 2, 0.0
        level = tl.zeros([C, C], tl.float32)
        for block in range(0, K, BLOCK):
            channels = block + tl.arange(0, BLOCK)
            exponents = sums(toward_middle(m, C), gates(g, g_strides, i, channels, live, K), STAGE)  # [C, BLOCK]
            far = tl.maximum(far, tl.max(tl.abs(exponents)))
            queries = wide(q, q_strides, i, channels, live, K) * scale  # [C, BLOCK]
            keys = wide(k, k_strides, i, channels, live, K)  # [C, BLOCK]
            x = operand(tl.where(halves(m, C)[:, None], queries, keys) * tl.exp(exponents), STAGE)
            level = dot_add(level, x, tl.trans(x), PRECISION)
        A = tl.where(across(m, C) & halves(m, C)[:, None], level, A)
        far = tl.where(m > 1, far, 0.0)
    near, own_pair = tl.zeros([C, C], tl.float32), tl.zeros([C], tl.float32)
    for block in range(0, K, BLOCK):
        channels = block + tl.arange(0, BLOCK)
        until = sums(ones((t < s) & ((t ^ s) < m)), gates(g, g_strides, i, channels, live, K), STAGE)  # [C, BLOCK]
        queries = wide(q, q_strides, i, channels, live, K) * scale  # [C, BLOCK]
        keys = wide(k, k_strides, i, channels, live, K)  # [C, BLOCK]
        near = dot_add(
            near, operand(queries * tl.exp(-until), STAGE), tl.trans(operand(keys * tl.exp(until), STAGE)), PRECISION
        )
        own_pair += tl.sum(queries * keys, axis=1)
    A = tl.where((t > s) & ((t ^ s) < m), near, A)
    return tl.where(t == s, own_pair[:, None], A)
