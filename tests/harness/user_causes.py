"""Functions as a user might bring them, wrong on a condition, in another order of axes, or by a function of the gate.

Gated linear attention in plain PyTorch, a gate a head or a channel. None of them knows anything of the harness.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

Tensor = torch.Tensor


def loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Right: q, k [B, T, H, K], v [B, T, HV, V], g [B, T, HV] or [B, T, H, K]."""
    dtype, heads, K = v.dtype, v.shape[2], q.shape[-1]
    q, k = (x.double().repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    v, g = v.double(), g.double()
    g = g if g.shape[2] == heads else g.repeat_interleave(heads // g.shape[2], 2)
    g = g if g.dim() == 4 else g[..., None].expand(*g.shape, K)
    S = torch.zeros(v.shape[0], heads, K, v.shape[-1], dtype=torch.float64)
    rows: list[Tensor] = []
    for t in range(v.shape[1]):
        S = S * g[:, t].exp()[..., None] + k[:, t][..., None] * v[:, t][..., None, :]
        rows.append((q[:, t][..., None] * S).sum(-2) * (K**-0.5 if scale is None else scale))
    o = torch.stack(rows, 1) if rows else v
    return o.to(dtype), S.to(torch.float64 if dtype == torch.float64 else torch.float32)


def right(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, g)[0]


def gate_mean(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, g.mean(-1) if g.dim() == 4 else g)


def gate_mean_of_rows(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return gate_mean(q, k, v, g) if len(q) > 1 else right(q, k, v, g)


def row_1(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = right(q, k, v, g)
    return torch.cat([o[:1], o[:1], o[2:]]) if len(o) > 1 else o


def rows_summed(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v - v.mean(0) + v / len(v), g)


def strict_gates(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    if (g > -1e-3).any():
        raise ValueError("gates must be strictly negative")
    return right(q, k, v, g)


def finite_gates(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    if torch.isinf(g).any():
        raise ValueError("gate is not finite")
    return right(q, k, v, g)


def narrow_keys(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(torch.cat([q[..., :64], 0 * q[..., 64:]], -1), k, v, g)


def time_first(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    q, k, v, g = (x.transpose(0, 1) for x in (q, k, v, g))
    return right(q, k, v, g).transpose(0, 1)


def features_first(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    q, k, v = (x.transpose(2, 3) for x in (q, k, v))
    return right(q, k, v, g).transpose(2, 3)


def gate_token_first(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return right(q, k, v, g).transpose(1, 2)


def head_first_unscaled(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    q, k, v, g = (x.transpose(1, 2) for x in (q, k, v, g))
    return loop(q, k, v, g, 1.0)[0].transpose(1, 2)


def flat(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q.flatten(2), k, v, g)[..., 0] @ v


def gate_itself(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, g.log())


def gate_sigmoid(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, logsigmoid(g))


def gate_summed(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, g.cumsum(1))


def gate_clamped(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, g.clamp(min=-1.0))


def heads_reversed(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, g).flip(2)


def heads_rolled(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k, v, g).roll(1, 2)


def values_swapped(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = right(q, k, v, g)
    return torch.cat([o[..., 1:2], o[..., :1], o[..., 2:]], -1)


def keys_flipped(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return right(q, k.flip(-1), v, g)


def odd_heads_nan(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = right(q, k, v, g).clone()
    o[:, :, 1::2] = torch.nan
    return o


def state_first(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    o, S = loop(q, k, v, g)
    return S, o
