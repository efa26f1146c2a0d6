"""Log-linear attention in Triton: one state per bucket of a Fenwick tree, each read with a weight of its own.

    o_t = scale sum_{s <= t} lam_t^{level(t, s)} exp(g_{s+1} + ... + g_t) (q_t . k_s) v_s
    level(t, s) = 0 if s = t else bit_length(t XOR s)

Definition, levels and state in full: `linattest.impls.log_linear`. What is launched is in fenwick_launch.py.

Sources: [LogLinear]; [AdaptiveDecay] for the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import configs, fenwick_decode, fenwick_delta_launch, fenwick_launch, launch
from linattest.kernels.fenwick_delta_launch import Saved
from linattest.kernels.fenwick_launch import Operands, Start
from linattest.kernels.library import Operation


class FenwickState(NamedTuple):
    """S [N, L, HV, K, V] float32 and position [N], int64 or int32: how many tokens the state has seen.

    Level j + 1 holds the bucket of set bit j of `position`; all other levels are exactly 0.
    """

    S: Tensor
    position: Tensor


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    level_weights: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: FenwickState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, FenwickState | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.log_linear.recurrent`.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float32, bfloat16 or float16; widths 1 to 256;
    g, beta [B, T, HV] and level_weights [B, T, HV, L] of that dtype or float32; `initial_state` a FenwickState with S
    float32. Returns o [B, T, HV, V] in v's dtype and the final state (None unless `output_final_state`). `scale` None
    is K**-0.5. `cu_seqlens` [N + 1] int32 or int64, with B = 1. Any strides, no copies of q, k, v. L levels serve
    2^(L - 1) tokens of a sequence, those before its state included.

    `validate` checks values too (gates, weights, beta, offsets, positions, levels), which waits for the GPU. Without it
    a value out of its domain gives the right result or one that is not finite: a level that is missing is NaN.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes = _check(q, k, v, g, level_weights, beta, validate)
    factor = arguments.check_scale(scale, sizes.K)
    N = launch.check_packing(cu_seqlens, sizes, validate=validate)
    arguments.check_flag("output_final_state", output_final_state)
    start = _check_state(initial_state, N, sizes, level_weights, q)
    if cu_seqlens is None and initial_state is None:
        arguments.check_levels(level_weights, level_weights.shape[3], 0, sizes.T)
    elif validate:
        _check_positions(start, sizes, level_weights, cu_seqlens)
    if beta is not None:
        o, S = DELTA(q, k, v, g, level_weights, beta, *start, cu_seqlens, factor, output_final_state)
    else:
        o, S = SCAN(q, k, v, g, level_weights, *start, cu_seqlens, factor, output_final_state)
    return o, FenwickState(S, _behind(start, sizes, cu_seqlens, q)) if output_final_state else None


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    level_weights: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: FenwickState | None = None,
    scale: float | None = None,
    validate: bool = False,
) -> tuple[Tensor, FenwickState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`."""
    sizes = _check(q, k, v, g, level_weights, beta, validate)
    arguments.check_one_token(sizes.T)
    start = _check_state(initial_state, sizes.B, sizes, level_weights, q)
    if validate:
        _check_positions(start, sizes, level_weights, None)
    o, S = STEP(q, k, v, g, level_weights, beta, *start, arguments.check_scale(scale, sizes.K))
    return o, FenwickState(S, _behind(start, sizes, None, q))


def _check(q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, beta: Tensor | None, validate: bool) -> Sizes:
    sizes = arguments.check_qkv(q, k, v)
    launch.check_dtype(q)
    launch.check_widths(sizes)
    heads = (sizes.B, sizes.T, sizes.HV)
    arguments.check_per_head("g", g, {"[B, T, HV]": heads}, q)
    L = arguments.check_rank("level_weights", lam, "[B, T, HV, L]").shape[3]
    arguments.check_per_head("level_weights", lam, {"[B, T, HV, L]": (*heads, L)}, q)
    arguments.check_levels(lam, L, 0, min(sizes.T, 1))
    if beta is not None:
        arguments.check_per_head("beta", beta, {"[B, T, HV]": heads}, q)
    if arguments.check_flag("validate", validate):
        arguments.check_gate_values("g", g)
        arguments.check_finite_values("level_weights", lam)
        if beta is not None:
            arguments.check_finite_values("beta", beta)
    return sizes


def _check_state(state: Any, N: int, sizes: Sizes, lam: Tensor, like: Tensor) -> Start:
    """A FenwickState's tensors: S contiguous, position int64; shapes and dtypes checked, values not."""
    if state is None:
        return Start(None, None)
    arguments.check_state_tuple("initial_state", state, FenwickState)
    S, position = state
    shape = (N, lam.shape[3], sizes.HV, sizes.K, sizes.V)
    arguments.check_state("initial_state.S", S, shape, "[N, L, HV, K, V] with level_weights' L", like)
    if not isinstance(position, Tensor) or position.dtype not in (torch.int32, torch.int64):
        got = position.dtype if isinstance(position, Tensor) else type(position).__name__
        raise TypeError(f"initial_state.position is {got}, expected a tensor of torch.int64 or torch.int32")
    arguments.check_shape("initial_state.position", position, (N,), "[N]")
    arguments.check_device("initial_state.position", position, like)
    return Start(S.contiguous(), position.to(torch.int64).contiguous())


