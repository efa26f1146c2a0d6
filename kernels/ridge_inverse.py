"""The inverse of a penalty at the start of a segment, in half precision: what ridge_walk.py starts from.

In units of lam0, G = I + M/lam0 has eigenvalues in [1, g], g at most the largest row sum of |G| and trace(G) - (K - 1).
Newton's iteration X <- X (2 I - G X) from X = 2/(1 + g) I has the eigenvalues of G X in [1 - e, 1 + e] first, with
e = (g - 1)/(g + 1), and in [1 - e^2, 1] after a step: so X is multiplied by what makes that [1 - e', 1 + e'], and a
step is worth two. Eigenvalues near 2 become small ones, which rounding may make negative: so all this allows for e^2/8
more.

Entries of X are at most 1, which float16 holds with 11 bits; but a rounding of X, or of G, is g roundings of I - G X.
So the last steps, and all of them where g is large, take both in two float16 planes. Their residual |I - G X| is
measured: nothing is believed that does not pass.

Sources: Schulz 1933; Higham, "Functions of Matrices", section 5.3 (scaling).
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels import ridge_careful
from linattest.kernels.blocks import dot, dot_add, load_matrix, operand, segment, store_matrix
from linattest.kernels.ridge_walk import begins

NEAR = tl.constexpr(2.0**-6)
"""How far from 1 eigenvalues of G X are after the last step that is scaled."""

EASY = tl.constexpr(2.0**9)
"""Largest g of which single planes do the first steps: of G X a rounding of X is an eighth."""

HARD = tl.constexpr(2.0**11)
"""Largest g of which X R does without the second plane of X."""

MOST = tl.constexpr(40)
"""Steps that are enough for every g below 2^30."""

CLOSE = tl.constexpr(2.0**-11)
"""Largest squared Frobenius norm of I - G X before the last step, which squares what is not rounding."""

CLOSER = tl.constexpr(2.0**-16)
"""Smallest: there is no need to go on."""


@triton.jit
def inverses(
    A, room, sound, clean, results, x, u, edges, lam, strides, table, sizes, number,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, HEAD: tl.constexpr, LENGTH: tl.constexpr,
    STAGE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A [segments, H, 2, K, K] of STAGE: lam0 (lam0 I + M)^{-1} in two planes, M [segments, H, K, K] float32 at
    `edges`; lam [H] float32, or None, and then lam0 is `number`.

    A sequence's first segment is inverted easily. Meanwhile its first HEAD chunks are solved, and its inverse after
    them goes to the first plane of `room`, which is like A; results, strides and sizes are those of ridge_walk.walk.
    sound [segments, H, 2] int32 is 1 where A's residual passes, and then where it is right after these chunks, too;
    clean [segments, H] int32 is 1 where they have no mark.
    """
    T, each, H = sizes
    pid = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BK)
    ridge = number if lam is None else tl.load(lam + tl.program_id(0) % H)
    eye = tl.where(channels[:, None] == channels[None, :], 1.0, 0.0)
    G = eye + load_matrix(edges + pid * (K * K), channels, channels, K, K) / ridge  # [BK, BK]
    rows = tl.max(tl.sum(tl.abs(G), axis=1), axis=0)
    trace = tl.sum(tl.sum(G * eye, axis=1), axis=0)
    g = 1.125 * tl.maximum(tl.minimum(rows, trace - (BK - 1)), 1.0)
    X = eye * (2.0 / (1.0 + g))
    high = operand(G, STAGE)
    low = operand(G - high.to(tl.float32), STAGE)
    e, steps = (g - 1.0) / (g + 1.0), tl.sum(tl.zeros([BK], tl.int32), axis=0)
    while (e > NEAR) & (g <= EASY):
        first = operand(X, STAGE)
        R = eye - dot(high, first, "tf32")  # every dot: [BK, BK] [BK, BK]
        X = dot_add(X, first, operand(R, STAGE), "tf32") * (2.0 / (2.0 - 0.875 * e * e))
        e = 1.125 * e * e / (2.0 - 0.875 * e * e)
    before, left, going = g * 0.0 + 4 * BK * BK, g * 0.0 + 4 * BK * BK, steps + 1
    while going > 0:
        first = operand(X, STAGE)
        second = operand(X - first.to(tl.float32), STAGE)
        R = eye - dot_add(dot_add(dot(high, first, "tf32"), low, first, "tf32"), high, second, "tf32")
        left = tl.sum(tl.sum(R * R, axis=1), axis=0)
        R = operand(R, STAGE)
        X = dot_add(X, first, R, "tf32")
        if g > HARD:
            X = dot_add(X, second, R, "tf32")
        X *= tl.where(e > NEAR, 2.0 / (2.0 - 0.875 * e * e), 1.0)
        better = tl.where(e > NEAR, left <= 4 * BK * BK, (left > CLOSER) & (left <= before / 4))  # a NaN is not
        before = tl.where(e > NEAR, before, left)
        e = tl.where(e > NEAR, 1.125 * e * e / (2.0 - 0.875 * e * e), e)
        steps += 1
        going = tl.where(better & (steps < MOST), 1, 0)
    passes = tl.where((left <= CLOSE) & (e <= NEAR), 1, 0)
    high = operand(X, STAGE)
    A += pid * (2 * K * K)
    store_matrix(A, channels, channels, high, K, K)
    store_matrix(A + K * K, channels, channels, X - high.to(tl.float32), K, K)
    tl.store(sound + 2 * pid, passes)
    s, h = tl.program_id(0) // H, tl.program_id(0) % H
    good = tl.arange(0, C) >= 0
    if begins(s, table, each, PACKED):
        _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
        room += pid * (2 * K * K)
        for t0 in range(begin, tl.minimum(begin + HEAD * C, end), C):
            tl.debug_barrier()
            passes, right = ridge_careful.chunk(
                results, x, u, strides, b, h, t0, end, A, room, 1.0 / ridge, passes, K, BK, C, STAGE
            )  # fmt: skip
            good = good & right
            A = room
    tl.store(sound + 2 * pid + 1, passes)
    tl.store(clean + pid, tl.min(good.to(tl.int32), axis=0))
