"""The running ridge solve of segments in which `ridge_walk` marked rows: the same walk in two float16 planes.

Every operand is a rounding and what that left, 22 bits (fewer where the second is below float16's range), and a product
of matrices is three. There is no factor: conjugate gradients do every chunk, as `ridge_walk` does where its factor is
not good enough. That takes several times as long, and five bits more than one plane may be lost: rows that are marked
after it are left to ridge_conjugate.py.

Sources: as of ridge_walk.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot_add, load_matrix, operand, segment, store_matrix, tile
from linattest.kernels.ridge_careful import rows, store
from linattest.kernels.ridge_conjugate import last_mark
from linattest.kernels.ridge_walk import LEVERAGE, LONG, SHRUNK, SMALL

ARRIVED = tl.constexpr(2.0**-36)
"""Squared residual of a row beside that of its right side."""

STEPS = tl.constexpr(64)

MORE = tl.constexpr(2.0**5)
"""What may be lost more than in one plane."""


@triton.jit
def planes(x, STAGE: tl.constexpr):
    """x rounded to STAGE, and what is left."""
    high = operand(x, STAGE)
    return high, operand(x - high.to(tl.float32), STAGE)


@triton.jit
def product(acc, x, y):
    """acc + x @ y, both in planes."""
    return dot_add(dot_add(dot_add(acc, x[1], y[0], "tf32"), x[0], y[1], "tf32"), x[0], y[0], "tf32")


@triton.jit
def turned(x):
    """The transpose of x in planes."""
    return tl.trans(x[0]), tl.trans(x[1])


@triton.jit
def solved(B, N, mask, STAGE: tl.constexpr):
    """`ridge_walk.solved` with N in planes."""
    X, R = tl.zeros_like(B), B
    left = tl.sum(R * R, axis=1)
    goal = left * ARRIVED
    P, active = R, left > 0.0
    bad = left != left
    steps = tl.sum(active.to(tl.int32), axis=0) * 0
    going = tl.max(active.to(tl.int32), axis=0)
    while going > 0:
        Q = product(tl.zeros_like(B), planes(P, STAGE), N)  # [R, C] [C, C]
        Q = P + (Q if mask is None else tl.where(mask, Q, 0.0))
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
def _load(A, channels, K: tl.constexpr):
    """A in planes, each [BK, BK]."""
    return load_matrix(A, channels, channels, K, K), load_matrix(A + K * K, channels, channels, K, K)


@triton.jit
def walk(
    results, clean, x, u, lam, A, sound, room, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, HEAD: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """y of rows that have a mark, which they lose if it is right now; arguments as of `ridge_walk.walk`.

    room [segments, H, 2, K, K].
    """
    T, each, H = sizes
    y, unit, lengths, marks = results
    ys, us, ls, ms, xs, ps = strides
    pid = tl.program_id(0)
    s, h = pid // H, pid % H
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    over = 1.0 / (number if lam is None else tl.load(lam + h))
    lower, diagonal = i[:, None] >= i[None, :], i[:, None] == i[None, :]
    own, room = A + pid.to(tl.int64) * (2 * K * K), room + pid.to(tl.int64) * (2 * K * K)
    fine, stop = tl.load(sound + 2 * pid), begin
    if (tl.load(clean + pid) == 0) & (fine > 0):
        stop = last_mark(at(marks, ms, b, h, begin), ms[1], begin, end, C)
    first = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
    unmarked = i >= 0
    for t0 in range(begin, stop, C):
        live = t0 + i < end
        asked = tl.load(at(marks, ms, b, h, t0) + i * ms[1], mask=live, other=0) > 0
        largest = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
        fine = tl.where(largest >= SHRUNK / (MORE * MORE) * first, fine, 0)
        U = tile(at(u, ps, b, h, t0), ps, i, channels, live, K).to(tl.float32) * tl.sqrt(over)  # [C, BK]
        short = tl.sum(U * U, axis=1) * largest <= LONG * MORE
        U = planes(tl.where(short[:, None], U, 0.0), STAGE)
        Z = product(tl.zeros([C, BK], tl.float32), U, _load(own, channels, K))  # [C, BK] [BK, BK]
        Z = planes(Z, STAGE)
        N = product(tl.zeros([C, C], tl.float32), Z, turned(U))  # [C, BK] [BK, C]
        leverage = tl.cumsum(tl.sum(tl.where(diagonal, N, 0.0), axis=1), axis=0)
        usable = (tl.cumsum((~short).to(tl.int32), axis=0) == 0) & (leverage <= LEVERAGE * MORE)
        N = planes(N, STAGE)
        X, power, size = rows(at(x, xs, b, h, t0), xs, live, K, BK, C)
        X = planes(X, STAGE)
        P = product(tl.zeros([C, C], tl.float32), X, turned(Z))  # [C, BK] [BK, C]
        P, arrived = solved(tl.where(lower, P, 0.0), N, lower, STAGE)
        tl.debug_barrier()
        Y = product(tl.zeros([C, BK], tl.float32), X, _load(own, channels, K))  # [C, BK] [BK, BK]
        Y = product(Y, planes(-P, STAGE), Z)  # [C, C] [C, BK]
        good = store(
            results, strides, b, h, t0, asked, Y, size, power, over, arrived & usable & (fine > 0),
            SMALL / MORE * largest, C, K, BK,
        )  # fmt: skip
        unmarked = unmarked & (good | ~asked)
        if t0 + C < stop:
            V, came = solved(tl.trans(Z[0]).to(tl.float32) + tl.trans(Z[1]), N, None, STAGE)  # [BK, C]
            fine = tl.minimum(fine, tl.min(came.to(tl.int32), axis=0))
            fine = tl.minimum(fine, tl.min(usable.to(tl.int32), axis=0))
            tl.debug_barrier()
            high, low = _load(own, channels, K)
            after = product(high.to(tl.float32) + low, planes(-V, STAGE), Z)  # [BK, C] [C, BK]
            high, low = planes(after, STAGE)
            tl.debug_barrier()
            store_matrix(room, channels, channels, high, K, K)
            store_matrix(room + K * K, channels, channels, low, K, K)
            tl.debug_barrier()  # the next chunk reads, in other threads, what was stored
            own = room
    if begin < stop:
        tl.store(clean + pid, tl.min(unmarked.to(tl.int32), axis=0))
