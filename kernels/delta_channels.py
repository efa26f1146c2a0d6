"""Gated delta rule with a gate per value channel: `gated_delta_net` for value heads of width 1 that share their keys.

As heads of their own such channels each have a triangle per chunk. Here a program is a head with all its channels and
takes the tokens one after the other. It is what [VLA] compares with as DeltaNet (`verify.experiments.models`), and for
training alone: no states in or out, no packed sequences.

Source: [VLA], section 4 (its baseline); the recurrence is that of `linattest.impls.gated_delta_net`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from linattest.impls import arguments
from linattest.kernels import launch
from linattest.kernels.blocks import at, load_matrix, store_matrix
from linattest.kernels.launch import Config
from linattest.kernels.library import Operation

WIDEST = 128
"""Largest key width, and most value heads of a key head: what a program holds in registers."""


def chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *,
    scale: float | None = None, initial_state: None = None, output_final_state: bool = False, cu_seqlens: None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """o [B, T, HV, 1] of `linattest.impls.gated_delta_net.chunk`, and no state.

    q, k [B, T, H, K], v [B, T, HV, 1] of one dtype: float32, bfloat16 or float16; g, beta [B, T, HV] of that or
    float32; K and HV / H from 1 to 128. Values are not looked at. Raises TypeError or ValueError, naming the argument.
    """
    sizes = arguments.check_qkv(q, k, v)
    launch.check_dtype(q)
    if sizes.V != 1:
        raise ValueError(f"v has width {sizes.V}, expected 1: every channel has a value head of its own")
    for name, n in (("K", sizes.K), ("HV / H", sizes.HV // sizes.H)):
        if n > WIDEST:
            raise ValueError(f"{name} is {n}, expected 1 to {WIDEST} in this kernel")
    for name, x in (("g", g), ("beta", beta)):
        arguments.check_per_head(name, x, {"[B, T, HV]": (sizes.B, sizes.T, sizes.HV)}, q)
    refused = {
        "initial_state": initial_state,
        "output_final_state": output_final_state or None,
        "cu_seqlens": cu_seqlens,
    }
    for name, x in refused.items():
        if x is not None:
            raise ValueError(f"{name} is given, expected none: this kernel is for training on whole rows")
    factor = arguments.check_scale(scale, sizes.K)
    return CHANNELS(q, k, v, g, beta, factor, torch.is_grad_enabled())[0], None


@triton.jit
def row(x, strides, b, h, t, channels, WIDTH: tl.constexpr):
    """Channels of token t, float32."""
    return tl.load(at(x, strides, b, h, t) + channels * strides[3], mask=channels < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def put_row(x, strides, b, h, t, channels, value, WIDTH: tl.constexpr):
    tl.store(at(x, strides, b, h, t) + channels * strides[3], value.to(x.dtype.element_ty), mask=channels < WIDTH)


@triton.jit
def onward(S, keys, values, gates, rates):
    """The memory after a token, [K, N]: the decayed one, what it does not say of the values, and the new one."""
    kept = S * tl.exp(gates)[None, :]
    missing = values - tl.sum(kept * keys[:, None], axis=0)
    return kept, missing, kept + keys[:, None] * (rates * missing)[None, :]


@triton.jit
def tokens(
    o, states, inputs, strides, T, H, scale, K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr
):
    """o [B, T, H, N] and, unless None, the memory before each token, states [B, H, T, K, N]; a program is a head."""
    q, k, v, g, beta = inputs
    os, qs, ks, vs, gs, bs = strides
    pid = tl.program_id(0).to(tl.int64)
    b, h = pid // H, pid % H
    x, y = tl.arange(0, BK), tl.arange(0, BN)
    S = tl.zeros([BK, BN], tl.float32)
    for t in range(0, T):
        if states is not None:
            store_matrix(states + (pid * T + t) * K * N, x, y, S, K, N)
        keys, gates = row(k, ks, b, h, t, x, K), row(g, gs, b, h, t, y, N)
        _, _, S = onward(S, keys, row(v, vs, b, h, t, y, N), gates, row(beta, bs, b, h, t, y, N))
        query = row(q, qs, b, h, t, x, K)
        put_row(o, os, b, h, t, y, tl.sum(S * query[:, None], axis=0) * scale, N)


@triton.jit
def tokens_back(
    gradients, upstream, states, inputs, strides, T, H, scale,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k [B, T, H, K] and v, g, beta [B, T, H, N] (all contiguous, their strides last two), last token
    first; a program is a head."""
    q, k, v, g, beta = inputs
    dq, dk, dv, dg, dbeta = gradients
    us, qs, ks, vs, gs, bs, wide, narrow = strides
    pid = tl.program_id(0).to(tl.int64)
    b, h = pid // H, pid % H
    x, y = tl.arange(0, BK), tl.arange(0, BN)
    G = tl.zeros([BK, BN], tl.float32)  # of the memory
    for i in range(0, T):
        t = T - 1 - i
        keys, gates, rates = row(k, ks, b, h, t, x, K), row(g, gs, b, h, t, y, N), row(beta, bs, b, h, t, y, N)
        before = load_matrix(states + (pid * T + t) * K * N, x, y, K, N)
        kept, missing, S = onward(before, keys, row(v, vs, b, h, t, y, N), gates, rates)
        out, query = row(upstream, us, b, h, t, y, N) * scale, row(q, qs, b, h, t, x, K)
        put_row(dq, wide, b, h, t, x, tl.sum(S * out[None, :], axis=1), K)
        G += query[:, None] * out[None, :]
        change = tl.sum(G * keys[:, None], axis=0)
        of_missing = change * rates
        put_row(dbeta, narrow, b, h, t, y, change * missing, N)
        put_row(dv, narrow, b, h, t, y, of_missing, N)
        of_keys = tl.sum(G * (rates * missing)[None, :] - kept * of_missing[None, :], axis=1)
        put_row(dk, wide, b, h, t, x, of_keys, K)
        G -= keys[:, None] * of_missing[None, :]
        put_row(dg, narrow, b, h, t, y, tl.sum(G * kept, axis=0), N)
        G *= tl.exp(gates)[None, :]


