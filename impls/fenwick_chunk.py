"""One chunk of the Fenwick scan by itself: what its tokens read of each other, and what it does to an earlier state.

In a chunk of C = 2^c tokens, with D[t, s] = exp(g_{s+1} + ... + g_t), d_t = exp(g_first + ... + g_t), e_s = D[last, s],
H[t, s] = lam_t^{level(t, s)}, and tokens as rows of E (erase), W (write), Q, V:

    X = (I + strict_lower(E W^T * D))^{-1},   M = lower(Q W^T * D) X,   Y = (e * W)^T X         (no erase keys: X = I)
    O = (M * H) V,       R = d * Q - M (d * E)                                                    (R = d * Q)
    B = Y V,             P = d_last I - Y (d * E)                                                 (P = d_last)

M[t, s] = q_t^T Phi(t, s) write_s; column s of Y is Phi(last, s) write_s; a state S at the chunk's start is read by R S
and becomes P S + B. X is never formed: M and Y are solved for. The level of a pair inside an aligned chunk is that of
its places in the chunk. Exponents are sums of gates of the segment itself, so g = -inf is an ordinary gate.

Source: [LogLinear], with the UT transform of `delta_scan`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import delta_scan


class Chunks(NamedTuple):
    """The quantities of the module docstring, for N chunks of each of G heads. B = Y V is left to the caller."""

    O: Tensor  # [G, N, C, V]
    R: Tensor  # [G, N, C, K]
    Y: Tensor  # [G, N, K, C]
    P: Tensor  # [G, N, 1 or K, 1 or K]: a [1, 1] stands for that multiple of the identity
    V: Tensor  # [G, N, C, V]
    lost: Tensor | None  # [G, N, C, 1] or None: tokens whose output is NaN whatever they read


def levels(t: Tensor, s: Tensor) -> Tensor:
    """Whole numbers t [n], s [m] -> bit_length(t XOR s) [n, m], int64."""
    return torch.frexp((t.unsqueeze(-1) ^ s).double()).exponent.long()


def inside(
    Q: Tensor, E: Tensor | None, W: Tensor, V: Tensor, gates: Tensor, weights: Tensor, *, exact: bool = False
) -> Chunks:
    """Q, E (None: no erasing), W [G, N, C, K], V [G, N, C, V], gates [G, N, C], weights [G, N, C, L], all WIDE.

    `exact` (float64 inputs) walks the tokens of all chunks together instead of solving, see `_walked`.
    Keys and values that are not finite are taken out, and the outputs from their token on are NaN: 0 times infinity
    above a diagonal would carry them to tokens before.
    """
    C = Q.shape[2]
    spoilt = _not_finite(W) if E is None else _not_finite(W) | _not_finite(E)
    W, E = _without(spoilt, W), None if E is None else _without(spoilt, E)
    if E is None:
        M, Y, R, P = _added(Q, W, gates)
    elif exact:
        M, Y, R, P = _walked(Q, E, W, gates)
    else:
        M, Y, R, P, overflow = _solved(Q, E, W, gates)
        spoilt = spoilt | overflow
    places = torch.arange(C, device=Q.device)
    H = weights.gather(-1, levels(places, places).expand(*M.shape[:2], C, C))
    bad = spoilt | _not_finite(V)
    O = (M * H) @ _without(bad, V)
    if not bool(bad.any()):
        return Chunks(O, R, Y, P, V, None)
    broken = spoilt.any(2, keepdim=True)
    Y = torch.where(broken, torch.nan, Y)
    P = P if E is None else torch.where(broken, torch.nan, P)
    return Chunks(O, R, Y, P, V, bad.to(torch.int8).cummax(2).values.bool())


def _added(Q: Tensor, W: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M, Y, R and P without erase keys."""
    D, d = delta_scan.decay_matrix(gates), gates.cumsum(-1).exp().unsqueeze(-1)
    return (Q @ W.mT).tril_() * D, (D[:, :, -1, :, None] * W).mT, d * Q, d[:, :, -1:]


def _solved(Q: Tensor, E: Tensor, W: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """M, Y, R and P by the triangular system, and the rows in which that overflowed."""
    C, K = Q.shape[2:]
    D, d = delta_scan.decay_matrix(gates), gates.cumsum(-1).exp().unsqueeze(-1)
    system = (E @ W.mT).tril_(-1) * D
    overflow = _not_finite(system)
    both = torch.cat([(Q @ W.mT).tril_() * D, (D[:, :, -1, :, None] * W).mT], 2)
    both = torch.linalg.solve_triangular(_without(overflow, system), both, upper=False, left=False, unitriangular=True)
    M, Y = both.split([C, K], 2)
    E, eye = d * E, torch.eye(K, dtype=E.dtype, device=E.device)
    return M, Y, d * Q - M @ E, d[:, :, -1:] * eye - Y @ E, overflow


def _walked(Q: Tensor, E: Tensor, W: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M, Y, R and P by the recurrence itself, one token of every chunk at a time.

    What is left of a bucket after many tokens that overwrite it is small; a difference such as d_last I - Y (d * E)
    has it to a rounding of 1 only, a product to a rounding of itself. Narrower inputs have float64's spare digits.
    """
    G, N, C, K = Q.shape
    Z = torch.eye(K, dtype=Q.dtype, device=Q.device).expand(G, N, K, K)  # [P | Y], Y a column longer every token
    read = []
    for t in range(C):
        e, w = E[:, :, t, None], W[:, :, t, :, None]
        Z = torch.cat([gates[:, :, t, None, None].exp() * (Z - w * (e @ Z)), w], -1)
        read.append(torch.nn.functional.pad((Q[:, :, t, None] @ Z).squeeze(2), (0, C - 1 - t)))
    R, M = torch.stack(read, 2).split([K, C], -1)
    P, Y = Z.split([K, C], -1)
    return M, Y, R, P


def _not_finite(x: Tensor) -> Tensor:
    """x [..., D] -> [..., 1]: rows with an entry that is NaN or infinite."""
    x = x.detach()
    return (x - x).sum(-1, keepdim=True) != 0  # NaN unless finite; much faster than `isfinite`


def _without(rows: Tensor, x: Tensor) -> Tensor:
    """x with the marked rows 0."""
    return torch.where(rows, 0, x) if bool(rows.any()) else x
