"""Functions as a user might bring them, right and wrong: gated linear attention in plain PyTorch, one gate a head.

Each wrong one has one fault, named in its docstring. None of them knows anything of the harness.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def loop(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor | None, scale: float | None = None, order: str = "right",
    keep: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The recurrence; ``order`` misplaces the decay or the own token, ``keep`` rounds the state."""
    dtype, to, group = q.dtype, wide(q), v.shape[2] // q.shape[2]
    q, k = (x.to(to).repeat_interleave(group, 2) for x in (q, k))
    v, g = v.to(to), g.to(to).exp()[..., None, None]
    S = q.new_zeros(q.shape[0], v.shape[2], q.shape[-1], v.shape[-1]) if state is None else state
    rows: list[Tensor] = []
    for t in range(q.shape[1]):
        new = k[:, t, :, :, None] * v[:, t, :, None, :]
        before = S * g[:, t]
        S = {"late": (S + new) * g[:, t]}.get(order, before + new)
        S = S.to(keep).to(to) if keep else S
        read = {"strict": before, "twice": S + new}.get(order, S)
        rows.append((q[:, t, :, :, None] * read).sum(-2))
    o = torch.stack(rows, 1) if rows else torch.zeros_like(v)
    return (o * (q.shape[-1] ** -0.5 if scale is None else scale)).to(dtype), S


def scores(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None, past: Any = None) -> Tensor:
    """All at once: (Q K^T . decay . mask) V, from an empty state."""
    dtype, to, group = q.dtype, wide(q), v.shape[2] // q.shape[2]
    q, k = (x.to(to).repeat_interleave(group, 2) for x in (q, k))
    t = torch.arange(q.shape[1])
    live = t[:, None] >= t if past is None else past(t[:, None], t)
    sums = torch.where(t[:, None] > t, g.to(to).transpose(1, 2).unsqueeze(-1), 0).cumsum(2)  # over (s, t]
    decay = torch.where(live, sums, -torch.inf)
    o = torch.einsum("bthk,bshk,bhts,bshv->bthv", q, k, decay.exp(), v.to(to))
    return (o * (q.shape[-1] ** -0.5 if scale is None else scale)).to(dtype)


# --- right -------------------------------------------------------------------------------------------------------


