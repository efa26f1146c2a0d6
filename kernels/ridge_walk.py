"""The running ridge solve in half precision: a walk over the chunks of a segment, with the inverse carried along.

In units of lam0 (directions u / sqrt(lam0), A = (I + M)^{-1}), for the rows X, U of a chunk and A before it:

    Z = U A,   N = Z U^T,   L (I + N) L^T = I with L lower triangular,   W = L Z
    Y = X A - lower(X W^T) W,   A' = A - W^T W

L is the inverse of a Cholesky factor, and no loop over rows is needed for it where N is small: from I - phi(N), with
phi the part below the diagonal and half the diagonal, a step L <- L - phi(L (I + N) L^T - I) L leaves about the square
of what it found. Two steps do for nearly every chunk, since A shrinks along every direction that comes again. They do
not for the first chunks of a sequence, which ridge_careful.py has done before.

Widths above 64 are done in two halves of 64 columns, A in blocks: registers have no room for more. A lies in memory
that the program itself has written: before a product of matrices it waits for all its loads and stores, so A is loaded
at two places only.

What half precision cannot do is marked, for ridge_again.py and ridge_conjugate.py. An entry of A is wrong by a rounding
of the largest one, and Y by a rounding of X A: so a row is marked where |y| is much smaller than |x| times the largest
of A, and all rows once the largest is much smaller than it was; where trace(N) up to its token is large, or a direction
too long for A, which is left out; and from a chunk on that two steps cannot do. Values and marks depend on tokens up to
their own.

Sources: [VLA], section 2.2; Woodbury 1950.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, dot_add, load_matrix, operand, put, segment, store_matrix, tile
from linattest.kernels.ridge_conjugate import powers

FOUND = tl.constexpr(2.0**-7)
"""Largest squared Frobenius norm of L (I + N) L^T - I, up to a row, before the step that squares it."""

LEVERAGE = tl.constexpr(2.0**7)
"""Largest trace(N): a rounding of N is so many roundings of 1 at most, and I + N has eigenvalues of 1."""

UNUSABLE = tl.constexpr(1e6)
"""What a direction that is too long adds to what was found: more than it can be otherwise."""

SMALL = tl.constexpr(2.0**-3)
"""Least |y| beside |x| times the largest diagonal of A: three of eleven bits are lost there."""

SHRUNK = tl.constexpr(2.0**-7)
"""Least that may be left of the largest diagonal that a segment began with: A keeps the roundings of what it was."""

LONG = tl.constexpr(16.0)
"""Largest |u|^2 times the largest diagonal of A: of u A u^T a rounding of A is so many roundings of 1."""

LARGE = tl.constexpr(3e4)
"""Float16 holds this. A factor that is not found may have larger numbers, which must not become infinite before they
are done away with: 0 does not hide infinity from earlier rows."""


@triton.jit
def _step(L, staged, N, i, STAGE: tl.constexpr):
    """-phi(E) and E = L (I + N) L^T - I [C, C], lower triangular, for `staged`, L rounded."""
    lower, diagonal = i[:, None] >= i[None, :], i[:, None] == i[None, :]
    G = tl.where(lower, dot_add(L, staged, N, "tf32"), 0.0)  # every dot: [C, C] [C, C]
    E = tl.where(lower, dot(operand(G, STAGE), tl.trans(staged), "tf32"), 0.0) - tl.where(diagonal, 1.0, 0.0)
    return tl.where(diagonal, -0.5 * E, -E), E


@triton.jit
def factor(N, short, C: tl.constexpr, STAGE: tl.constexpr):
    """L [C, C] float32 with L (I + N) L^T near I, for N of STAGE; and [C], up to each row: what the last step found,
    squared, and as much where trace(N) is LEVERAGE; UNUSABLE from a direction on that is not `short`. Rows of L with
    more than FOUND are 0: they may be infinite, which a product with 0 would not hide from earlier ones.
    """
    i = tl.arange(0, C)
    diagonal = i[:, None] == i[None, :]
    wide = N.to(tl.float32)
    L = tl.where(diagonal, 1.0 - 0.5 * wide, tl.where(i[:, None] >= i[None, :], -wide, 0.0))
    staged = operand(L, STAGE)
    E, _ = _step(L, staged, N, i, STAGE)
    E = operand(tl.minimum(tl.maximum(E, -LARGE), LARGE), STAGE)
    L = tl.minimum(tl.maximum(dot_add(L, E, staged, "tf32"), -LARGE), LARGE)
    staged = operand(L, STAGE)
    step, E = _step(L, staged, N, i, STAGE)
    found = tl.sum(E * E + tl.where(diagonal, wide * (FOUND / LEVERAGE), 0.0), axis=1)
    found = tl.where(short, tl.where(found <= 1e3, found, 1e3), UNUSABLE)  # a NaN is 1e3
    found = tl.cumsum(found, axis=0)
    return tl.where((found <= FOUND)[:, None], dot_add(L, operand(step, STAGE), staged, "tf32"), 0.0), found


@triton.jit
def begins(s, table, each, PACKED: tl.constexpr):
    """Whether segment s is the first of its sequence."""
    if PACKED:
        row = table + 4 * s.to(tl.int64)
        new = tl.load(row) != tl.load(row - 4, mask=s > 0, other=-1)
    else:
        new = s % each == 0
    return new


@triton.jit
def _store(
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
    stored = live & good
    good = good & (length >= least * least * size)
    tl.store(at(marks, ms, b, h, t0) + i * ms[1], tl.where(good, 0, 1).to(tl.int8), mask=live)
    if lengths is not None:
        tl.store(at(lengths, ls, b, h, t0) + i * ls[1], over * tl.sqrt(length) * inverse_root(size), mask=stored)
        scale = inverse_root(length)
    elif unit is not None:
        scale = over * inverse_root(size)
    else:
        scale = over * power
    ptr = at(y, ys, b, h, t0)
    put(ptr, ys, i, x, stored, Y0 * scale[:, None], K)
    if TWO:
        put(ptr, ys, i, B + x, stored, Y1 * scale[:, None], K)
    return good


@triton.jit
def inverse_root(x):
    """1 / sqrt(x), and 1 for 0."""
    return 1.0 / tl.where(x == 0.0, 1.0, tl.sqrt(x))


@triton.jit
def _times(X0, X1, A00, A01, A11, TWO: tl.constexpr):
    """X A, in halves of columns."""
    Y0 = dot(X0, A00, "tf32")  # all: [C, B] [B, B]
    Y1 = Y0
    if TWO:
        Y0 = dot_add(Y0, X1, tl.trans(A01), "tf32")
        Y1 = dot_add(dot(X0, A01, "tf32"), X1, A11, "tf32")
    return Y0, Y1


@triton.jit
def _difference(X0, X1, P, W0, W1, A00, A01, A11, STAGE: tl.constexpr, TWO: tl.constexpr):
    """X A - P W, in halves of columns."""
    P = operand(-P, STAGE)
    Y0, Y1 = _times(X0, X1, A00, A01, A11, TWO)
    Y0 = dot_add(Y0, P, W0, "tf32")  # [C, C] [C, B]
    if TWO:
        Y1 = dot_add(Y1, P, W1, "tf32")
    return Y0, Y1


@triton.jit
def _products(X0, X1, W0, W1, TWO: tl.constexpr):
    """X W^T [C, C]."""
    P = dot(X0, tl.trans(W0), "tf32")  # [C, B] [B, C]
    if TWO:
        P = dot_add(P, X1, tl.trans(W1), "tf32")
    return P


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
def walk(
    results, clean, x, u, lam, A, sound, room, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, HEAD: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """y [B, T, H, K] and marks [B, T, H] int8, 1 for a row to be solved again; a program is a segment of a head.

    results are (y, unit, lengths, marks), as in ridge_conjugate.solve. A, room, sound and clean are what
    ridge_inverse.inverses made (of A and of room this takes the first plane), which did the first HEAD chunks of each
    sequence too; room is for what A becomes; clean becomes whether a segment has no mark. strides are those of y, unit,
    lengths, marks, x, u; sizes T, segments in a row and H.
    """
    T, each, H = sizes
    _, unit, _, _ = results
    _, us, _, _, xs, ps = strides
    TWO: tl.constexpr = BK > 64
    B: tl.constexpr = BK // 2 if TWO else BK
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
    fine, unmarked = tl.load(sound + 2 * pid + 1), i >= 0
    if begins(s, table, each, PACKED):
        own, begin = room, begin + HEAD * C
    for t0 in range(begin, end, C):
        live = t0 + i < end
        H00 = load_matrix(own, c, c, K, K)  # [B, B], as all blocks
        H01, H11 = H00, H00
        if TWO:
            H01, H11 = load_matrix(own, c, B + c, K, K), load_matrix(own, B + c, B + c, K, K)
        largest = tl.max(tl.load(own + channels * (K + 1), mask=channels < K, other=0.0), axis=0).to(tl.float32)
        fine = tl.where(largest >= SHRUNK * first, fine, 0)
        U0, U1 = _halves(at(u, ps, b, h, t0), ps, live, K, B, C, TWO)
        long = tl.sum(U0.to(tl.float32) * U0.to(tl.float32), axis=1)
        if TWO:
            long += tl.sum(U1.to(tl.float32) * U1.to(tl.float32), axis=1)
        short = long * (over * largest) <= LONG
        U0, U1 = operand(tl.where(short[:, None], U0, 0.0), STAGE), operand(tl.where(short[:, None], U1, 0.0), STAGE)
        Z0, Z1 = _times(U0, U1, H00, H01, H11, TWO)
        Z0, Z1 = operand(Z0, STAGE), operand(Z1, STAGE)
        N = operand(over * _products(Z0, Z1, U0, U1, TWO), STAGE)
        L, found = factor(N, short, C, STAGE)
        easy, most = found <= FOUND, tl.max(found, axis=0)
        L = operand(shrink * L, STAGE)
        W0 = operand(dot(L, Z0, "tf32"), STAGE)  # [C, C] [C, B]
        W1 = W0
        if TWO:
            W1 = operand(dot(L, Z1, "tf32"), STAGE)
        X0, X1 = _halves(at(x, xs, b, h, t0), xs, live, K, B, C, TWO)
        most_x = tl.max(tl.abs(X0.to(tl.float32)), axis=1)
        if TWO:
            most_x = tl.maximum(most_x, tl.max(tl.abs(X1.to(tl.float32)), axis=1))
        power, down = powers(most_x[:, None])
        X0 = operand(X0.to(tl.float32) * down[:, None], STAGE)
        size = tl.sum(X0.to(tl.float32) * X0.to(tl.float32), axis=1)
        if TWO:
            X1 = operand(X1.to(tl.float32) * down[:, None], STAGE)
            size += tl.sum(X1.to(tl.float32) * X1.to(tl.float32), axis=1)
        if unit is not None:
            ptr = at(unit, us, b, h, t0)
            put(ptr, us, i, c, live, X0.to(tl.float32) * inverse_root(size)[:, None], K)
            if TWO:
                put(ptr, us, i, B + c, live, X1.to(tl.float32) * inverse_root(size)[:, None], K)
        P = tl.where(lower, _products(X0, X1, W0, W1, TWO), 0.0)
        Y0, Y1 = _difference(X0, X1, P, W0, W1, H00, H01, H11, STAGE, TWO)
        good = _store(
            results, strides, b, h, t0, live, Y0, Y1, size, power, over, easy & (fine + 0 * i > 0), SMALL * largest, C,
            K, B, TWO,
        )  # fmt: skip
        tl.debug_barrier()
        G00 = load_matrix(own, c, c, K, K).to(tl.float32)
        G01, G11 = G00, G00
        if TWO:
            G01, G11 = load_matrix(own, c, B + c, K, K), load_matrix(own, B + c, B + c, K, K)
            G01 = dot_add(G01.to(tl.float32), tl.trans(-W0), W1, "tf32")
            G11 = dot_add(G11.to(tl.float32), tl.trans(-W1), W1, "tf32")
        G00 = dot_add(G00, tl.trans(-W0), W0, "tf32")  # [B, C] [C, B]
        store_matrix(room, c, c, G00, K, K)
        if TWO:
            store_matrix(room, c, B + c, G01, K, K)
            store_matrix(room, B + c, B + c, G11, K, K)
        tl.debug_barrier()  # the next chunk reads, in other threads, what was stored
        own = room
        fine = tl.where(most <= FOUND, fine, 0)
        unmarked = unmarked & (good | ~live)
    tl.store(clean + pid, tl.minimum(tl.load(clean + pid), tl.min(unmarked.to(tl.int32), axis=0)))
