"""The decay scan: a state that forgets at the rate of its gates and adds one outer product a token.

Definition, state S [K, V] per head, log gate g <= 0, a number per head or a vector [K] (one rate per key channel):

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,      o_t = S_t^T q_t

Simple GLA / Mamba-2 (a number) and GLA (a vector) are this primitive; so are the running sums of CCQ's covariance.

Chunk form. In a chunk of C tokens that starts from S, with D[t, s] = exp(g_{s+1} + ... + g_t) (a vector if g is one),
d_t = exp(g_first + ... + g_t), e_s = D[last, s]; rows of Q, K, V are tokens:

    O = (d * Q) S + A V,   A[t, s] = sum_i q_t[i] k_s[i] D[t, s][i] for s <= t,      S' = d_last S + (e * K)^T V

Only S' = d_last S + ... is sequential. Every exponent is a sum of gates of its own segment, never a difference of
running sums and never positive: g = -inf is an ordinary gate, and what is masked is masked before exp.

Sources: [GLA] (chunk form), [Mamba2] (a number per head). The tree of `channel_decays` is ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattest.impls import bound, delta_scan, features, linear
from linattest.impls.bound import Core


def form(chunk_size: int | None, q: object) -> Core:
    """The core for a (checked) chunk size, or the token loop without one."""
    return bound.form(chunk_size and delta_scan.block_size(chunk_size, q), recurrent_core, chunk_core)


def recurrent_core(q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor | None) -> tuple[Tensor, Tensor]:
    """q, k [B, H, T, K], v [B, H, T, V], g [B, H, T] or [B, H, T, K], state [B, H, K, V] or None; all WIDE."""
    S = linear.zero_state(q, v) if S is None else S
    rates = g if g.dim() == q.dim() else g.unsqueeze(-1)  # [B, H, T, K or 1]
    outputs = []
    for t in range(q.shape[2]):
        S = rates[:, :, t, :, None].exp() * S + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append((q[:, :, t, None] @ S).squeeze(2))
    return (torch.stack(outputs, 2) if outputs else v), S


def chunk_core(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor | None, *, chunk_size: int = 64
) -> tuple[Tensor, Tensor]:
    """As `recurrent_core`, chunk-parallel."""
    B, H, T, _ = q.shape
    S = linear.zero_state(q, v) if S is None else S
    if T == 0:
        return v, S
    C = features.chunk_length(T, chunk_size)
    Q, K, V, gates = (features.into_chunks(x, C) for x in (q, k, v, g))
    scores, since, until = (channel_decays if g.dim() == q.dim() else head_decays)(Q, K, gates)
    d = since.exp()
    starts, final = walk((K * until.exp()).mT @ V, d[:, :, -1, :, None], S.flatten(0, 1))
    return features.from_chunks((Q * d) @ starts + scores @ V, B, H, T), final.reshape(S.shape)


def walk(terms: Tensor, kept: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The sequential part, S' = kept S + term: terms [G, N, K, V], kept [G, N, K or 1, 1], S [G, K, V].

    Returns the state at each chunk's start [G, N, K, V] and the final state.
    """
    starts = []
    for term, rate in zip(terms.unbind(1), kept.unbind(1), strict=True):
        starts.append(S)
        S = torch.addcmul(term, rate, S)
    return torch.stack(starts, 1), S


def head_decays(Q: Tensor, K: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K [G, N, C, K], gates [G, N, C] -> A [G, N, C, C] and the logs of d and e [G, N, C, 1]."""
    until = gates[..., 1:].flip(-1).cumsum(-1).flip(-1)
    until = torch.cat([until, torch.zeros_like(gates[..., :1])], -1)
    return (Q @ K.mT) * delta_scan.decay_matrix(gates), gates.cumsum(-1).unsqueeze(-1), until.unsqueeze(-1)


def channel_decays(Q: Tensor, K: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K, gates [G, N, C, K] -> A [G, N, C, C] and the logs of d and e [G, N, C, K].

    A binary tree of anchors. In a block of 2 m rows the pairs (t in the right half, s in the left) decay from s to the
    middle and from the middle to t: two factors, neither above 1, and so the halves meet in one matrix product. Blocks
    of 2, 4, ..., C rows hold every pair once; the diagonal does not decay. The sums that a level needs, from the first
    row of each half to t and after s to its last row, are those of the level below plus one half's total.
    """
    A, since = (Q * K).sum(-1)[..., None, None], gates.unsqueeze(3)  # blocks of m = 1: [G, N, C, m, m], [G, N, C, m, K]
    until = torch.zeros_like(since)
    while (m := A.shape[-1]) < Q.shape[2]:
        (_, q), (k, _) = (x.unflatten(2, (-1, 2, m)).unbind(3) for x in (Q, K))
        (upper, lower), (before, after), (left, right) = (x.unflatten(2, (-1, 2)).unbind(3) for x in (A, since, until))
        below = (q * after.exp()) @ (k * left.exp()).mT
        A = torch.cat([torch.cat([upper, torch.zeros_like(upper)], -1), torch.cat([below, lower], -1)], -2)
        until = torch.cat([left + after[..., -1:, :], right], -2)
        since = torch.cat([before, before[..., -1:, :] + after], -2)
    return A.squeeze(2), since.squeeze(2), until.squeeze(2)
