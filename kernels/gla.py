"""Gated linear attention in Triton.

Definition, state S [K, V] per value head, log gate g <= 0, scale K ** -0.5 by default:

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,      o_t = scale * S_t^T q_t

What is launched is in decay.py (one gate a head), channel.py (one a key channel) and here (one token).

Sources: [GLA] for a number per channel, [Mamba2] for one per head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import channel, configs, decay, decode, launch
from linattest.kernels.library import Operation


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.gla.recurrent`.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float32, bfloat16 or float16; widths 1 to 256;
    g [B, T, HV] or [B, T, H, K] of that dtype or float32; `initial_state` S [N, HV, K, V] float32. Returns o [B, T, HV,
    V] in v's dtype and the final state (None unless `output_final_state`). `scale` None is K**-0.5. `cu_seqlens` [N +
    1] int32 or int64, with B = 1. Any strides, no copies.

    `validate` checks values too (gates, offsets), which waits for the GPU. Without it a value out of its domain gives
    the right result or one that is not finite.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes = _check(q, k, v, g, validate)
    factor = arguments.check_scale(scale, sizes.K)
    N = launch.check_packing(cu_seqlens, sizes, validate=validate)
    arguments.check_flag("output_final_state", output_final_state)
    if initial_state is not None:
        arguments.check_state("initial_state", initial_state, (N, sizes.HV, sizes.K, sizes.V), "[N, HV, K, V]", q)
    o, final = SCAN(q, k, v, g, initial_state, cu_seqlens, factor)
    return o, final if output_final_state else None


def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, initial_state: Tensor | None = None, scale: float | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`."""
    return read_step(q, q, k, v, g, initial_state=initial_state, scale=scale, validate=validate)


def read_step(
    read: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, initial_state: Tensor | None = None,
    scale: float | None = None, validate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`step`, but `read` (like q, or float32) reads the memory in q's place."""
    sizes = _check(q, k, v, g, validate)
    arguments.check_one_token(sizes.T)
    if initial_state is not None:
        arguments.check_state("initial_state", initial_state, (sizes.B, *sizes[3:]), "[N, HV, K, V]", q)
    o, final = STEP(read, k, v, g, initial_state, arguments.check_scale(scale, sizes.K))
    return o, final


def _check(q: Tensor, k: Tensor, v: Tensor, g: Tensor, validate: bool) -> Sizes:
    B, T, H, HV, K, _ = sizes = arguments.check_qkv(q, k, v)
    launch.check_dtype(q)
    launch.check_widths(sizes)
    arguments.check_per_head("g", g, {"[B, T, HV]": (B, T, HV), "[B, T, H, K]": (B, T, H, K)}, q)
    if arguments.check_flag("validate", validate):
        arguments.check_gate_values("g", g)
    return sizes


def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    form = channel if g.dim() == 4 else decay
    return form.forward(q, k, v, g, initial_state, cu_seqlens, scale)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float,
    edges: Tensor, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    form = channel if g.dim() == 4 else decay
    return form.backward(q, k, v, g, initial_state, cu_seqlens, scale, edges, do, dfinal)


SCAN = Operation("gla", _forward, _backward, tensors=5, public=2)


# --- one token -----------------------------------------------------------------------------------------------


def _step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    B, _, H, K = q.shape
    HV, V = v.shape[2:]
    o = launch.output(v, v.shape, zero=False)
    final = q.new_empty(B, HV, K, V, dtype=torch.float32)
    config = configs.choose("decay_step", q.device, q.dtype, K, V)
    launch.run(
        decode.decay_step, B * HV * -(-V // config.block), q, k, v, g, o,
        None if initial_state is None else initial_state.contiguous(), final,
        tuple(map(launch.strides, (q, k, v, g, o))), (HV, HV // H), scale, config=config,
        K=K, V=V, BK=launch.width(K), BV=config.block, CHANNEL=g.dim() == 4, HAS_STATE=initial_state is not None,
    )  # fmt: skip
    return launch.rounded(o, v.dtype), final


def _step_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, scale: float,
    do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, _, H, K = q.shape
    HV, V = v.shape[2:]
    do = torch.zeros_like(v) if do is None else do
    widths = (K, K, V, K)
    dq, dk, dv, dg = (q.new_empty(B, 1, HV, n, dtype=torch.float32) for n in widths)
    dstate = q.new_empty(B, HV, K, V, dtype=torch.float32)
    config = configs.choose("decay_step", q.device, q.dtype, K, V)
    launch.run(
        decode.decay_step_gradients, B * HV, q, k, v, g, None if initial_state is None else initial_state.contiguous(),
        do, None if dfinal is None else dfinal.contiguous(), (dq, dk, dv, dg, dstate),
        tuple(map(launch.strides, (q, k, v, g, do))), (HV, HV // H), scale, config=config, K=K, V=V, BK=launch.width(K),
        BV=config.block, CHANNEL=g.dim() == 4, HAS_STATE=initial_state is not None, HAS_FINAL=dfinal is not None,
    )  # fmt: skip
    dgate = launch.over_groups(dg, H, g.dtype) if g.dim() == 4 else launch.rounded(dg.sum(3), g.dtype)
    dq, dk = (launch.over_groups(x, H, q.dtype) for x in (dq, dk))
    return dq, dk, launch.rounded(dv, v.dtype), dgate, dstate


STEP = Operation("gla_step", _step, _step_backward, tensors=5, public=2)
