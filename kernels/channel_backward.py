"""The backward of the decay scan with a gate per key channel, in Triton (names: `channel_decays`, `channel_scan`).

With do the gradient of o, and dS_n that of the state after chunk n, which obeys the same recurrence backwards in time:

    dS_{n-1} = d_last dS_n + reads^T dO,      dV = A^T dO + writes dS_n

so the forward's kernels, in reverse, make dV and the gradients of states; states of both directions are stored at every
chunk, as operands are. What remains is parallel over chunks and blocks of key channels. With dA = tril(dO V^T):

    dQ = d * (dO S^T) + (from pairs),      dK = e * (V dS^T) + (from pairs)

Pairs of tokens meet in the tree of anchors all the way down. At the level of blocks of 2 m tokens, x_t = (q_t in the
right half, k_t in the left) times the decay between t and the middle, and y = W_m x times the same decay again (W_m: dA
mirrored at its diagonal, this level's pairs of it) is dQ's part in the right half and dK's in the left.

The gradient of gate j sums what passes through it: of each level's pairs, q_t dq_t of the tokens from j on in a right
half, k_s dk_s of those before j in a left half; likewise the chunk's own reads and writes of states; and S_n . dS_n,
decayed, in every row. No difference is taken: without an initial state the first gate's gradient is exactly 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, segment, tile
from linattest.kernels.channel_decays import across, gates, halves, ones, sums, toward_middle, wide


@triton.jit
def narrow_sums(ones, x, STAGE: tl.constexpr):
    """Sums of x's rows as in `sums`; x is an operand like any other: bfloat16 where those are."""
    if tl.bfloat16 == STAGE:
        return sums(ones, operand(x, STAGE), STAGE)
    return sums(ones, x, STAGE)


@triton.jit
def pairs(
    v, do, met, v_strides, do_strides, table, sizes,
    V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """met [B, T, H, C]: dA of each chunk, mirrored at its diagonal."""
    T, each, HV, G = sizes
    H = HV // G
    pid = tl.program_id(0)
    chunk, h = pid // H, pid % H
    _, b, t0, end = segment(chunk, table, T, each, C, PACKED)
    if t0 < end:
        i = tl.arange(0, C)
        t, s = i[:, None], i[None, :]
        live = t0 + i < end
        below, above = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
        for head in range(h * G, h * G + G):
            for block in range(0, V, BV):
                columns = block + tl.arange(0, BV)
                out = operand(tile(at(do, do_strides, b, head, t0), do_strides, i, columns, live, V), STAGE)  # [C, BV]
                values = operand(tile(at(v, v_strides, b, head, t0), v_strides, i, columns, live, V), STAGE)  # [C, BV]
                below = dot_add(below, out, tl.trans(values), PRECISION)
                above = dot_add(above, values, tl.trans(out), PRECISION)
        rows = (T * H * C, H * C, C, 1)
        put(at(met, rows, b, h, t0), rows, i, i, live, tl.where(t >= s, below, above), C)


@triton.jit
def gradients(
    q, k, v, g, do, met, starts, ends, dq, dk, dg, strides, table, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dq, dk, dg [B, T, H, K] of a chunk and a block of channels; starts, ends [chunks, HV, V, K]: S_n, dS_n."""
    T, each, HV, G = sizes
    q_strides, k_strides, v_strides, g_strides, do_strides = strides
    blocks: tl.constexpr = (K + BLOCK - 1) // BLOCK
    H = HV // G
    pid = tl.program_id(0)
    chunk, h = pid // (blocks * H), pid // blocks % H
    _, b, t0, end = segment(chunk, table, T, each, C, PACKED)
    if t0 < end:
        i, channels = tl.arange(0, C), pid % blocks * BLOCK + tl.arange(0, BLOCK)
        t, s = i[:, None], i[None, :]
        live = t0 + i < end
        dQ, dK = tl.zeros([C, BLOCK], tl.float32), tl.zeros([C, BLOCK], tl.float32)
        through, diagonal = tl.zeros([BLOCK], tl.float32), tl.zeros([C], tl.float32)
        for head in range(h * G, h * G + G):
            matrix = (tl.cast(chunk, tl.int64) * HV + head) * (K * V)
            for block in range(0, V, BV):
                columns = block + tl.arange(0, BV)
                out = operand(tile(at(do, do_strides, b, head, t0), do_strides, i, columns, live, V), STAGE)  # [C, BV]
                values = operand(tile(at(v, v_strides, b, head, t0), v_strides, i, columns, live, V), STAGE)  # [C, BV]
                S = load_matrix(starts + matrix, columns, channels, V, K)  # [BV, BLOCK]
                dS = load_matrix(ends + matrix, columns, channels, V, K)  # [BV, BLOCK]
                dQ = dot_add(dQ, out, operand(S, STAGE), PRECISION)
                dK = dot_add(dK, values, operand(dS, STAGE), PRECISION)
                diagonal += tl.sum(out.to(tl.float32) * values.to(tl.float32), axis=1)
                through += tl.sum(S.to(tl.float32) * dS.to(tl.float32), axis=0)
        queries = wide(at(q, q_strides, b, h, t0), q_strides, i, channels, live, K) * scale  # [C, BLOCK]
        keys = wide(at(k, k_strides, b, h, t0), k_strides, i, channels, live, K)  # [C, BLOCK]
        own = gates(at(g, g_strides, b, h, t0), g_strides, i, channels, live, K)  # [C, BLOCK]
        since, until = ones(t >= s), ones(t < s)  # [C, C]
        dQ *= tl.exp(sums(since, own, STAGE))
        dK *= tl.exp(sums(until, own, STAGE))
        dG = narrow_sums(tl.trans(since), queries * dQ, STAGE) + narrow_sums(tl.trans(until), keys * dK, STAGE)
        dG += (through * tl.exp(tl.sum(own.to(tl.float32), axis=0)))[None, :]
        rows, columns = (T * H * K, H * K, K, 1), (T * H * C, H * C, C, 1)
        met = at(met, columns, b, h, t0)
        dQ += diagonal[:, None] * keys
        dK += diagonal[:, None] * queries
        m = C // 2
        while m > 0:
            between, right = toward_middle(m, C), halves(m, C)[:, None]
            # Loaded again at each level: there are no registers to keep them in.
            queries = wide(at(q, q_strides, b, h, t0), q_strides, i, channels, live, K) * scale  # [C, BLOCK]
            keys = wide(at(k, k_strides, b, h, t0), k_strides, i, channels, live, K)  # [C, BLOCK]
            own = gates(at(g, g_strides, b, h, t0), g_strides, i, channels, live, K)  # [C, BLOCK]
            decay = tl.exp(sums(between, own, STAGE))  # [C, BLOCK]
            x = tl.where(right, queries, keys)
            level = tile(met, columns, i, i, live, C)  # [C, C]
            level = operand(tl.where(across(m, C), level, 0.0), STAGE)
            y = dot(level, operand(x * decay, STAGE), PRECISION) * decay  # [C, C] [C, BLOCK]
            dQ += tl.where(right, y, 0.0)
            dK += tl.where(right, 0.0, y)
            dG += narrow_sums(tl.trans(between), x * y, STAGE)
            m = m // 2
        put(at(dq, rows, b, h, t0), rows, i, channels, live, dQ * scale, K)
        put(at(dk, rows, b, h, t0), rows, i, channels, live, dK, K)
        put(at(dg, rows, b, h, t0), rows, i, channels, live, dG, K)
