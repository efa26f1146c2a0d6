"""The running ridge solve by conjugate gradients, every token of a chunk at once.

With M the sum of u u^T before a chunk and U the chunk's rows, token t asks for y_t = (lam0 I + M_t)^{-1} x_t, where
lam0 I + M_t applied to a row p_t is  lam0 p_t + p_t M + sum_{s <= t} (p_t . u_s) u_s:  for all tokens three products of
matrices, P M, S = lower(P U^T) and S U. Nothing is inverted, so nothing cancels as in a Woodbury update (which loses
the digits of u A u^T), and no prefix of a chunk sees what comes after it: each row has steps of its own and stops by
its own residual, so that later tokens, and other rows, cannot change its bits.

Residuals of conjugate gradients drift from the true ones. So a solve is refined, residual x - (lam0 I + M_t) y anew,
a few times; a row whose residual is small enough takes no part.

Everything is in units of lam0, and of a power of two near the largest |x| of a row: the arithmetic of x and of 4 x is
the same. A direction along which lam0 I + M_t is negative beyond rounding makes a row NaN.

Sources: [VLA], section 2.2; Hestenes and Stiefel 1952, "Methods of Conjugate Gradients for Solving Linear Systems".
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot_add, load_matrix, put, segment, store_matrix, tile

REFINEMENTS = tl.constexpr(3)
"""Most times that a row is refined."""

INNER = tl.constexpr(2.0**-26)
"""A solve has done its part when the square of its residual has fallen by this."""

ENOUGH = tl.constexpr(2.0**-54)
"""A row is solved when the square of its residual is this small beside |x|^2: 2^-27. At 2^-23, a rounding of x, small
entries of a row have lost digits that the inputs determine: a refinement more gives each entry its own."""

STALLED = tl.constexpr(2.0**-8)
"""Or when a refinement has not made its square this much smaller: what is left is the rounding of a residual."""

SLACK = tl.constexpr(2.0**-18)
"""p M p may be negative by this, beside trace(M) p^2, before M counts as one that has no inverse."""


@triton.jit
def powers(x):
    """[C]: for each row of x [C, BK] the power of two at or below its largest |x|, from 2^-126 on; and its inverse."""
    bits = tl.maximum(tl.max(x.to(tl.int32, bitcast=True) & 0x7F800000, axis=1), 0x00800000)
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def normalised(x):
    """Rows of x [C, BK] over their lengths, 0 for a row of zeros; and the lengths [C]."""
    power, inverse = powers(x)
    x *= inverse[:, None]
    length = tl.sqrt(tl.sum(x * x, axis=1))
    return x / tl.where(length == 0.0, 1.0, length)[:, None], length * power


@triton.jit
def applied(
    P, over, room, u, strides, M, live, K: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """P (I + over M_t), row t with the penalty of its own token [C, BK].

    The rows go through `room` [C, K]: a product over K takes them in blocks, and registers cannot be cut.
    """
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    tl.debug_barrier()
    store_matrix(room, i, channels, P, C, K)
    tl.debug_barrier()  # blocks are read by other threads than those that stored them
    Q, S = tl.zeros([C, BK], tl.float32), tl.zeros([C, C], tl.float32)
    for k0 in range(0, K, BLOCK):
        x = k0 + tl.arange(0, BLOCK)
        part = load_matrix(room, i, x, C, K)  # [C, BLOCK]
        Q = dot_add(Q, part, load_matrix(M, x, channels, K, K), PRECISION)  # [C, BLOCK] [BLOCK, BK]
        U = tile(u, strides, i, x, live, K).to(tl.float32)  # [C, BLOCK]
        S = dot_add(S, part, tl.trans(U), PRECISION)  # [C, BLOCK] [BLOCK, C]
    S = tl.where(i[:, None] >= i[None, :], S, 0.0)
    U = tile(u, strides, i, channels, live, K).to(tl.float32)  # [C, BK]
    return P + over * dot_add(Q, S, U, PRECISION)  # [C, C] [C, BK]


@triton.jit
def settled(X, room, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr):
    """X [C, BK] by way of memory: a sum over its rows would have the order that the strides of an input suggest."""
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    tl.debug_barrier()
    store_matrix(room, i, channels, X, C, K)
    tl.debug_barrier()
    return load_matrix(room, i, channels, C, K)


@triton.jit
def conjugate(
    X, over, large, room, u, strides, M, live, K: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Y [C, BK] with Y (I + over M_t) = X, by rows; NaN for a row that has none. `large` is over trace(M).

    One product with the penalty a turn (its code is most of the kernel): of a direction, or of Y itself when a
    refinement begins. `room` [2, C, K] takes the operand of the product, and X.
    """
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    store_matrix(room + C * K, i, channels, X, C, K)
    Y, R, P = tl.zeros([C, BK], tl.float32), X, X
    size = tl.sum(X * X, axis=1)
    left, before, goal, wrong = size, size, size * INNER, size != size
    active = (size > 0.0) & ~wrong
    refinements, steps = tl.sum(tl.zeros([C], tl.int32), axis=0), tl.sum(tl.zeros([C], tl.int32), axis=0)
    anew = steps
    going = tl.max(active.to(tl.int32), axis=0)
    while going > 0:
        Q = applied(tl.where(anew > 0, Y, P), over, room, u, strides, M, live, K, BK, BLOCK, C, PRECISION)
        if anew > 0:
            R = load_matrix(room + C * K, i, channels, C, K) - Q  # [C, BK]
            P, left = R, tl.sum(R * R, axis=1)
            wrong = wrong | (left != left)
            active = (left > size * ENOUGH) & (left < before * STALLED) & ~wrong
            before, goal, steps = left, left * INNER, anew - 1
            refinements += 1
        else:
            curvature = tl.sum(P * Q, axis=1)
            wrong = wrong | (active & ~(curvature >= -SLACK * large * tl.sum(P * P, axis=1)))
            active = active & (curvature > 0.0) & ~wrong
            step = tl.where(active, left / tl.where(active, curvature, 1.0), 0.0)
            Y += step[:, None] * P
            R -= step[:, None] * Q
            after = tl.sum(R * R, axis=1)
            P = tl.where(active[:, None], R + (after / tl.where(active, left, 1.0))[:, None] * P, P)
            left = tl.where(active, after, left)
            active = active & (left > goal)
            steps += 1
        going = tl.max((active & (steps < 2 * K + 16)).to(tl.int32), axis=0)
        done = (anew > 0) | (refinements >= REFINEMENTS)  # nothing to refine, or often enough
        anew = tl.where((going == 0) & ~done, 1, 0)
        going = tl.maximum(going, anew)
    return tl.where(wrong[:, None], float("nan"), Y)


