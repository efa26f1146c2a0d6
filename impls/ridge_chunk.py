"""Chunk-parallel `ridge_solve`: forward with a safety net, and its backward.

With M_n the sum of u u^T before a chunk (a prefix sum, so no chunk waits for another), G = cholesky(lam0 I + M_n), and
U, X the chunk's rows, the Woodbury identity gives every token of the chunk at once:

    U' = U G^-T,   X' = X G^-T,   L = cholesky(I + U' U'^T),   W = L^{-1} U',   Y = (X' - lower(X' W^T) W) G^-1

because A_t = G^-T (I - sum_{i <= t} w_i w_i^T) G^-1. That is subtractive, so where it matters one step of iterative
refinement follows, Y += apply(X - lam0 Y - Y M_n - lower(Y U^T) U), and every token is checked: where |u'_i|^2 of any
token so far in the chunk is beyond a limit, or the correction is not small, the token gets its own Cholesky factor.
Both decisions look at tokens up to their own only, so later tokens cannot change earlier bits.

Backward, with upstream ybar and Mbar (of the final state): b_t = A_t ybar_t, the same solve, and

    xbar_t = b_t,    lam0bar = - sum_t b_t . y_t,    Mbar_0 = sym(Mbar - sum_t b_t y_t^T)
    ubar_s = (Mbar + Mbar^T) u_s - sum_{t >= s} [b_t (y_t . u_s) + y_t (b_t . u_s)]

where the last sum is two reversed linear attentions, again in chunks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls import features, once

SMALL = 2.0**-26  # about the square root of float64's roundoff: a correction this small squares away
LEVERAGE = 2.0**10  # largest |u'|^2 = u A u^T that Woodbury may see: it cancels that much of A
EASY = 2.0**20  # condition times leverage below which narrow inputs need no refinement: 53 - 20 bits are more than 24


def core(
    x: Tensor, u: Tensor, M: Tensor | None, *, lam: Tensor, chunk_size: int = 64, exact: bool = True
) -> tuple[Tensor, Tensor]:
    """x, u [B, H, T, K], M [B, H, K, K] or None, lam [B, H] -> y [B, H, T, K] and the final M, all WIDE.

    `exact` says that the inputs were float64, so that every solve is refined and not only the hard ones.
    """
    B, H, T, K = x.shape
    if T == 0:
        return x, x.new_zeros(B, H, K, K) if M is None else M
    start = x.new_zeros(B, H, K, K) if M is None else (M + M.mT) / 2
    C = features.chunk_length(T, chunk_size)
    X, U = (features.into_chunks(part, C) for part in (x, u))
    Y, final = _ChunkSolve.apply(X, U, lam.reshape(B * H), start.flatten(0, 1), exact)
    return features.from_chunks(Y, B, H, T), final.reshape(B, H, K, K)


def cholesky(A: Tensor) -> Tensor:
    """Lower Cholesky factor of each matrix, NaN (not an error) where a matrix is not positive definite."""
    factor, info = torch.linalg.cholesky_ex(A)
    failed = info != 0
    return factor.masked_fill_(failed[..., None, None], torch.nan) if bool(failed.any()) else factor


class Factors(NamedTuple):
    """What a chunk solve needs, for P chunks: rows U [P, C, K]; lam0 I + M before the chunk and its factor G [P, K, K];
    Woodbury rows W [P, C, K]; which tokens W cannot serve, and which it serves so well that nothing need be refined
    [P, C]."""

    U: Tensor
    M: Tensor
    G: Tensor
    W: Tensor
    unsafe: Tensor
    easy: Tensor


def penalties(U: Tensor, lam: Tensor, start: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """U [G, N, C, K] -> lam0 I + M before each chunk [G N, K, K], and the final M [G, K, K]."""
    sums = features.prefix_sums(U.mT @ U, start, exact=exact)
    final = sums[:, -1].clone()
    before = sums[:, :-1]
    before.diagonal(dim1=-2, dim2=-1).add_(lam[:, None, None])
    return before.flatten(0, 1), final


def factorise(U: Tensor, M: Tensor) -> Factors:
    """U [P, C, K], lam0 I + M before each chunk [P, K, K]."""
    C = U.shape[1]
    G = cholesky(M)
    smallest = G.diagonal(dim1=-2, dim2=-1).amin(-1).square()
    condition = M.diagonal(dim1=-2, dim2=-1).sum(-1) / smallest  # an estimate that sees no token of the chunk
    whitened = whiten(G, U)
    gram = torch.bmm(whitened, whitened.mT)
    leverage = gram.diagonal(dim1=-2, dim2=-1).cummax(-1).values
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    L, info = torch.linalg.cholesky_ex(gram)
    W = torch.linalg.solve_triangular(L, whitened, upper=False)
    broken = torch.arange(1, C + 1, device=U.device) >= torch.where(info == 0, C + 1, info)[:, None]
    unsafe = broken | ~(leverage <= LEVERAGE)  # a NaN is unsafe too
    return Factors(U, M, G, W, unsafe, easy=~unsafe & (condition[:, None] * (1 + leverage) <= EASY))


def whiten(G: Tensor, rows: Tensor) -> Tensor:
    """rows G^-T."""
    return torch.linalg.solve_triangular(G.mT, rows, upper=True, left=False)


def apply_inverse(f: Factors, X: Tensor) -> Tensor:
    """A_t x_t for every token, by Woodbury."""
    whitened = whiten(f.G, X)
    whitened.baddbmm_(torch.bmm(whitened, f.W.mT).tril_(), f.W, alpha=-1)
    return torch.linalg.solve_triangular(f.G, whitened, upper=False, left=False)


def residual(f: Factors, X: Tensor, Y: Tensor) -> Tensor:
    """x_t - (lam0 I + M_t) y_t for every token."""
    R = torch.baddbmm(X, Y, f.M, alpha=-1)
    return R.baddbmm_(torch.bmm(Y, f.U.mT).tril_(), f.U, alpha=-1)


def solve(f: Factors, X: Tensor, exact: bool) -> Tensor:
    """A_t x_t for every token, refined once and checked where that is needed: X, result [P, C, K].

    A refinement shrinks the error by as much as its correction is smaller than Y: a correction above sqrt(roundoff)
    would leave more than roundoff behind.
    """
    Y = apply_inverse(f, X)
    hard = torch.ones_like(f.easy) if exact else ~f.easy
    if not bool(hard.any()):
        return Y
    correction = apply_inverse(f, residual(f, X, Y))
    small = correction.abs().amax(-1) <= SMALL * Y.abs().amax(-1)
    Y = torch.where(hard.unsqueeze(-1), Y + correction, Y)
    wrong = f.unsafe | (hard & ~small)
    if bool(wrong.any()):
        solve_directly(f, X, Y, wrong)
    return Y


def solve_directly(f: Factors, X: Tensor, Y: Tensor, wrong: Tensor) -> None:
    """Overwrite the tokens of Y marked `wrong`, each by a Cholesky factor of its own, one chunk at a time."""
    for p in wrong.any(-1).nonzero().squeeze(-1).tolist():
        rows = wrong[p].nonzero().squeeze(-1)
        u = f.U[p, : int(rows[-1]) + 1]
        steps = (u.unsqueeze(-1) * u.unsqueeze(-2)).cumsum(0)[rows]
        factor = cholesky(steps + f.M[p])
        Y[p, rows] = torch.cholesky_solve(X[p, rows].unsqueeze(-1), factor).squeeze(-1)


class _ChunkSolve(torch.autograd.Function):
    """(X, U [G, N, C, K], lam [G], M_0 [G, K, K] symmetric, exact) -> (Y [G, N, C, K], M [G, K, K])."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, U: Tensor, lam: Tensor, M: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
        before, final = penalties(U, lam, M, exact)
        factors = factorise(U.flatten(0, 1), before)
        Y = solve(factors, X.flatten(0, 1), exact)
        ctx.exact = exact
        ctx.save_for_backward(X, U, lam, M, Y, *factors)
        return Y.view(X.shape), final

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, upstream_M: Tensor) -> tuple[Tensor | None, ...]:
        X, U, lam, M, Y, *parts = ctx.saved_tensors
        with torch.no_grad():
            gradients = adjoint(Factors(*parts), Y, upstream, upstream_M, ctx.exact)
        return (*once.once_only(gradients, X, U, lam, M, upstream, upstream_M), None)


def adjoint(f: Factors, Y: Tensor, upstream: Tensor, upstream_M: Tensor, exact: bool) -> tuple[Tensor, ...]:
    """Gradients to X, U, lam and M_0, as in the module docstring; upstream [G, N, C, K], upstream_M [G, K, K]."""
    G, N = upstream.shape[:2]
    b = solve(f, upstream.flatten(0, 1), exact)
    outer = torch.bmm(b.mT, Y).unflatten(0, (G, N))
    # after[n] is what the chunks behind chunk n - 1 contribute; the final state's gradient comes last of all
    after = features.prefix_sums(-(outer + outer.mT).flip(1), upstream_M + upstream_M.mT).flip(1)
    u_bar = torch.bmm(f.U, after[:, 1:].flatten(0, 1))
    u_bar.baddbmm_(torch.bmm(f.U, Y.mT).triu_(), b, alpha=-1).baddbmm_(torch.bmm(f.U, b.mT).triu_(), Y, alpha=-1)
    lam_bar = -(b * Y).unflatten(0, (G, N)).sum((1, 2, 3))
    return b.view(upstream.shape), u_bar.view(upstream.shape), lam_bar, after[:, 0] / 2
