"""Functions as a user might bring them: heads before tokens, or one head, one channel, one value too many wrong.

Gated linear attention with a gate a channel of the keys, in plain PyTorch. ``user_kernels.py`` and
``user_factors.py`` have the other faults. None of them knows anything of the harness.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def turned(
    q: Tensor, k: Tensor, v: Tensor, gk: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Right, with tensors [B, H, T, ..] and states [B, H, V, K]."""
    to = torch.float64 if q.dtype == torch.float64 else torch.float32
    dtype, (B, H, T, K), V = q.dtype, q.shape, v.shape[-1]
    q, k, v, gk = (x.to(to) for x in (q, k, v, gk))
    S = torch.zeros(B, H, V, K, dtype=to) if initial_state is None else initial_state
    rows: list[Tensor] = []
    for t in range(T):
        S = S * gk[:, :, t, None, :].exp() + v[:, :, t, :, None] * k[:, :, t, None, :]
        rows.append((S * q[:, :, t, None, :]).sum(-1) * (K**-0.5 if scale is None else scale))
    o = torch.stack(rows, 2) if rows else v.new_zeros(B, H, 0, V)
    return o.to(dtype), S if output_final_state else None


def straight(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Right, with tensors [B, T, H, ..]."""
    a, b, c, d = (x.transpose(1, 2) for x in (q, k, v, g))
    return turned(a, b, c, d)[0].transpose(1, 2)


def half_turned(q: Tensor, k: Tensor, v: Tensor, gk: Tensor) -> Tensor:
    """Inputs [B, H, T, ..], an output [B, T, H, V]."""
    return turned(q, k, v, gk)[0].transpose(1, 2)


def half_turned_narrow(q: Tensor, k: Tensor, v: Tensor, gk: Tensor) -> Tensor:
    """The same, and it takes no float64."""
    if q.dtype == torch.float64:
        raise ValueError("no float64")
    return half_turned(q, k, v, gk)


def straight_state(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Right, with states [B, H, K, V]."""
    before = None if initial_state is None else initial_state.mT
    a, b, c, d = (x.transpose(1, 2) for x in (q, k, v, g))
    o, S = turned(a, b, c, d, initial_state=before, output_final_state=True)
    assert S is not None
    return o.transpose(1, 2), S.mT if output_final_state else None


def negated(q: Tensor, k: Tensor, v: Tensor, gk: Tensor) -> Tensor:
    """Its gate is positive by convention."""
    return straight(q, k, v, -gk)


def straight_gk(q: Tensor, k: Tensor, v: Tensor, gk: Tensor) -> Tensor:
    """Right, under another name of the gate."""
    return straight(q, k, v, gk)


def last_head(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = straight(q, k, v, g).clone()
    o[:, :, -1] *= 1.01
    return o


def copied_head(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Head 1 gets the output of head 0."""
    o = straight(q, k, v, g).clone()
    o[:, :, 1:2] = o[:, :, :1][:, :, : o.shape[2] - 1]
    return o


def odd_heads(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = straight(q, k, v, g).clone()
    o[:, :, 1::2] = o[:, :, 1::2].cumsum(1)
    return o


def last_value_channel(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = straight(q, k, v, g).clone()
    o[..., -1] = 0
    return o


def last_key_channel(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The sum over the keys' channels stops one too early."""
    last = torch.ones(k.shape[-1], dtype=k.dtype)
    last[-1] = 0
    return straight(q, k * last, v, g)


def three_values(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    o = straight(q, k, v, g)
    return o, o[:, -1:], None