@triton.jit
def grow(
    M, u, strides, live, K: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """M [K, K] += U^T U, in place."""
    i, channels = tl.arange(0, C), tl.arange(0, BK)
    U = tile(u, strides, i, channels, live, K).to(tl.float32)  # [C, BK]
    tl.debug_barrier()
    for k0 in range(0, K, BLOCK):
        x = k0 + tl.arange(0, BLOCK)
        rows = tile(u, strides, i, x, live, K).to(tl.float32)  # [C, BLOCK]
        sums = load_matrix(M, x, channels, K, K)  # [BLOCK, BK]
        sums = dot_add(sums, tl.trans(rows), U, PRECISION)  # [BLOCK, C] [C, BK]
        store_matrix(M, x, channels, sums, K, K)
    tl.debug_barrier()


@triton.jit
def last_mark(marks, stride, begin, end, C: tl.constexpr):
    """One past the last token of a segment that has a mark; `begin` if none has."""
    i, last = tl.arange(0, C), begin
    for t0 in range(begin, end, C):
        here = tl.load(marks + (t0 - begin + i) * stride, mask=t0 + i < end, other=0) > 0
        last = tl.maximum(last, tl.max(tl.where(here, t0 + i + 1, begin), axis=0))
    return last


@triton.jit
def solve(
    results, clean, x, u, lam, edges, rooms, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """y [B, T, H, K]; a program is a segment of a head.

    results are (y, unit, lengths, marks). With `unit` [B, T, H, K], x is normalised first, to unit, which is stored.
    With `lengths` [B, T, H] float32 (only beside unit), y is normalised, and these are what it was divided by. With
    `marks` [B, T, H] int8 only the rows that have one are solved, and what else there is stays; `clean` [segments, H]
    int32 is 1 for a segment that has none. lam [H] float32, or None, and then lam0 is `number`. edges [segments, H, K,
    K] is M at the start of each segment; rooms are a program's own, [programs, 2, C, K] and [programs, K, K]. strides
    are those of y, unit, lengths, marks, x, u; sizes T, segments in a row and H.
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
    room, M = rooms[0] + pid.to(tl.int64) * (2 * C * K), rooms[1] + pid.to(tl.int64) * (K * K)
    edges += pid.to(tl.int64) * (K * K)
    if marks is not None:
        stop = begin
        if tl.load(clean + pid) == 0:
            stop = last_mark(at(marks, ms, b, h, begin), ms[1], begin, end, C)
        end = stop
    for k0 in range(0, tl.where(begin < end, K, 0), BLOCK):
        rows = k0 + tl.arange(0, BLOCK)
        store_matrix(M, rows, channels, load_matrix(edges, rows, channels, K, K), K, K)
    tl.debug_barrier()
    for t0 in range(begin, end, C):
        live = t0 + i < end
        asked = live
        if marks is not None:
            asked = tl.load(at(marks, ms, b, h, t0) + i * ms[1], mask=live, other=0) > 0
        trace = tl.sum(tl.abs(tl.load(M + channels * (K + 1), mask=channels < K, other=0.0)), axis=0)
        X = tile(at(x, xs, b, h, t0), xs, i, channels, asked, K).to(tl.float32)  # [C, BK]
        X = settled(X, room, K, BK, C)
        power, inverse = powers(X)
        if unit is None:
            X *= inverse[:, None]
        else:
            X, length = normalised(X)
            put(at(unit, us, b, h, t0), us, i, channels, asked, X, K)
        penalties = at(u, ps, b, h, t0)
        Y = conjugate(X, over, over * trace, room, penalties, ps, M, live, K, BK, BLOCK, C, PRECISION)
        if lengths is None:
            Y *= over if unit is not None else (over * power)[:, None]
        else:
            Y, length = normalised(Y)
            tl.store(at(lengths, ls, b, h, t0) + i * ls[1], over * length, mask=asked)
        put(at(y, ys, b, h, t0), ys, i, channels, asked, Y, K)
        if t0 + C < end:
            grow(M, penalties, ps, live, K, BK, BLOCK, C, PRECISION)
