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

Widths above 64 are done in two halves of 64 columns, A in four blocks: a program has registers for two of its own width,
not for one of 128 by 128. A is read again for each use, from memory that the program itself has written.

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
"""What a direction that is too long adds to that: more than it can be otherwise."""

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
def factor(N, short, C: tl.constexpr, STAGE: tl.constexpr):
    """L [C, C] float32 with L (I + N) L^T near I, for N of STAGE; and [C], up to each row: what its step found, squared,
    and as much where trace(N) is LEVERAGE; UNUSABLE from a direction on that is not `short`. Rows of L with more than
    FOUND are 0: they may be infinite, which a product with 0 would not hide from earlier ones.
    """
    i = tl.arange(0, C)
    lower, diagonal = i[:, None] >= i[None, :], i[:, None] == i[None, :]
    wide = N.to(tl.float32)
    L = tl.where(diagonal, 1.0 - 0.5 * wide, tl.where(lower, -wide, 0.0))
    first = operand(L, STAGE)
    G = tl.where(lower, dot_add(L, first, N, "tf32"), 0.0)  # every dot: [C, C] [C, C]
    E = tl.where(lower, dot(operand(G, STAGE), tl.trans(first), "tf32"), 0.0) - tl.where(diagonal, 1.0, 0.0)
    found = tl.sum(E * E + tl.where(diagonal, wide * (FOUND / LEVERAGE), 0.0), axis=1)
    found = tl.where(short, tl.where(found <= 1e3, found, 1e3), UNUSABLE)  # a NaN is 1e3
    found = tl.cumsum(found, axis=0)
    E = operand(tl.where(diagonal, -0.5 * E, -E), STAGE)
    return tl.where((found <= FOUND)[:, None], dot_add(L, E, first, "tf32"), 0.0), found


