"""The running ridge solve in half precision: a walk over the chunks of a segment, with the inverse carried along.

In units of lam0 (directions u / sqrt(lam0), A = (I + M)^{-1}), for the rows X, U of a chunk and A before it:

    Z = U A,   N = Z U^T,   L (I + N) L^T = I with L lower triangular,   W = L Z
    Y = X A - lower(X W^T) W,   A' = A - W^T W

L is the inverse of a Cholesky factor, and no loop over rows is needed for it where N is small: from I - phi(N), with
phi the part below the diagonal and half the diagonal, one step L <- L - phi(L (I + N) L^T - I) L leaves the square of
what it found. That is nearly every chunk, since A shrinks along every direction that comes again.

Where it found too much, in the first chunk or two of repeated directions, conjugate gradients do the chunk's rows at
once: Y = X A - C Z with row t of C from c (I + N) = x_t Z^T in its first t + 1 columns, and A' = A - V Z with
V (I + N) = Z^T. A row that has converged waits for the others without changing a bit.

What half precision cannot do is marked, for ridge_again.py and ridge_conjugate.py. An entry of A is wrong by a rounding
of the largest one, and Y by a rounding of X A: so a row is marked where |y| is much smaller than |x| times the largest
of A, and all rows once the largest is much smaller than it was; where trace(N) up to its token is large, or a direction
too long for A, which is left out; and where an iteration did not arrive. Values and marks depend on tokens up to their
own.

Sources: [VLA], section 2.2; Woodbury 1950.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, segment, store_matrix, tile
from linattest.kernels.ridge_conjugate import powers

FOUND = tl.constexpr(2.0**-10)
"""Largest squared Frobenius norm of L (I + N) L^T - I, up to a row, before the step that squares it."""

UNUSABLE = tl.constexpr(1e6)
"""What a direction that is too long adds to that, or too much leverage: more than it can be otherwise."""

LEVERAGE = tl.constexpr(2.0**7)
"""Largest trace(N): a rounding of N is so many roundings of 1 at most, and I + N has eigenvalues of 1."""

ARRIVED = tl.constexpr(2.0**-22)
"""Squared residual of a row beside that of its right side: a rounding of float16."""

STEPS = tl.constexpr(32)

SMALL = tl.constexpr(2.0**-3)
"""Least |y| beside |x| times the largest diagonal of A: three of eleven bits are lost there."""

SHRUNK = tl.constexpr(2.0**-7)
"""Least that may be left of the largest diagonal that a segment began with: A keeps the roundings of what it was."""

LONG = tl.constexpr(64.0)
"""Largest |u|^2 times the largest diagonal of A: of u A u^T a rounding of A is so many roundings of 1."""


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
def factor(N, C: tl.constexpr, STAGE: tl.constexpr):
    """L [C, C] of STAGE with L (I + N) L^T near I, for N of STAGE; what its step found in each row, squared, and the
    diagonal of N, both [C]."""
    i = tl.arange(0, C)
    lower, diagonal = i[:, None] >= i[None, :], i[:, None] == i[None, :]
    L = tl.where(diagonal, 1.0 - 0.5 * N.to(tl.float32), tl.where(lower, -N.to(tl.float32), 0.0))
    first = operand(L, STAGE)
    G = tl.where(lower, dot_add(L, first, N, "tf32"), 0.0)  # every dot: [C, C] [C, C]
    E = tl.where(lower, dot(operand(G, STAGE), tl.trans(first), "tf32"), 0.0) - tl.where(diagonal, 1.0, 0.0)
    found = tl.sum(E * E, axis=1)
    leverage = tl.sum(tl.where(diagonal, N.to(tl.float32), 0.0), axis=1)
    E = operand(tl.where(diagonal, -0.5 * E, -E), STAGE)
    return operand(dot_add(L, E, first, "tf32"), STAGE), found, leverage


@triton.jit
def _prefix(found, leverage, short):
    """[C]: sums up to each row of what `factor` found, UNUSABLE from a row on that is not `short` or has too much."""
    own = tl.where(found <= 1e3, found, 1e3)  # a NaN too
    return tl.cumsum(tl.where(short & (tl.cumsum(leverage, axis=0) <= LEVERAGE), own, UNUSABLE), axis=0)


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
def _difference(X, P, W, A, channels, K: tl.constexpr, STAGE: tl.constexpr):
    """X A - P W [C, BK]."""
    tl.debug_barrier()  # A is read again, and again after: registers have no room for it
    Y = dot(X, load_matrix(A, channels, channels, K, K), "tf32")  # [C, BK] [BK, BK]
    return dot_add(Y, operand(-P, STAGE), W, "tf32")  # [C, C] [C, BK]


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
        tl.store(at(lengths, ls, b, h, t0) + i * ls[1], over * tl.sqrt(length) * _inverse_root(size), mask=live)
        Y *= _inverse_root(length)[:, None]
    elif unit is not None:
        Y *= (over * _inverse_root(size))[:, None]
    else:
        Y *= (over * power)[:, None]
    put(at(y, ys, b, h, t0), ys, i, channels, live, Y, K)
    return good


@triton.jit
def _inverse_root(x):
    """1 / sqrt(x), and 1 for 0."""
    return 1.0 / tl.where(x == 0.0, 1.0, tl.sqrt(x))


@triton.jit
def walk(
    results, clean, x, u, lam, A, sound, room, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, STAGE: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """y [B, T, H, K] and marks [B, T, H] int8, 1 for a row to be solved again; a program is a segment of a head.

    results are (y, unit, lengths, marks), as in ridge_conjugate.solve. A, sound: what ridge_inverse.inverses made, of
    which this takes the first plane; clean [segments, H] int32 becomes whether a segment has no mark. room [segments,
    H, K, K] of A's type is for what A becomes. strides are those of y, unit, lengths, marks, x, u; sizes T, segments in
    a row and H.
    """
    T, each, H = sizes
    _, unit, _, _ = results
    _, us, _, _, xs, ps = strides
    pid = tl.program_id(0)
    s, h = pid // H, pid % H
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    ridge = number if lam is None else tl.load(lam + h)
    over = 1.0 / ridge
    shrink = tl.sqrt(over)
    lower = i[:, None] >= i[None, :]
    own, room = A + pid.to(tl.int64) * (2 * K * K), room + pid.to(tl.int64) * (K * K)
    fine = tl.load(sound + pid)
    first = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
    unmarked = i >= 0
    for t0 in range(begin, end, C):
        live = t0 + i < end
        largest = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
        fine = tl.where(largest >= SHRUNK * first, fine, 0)
        Z, N, short = _directions(at(u, ps, b, h, t0), ps, own, live, shrink, largest, K, BK, C, STAGE)
        L, found, leverage = factor(N, C, STAGE)
        found = _prefix(found, leverage, short)
        easy, most = found <= FOUND, tl.max(found, axis=0)
        L = tl.where(easy[:, None], L, 0.0)  # later rows may be infinite, which 0 does not hide from earlier ones
        W = operand(dot(L, Z, "tf32"), STAGE)  # [C, C] [C, BK]
        X, power, size = rows(at(x, xs, b, h, t0), xs, live, K, BK, C)
        if unit is not None:
            put(at(unit, us, b, h, t0), us, i, channels, live, X * _inverse_root(size)[:, None], K)
        X = operand(X, STAGE)
        P = tl.where(lower, dot(X, tl.trans(W), "tf32"), 0.0)  # [C, BK] [BK, C]
        Y = _difference(X, P, W, own, channels, K, STAGE)
        good = store(
            results, strides, b, h, t0, live & easy, Y, size, power, over, easy & (fine > 0), SMALL * largest, C, K, BK
        )  # fmt: skip
        if most <= FOUND:
            if t0 + C < end:
                _less(own, room, tl.trans(W), W, channels, K)
        else:  # anew from memory, so that nothing is kept for it
            tl.debug_barrier()
            Z, N, short = _directions(at(u, ps, b, h, t0), ps, own, live, shrink, largest, K, BK, C, STAGE)
            X, power, size = rows(at(x, xs, b, h, t0), xs, live, K, BK, C)
            X = operand(X, STAGE)
            P = tl.where(lower, dot(X, tl.trans(Z), "tf32"), 0.0)  # [C, BK] [BK, C]
            P, arrived = solved(P, N, lower, STAGE)
            Y = _difference(X, P, Z, own, channels, K, STAGE)
            arrived = store(
                results, strides, b, h, t0, live & ~easy, Y, size, power, over,
                arrived & (found < UNUSABLE) & (fine > 0), SMALL * largest, C, K, BK,
            )  # fmt: skip
            good = tl.where(easy, good, arrived)
            if t0 + C < end:
                V, came = solved(tl.trans(Z).to(tl.float32), N, None, STAGE)  # [BK, C]
                fine = tl.where(most < UNUSABLE, tl.minimum(fine, tl.min(came.to(tl.int32), axis=0)), 0)
                _less(own, room, operand(V, STAGE), Z, channels, K)
        unmarked = unmarked & (good | ~live)
        own = room
    tl.store(clean + pid, tl.min(unmarked.to(tl.int32), axis=0))
