"""Variational linear attention: delta-rule writes along a gain that a running penalty matrix shapes.

Definition, per head; q, k are features (after ELU + 1), u penalty directions, k^ = k/|k|:

    M_t = M_{t-1} + u_t u_t^T,    y_t = (lam0 I + M_t)^{-1} k^_t,    a_t = y_t/|y_t|   (gain="raw": a_t = y_t)
    S_t = S_{t-1} + a_t (v_t - S_{t-1}^T k^_t)^T,        z_t = z_{t-1} + k_t
    o_t = S_t^T q_t / max(z_t . q_t, eps)                (normalizer=False: o_t = S_t^T q_t); no scale

S is [K, V], z sums keys that are *not* normalised. With gain="raw" and u = k^ this is recursive least squares with
ridge lam0. At the kink z . q = eps the floor counts as a constant (gradient 0 to z . q); a zero key has k^ = a = 0.

Source: VLA paper, section 2 (state update, penalty, normaliser). The public code differs: it adds `nudge` I to the
inverse every 20 steps; `recurrent(inverse="sherman-morrison", nudge_period=20, nudge=1e-3)` is that variant.
Forms: `recurrent` (token loop), `chunk` (chunks of the two primitives `ridge_solve` and `delta_scan`), `scan` (chunk
transitions combined by an associative scan), `step` (decoding).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, bound, delta_scan, features, linear, ridge_chunk, ridge_solve
from linattest.impls.associative_scan import exclusive_scan
from linattest.impls.bound import Bound
from linattest.impls.features import WIDE

Gain = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]  # (k^, u, M) -> (y, final M)
Scan = Callable[..., tuple[Tensor, Tensor]]  # (q, erase, write, v, S) -> (o, final S)


class VLAState(NamedTuple):
    """S [N, H, K, V], M [N, H, K, K] (without lam0 I), z [N, H, K] (also kept, unread, with normalizer=False)."""

    S: Tensor
    M: Tensor
    z: Tensor


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    initial_state: VLAState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    inverse: str = "cholesky",
    nudge_period: int = 0,
    nudge: float = 0.0,
) -> tuple[Tensor, VLAState | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q, k, u [B, T, H, K], v [B, T, H, V] of one dtype: float64, float32, bfloat16 or float16; `lam0` a number or a
    differentiable scalar or [H] tensor, > 0; `initial_state` float32 (float64 for float64 inputs). Returns
    o [B, T, H, V] in v's dtype and the final state (None unless `output_final_state`).

    inverse="sherman-morrison" updates the inverse by A -= z z^T/(1 + u . z), z = A u, instead of factorising; with
    `nudge_period` p > 0, `nudge` I is added to A after every p-th token of the call (M is then defined by A).
    A penalty matrix beyond float64 (cond(lam0 I + M) > 1e16, as with lam0 = 1e-30) gives NaN for its tokens.
    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, numbers or offsets.
    Source: module docstring.
    """
    arguments.check_choice("inverse", inverse, ("cholesky", "sherman-morrison"))
    arguments.check_number("nudge", nudge)
    arguments.check_whole("nudge_period", nudge_period)
    if nudge and not nudge_period:
        raise ValueError(f"nudge is {nudge}, expected 0 while nudge_period is 0: it would never be added")
    if nudge_period < 0 or (nudge_period and inverse == "cholesky"):
        raise ValueError(f"nudge_period is {nudge_period}, expected 0, or > 0 with inverse='sherman-morrison'")
    solve = ridge_solve.recurrent_core
    if inverse == "sherman-morrison":
        solve = functools.partial(sherman_morrison, period=nudge_period, nudge=nudge)
    operator = _bind(solve, delta_scan.recurrent_core, q, k, v, u, lam0, normalizer, eps, gain)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    initial_state: VLAState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, VLAState | None]:
    """Chunk-parallel form: `ridge_solve` has no sequential part, `delta_scan` walks once over the chunks.

    Arguments and errors as in `recurrent`; `chunk_size` is a power of two.
    """
    size = arguments.check_chunk_size(chunk_size)
    operator = bind(q, k, v, u, lam0=lam0, normalizer=normalizer, eps=eps, gain=gain, chunk_size=size)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    initial_state: VLAState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, VLAState | None]:
    """Parallel form of depth O(log N) for N chunks: an associative scan over the chunks' affine transitions.

    Arguments and errors as in `chunk`. Source: VLA paper, section 2 (parallel scan); Blelloch 1990.
    """
    size = arguments.check_chunk_size(chunk_size)
    walk = functools.partial(scan_core, chunk_size=delta_scan.block_size(size, q))
    operator = _bind(_solver(size, q), walk, q, k, v, u, lam0, normalizer, eps, gain)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    initial_state: VLAState | None = None,
    scale: float | None = None,
) -> tuple[Tensor, VLAState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    operator = bind(q, k, v, u, lam0=lam0, normalizer=normalizer, eps=eps, gain=gain, scale=scale)
    return bound.step(operator, initial_state)


def bind(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    scale: float | None = None,
    chunk_size: int | None = None,
) -> Bound:
    """The operator, checked and widened: the token loop, or chunks of a (checked) `chunk_size`."""
    if scale is not None and arguments.check_number("scale", scale) != 1:
        raise ValueError(f"scale is {scale}, expected None (or 1): VLA has no output scale")
    walk = delta_scan.form(chunk_size, q)
    return _bind(_solver(chunk_size, q), walk, q, k, v, u, lam0, normalizer, eps, gain)


def _solver(chunk_size: int | None, q: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    chunked = functools.partial(ridge_chunk.core, exact=features.is_wide(q))
    return bound.form(chunk_size, ridge_solve.recurrent_core, chunked)


def _bind(solve, walk, q, k, v, u, lam0, normalizer, eps, gain) -> Bound:
    sizes = arguments.check_qkv(q, k, v, grouped=False)
    arguments.check_flag("normalizer", normalizer)
    arguments.check_same("u", u, (sizes.B, sizes.T, sizes.H, sizes.K), "q's shape [B, T, H, K]", q)
    arguments.check_lam0(lam0, sizes.H, q)
    arguments.check_choice("gain", gain, ("unit", "raw"))
    floor = arguments.check_number("eps", eps, positive=True)
    inputs = [features.heads_first(part) for part in (q, k, u, v)]
    solve = functools.partial(solve, lam=ridge_solve.widen_lam0(lam0, sizes.B, sizes.H, q.device))
    core = functools.partial(_core, solve, walk, gain == "unit", floor if normalizer else None)
    return Bound(sizes, q, inputs, core, 1.0, _check_state)


def _check_state(name: str, state: object, N: int, sizes: arguments.Sizes, like: Tensor) -> VLAState:
    arguments.check_state_tuple(name, state, VLAState)
    S, M, z = state  # type: ignore[misc]
    H, K = sizes.H, sizes.K
    arguments.check_state(f"{name}.S", S, (N, H, K, sizes.V), "[N, H, K, V]", like)
    arguments.check_state(f"{name}.M", M, (N, H, K, K), "[N, H, K, K]", like)
    arguments.check_state(f"{name}.z", z, (N, H, K), "[N, H, K]", like)
    return VLAState(S, M, z)


def _core(
    solve: Gain,
    walk: Scan,
    unit: bool,
    floor: float | None,
    read: Tensor,
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    state: VLAState | None,
) -> tuple[Tensor, VLAState]:
    """read, q, k, u [B, H, T, K], v [B, H, T, V], all WIDE."""
    S, M, z = state if state is not None else (None, None, None)
    erase = features.norm(k)
    y, M = solve(erase, u, M)
    write = features.norm(y) if unit else y
    o, S = walk(read, erase, write, v, S)
    denominator, z = linear.normaliser(q, k, z, floor or 0.0)
    return (o if floor is None else o / denominator), VLAState(S, M, z)


def sherman_morrison(
    x: Tensor, u: Tensor, M: Tensor | None, *, lam: Tensor, period: int, nudge: float
) -> tuple[Tensor, Tensor]:
    """`ridge_solve.recurrent_core` by rank-one updates of the inverse A (subtractive: it loses digits)."""
    M = ridge_solve.symmetric_start(M, x)
    eye = torch.eye(x.shape[-1], dtype=WIDE, device=x.device)
    ridge = lam[..., None, None] * eye
    A = torch.linalg.inv(M + ridge)
    outputs = []
    for t in range(x.shape[2]):
        row = u[:, :, t, :, None]
        z = A @ row
        A = A - z * z.mT / (1 + row.mT @ z)
        if period and (t + 1) % period == 0:
            A = A + nudge * eye
        outputs.append((A @ x[:, :, t, :, None]).squeeze(-1))
        M = M + row * row.mT
    final = torch.linalg.inv(A) - ridge if period and nudge else M
    return (torch.stack(outputs, 2) if outputs else x), final


def scan_core(
    q: Tensor, erase: Tensor, write: Tensor, v: Tensor, S: Tensor | None, *, chunk_size: int = 64
) -> tuple[Tensor, Tensor]:
    """`delta_scan.chunk_core` (no gate) with the walk over chunks replaced by an associative scan.

    With T = (I + strict_lower(E W^T))^{-1} a chunk that starts from S has R = TV - TE S and ends at P S + A, where
    P = I - W^T TE and A = W^T TV; two of them compose as (P2 P1, P2 A1 + A2).
    """
    S = linear.zero_state(q, v) if S is None else S
    B, H, T, K = q.shape
    if T == 0:
        return v, S
    C = features.chunk_length(T, chunk_size)
    Q, E, W, V = (features.into_chunks(x, C) for x in (q, erase, write, v))
    TE, TV = (torch.linalg.solve_triangular(E @ W.mT, x, upper=False, unitriangular=True) for x in (E, V))
    eye = torch.eye(K, dtype=WIDE, device=q.device)
    identity = (eye.expand(B * H, K, K), torch.zeros_like(S).flatten(0, 1))
    (P, add), (P_all, add_all) = exclusive_scan(compose, (eye - W.mT @ TE, W.mT @ TV), identity)
    start = S.flatten(0, 1).unsqueeze(1)
    starts = P @ start + add
    R = TV - TE @ starts
    o = delta_scan.read(Q @ starts, (Q @ W.mT).tril_(), R)
    return features.from_chunks(o, B, H, T), (P_all @ start[:, 0] + add_all).reshape(S.shape)


def compose(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The affine map S -> P S + B that does `first`, then `second`."""
    return second[0] @ first[0], second[0] @ first[1] + second[1]
