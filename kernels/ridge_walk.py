"""The running ridge solve in half precision: a walk over the chunks of a segment, with the inverse carried along.

In units of lam0 (directions u / sqrt(lam0), A = (I + M)^{-1}), for the rows X, U of a chunk and A before it:

    Z = U A,   N = Z U^T,   Y = X A - C Z,   A' = A - Z^T (I + N)^{-1} Z

Row t of C solves c (I + N) = x_t Z^T in its first t + 1 columns, as y_t knows of no later token. No factor is needed
for that: conjugate gradients on all rows at once take one product of C x C a step, I + N is at most 1 + trace(N), and a
row that has converged waits for the others without changing a bit. Repeated directions, which ruin a factor in low
precision, are two steps.

What half precision cannot do is marked, for ridge_conjugate.py to solve in float32. An entry of A is wrong by a
rounding of the largest one, and Y by a rounding of X A: so a row is marked where |y| is much smaller than |x| times the
largest of A, where trace(N) up to its token is large, after a direction too long for A, and where an iteration did not
arrive. Marks depend on tokens up to their own.

Sources: [VLA], section 2.2; Woodbury 1950.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, segment, store_matrix, tile
from linattest.kernels.ridge_conjugate import normalised, powers

ARRIVED = tl.constexpr(2.0**-22)
"""Squared residual of a row beside that of its right side: a rounding of float16."""

STEPS = tl.constexpr(32)

SMALL = tl.constexpr(2.0**-3)
"""Least |y| beside |x| times the largest diagonal of A: three of eleven bits are lost there."""

LEVERAGE = tl.constexpr(16.0)
"""Largest trace(N): what a chunk forgets of A is at most so many times what it keeps."""

LONG = tl.constexpr(64.0)
"""Largest |u|^2 times the largest diagonal of A: of u A u^T a rounding of A is so many roundings of 1."""


@triton.jit
def solved(B, N, mask, C: tl.constexpr, STAGE: tl.constexpr):
    """X [C, C] with X (I + N) = B by rows, in the columns of `mask`; and which rows [C] arrived."""
    X, R = tl.zeros([C, C], tl.float32), B
    left = tl.sum(R * R, axis=1)
    goal = left * ARRIVED
    P, active = R, left > 0.0
    bad = left != left
    steps = tl.sum(tl.zeros([C], tl.int32), axis=0)
    going = tl.max(active.to(tl.int32), axis=0)
    while going > 0:
        Q = P + tl.where(mask, dot(operand(P, STAGE), N, "tf32"), 0.0)  # [C, C] [C, C]
        curvature = tl.sum(P * Q, axis=1)
        bad = bad | (active & ~(curvature > 0.0))
        active = active & (curvature > 0.0)
        step = tl.where(active, left / tl.where(active, curvature, 1.0), 0.0)
        X += step[:, None] * P
        R -= step[:, None] * Q
        after = tl.sum(R * R, axis=1)
        P = tl.where(active[:, None], R + (after / tl.where(active, left, 1.0))[:, None] * P, P)
        left = tl.where(active, after, left)
        active = active & (left > goal)
        steps += 1
        going = tl.where(steps < STEPS, tl.max(active.to(tl.int32), axis=0), 0)
    return X, ~(bad | active)


@triton.jit
def _rows(x, unit, xs, us, b, h, t0, i, channels, live, K: tl.constexpr):
    """Rows of x [C, BK], normalised (and stored) with `unit` and else over a power of two, which comes with them."""
    X = tile(at(x, xs, b, h, t0), xs, i, channels, live, K).to(tl.float32)  # [C, BK]
    power, down = powers(X)
    if unit is None:
        X *= down[:, None]
    else:
        X, _ = normalised(X)
        put(at(unit, us, b, h, t0), us, i, channels, live, X, K)
    return X, power


@triton.jit
def walk(
    results, x, u, lam, A, sound, room, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, STAGE: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """y [B, T, H, K] and marks [B, T, H] int8, 1 for a row to be solved again; a program is a segment of a head.

    results are (y, unit, lengths, marks), as in ridge_conjugate.solve. A, sound: what ridge_inverse.inverses made;
    room [segments, H, K, K] of A's type is for what A becomes. strides are those of y, unit, lengths, marks, x, u;
    sizes T, segments in a row and H.
    """
    T, each, H = sizes
    y, unit, lengths, marks = results
    ys, us, ls, ms, xs, ps = strides
    pid = tl.program_id(0)
    s, h = pid // H, pid % H
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    ridge = number if lam is None else tl.load(lam + h)
    over = 1.0 / ridge
    shrink = tl.sqrt(over)
    lower, eye = i[:, None] >= i[None, :], tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    every = i[:, None] >= 0 * i[None, :]
    own, room = A + pid.to(tl.int64) * (K * K), room + pid.to(tl.int64) * (K * K)
    fine = tl.load(sound + pid)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        largest = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
        U = tile(at(u, ps, b, h, t0), ps, i, channels, live, K).to(tl.float32) * shrink  # [C, BK]
        long = tl.cumsum((tl.sum(U * U, axis=1) * largest > LONG).to(tl.int32), axis=0)
        U = operand(U, STAGE)
        Z = operand(dot(U, load_matrix(own, channels, channels, K, K), "tf32"), STAGE)  # [C, BK] [BK, BK]
        N = dot(Z, tl.trans(U), "tf32")  # [C, BK] [BK, C]
        leverage = tl.cumsum(tl.sum(N * eye, axis=1), axis=0)
        N = operand(N, STAGE)
        X, power = _rows(x, unit, xs, us, b, h, t0, i, channels, live, K)  # [C, BK]
        size = tl.sum(X * X, axis=1)
        X = operand(X, STAGE)
        right = tl.where(lower, dot(X, tl.trans(Z), "tf32"), 0.0)  # [C, BK] [BK, C]
        found, arrived = solved(right, N, lower, C, STAGE)
        tl.debug_barrier()  # A is read again, and again below: registers have no room for it
        Y = dot(X, load_matrix(own, channels, channels, K, K), "tf32")  # [C, BK] [BK, BK]
        Y = dot_add(Y, operand(-found, STAGE), Z, "tf32")  # [C, C] [C, BK]
        safe = (leverage <= LEVERAGE) & (long == 0)
        enough = tl.sum(Y * Y, axis=1) >= (SMALL * largest) * (SMALL * largest) * size
        good = tl.where(arrived & safe & enough, fine, 0)
        tl.store(at(marks, ms, b, h, t0) + i * ms[1], (1 - good).to(tl.int8), mask=live)
        if lengths is None:
            Y *= over if unit is not None else (over * power)[:, None]
        else:
            Y, length = normalised(Y)
            tl.store(at(lengths, ls, b, h, t0) + i * ls[1], over * length, mask=live)
        put(at(y, ys, b, h, t0), ys, i, channels, live, Y, K)
        if t0 + C < end:
            found, arrived = solved(eye, N, every, C, STAGE)
            fine = tl.minimum(fine, tl.min((arrived & safe).to(tl.int32), axis=0))
            W = operand(-dot(operand(found, STAGE), Z, "tf32"), STAGE)  # [C, C] [C, BK]
            tl.debug_barrier()
            after = load_matrix(own, channels, channels, K, K).to(tl.float32)  # [BK, BK]
            after = dot_add(after, tl.trans(Z), W, "tf32")  # [BK, C] [C, BK]
            tl.debug_barrier()
            store_matrix(room, channels, channels, after, K, K)
            tl.debug_barrier()  # the next chunk reads, in other threads, what was stored
            own = room
