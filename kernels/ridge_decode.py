"""One token of a running ridge solve, and of VLA: the penalty is read once, and stays in registers.

Conjugate gradients on one row, refined like those of ridge_conjugate.py (which says why), in float32: a product with
the penalty is a sum over a tile, and the penalty of a single token needs no factor.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, load_matrix
from linattest.kernels.ridge_conjugate import ENOUGH, INNER, REFINEMENTS, SLACK, STALLED


@triton.jit
def row(x, strides, b, h, channels, WIDTH: tl.constexpr):
    """Channels of the only token, float32."""
    return tl.load(at(x, strides, b, h, 0) + channels * strides[3], mask=channels < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def power_of(x):
    """The power of two at or below the largest |x| [BK], from 2^-126 on; and its inverse."""
    bits = tl.maximum(tl.max(x.to(tl.int32, bitcast=True) & 0x7F800000, axis=0), 0x00800000)
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def unit(x):
    """x / |x| [BK], 0 for 0."""
    _, inverse = power_of(x)
    x *= inverse
    length = tl.sqrt(tl.sum(x * x, axis=0))
    return x / tl.where(length == 0.0, 1.0, length)


ROWS = tl.constexpr(32)
"""Rows of a penalty that are made symmetric at a time: a tile that is read along both axes takes shared memory."""


@triton.jit
def penalty(final, state, u, strides, b, h, H, K: tl.constexpr, BK: tl.constexpr):
    """M [BK, BK] with the token's direction, which is stored in final [B, H, K, K]; state is likewise, or None."""
    x = tl.arange(0, BK)
    head = (b.to(tl.int64) * H + h) * (K * K)
    U = row(u, strides, b, h, x, K)
    for k0 in range(0, K, ROWS):
        y = k0 + tl.arange(0, ROWS)
        mask = (y < K)[:, None] & (x < K)[None, :]
        M = row(u, strides, b, h, y, K)[:, None] * U[None, :]  # [ROWS, BK]
        if state is not None:
            own = tl.load(state + head + y[:, None] * K + x[None, :], mask=mask, other=0.0)
            mirrored = tl.load(state + head + x[None, :] * K + y[:, None], mask=mask, other=0.0)
            M += (own + mirrored) / 2.0
        tl.store(final + head + y[:, None] * K + x[None, :], M, mask=mask)
    tl.debug_barrier()  # other threads read what these stored
    return load_matrix(final + head, x, x, K, K)


@triton.jit
def solved(M, X, over, K: tl.constexpr, BK: tl.constexpr):
    """Y [BK] with (I + over M) Y = X; NaN where M is negative beyond rounding."""
    x = tl.arange(0, BK)
    large = over * tl.sum(tl.sum(tl.where(x[:, None] == x[None, :], tl.abs(M), 0.0), axis=1), axis=0)
    size = tl.sum(X * X, axis=0)
    Y, before, wrong = tl.zeros([BK], tl.float32), size, tl.where(size == size, 0, 1)
    for refinement in range(0, REFINEMENTS + 1):
        R = X - (Y + over * tl.sum(M * Y[None, :], axis=1))
        P, left = R, tl.sum(R * R, axis=0)
        wrong = tl.where(left == left, wrong, 1)
        going = (left > tl.where(tl.cast(refinement, tl.int32) == 0, 0.0, size * ENOUGH)) & (wrong == 0)
        going = going & ((left < before * STALLED) | (tl.cast(refinement, tl.int32) == 0))
        before, goal, steps = left, left * INNER, 0 * tl.cast(refinement, tl.int32)
        while going & (steps < 2 * K + 16):
            Q = P + over * tl.sum(M * P[None, :], axis=1)
            curvature = tl.sum(P * Q, axis=0)
            if curvature > 0.0:
                step = left / curvature
                Y += step * P
                R -= step * Q
                after = tl.sum(R * R, axis=0)
                P = R + (after / left) * P
                left = after
                going = left > goal
            else:
                wrong = tl.where(curvature >= -SLACK * large * tl.sum(P * P, axis=0), wrong, 1)
                going = left < 0.0
            steps += 1
    return tl.where(wrong > 0, float("nan"), Y)


@triton.jit
def ridge_step(
    y, final, x, u, lam, state, strides, H, number, K: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [B, 1, H, K] and final [B, H, K, K] from state [B, H, K, K] or None; a program is a head.

    strides are those of y, x, u; lam [H] float32, or None, and then lam0 is `number`.
    """
    ys, xs, us = strides
    b, h, channels = tl.program_id(0) // H, tl.program_id(0) % H, tl.arange(0, BK)
    over = 1.0 / (number if lam is None else tl.load(lam + h))
    M = penalty(final, state, u, us, b, h, H, K, BK)
    X = row(x, xs, b, h, channels, K)
    power, inverse = power_of(X)
    Y = solved(M, X * inverse, over, K, BK) * (over * power)
    tl.store(at(y, ys, b, h, 0) + channels * ys[3], Y, mask=channels < K)


@triton.jit
def vla_step(
    results, q, k, u, read, lam, state, strides, H, number, eps, K: tl.constexpr, BK: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """What a delta step takes: erase, write and reader [B, 1, H, K], which are k^, a, and what reads S over the
    denominator; and M [B, H, K, K], z [B, H, K] after the token. All of them (`results`) are float32 and contiguous.

    A program is a head. state is (M, z), either may be None; so may `read` (then q reads) and `eps` (no denominator).
    strides are those of q, k, u, read; `UNIT`: a is normalised.
    """
    erase, write, reader, M_after, z_after = results
    qs, ks, us, rs = strides
    b, h, x = tl.program_id(0) // H, tl.program_id(0) % H, tl.arange(0, BK)
    head = (b.to(tl.int64) * H + h) * K + x
    over = 1.0 / (number if lam is None else tl.load(lam + h))
    query, keys = row(q, qs, b, h, x, K), row(k, ks, b, h, x, K)
    z = keys
    if state[1] is not None:
        z += tl.load(state[1] + head, mask=x < K, other=0.0)
    tl.store(z_after + head, z, mask=x < K)
    reads = query if read is None else row(read, rs, b, h, x, K)
    if eps is not None:
        d = tl.sum(z * query, axis=0)
        reads /= tl.where(d <= eps, eps, d)
    tl.store(reader + head, reads, mask=x < K)
    key = unit(keys)
    tl.store(erase + head, key, mask=x < K)
    Y = solved(penalty(M_after, state[0], u, us, b, h, H, K, BK), key, over, K, BK)
    tl.store(write + head, unit(Y) if UNIT else over * Y, mask=x < K)
