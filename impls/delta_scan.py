"""The delta scan: a decayed state from which each token erases along one key and writes along another.

Definition, state S [K, V] per value head, gate g <= 0 (natural log, default 0), scale K ** -0.5 by default:

    S_t = exp(g_t) (I - write_t erase_t^T) S_{t-1} + write_t v_t^T,      o_t = scale * S_t^T q_t

With the residual r_t = v_t - exp(g_t) S_{t-1}^T erase_t this reads S_t = exp(g_t) S_{t-1} + write_t r_t^T. DeltaNet,
Gated DeltaNet (erase = k, write = beta k) and VLA (erase = k/|k|, write = A k/|A k|) are this primitive.

Chunk form (UT transform; Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule", section 3.2, here
with two keys and a gate). In a chunk of C tokens that starts from S, with D[t, s] = exp(g_{s+1} + ... + g_t),
d_t = exp(g_first + ... + g_t), e_s = D[last, s]; rows of E, W, Q, V, R are tokens:

    R = (I + strict_lower(E W^T * D))^{-1} (V - d * (E S)),    O = d * (Q S) + lower(Q W^T * D) R
    S' = d_last S + (e * W)^T R

For float64 inputs the triangular system is solved with the right-hand side that contains S: anything else loses digits
whenever the inverse's entries grow. Narrower inputs have digits to spare, and are solved for all chunks at once, V and
E apart. Exponents are sums of gates of the segment itself, never differences of running sums, so g = -inf is an
ordinary gate, and are masked before exp, so no gradient is 0 * inf. Products that are made here are scaled in place:
a fresh tensor costs as much as the arithmetic on it.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from linattest.impls import arguments, bound, features
from linattest.impls.bound import Bound, Core
from linattest.impls.features import WIDE


def recurrent(
    q: Tensor,
    erase: Tensor,
    write: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q [B, T, H, K]; erase, write [B, T, H or HV, K]; v [B, T, HV, V]; g [B, T, HV] or None; HV a multiple of H; dtypes
    float64, float32, bfloat16 or float16, one for all but g, which may be float32. `initial_state` [N, HV, K, V],
    float32 (float64 for float64 inputs), N = B or the number of packed sequences. Returns o [B, T, HV, V] in v's dtype
    and the final state (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, a positive or NaN gate,
    bad offsets. Source: the definition above.
    """
    return bound.run(bind(q, erase, write, v, g, scale=scale), initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    erase: Tensor,
    write: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form (UT transform, module docstring); arguments and errors as in `recurrent`.

    `chunk_size` is a power of two; float64 inputs get at most 16 (see `block_size`).
    """
    operator = bind(q, erase, write, v, g, scale=scale, chunk_size=arguments.check_chunk_size(chunk_size))
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor,
    erase: Tensor,
    write: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    return bound.step(bind(q, erase, write, v, g, scale=scale), initial_state)


def bind(
    q: Tensor,
    erase: Tensor,
    write: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    chunk_size: int | None = None,
) -> Bound:
    """The operator, checked and widened: the token loop, or chunks of a (checked) `chunk_size`."""
    sizes = _check(q, erase, write, v, g)
    factor = arguments.check_scale(scale, sizes.K)
    inputs = [features.heads_first(x, sizes.HV) for x in (q, erase, write, v)]
    if g is not None:
        inputs.append(features.heads_first(g))
    return Bound(sizes, q, inputs, bound.reader(form(chunk_size, q)), factor, bound.check_memory)


def _check(q: Tensor, erase: Tensor, write: Tensor, v: Tensor, g: Tensor | None) -> arguments.Sizes:
    query, value = arguments.check_rank("q", q), arguments.check_rank("v", v, "[B, T, HV, V]")
    B, T, H, K = query.shape
    HV, V = value.shape[2:]
    arguments.check_same("v", value, (B, T, HV, V), "[B, T, HV, V]", query)
    arguments.check_heads("v", HV, H)
    arguments.check_widths(K=K, V=V, H=H)
    for name, key in (("erase", erase), ("write", write)):
        heads = HV if arguments.check_rank(name, key).shape[2] == HV else H
        arguments.check_same(name, key, (B, T, heads, K), "[B, T, H or HV, K]", query)
    if g is not None:
        arguments.check_per_head("g", g, {"[B, T, HV]": (B, T, HV)}, query)
        arguments.check_gate_values("g", g)
    return arguments.Sizes(B, T, H, HV, K, V)


# --- cores: heads-first WIDE tensors, no scale ----------------------------------------------------------------


def recurrent_core(q: Tensor, erase: Tensor, write: Tensor, v: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """q, erase, write [B, H, T, K], v [B, H, T, V], optional g [B, H, T], state [B, H, K, V] or None (last)."""
    g, S = _gate_and_state(rest, q, v)
    outputs = []
    for t in range(q.shape[2]):
        if g is not None:
            S = g[:, :, t, None, None].exp() * S
        r = v[:, :, t] - (erase[:, :, t, None] @ S).squeeze(2)
        S = S + write[:, :, t, :, None] * r[:, :, None]
        outputs.append((q[:, :, t, None] @ S).squeeze(2))
    return (torch.stack(outputs, 2) if outputs else v), S


def _gate_and_state(rest: tuple[Tensor | None, ...], q: Tensor, v: Tensor) -> tuple[Tensor | None, Tensor]:
    *gate, S = rest
    if S is None:
        S = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=WIDE, device=q.device)
    return (gate[0] if gate else None), S


def form(chunk_size: int | None, q: object) -> Core:
    """The core for a (checked) chunk size, or the token loop without one."""
    core = functools.partial(chunk_core, exact=features.is_wide(q))
    return bound.form(chunk_size and block_size(chunk_size, q), recurrent_core, core)


SPAN = 32
"""Chunks that are worked on at once: more would only move their intermediate results out of the cache and back."""


def block_size(chunk_size: int, q: object) -> int:
    """Tokens that a chunk holds: `chunk_size`, but at most 16 for float64 inputs.

    A chunk forgets what it wrote by subtraction (its residuals, not the state, carry the erasure), and loses about
    the square root of its length in accuracy; the rounding of a sum of gates is a relative error of its exp. Narrower
    inputs have float64's spare digits to pay for both.
    """
    return min(chunk_size, 16) if features.is_wide(q) else chunk_size


def decay_matrix(g: Tensor) -> Tensor:
    """g [..., C] -> D [..., C, C] with D[t, s] = exp(g_{s+1} + ... + g_t) for s <= t and 0 above the diagonal.

    Each entry is the exp of its own segment sum, accumulated down the column from gates masked to t > s: exact for
    g = -inf, for huge gates followed by none, and 1 on the diagonal whatever g is.
    """
    C = g.shape[-1]
    return g.unsqueeze(-1).expand(*g.shape, C).tril(-1).cumsum(-2).exp_().tril()


def chunk_core(
    q: Tensor, erase: Tensor, write: Tensor, v: Tensor, *rest: Tensor | None, chunk_size: int = 64, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """As `recurrent_core`, by the UT transform; `exact` (float64 inputs) solves with the right-hand side that has S."""
    g, S = _gate_and_state(rest, q, v)
    inputs, span = [x for x in (q, erase, write, v, g) if x is not None], SPAN * chunk_size
    if q.shape[2] <= span:
        return _span(*inputs, S, chunk_size=chunk_size, exact=exact)
    outputs = []
    for parts in zip(*(x.split(span, 2) for x in inputs), strict=True):
        o, S = _span(*parts, S, chunk_size=chunk_size, exact=exact)
        outputs.append(o)
    return torch.cat(outputs, 2), S


def _span(
    q: Tensor, erase: Tensor, write: Tensor, v: Tensor, *rest: Tensor | None, chunk_size: int, exact: bool
) -> tuple[Tensor, Tensor]:
    """`chunk_core` of a few chunks: what is done for all of them at once fits in a cache."""
    g, S = _gate_and_state(rest, q, v)
    B, H, T, _ = q.shape
    if T == 0:
        return v, S
    C = features.chunk_length(T, chunk_size)
    Q, E, W, V = (features.into_chunks(x, C) for x in (q, erase, write, v))
    system, scores = E @ W.mT, (Q @ W.mT).tril_()
    d = kept = None
    if g is not None:
        gates = features.into_chunks(g, C)
        D, d = decay_matrix(gates), gates.cumsum(-1).exp().unsqueeze(-1)
        system, scores = system.mul_(D), scores.mul_(D)
        E, W = d * E, D[:, :, -1, :, None] * W
        kept = d[:, :, -1:]
    starts, residuals, final = walk(E, W, V, system, kept, S.flatten(0, 1), exact=exact)
    base = Q @ starts if d is None else (Q @ starts).mul_(d)
    return features.from_chunks(read(base, scores, residuals), B, H, T), final.reshape(S.shape)


def read(base: Tensor, scores: Tensor, residuals: Tensor) -> Tensor:
    """base + scores @ residuals, [G, N, C, *], for lower triangular scores; NaN from the first infinite residual on.

    Without the mask, 0 * inf above the diagonal would carry an overflow to tokens before it. `base`, a product just
    made, is added to in place.
    """
    finite = torch.isfinite(residuals.detach().sum(-1, keepdim=True))
    if bool(finite.all()):
        base.view(-1, *base.shape[2:]).baddbmm_(scores.flatten(0, 1), residuals.flatten(0, 1))
        return base
    lost = (~finite).to(torch.int8).cummax(-2).values.bool()
    return torch.where(lost, torch.nan, base + scores @ torch.where(finite, residuals, 0))


def walk(
    E: Tensor, W: Tensor, V: Tensor, system: Tensor, kept: Tensor | None, S: Tensor, *, exact: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The sequential part: E, W [G, N, C, K], V [G, N, C, V], system [G, N, C, C], kept [G, N, 1, 1] or None.

    Returns the state at each chunk's start [G, N, K, V], the residuals R [G, N, C, V] and the final state. Everything
    that does not need S has been done for all chunks at once before, the triangular solves too unless `exact`. (Of
    `system` only the strict lower triangle is read.)
    """
    if not exact:
        E, V = (torch.linalg.solve_triangular(system, x, upper=False, unitriangular=True) for x in (E, V))
        if not torch.is_grad_enabled():
            return walk_in_place(E, W, V, kept, S)
    starts, residuals = [], []
    for n, (e, w, v, a) in enumerate(zip(E.unbind(1), W.mT.unbind(1), V.unbind(1), system.unbind(1), strict=True)):
        starts.append(S)
        r = torch.baddbmm(v, e, S, alpha=-1)
        if exact:
            r = torch.linalg.solve_triangular(a, r, upper=False, unitriangular=True)
        S = torch.baddbmm(S if kept is None else S * kept[:, n], w, r)
        residuals.append(r)
    return torch.stack(starts, 1), torch.stack(residuals, 1), S


def walk_in_place(TE: Tensor, W: Tensor, TV: Tensor, kept: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `walk` from solved systems (TV becomes R) when no gradient is asked for: without copies.

    A solver's results lie column by column, and in-place products want rows: hence the transposes.
    """
    every = S.new_empty(S.shape[0], TE.shape[1] + 1, *S.shape[1:])
    every[:, 0] = S
    states = every.unbind(1)
    for n, (e, w, r) in enumerate(zip(TE.mT.unbind(1), W.mT.unbind(1), TV.mT.unbind(1), strict=True)):
        r.baddbmm_(states[n].mT, e, alpha=-1)
        if kept is None:
            torch.baddbmm(states[n], w, r.mT, out=states[n + 1])
        else:
            torch.mul(states[n], kept[:, n], out=states[n + 1]).baddbmm_(w, r.mT)
    return every[:, :-1], TV, states[-1]
