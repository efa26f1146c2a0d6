"""The delta scan in Triton: a state from which each token erases along one key and writes along another.

    S_t = exp(g_t) (I - write_t erase_t^T) S_{t-1} + write_t v_t^T,      o_t = scale S_t^T q_t     (S [K, V] per head)

What is launched is in delta_rule.py (sequences) and here (one token). DeltaNet and Gated DeltaNet (erase = k,
write = beta k) are the same operations with beta apart: beta k is never made.

Sources: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (UT transform).
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import configs, delta_decode, delta_rule, launch
from linattest.kernels.delta_rule import Operands, Saved
from linattest.kernels.library import Operation


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
    validate: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.delta_scan.recurrent`.

    q [B, T, H, K]; erase, write [B, T, H or HV, K]; v [B, T, HV, V] (HV a multiple of H) of one dtype: float32,
    bfloat16 or float16; widths 1 to 256; g [B, T, HV] of that dtype or float32, or None; `initial_state` [N, HV, K, V]
    float32. Returns o [B, T, HV, V] in v's dtype and the final state (None unless `output_final_state`). `scale` None
    is K**-0.5. `cu_seqlens` [N + 1] int32 or int64, with B = 1. Any strides, no copies.

    `validate` checks values too (gates, offsets), which waits for the GPU. Without it a value out of its domain gives
    the right result or one that is not finite.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes = _check(q, erase, write, v, g, validate)
    return run(
        Operands(q, erase, write, v, g, None), sizes, scale, initial_state, output_final_state, cu_seqlens, validate
    )


def step(
    q: Tensor,
    erase: Tensor,
    write: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`."""
    sizes = _check(q, erase, write, v, g, validate)
    return run_step(Operands(q, erase, write, v, g, None), sizes, scale, initial_state)


def _check(q: Tensor, erase: Tensor, write: Tensor, v: Tensor, g: Tensor | None, validate: bool) -> Sizes:
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
    if arguments.check_flag("validate", validate) and g is not None:
        arguments.check_gate_values("g", g)
    return Sizes(B, T, H, HV, K, V)


# --- for every operator that is a delta scan: arguments of its own are checked before ------------------------------


def run(
    x: Operands, sizes: Sizes, scale: float | None, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None, validate: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """A sequence: o and the final state, if asked for."""
    launch.check_dtype(x.q)
    launch.check_widths(sizes)
    factor = arguments.check_scale(scale, sizes.K)
    N = launch.check_packing(cu_seqlens, sizes, validate=validate)
    arguments.check_flag("output_final_state", output_final_state)
    if initial_state is not None:
        arguments.check_state("initial_state", initial_state, (N, sizes.HV, sizes.K, sizes.V), "[N, HV, K, V]", x.q)
    o, final = SCAN(*x, initial_state, cu_seqlens, factor)
    return o, final if output_final_state else None


def run_step(x: Operands, sizes: Sizes, scale: float | None, initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token: o and the new state."""
    launch.check_dtype(x.q)
    launch.check_widths(sizes)
    arguments.check_one_token(sizes.T)
    if initial_state is not None:
        arguments.check_state("initial_state", initial_state, (sizes.B, *sizes[3:]), "[N, HV, K, V]", x.q)
    o, final = STEP(*x, initial_state, arguments.check_scale(scale, sizes.K))
    return o, final


def _forward(
    q: Tensor, erase: Tensor, write: Tensor | None, v: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x = Operands(q, erase, write, v, g, beta)
    o, final, saved = delta_rule.forward(x, scale, initial_state, cu_seqlens)
    return o, final, saved.tm, saved.reads, saved.factors, saved.maps


def _backward(
    q: Tensor, erase: Tensor, write: Tensor | None, v: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float,
    tm: Tensor, reads: Tensor, factors: Tensor, maps: Tensor, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x, saved = Operands(q, erase, write, v, g, beta), Saved(tm, reads, factors, maps)
    found, dinitial = delta_rule.backward(x, scale, initial_state, cu_seqlens, saved, do, dfinal)
    dq, derase, dwrite, dv, dg, dbeta = (q.new_empty(0) if y is None else y for y in found)
    return dq, derase, dwrite, dv, dg, dbeta, dinitial


SCAN = Operation("delta_scan", _forward, _backward, tensors=7, public=2)


# --- one token -----------------------------------------------------------------------------------------------


def _step(
    q: Tensor, erase: Tensor, write: Tensor | None, v: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x = Operands(q, erase, write, v, g, beta)
    B, _, _, HV, K, V = x.sizes
    o, final = launch.output(v, v.shape, zero=False), q.new_empty(B, HV, K, V, dtype=torch.float32)
    config = configs.choose("delta_step", q.device, q.dtype, K, V)
    launch.run(
        delta_decode.delta_step, B * HV * -(-V // config.block), o, final, *x,
        None if initial_state is None else initial_state.contiguous(), delta_rule.strides(o, *x), (HV, *x.per), scale,
        config=config, K=K, V=V, BK=launch.width(K), BV=config.block,
    )  # fmt: skip
    return launch.rounded(o, v.dtype), final


def _step_backward(
    q: Tensor, erase: Tensor, write: Tensor | None, v: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, scale: float, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x = Operands(q, erase, write, v, g, beta)
    B, _, H, HV, K, V = x.sizes
    do = torch.zeros_like(v) if do is None else do
    found = [q.new_empty(B, 1, HV, *n, dtype=torch.float32) for n in ((K,), (K,), (K,), (V,), (), ())]
    dstate = q.new_empty(B, HV, K, V, dtype=torch.float32)
    config = configs.choose("delta_step", q.device, q.dtype, K, V)
    launch.run(
        delta_decode.delta_step_gradients, B * HV, (*found, dstate), *x,
        None if initial_state is None else initial_state.contiguous(), do,
        None if dfinal is None else dfinal.contiguous(), delta_rule.strides(*x, do), (HV, *x.per), scale,
        config=config, K=K, V=V, BK=launch.width(K), BV=config.block,
    )  # fmt: skip
    dq, derase, dwrite, dv, dg, dbeta = found
    return (
        launch.over_groups(dq, H, q.dtype), launch.over_groups(derase, erase.shape[2], q.dtype),
        q.new_empty(0) if write is None else launch.over_groups(dwrite, write.shape[2], q.dtype),
        launch.rounded(dv, v.dtype), q.new_empty(0) if g is None else launch.rounded(dg, g.dtype),
        q.new_empty(0) if beta is None else launch.rounded(dbeta, beta.dtype), dstate,
    )  # fmt: skip


STEP = Operation("delta_scan_step", _step, _step_backward, tensors=7, public=2)
