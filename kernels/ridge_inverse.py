"""The inverse of a penalty at the start of a segment, in half precision: what ridge_walk.py starts from.

In units of lam0, G = I + M/lam0 has eigenvalues in [1, g], g at most the largest row sum of |G| and trace(G) - (K - 1).
Newton's iteration X <- X (2 I - G X) from X = 2/(1 + g) I has the eigenvalues of G X in [1 - e, 1 + e] first, with
e = (g - 1)/(g + 1), and in [1 - e^2, 1] after a step; so X is multiplied by 2/(2 - e^2), and e becomes e^2/(2 - e^2):
a step is worth two. Entries of X are at most 1, which float16 holds with 11 bits; those of G may be large, and a last
step takes G in two float16 planes. Its residual |I - G X| is measured: nothing is believed that does not pass.

Sources: Schulz 1933; Higham, "Functions of Matrices", section 5.3 (scaling).
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import dot, dot_add, load_matrix, operand, store_matrix

NEAR = tl.constexpr(2.0**-4)
"""How far from 1 eigenvalues of G X may be before the last two steps, which square it twice."""

MOST = tl.constexpr(30)
"""Steps that are enough for every g below 2^30."""

CLOSE = tl.constexpr(2.0**-8)
"""Largest squared Frobenius norm of I - G X before the last step, which squares what is not rounding."""


@triton.jit
def _refined(X, high, low, eye, STAGE: tl.constexpr):
    """X (2 I - G X) with G = high + low, and the squared norm of I - G X."""
    staged = operand(X, STAGE)
    R = eye - dot_add(dot(high, staged, "tf32"), low, staged, "tf32")  # [BK, BK] [BK, BK], all three
    return dot_add(X, staged, operand(R, STAGE), "tf32"), tl.sum(tl.sum(R * R, axis=1), axis=0)


@triton.jit
def inverses(
    A, sound, edges, lam, H, number, K: tl.constexpr, BK: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """A [segments, H, K, K] of STAGE: lam0 (lam0 I + M)^{-1}, M [segments, H, K, K] float32 at `edges`; sound
    [segments, H] int32: 1 where the residual passes, else 0. lam [H] float32, or None, and then lam0 is `number`.
    """
    pid = tl.program_id(0).to(tl.int64)
    x = tl.arange(0, BK)
    ridge = number if lam is None else tl.load(lam + tl.program_id(0) % H)
    eye = tl.where(x[:, None] == x[None, :], 1.0, 0.0)
    G = eye + load_matrix(edges + pid * (K * K), x, x, K, K) / ridge  # [BK, BK]
    rows = tl.max(tl.sum(tl.abs(G), axis=1), axis=0)
    trace = tl.sum(tl.sum(G * eye, axis=1), axis=0)
    g = tl.maximum(tl.minimum(rows, trace - (BK - 1)), 1.0)
    X = eye * (2.0 / (1.0 + g))
    high = operand(G, STAGE)
    low = operand(G - high.to(tl.float32), STAGE)
    e, steps = (g - 1.0) / (g + 1.0), tl.sum(tl.zeros([BK], tl.int32), axis=0)
    while (e > NEAR) & (steps < MOST):
        R = eye - dot(high, operand(X, STAGE), "tf32")  # [BK, BK] [BK, BK]
        scale = 2.0 / (2.0 - e * e)
        staged = operand(X, STAGE)
        X = dot_add(X, staged, operand(R, STAGE), "tf32") * scale
        e = e * e / (2.0 - e * e)
        steps += 1
    X, _ = _refined(X, high, low, eye, STAGE)
    X, error = _refined(X, high, low, eye, STAGE)
    tl.store(sound + pid, tl.where(error <= CLOSE, 1, 0))  # a NaN is not sound
    store_matrix(A + pid * (K * K), x, x, X, K, K)
