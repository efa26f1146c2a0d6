"""The covariance contraction's gradients: its chunk form as three decay scans, whose own backward kernels do the work.

W, W m and P q are decayed running sums (of w, of w x and of d (beta d)^T; equations: covariance_scan.py), so each is a
gated linear attention of `linattest.kernels.gla`; what lies between is a few operations a token. Everything is
recomputed in float32 from the inputs, and nothing of the forward pass is kept: some ten tensors [B, T, H, K].

Source: the chunk form of `linattest.impls.covariance_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.kernels import gla

State = tuple[Tensor, Tensor, Tensor, Tensor]


class Tokens(NamedTuple):
    """Where sequences lie: of each token [B, T] its sequence, that sequence's first token, and whether it is that one;
    of each sequence [N] its row, its last token (0 if it has none), and whether it has one."""

    sequence: Tensor
    begin: Tensor
    starts: Tensor
    row: Tensor
    last: Tensor
    some: Tensor

    @classmethod
    def of(cls, q: Tensor, cu_seqlens: Tensor | None) -> Tokens:
        B, T = q.shape[:2]
        t = torch.arange(T, device=q.device).expand(B, T)
        if cu_seqlens is None:
            row = torch.arange(B, device=q.device)
            return cls(row[:, None].expand(B, T), t * 0, t == 0, row, row * 0 + (T - 1), row >= 0)
        offsets = cu_seqlens.to(device=q.device, dtype=torch.int64)
        sequence = torch.searchsorted(offsets[1:], t[0].contiguous(), right=True).clamp_(max=len(offsets) - 2)
        begin = offsets[sequence]
        last, some = (offsets[1:] - 1).clamp_(min=0), offsets.diff() > 0
        return cls(sequence[None], begin[None], (begin == t[0])[None], last * 0, last, some)

    def shifted(self, first: Tensor, x: Tensor) -> Tensor:
        """What each token finds: x [B, T, H, D] of the token before it, or `first` [N, H, D] of its sequence."""
        return torch.where(self.starts[..., None, None], first[self.sequence], x.roll(1, 1))

    def ends(self, x: Tensor, start: Tensor) -> Tensor:
        """x [B, T, H, D] at each sequence's last token, `start` [N, H, D] where there is none."""
        return torch.where(self.some[:, None, None], x[self.row, self.last], start)


def gradients(
    inputs: Sequence[Tensor | None], cu_seqlens: Tensor | None, upstream: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Gradients of q, k, lam, cov_g, weight and the state's four tensors (empty for None), in their dtypes.

    `upstream`: those of q~ and the final state's four tensors, each may be None.
    """
    q = inputs[0]
    assert q is not None
    if cu_seqlens is not None and upstream[0] is not None:  # nothing is read behind the last sequence
        inside = torch.arange(q.shape[1], device=q.device) < cu_seqlens[-1]
        upstream = [torch.where(inside[None, :, None, None], upstream[0], 0), *upstream[1:]]
    with torch.enable_grad():
        wide = [None if x is None else x.detach().float().requires_grad_() for x in inputs]
        given = [x for x in wide if x is not None]
        results = composed(*wide, cu_seqlens)  # type: ignore[arg-type]
        pairs = [(y, g.float()) for y, g in zip(results, upstream, strict=True) if g is not None and y.requires_grad]
        found = iter(
            torch.autograd.grad([y for y, _ in pairs], given, [g for _, g in pairs], allow_unused=True)
            if pairs
            else [None] * len(given)
        )
    return tuple(
        q.new_empty(0) if x is None else torch.zeros_like(x) if (d := next(found)) is None else d.to(x.dtype)
        for x in inputs
    )


def composed(
    q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, count: Tensor | None,
    reference: Tensor | None, mean: Tensor | None, scatter: Tensor | None, cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """q~ (which needs not be q's bits at lam = 0) and the final state, of float32 tensors, by differentiable steps."""
    tokens, H, K = Tokens.of(q, cu_seqlens), q.shape[2], q.shape[3]
    if count is None or reference is None or mean is None or scatter is None:
        count, reference, mean, scatter = (
            q.new_zeros(len(tokens.row), H, *shape) for shape in ((), (K,), (K,), (K, K))
        )
    if q.shape[1] == 0:
        return q, count, reference, mean, scatter
    one = q.new_ones(*q.shape[:3], 1)
    w = one if weight is None else weight.unsqueeze(-1)
    g = torch.zeros_like(lam) if cov_g is None else cov_g

    def scan(q: Tensor, k: Tensor, v: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        return gla.SCAN(q, k, v, g, S, cu_seqlens, 1.0)  # type: ignore[return-value]

    found = count.unsqueeze(-1)  # [N, H, 1]
    W, _ = scan(one, one, w, found.unsqueeze(-1))
    before = tokens.shifted(found, W)
    empty = W == 0
    total = torch.where(empty, 1, W)

    x, latest, moved = _relative(k, (before == 0) & (w > 0), reference, tokens)
    m_start = torch.where(found == 0, 0, mean)
    sums, _ = scan(one, one, torch.where(empty, 0, w * x), (found * m_start).unsqueeze(2))
    m = torch.where(empty, 0, sums / total)

    d = torch.where(empty, 0, x - tokens.shifted(m_start, m))
    kept = before if cov_g is None else cov_g.unsqueeze(-1).exp() * before
    Pq, P = scan(q, d, w * (kept / total) * d, (scatter + scatter.mT) / 2)
    q_clean = q - lam.unsqueeze(-1) * torch.where(empty, 0, Pq / total)

    m_end = tokens.ends(m, mean) + torch.where(tokens.ends(empty, found == 0), 0, moved)
    P_end = torch.where(tokens.some[:, None, None, None], (P + P.mT) / 2, scatter)
    return q_clean, tokens.ends(W, found).squeeze(-1), latest, m_end, P_end


def _relative(k: Tensor, renewed: Tensor, reference: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [B, T, H, K] relative to the reference in force, the last one [N, H, K], and a zero that carries its
    gradient to the mean: keys and means relative to a renewed reference move with it, their differences not at all."""
    t = torch.arange(k.shape[1], device=k.device)[:, None, None]
    latest = torch.where(renewed, t, -1).cummax(1).values  # [B, T, H, 1]
    index = torch.where(latest < tokens.begin[..., None, None], -1, latest)
    where = index.clamp(min=0).expand(k.shape)
    x = k - torch.where(index < 0, reference[tokens.sequence], k.detach().gather(1, where))
    end = torch.where(tokens.some[:, None, None], index[tokens.row, tokens.last], -1)  # [N, H, 1]
    heads = torch.arange(k.shape[2], device=k.device)
    key = k[tokens.row[:, None], end.squeeze(-1).clamp(min=0), heads]  # [N, H, K]
    return x, torch.where(end < 0, reference, key), torch.where(end < 0, 0, key.detach() - key)