def _by_head(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Inputs of a kernel: value heads [B, T, HV] (v without its width of 1) as [B, T, H, N]."""
    H = q.shape[2]
    return (q, k, *(x.unflatten(2, (H, x.shape[2] // H)) for x in (v.squeeze(3), g, beta)))


def _sizes(q: Tensor, v: Tensor) -> tuple[dict[str, int], Config]:
    K, N = q.shape[3], v.shape[2] // q.shape[2]
    shape = {"K": K, "N": N, "BK": launch.width(K), "BN": launch.width(N)}
    return shape, Config(0, max(1, min(8, shape["BK"] * shape["BN"] // 1024)), 1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, keep: bool
) -> tuple[Tensor, Tensor]:
    """o, and the memory before every token if ``keep`` (empty if not)."""
    (B, T, H, K), (shape, config) = q.shape, _sizes(q, v)
    inputs, N = _by_head(q, k, v, g, beta), shape["N"]
    o = launch.output(v, (B, T, H, N), zero=False)
    states = launch.output(q, (B, H, T, K, N) if keep else (0,), zero=False, wide=True)
    strides = tuple(map(launch.strides, (o, *inputs)))
    launch.run(tokens, B * H, o, states if keep else None, inputs, strides, T, H, scale, config=config, **shape)
    return launch.rounded(o, v.dtype).flatten(2).unsqueeze(3), states


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, keep: bool, states: Tensor,
    upstream: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the five inputs."""
    given = (q, k, v, g, beta)
    if upstream is None:
        return tuple(torch.zeros_like(x) for x in given)  # pyright: ignore[reportReturnType]
    (shape, config), inputs = _sizes(q, v), _by_head(*given)
    above = upstream.squeeze(3).unflatten(2, (q.shape[2], shape["N"]))
    found = tuple(launch.output(x, x.shape, zero=False) for x in inputs)
    strides = tuple(map(launch.strides, (above, *inputs, found[0], found[2])))
    B, T, H, _ = q.shape
    launch.run(tokens_back, B * H, found, above, states, inputs, strides, T, H, scale, config=config, **shape)
    made = [launch.rounded(x, like.dtype).reshape(like.shape) for x, like in zip(found, given, strict=True)]
    return tuple(made)  # pyright: ignore[reportReturnType]


CHANNELS = Operation("delta_channels", forward, backward, tensors=5, public=1)