def _check_positions(start: Start, sizes: Sizes, lam: Tensor, cu_seqlens: Tensor | None) -> None:
    """Positions, and levels enough for each sequence (reads values)."""
    N = sizes.B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    lengths: list[int] = [sizes.T] * N if cu_seqlens is None else cu_seqlens.diff().tolist()
    positions: list[int] = [0] * N if start.position is None else start.position.tolist()
    for n, (position, length) in enumerate(zip(positions, lengths, strict=True)):
        if position < 0:
            raise ValueError(f"initial_state.position[{n}] is {position}, expected a number of tokens >= 0")
        arguments.check_levels(lam, lam.shape[3], position, length)


def _behind(start: Start, sizes: Sizes, cu_seqlens: Tensor | None, q: Tensor) -> Tensor:
    """Positions behind the call [N], int64."""
    if cu_seqlens is None:
        length = torch.full((sizes.B,), sizes.T, dtype=torch.int64, device=q.device)
    else:
        length = cu_seqlens.to(device=q.device, dtype=torch.int64, non_blocking=True).diff()
    return length if start.position is None else start.position + length


# --- all tokens ----------------------------------------------------------------------------------------------


def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, S: Tensor | None, position: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, output_final_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x, start = Operands(q, k, v, g, lam), Start(S, position)
    return fenwick_launch.forward(x, start, cu_seqlens, scale, output_final_state=output_final_state)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, S: Tensor | None, position: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, output_final_state: bool, nodes: Tensor, logs: Tensor, do: Tensor | None,
    dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x, start = Operands(q, k, v, g, lam), Start(S, position)
    found, dinitial = fenwick_launch.backward(
        x, start, cu_seqlens, scale, nodes, logs, do, dfinal if output_final_state else None
    )
    return (*found, dinitial)  # type: ignore[return-value]


SCAN = Operation("log_linear", _forward, _backward, tensors=6, public=2)


def _delta_forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, beta: Tensor, S: Tensor | None, position: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, output_final_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x, start = Operands(q, k, v, g, lam), Start(S, position)
    o, final, saved = fenwick_delta_launch.forward(
        x, beta, start, cu_seqlens, scale, output_final_state=output_final_state
    )
    return (o, final, *saved)  # type: ignore[return-value]


def _delta_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, beta: Tensor, S: Tensor | None, position: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, output_final_state: bool, tm: Tensor, reads: Tensor, factors: Tensor,
    maps: Tensor, writes: Tensor, keeps: Tensor, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x, start, saved = Operands(q, k, v, g, lam), Start(S, position), Saved(tm, reads, factors, maps, writes, keeps)
    found, dbeta, dS = fenwick_delta_launch.backward(
        x, beta, start, cu_seqlens, scale, saved, do, dfinal if output_final_state else None
    )
    return (*found, dbeta, dS)  # type: ignore[return-value]


DELTA = Operation("log_linear_delta", _delta_forward, _delta_backward, tensors=7, public=2)


# --- one token -----------------------------------------------------------------------------------------------


def _step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, beta: Tensor | None, S: Tensor | None,
    position: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    B, _, H, K = q.shape
    HV, V, L = *v.shape[2:], lam.shape[3]
    o, final = launch.output(v, v.shape, zero=False), q.new_empty(B, L, HV, K, V, dtype=torch.float32)
    config = configs.choose("fenwick_step", q.device, q.dtype, K, V)
    strides = tuple((0, 0, 0, 0) if x is None else launch.strides(x) for x in (o, q, k, v, g, lam, beta))
    launch.run(
        fenwick_decode.fenwick_step, B * HV * -(-V // config.block), o, final, q, k, v, g, lam, beta, S, position,
        strides, (HV, HV // H, L), scale, config=config, K=K, V=V, BK=launch.width(K), BV=config.block,
    )  # fmt: skip
    return launch.rounded(o, v.dtype), final


def _step_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lam: Tensor, beta: Tensor | None, S: Tensor | None,
    position: Tensor | None, scale: float, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, _, H, K = q.shape
    HV, V, L = *v.shape[2:], lam.shape[3]
    do = torch.zeros_like(v) if do is None else do
    dq, dk, dv, dg, dlam, dbeta = (
        q.new_empty(B, 1, HV, *n, dtype=torch.float32) for n in ((K,), (K,), (V,), (), (L,), ())
    )
    dS = q.new_empty(0 if S is None else B, L, HV, K, V, dtype=torch.float32)
    config = configs.choose("fenwick_step", q.device, q.dtype, K, V)
    strides = tuple((0, 0, 0, 0) if x is None else launch.strides(x) for x in (q, k, v, g, lam, beta, do))
    launch.run(
        fenwick_decode.fenwick_step_gradients, B * HV, (dq, dk, dv, dg, dlam, dbeta, dS), q, k, v, g, lam, beta, S,
        position, do, None if dfinal is None else dfinal.contiguous(), strides, (HV, HV // H, L), scale, config=config,
        K=K, V=V, BK=launch.width(K), BV=config.block, LEVELS=max(2, 1 << (L - 1).bit_length()),
    )  # fmt: skip
    dq, dk = (launch.over_groups(x, H, q.dtype) for x in (dq, dk))
    return (
        dq, dk, launch.rounded(dv, v.dtype), launch.rounded(dg, g.dtype), launch.rounded(dlam, lam.dtype),
        q.new_empty(0) if beta is None else launch.rounded(dbeta, beta.dtype), dS,
    )  # fmt: skip


STEP = Operation("log_linear_step", _step, _step_backward, tensors=7, public=2)
