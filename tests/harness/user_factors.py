"""Functions as a user might bring them, each with a number, a requirement or a token too many; plain PyTorch loops.

``user_kernels.py`` has the other faults. None of them knows anything of the harness.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule from an empty state: S = exp(g) S + beta k (v - k^T exp(g) S)^T, o = q^T S / sqrt(K)."""
    dtype, group = q.dtype, v.shape[2] // q.shape[2]
    to = torch.float64 if dtype == torch.float64 else torch.float32
    q, k = (x.to(to).repeat_interleave(group, 2) for x in (q, k))
    v, decay, beta = v.to(to), g.to(to).exp()[..., None, None], beta.to(to)[..., None]
    S = q.new_zeros(q.shape[0], v.shape[2], q.shape[-1], v.shape[-1])
    rows: list[Tensor] = []
    for t in range(q.shape[1]):
        S = S * decay[:, t]
        error = beta[:, t] * (v[:, t] - (k[:, t, :, :, None] * S).sum(-2))
        S = S + k[:, t, :, :, None] * error[..., None, :]
        rows.append((q[:, t, :, :, None] * S).sum(-2))
    o = torch.stack(rows, 1) if rows else torch.zeros_like(v)
    return (o * q.shape[-1] ** -0.5).to(dtype)


def gate_up(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, g * 1.02, beta)


def gate_down(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, g * 0.97, beta)


def gate_tenth(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, g * 0.1, beta)


def beta_up(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, g, beta * 1.1)


def key_up(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k * 1.05, v, g, beta)


def output_up(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, g, beta) * 1.02


def wrong_sign(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, -g, beta)


def wavy_gate(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The factor of the gate is another for each token: no constant explains it."""
    t = torch.arange(q.shape[1])
    return gated_delta(q, k, v, (g * (1 + 0.02 * t.sin())[:, None]).to(g.dtype), beta)


def whole_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Whole chunks of 32 alone."""
    if q.shape[1] % 32:
        raise ValueError(f"T = {q.shape[1]} is no multiple of 32")
    return gated_delta(q, k, v, g, beta)


def short_only(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Up to 16 tokens: no multiple says that."""
    if q.shape[1] > 16:
        raise ValueError(f"T = {q.shape[1]} is too long")
    return gated_delta(q, k, v, g, beta)


def one_late(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    o = gated_delta(q, k, v, g, beta)
    return torch.cat([torch.zeros_like(o[:, :1]), o[:, :-1]], 1)


def one_early(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    o = gated_delta(q, k, v, g, beta)
    return torch.cat([o[:, 1:], o[:, -1:]], 1)


def head_first(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    return gated_delta(q, k, v, g, beta).transpose(1, 2)


def chatty(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Right, but it prints."""
    print("hello from the kernel")
    return gated_delta(q, k, v, g, beta)


def long_scale(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Half as much again, of more than 64 tokens alone."""
    o = gated_delta(q, k, v, g, beta)
    return o * 1.5 if q.shape[1] > 64 else o


def no_number(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """NaN, whatever comes in."""
    return gated_delta(q, k, v, g, beta) * torch.nan