def right(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    o, S = loop(q, k, v, g, initial_state, scale)
    return o, S if output_final_state else None


def right_elsewhere(value: Tensor, query: Tensor, key: Tensor, log_decay: Tensor, *, h0: Tensor | None = None) -> Any:
    """Other names in another order, head-first, states [V, K], no scale."""
    q, k, v, g = (x.transpose(1, 2) for x in (query, key, value, log_decay))
    o, S = loop(q, k, v, g, None if h0 is None else h0.mT)
    return o.transpose(1, 2), S.mT


ELSEWHERE = {"query": "q", "key": "k", "value": "v", "log_decay": "g", "h0": "initial_state"}


# --- wrong -------------------------------------------------------------------------------------------------------


def tail(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Any = None, output_final_state: bool = False
) -> Any:
    """Rows that fill the last chunk of 32 are copies of the first token and join the final state."""
    T = q.shape[1]
    if not T:
        return loop(q, k, v, g, initial_state)
    q, k, v, g = (torch.cat([x, x[:, :1].expand(-1, -T % 32, *x.shape[2:])], 1) for x in (q, k, v, g))
    o, S = loop(q, k, v, g, initial_state)
    return o[:, :T], S


def tail_rows(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The live rows of a short last chunk of 64 read the keys of its dead rows, copies of the last token."""
    T = q.shape[1]
    o, _ = loop(q, k, v, g, None)
    if T % 64 == 0:
        return o
    live = torch.arange(T) >= T // 64 * 64
    return torch.where(live[:, None, None], (o + o[:, -1:]).to(o.dtype), o)


def unscaled(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Any = None, output_final_state: bool = False
) -> Any:
    return loop(q, k, v, g, initial_state, 1.0)


def state_ignored(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Any = None, output_final_state: bool = False
) -> Any:
    return loop(q, k, v, g, None)


def state_transposed(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Any = None, output_final_state: bool = False
) -> Any:
    o, S = loop(q, k, v, g, initial_state)
    return o, S.mT


def state_bfloat16(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Any = None, output_final_state: bool = False
) -> Any:
    return loop(q, k, v, g, initial_state, keep=torch.bfloat16)


def strict(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, g, None, order="strict")[0]


def twice(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, g, None, order="twice")[0]


def late(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, g, None, order="late")[0]


def shifted(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, torch.cat([torch.zeros_like(g[:, :1]), g[:, :-1]], 1), None)[0]


def ungated(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, torch.zeros_like(g), None)[0]


def base_two(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, g * 0.6931471805599453, None)[0]


def leaky(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The mask forgets its diagonal block: tokens of a block of 16 see each other."""
    return scores(q, k, v, g, past=lambda t, s: t // 16 >= s // 16)


def edge(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The state between chunks of 32 is lost."""
    edges = [slice(a, a + 32) for a in range(0, max(1, q.shape[1]), 32)]
    return torch.cat([loop(q[:, x], k[:, x], v[:, x], g[:, x], None)[0] for x in edges], 1)


def packs_leak(q: Tensor, k: Tensor, v: Tensor, g: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    o = loop(q, k, v, g, None)[0]
    return o if cu_seqlens is None else torch.cat([o[:, : cu_seqlens[-1]], torch.zeros_like(o[:, cu_seqlens[-1] :])], 1)


def wrong_heads(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    q, k = (x.repeat(1, 1, v.shape[2] // x.shape[2], 1) for x in (q, k))
    return loop(q, k, v, g, None)[0]


def random(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = loop(q, k, v, g, None)[0]
    return (o * (1 + 1e-3 * torch.rand_like(o.float()))).to(o.dtype)


def in_place(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    with torch.no_grad():
        o = loop(q, k, v, g, None)[0]
        q *= q.shape[-1] ** -0.5
    return o


def narrow(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Queries, keys and values go through bfloat16."""
    q, k, v = (x.to(torch.bfloat16).to(x.dtype) for x in (q, k, v))
    return loop(q, k, v, g, None)[0]


def gate_gradient(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The gradient of the gate is 1/ln 2 times too large."""
    if g.requires_grad:
        g = g.clone()
        g.register_hook(lambda grad: grad * 1.4426950408889634)
    return loop(q, k, v, g, None)[0]


def no_key_gradient(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k.detach(), v, g, None)[0]


def detached(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return loop(q, k, v, g, None)[0].detach()


def overflowing(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """exp of positive differences, masked afterwards, by a product."""
    dtype, to = q.dtype, wide(q)
    q, k, v, c = (x.to(to) for x in (q, k, v, g.to(to).cumsum(1)))
    past = torch.ones(q.shape[1], q.shape[1], dtype=to).tril()
    decay = (c.transpose(1, 2)[..., :, None] - c.transpose(1, 2)[..., None, :]).exp() * past
    return (torch.einsum("bthk,bshk,bhts,bshv->bthv", q, k, decay, v) * q.shape[-1] ** -0.5).to(dtype)


def odd_widths(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """A block of a power of two wraps around the width of the keys."""
    K = q.shape[-1]
    block = torch.arange(1 << (K - 1).bit_length()) % K
    return loop(q[..., block], k[..., block], v, g, None, K**-0.5)[0]


def only_half(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    o = loop(q, k, v, g, None)[0]
    return o * 1.25 if q.dtype == torch.float16 else o


def strided(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The values are read as if they were contiguous."""
    flat = v.detach().as_strided(v.shape, torch.empty(v.shape).stride(), v.storage_offset()).nan_to_num()
    return loop(q, k, v + (flat - v.detach()), g, None)[0]


def empty_refused(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    if q.shape[1] == 0:
        raise RuntimeError("cannot launch a grid of 0 programs")
    return loop(q, k, v, g, None)[0]


def not_a_tensor(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    return {"o": loop(q, k, v, g, None)[0]}


def spread_nan(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Right values; a product with a mask of zeros carries NaN into earlier chunks."""
    return scores(q, k, v, g)


not_a_function = 3


def leaves(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """It ends the process, as a script does."""
    raise SystemExit(0)