@triton.jit
def store(
    results, strides, b, h, t0, live, Y0, Y1, size, power, over, good, least, C: tl.constexpr, K: tl.constexpr,
    B: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Store Y of `live` rows, as ridge_conjugate.solve does, and marks; [C] which rows are good. `least`: see SMALL."""
    y, unit, lengths, marks = results
    ys, us, ls, ms, _, _ = strides
    i, x = tl.arange(0, C), tl.arange(0, B)
    length = tl.sum(Y0 * Y0, axis=1)
    if TWO:
        length += tl.sum(Y1 * Y1, axis=1)
    good = good & (length >= least * least * size)
    tl.store(at(marks, ms, b, h, t0) + i * ms[1], tl.where(good, 0, 1).to(tl.int8), mask=live)
    if lengths is not None:
        tl.store(at(lengths, ls, b, h, t0) + i * ls[1], over * tl.sqrt(length) * inverse_root(size), mask=live)
        scale = inverse_root(length)
    elif unit is not None:
        scale = over * inverse_root(size)
    else:
        scale = over * power
    ptr = at(y, ys, b, h, t0)
    put(ptr, ys, i, x, live, Y0 * scale[:, None], K)
    if TWO:
        put(ptr, ys, i, B + x, live, Y1 * scale[:, None], K)
    return good


@triton.jit
def inverse_root(x):
    """1 / sqrt(x), and 1 for 0."""
    return 1.0 / tl.where(x == 0.0, 1.0, tl.sqrt(x))


@triton.jit
def _times(X0, X1, A, K: tl.constexpr, B: tl.constexpr, TWO: tl.constexpr):
    """X A, in halves of columns; A from memory, which others stored to."""
    c = tl.arange(0, B)
    tl.debug_barrier()
    Y0 = dot(X0, load_matrix(A, c, c, K, K), "tf32")
    Y1 = Y0
    if TWO:
        Y0 = dot_add(Y0, X1, load_matrix(A, B + c, c, K, K), "tf32")
        Y1 = dot(X0, load_matrix(A, c, B + c, K, K), "tf32")
        Y1 = dot_add(Y1, X1, load_matrix(A, B + c, B + c, K, K), "tf32")
    return Y0, Y1


@triton.jit
def _difference(X0, X1, P, W0, W1, A, K: tl.constexpr, B: tl.constexpr, STAGE: tl.constexpr, TWO: tl.constexpr):
    """X A - P W, in halves of columns."""
    P = operand(-P, STAGE)
    Y0, Y1 = _times(X0, X1, A, K, B, TWO)
    Y0 = dot_add(Y0, P, W0, "tf32")
    if TWO:
        Y1 = dot_add(Y1, P, W1, "tf32")
    return Y0, Y1


@triton.jit
def _products(X0, X1, W0, W1, TWO: tl.constexpr):
    """X W^T [C, C]."""
    P = dot(X0, tl.trans(W0), "tf32")
    if TWO:
        P = dot_add(P, X1, tl.trans(W1), "tf32")
    return P


@triton.jit
def _less(own, room, x, y, left, right, K: tl.constexpr):
    """A - left right in rows x and columns y, from `own` to `room` (which may be the same)."""
    A = load_matrix(own, x, y, K, K).to(tl.float32)
    store_matrix(room, x, y, dot_add(A, -left, right, "tf32"), K, K)


@triton.jit
def _halves(x, strides, live, K: tl.constexpr, B: tl.constexpr, C: tl.constexpr, TWO: tl.constexpr):
    """Columns of a chunk's rows [C, B], and the others if there are TWO halves."""
    i, c = tl.arange(0, C), tl.arange(0, B)
    X0 = tile(x, strides, i, c, live, K)
    X1 = X0
    if TWO:
        X1 = tile(x, strides, i, B + c, live, K)
    return X0, X1


@triton.jit
def _scaled(X0, X1, TWO: tl.constexpr):
    """X over powers of two [C], which come with it, and its squared lengths [C]."""
    X0, X1 = X0.to(tl.float32), X1.to(tl.float32)
    most = tl.max(tl.abs(X0), axis=1)
    if TWO:
        most = tl.maximum(most, tl.max(tl.abs(X1), axis=1))
    power, down = powers(most[:, None])
    X0 *= down[:, None]  # exact
    X1 *= down[:, None]
    size = tl.sum(X0 * X0, axis=1)
    if TWO:
        size += tl.sum(X1 * X1, axis=1)
    return X0, X1, power, size


@triton.jit
def walk(
    results, clean, x, u, lam, A, sound, room, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, STAGE: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """y [B, T, H, K] and marks [B, T, H] int8, 1 for a row to be solved again; a program is a segment of a head.

    results are (y, unit, lengths, marks), as in ridge_conjugate.solve. A, sound: what ridge_inverse.inverses made, of
    which this takes the first plane; clean [segments, H] int32 becomes whether a segment has no mark. room [segments,
    H, 2, K, K] of A's type is for what A becomes. strides are those of y, unit, lengths, marks, x, u; sizes T, segments
    in a row and H.
    """
    T, each, H = sizes
    _, unit, _, _ = results
    _, us, _, _, xs, ps = strides
    TWO: tl.constexpr = BK > 64
    B: tl.constexpr = 64 if BK > 64 else BK
    pid = tl.program_id(0)
    s, h = pid // H, pid % H
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    i, c = tl.arange(0, C), tl.arange(0, B)
    over = 1.0 / (number if lam is None else tl.load(lam + h))
    shrink = tl.sqrt(over)
    lower = i[:, None] >= i[None, :]
    own, room = A + pid.to(tl.int64) * (2 * K * K), room + pid.to(tl.int64) * (2 * K * K)
    channels = tl.arange(0, BK)
    first = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
    fine = tl.load(sound + pid)
    unmarked = i >= 0
    for t0 in range(begin, end, C):
        live = t0 + i < end
        largest = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
        fine = tl.where(largest >= SHRUNK * first, fine, 0)
        U0, U1 = _halves(at(u, ps, b, h, t0), ps, live, K, B, C, TWO)
        X0, X1 = _halves(at(x, xs, b, h, t0), xs, live, K, B, C, TWO)
        long = tl.sum(U0.to(tl.float32) * U0.to(tl.float32), axis=1)
        if TWO:
            long += tl.sum(U1.to(tl.float32) * U1.to(tl.float32), axis=1)
        short = long * (over * largest) <= LONG
        U0, U1 = operand(tl.where(short[:, None], U0, 0.0), STAGE), operand(tl.where(short[:, None], U1, 0.0), STAGE)
        Z0, Z1 = _times(U0, U1, own, K, B, TWO)
        Z0, Z1 = operand(Z0, STAGE), operand(Z1, STAGE)
        N = operand(over * _products(Z0, Z1, U0, U1, TWO), STAGE)
        L, found = factor(N, short, C, STAGE)
        easy, most = found <= FOUND, tl.max(found, axis=0)
        L = operand(shrink * L, STAGE)
        W0 = operand(dot(L, Z0, "tf32"), STAGE)
        W1 = W0
        if TWO:
            W1 = operand(dot(L, Z1, "tf32"), STAGE)
        X0, X1, power, size = _scaled(X0, X1, TWO)
        if unit is not None:
            ptr = at(unit, us, b, h, t0)
            put(ptr, us, i, c, live, X0 * inverse_root(size)[:, None], K)
            if TWO:
                put(ptr, us, i, B + c, live, X1 * inverse_root(size)[:, None], K)
        X0, X1 = operand(X0, STAGE), operand(X1, STAGE)
        P = tl.where(lower, _products(X0, X1, W0, W1, TWO), 0.0)
        Y0, Y1 = _difference(X0, X1, P, W0, W1, own, K, B, STAGE, TWO)
        good = store(
            results, strides, b, h, t0, live & easy, Y0, Y1, size, power, over, easy & (fine > 0), SMALL * largest, C,
            K, B, TWO,
        )  # fmt: skip
        tl.debug_barrier()
        if most <= FOUND:
            _less(own, room, c, c, tl.trans(W0), W0, K)
            if TWO:
                _less(own, room, c, B + c, tl.trans(W0), W1, K)
                _less(own, room, B + c, c, tl.trans(W1), W0, K)
                _less(own, room, B + c, B + c, tl.trans(W1), W1, K)
        else:  # anew from memory, so that nothing is kept for it
            U0, U1 = _halves(at(u, ps, b, h, t0), ps, live, K, B, C, TWO)
            U0, U1 = (
                operand(tl.where(short[:, None], U0, 0.0), STAGE),
                operand(tl.where(short[:, None], U1, 0.0), STAGE),
            )
            Z0, Z1 = _times(U0, U1, own, K, B, TWO)
            Z0, Z1 = operand(Z0, STAGE), operand(Z1, STAGE)
            N = over * _products(Z0, Z1, U0, U1, TWO)
            leverage = tl.cumsum(tl.sum(tl.where(i[:, None] == i[None, :], N, 0.0), axis=1), axis=0)
            usable = (leverage <= LEVERAGE) & (tl.cumsum((~short).to(tl.int32), axis=0) == 0)
            N = operand(N, STAGE)
            X0, X1 = _halves(at(x, xs, b, h, t0), xs, live, K, B, C, TWO)
            X0, X1, power, size = _scaled(X0, X1, TWO)
            X0, X1 = operand(X0, STAGE), operand(X1, STAGE)
            P, arrived = solved(tl.where(lower, over * _products(X0, X1, Z0, Z1, TWO), 0.0), N, lower, STAGE)
            Y0, Y1 = _difference(X0, X1, P, Z0, Z1, own, K, B, STAGE, TWO)
            arrived = store(
                results, strides, b, h, t0, live & ~easy, Y0, Y1, size, power, over, arrived & usable & (fine > 0),
                SMALL * largest, C, K, B, TWO,
            )  # fmt: skip
            good = tl.where(easy, good, arrived)
            V, came = solved(tl.trans(Z0).to(tl.float32), N, None, STAGE)
            fine = tl.minimum(fine, tl.min(came.to(tl.int32), axis=0))
            fine = tl.minimum(fine, tl.min(usable.to(tl.int32), axis=0))
            V = operand(over * V, STAGE)
            _less(own, room, c, c, V, Z0, K)
            if TWO:
                _less(own, room, c, B + c, V, Z1, K)
                V, came = solved(tl.trans(Z1).to(tl.float32), N, None, STAGE)
                fine = tl.minimum(fine, tl.min(came.to(tl.int32), axis=0))
                V = operand(over * V, STAGE)
                _less(own, room, B + c, c, V, Z0, K)
                _less(own, room, B + c, B + c, V, Z1, K)
        tl.debug_barrier()  # the next chunk reads, in other threads, what was stored
        own = room
        unmarked = unmarked & (good | ~live)
    tl.store(clean + pid, tl.min(unmarked.to(tl.int32), axis=0))
