"""A chunk of the running ridge solve by conjugate gradients, in half precision: what needs no factor.

With the letters of ridge_walk.py, all rows of a chunk at once: Y = X A - C Z with row t of C from c (I + N) = x_t Z^T
in its first t + 1 columns, as y_t knows of no later token; A' = A - V Z with V (I + N) = Z^T. I + N is at most 1 +
trace(N), a step is one product of matrices, and a row that has converged waits for the others without changing a bit.
Repeated directions, which ruin a factor in low precision, are two steps.

Sources: as of ridge_walk.py; Hestenes and Stiefel 1952.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, store_matrix, tile
from linattest.kernels.ridge_conjugate import powers
from linattest.kernels.ridge_walk import LEVERAGE, LONG, SMALL, inverse_root

ARRIVED = tl.constexpr(2.0**-22)
"""Squared residual of a row beside that of its right side: a rounding of float16."""

STEPS = tl.constexpr(32)


@triton.jit
def solved(B, N, mask, STAGE: tl.constexpr):
    """X [R, C] with X (I + N) = B by rows, in the columns of `mask` if it is not None; and which rows [R] arrived."""
    X, R = tl.zeros_like(B), B
    left = tl.sum(R * R, axis=1)
    goal = left * ARRIVED
    P, active = R, left > 0.0
    bad = left != left
    steps = tl.sum(active.to(tl.int32), axis=0) * 0
    going = tl.max(active.to(tl.int32), axis=0)
    while going > 0:
        Q = dot(operand(P, STAGE), N, "tf32")  # [R, C] [C, C]
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
def _directions(u, strides, A, live, shrink, largest, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
                STAGE: tl.constexpr):  # fmt: skip
    """Z [C, BK] and N [C, C] of STAGE; [C] which directions are not too long: the others are left out."""
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    U = tile(u, strides, i, channels, live, K).to(tl.float32) * shrink  # [C, BK]
    short = tl.sum(U * U, axis=1) * largest <= LONG
    U = operand(tl.where(short[:, None], U, 0.0), STAGE)
    Z = operand(dot(U, load_matrix(A, channels, channels, K, K), "tf32"), STAGE)  # [C, BK] [BK, BK]
    return Z, operand(dot(Z, tl.trans(U), "tf32"), STAGE), short  # [C, BK] [BK, C]


@triton.jit
def rows(x, strides, live, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr):
    """X [C, BK] over powers of two [C], which come with it, and its squared lengths [C]."""
    X = tile(x, strides, tl.arange(0, C), tl.arange(0, BK), live, K).to(tl.float32)
    power, down = powers(X)
    X *= down[:, None]  # exact
    return X, power, tl.sum(X * X, axis=1)


@triton.jit
def store(
    results, strides, b, h, t0, live, Y, size, power, over, good, least, C: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Store Y of `live` rows, as ridge_conjugate.solve does, and marks; [C] which rows are good. `least`: see SMALL."""
    y, unit, lengths, marks = results
    ys, us, ls, ms, _, _ = strides
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    length = tl.sum(Y * Y, axis=1)
    good = good & (length >= least * least * size)
    tl.store(at(marks, ms, b, h, t0) + i * ms[1], tl.where(good, 0, 1).to(tl.int8), mask=live)
    if lengths is not None:
        tl.store(at(lengths, ls, b, h, t0) + i * ls[1], over * tl.sqrt(length) * inverse_root(size), mask=live)
        Y *= inverse_root(length)[:, None]
    elif unit is not None:
        Y *= (over * inverse_root(size))[:, None]
    else:
        Y *= (over * power)[:, None]
    put(at(y, ys, b, h, t0), ys, i, channels, live, Y, K)
    return good


@triton.jit
def _difference(X, P, W, A, channels, K: tl.constexpr, STAGE: tl.constexpr):
    """X A - P W [C, BK]."""
    tl.debug_barrier()  # A is read again, and again after: registers have no room for it
    Y = dot(X, load_matrix(A, channels, channels, K, K), "tf32")  # [C, BK] [BK, BK]
    return dot_add(Y, operand(-P, STAGE), W, "tf32")  # [C, C] [C, BK]


@triton.jit
def _less(own, room, left, right, channels, K: tl.constexpr):
    """A - left right, from `own` to `room` (which may be the same)."""
    tl.debug_barrier()
    after = load_matrix(own, channels, channels, K, K).to(tl.float32)  # [BK, BK]
    after = dot_add(after, -left, right, "tf32")  # [BK, C] [C, BK]
    tl.debug_barrier()
    store_matrix(room, channels, channels, after, K, K)
    tl.debug_barrier()  # the next chunk reads, in other threads, what was stored


@triton.jit
def chunk(
    results, x, u, strides, b, h, t0, end, own, room, over, fine,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """A chunk by conjugate gradients, A from `own` and then in `room`: whether A is right, and [C] which rows are."""
    _, unit, _, _ = results
    _, us, _, _, xs, ps = strides
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    live, lower = t0 + i < end, i[:, None] >= i[None, :]
    largest = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
    Z, N, short = _directions(at(u, ps, b, h, t0), ps, own, live, tl.sqrt(over), largest, K, BK, C, STAGE)
    leverage = tl.cumsum(tl.sum(tl.where(i[:, None] == i[None, :], N.to(tl.float32), 0.0), axis=1), axis=0)
    usable = (leverage <= LEVERAGE) & (tl.cumsum((~short).to(tl.int32), axis=0) == 0) & (fine > 0)
    X, power, size = rows(at(x, xs, b, h, t0), xs, live, K, BK, C)
    if unit is not None:
        put(at(unit, us, b, h, t0), us, i, channels, live, X * inverse_root(size)[:, None], K)
    X = operand(X, STAGE)
    P = tl.where(lower, dot(X, tl.trans(Z), "tf32"), 0.0)  # [C, BK] [BK, C]
    P, arrived = solved(P, N, lower, STAGE)
    Y = _difference(X, P, Z, own, channels, K, STAGE)
    good = store(
        results, strides, b, h, t0, live, Y, size, power, over, arrived & usable, SMALL * largest, C, K, BK
    )  # fmt: skip
    V, came = solved(tl.trans(Z).to(tl.float32), N, None, STAGE)  # [BK, C]
    fine = tl.minimum(tl.min(usable.to(tl.int32), axis=0), tl.min(came.to(tl.int32), axis=0))
    _less(own, room, operand(V, STAGE), Z, channels, K)
    return fine, good | ~live
