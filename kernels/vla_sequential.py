"""VLA as one sequential kernel: a program a head, all tokens one after the other, every matrix in registers.

What a token loop costs without a launch for each token: a baseline to compare with, forward only. The inverse A is
carried along by the Sherman-Morrison formula (subtractive: see `linattest.impls.vla`).

Source: [VLA], section 2.3.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from linattest.impls import arguments
from linattest.kernels import launch
from linattest.kernels.blocks import at
from linattest.kernels.launch import Config

WIDEST = 128
"""Largest key or value width: what the registers of a program hold of two matrices."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, lam0: float = 0.1, normalizer: bool = True, eps: float = 1e-6
) -> Tensor:
    """o [B, T, H, V] of `linattest.impls.vla.recurrent` with gain="unit" and without states; no gradients.

    q, k, u [B, T, H, K], v [B, T, H, V] of one dtype: float32, bfloat16 or float16; widths 1 to 128. Raises TypeError
    or ValueError, naming the argument.
    """
    B, T, H, _, K, V = arguments.check_qkv(q, k, v, grouped=False)
    arguments.check_same("u", u, (B, T, H, K), "q's shape [B, T, H, K]", q)
    launch.check_dtype(q)
    for name, n in (("K", K), ("V", V)):
        if n > WIDEST:
            raise ValueError(f"{name} is {n}, expected 1 to {WIDEST} in the sequential kernel")
    ridge, floor = (arguments.check_number(*x, positive=True) for x in (("lam0", lam0), ("eps", eps)))
    o = launch.output(v, v.shape, zero=False)
    launch.run(
        sequential, B * H, o, q, k, v, u, tuple(map(launch.strides, (o, q, k, v, u))), T, H, ridge,
        floor if arguments.check_flag("normalizer", normalizer) else None,
        config=Config(0, 8, 1), K=K, V=V, BK=launch.width(K), BV=launch.width(V),
    )  # fmt: skip
    return launch.rounded(o, v.dtype)


@triton.jit
def _row(x, strides, b, h, t, channels, WIDTH: tl.constexpr):
    """Channels of token t, float32."""
    return tl.load(at(x, strides, b, h, t) + channels * strides[3], mask=channels < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _unit(x):
    """x / |x|, 0 for 0."""
    length = tl.sqrt(tl.sum(x * x, axis=0))
    return x / tl.where(length == 0.0, 1.0, length)


@triton.jit
def sequential(
    o, q, k, v, u, strides, T, H, ridge, eps, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V]; a program is a head. `eps` is None without denominators."""
    os, qs, ks, vs, us = strides
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    x, y = tl.arange(0, BK), tl.arange(0, BV)
    A = tl.where(x[:, None] == x[None, :], 1.0 / ridge, 0.0)  # [BK, BK]
    S, sums = tl.zeros([BK, BV], tl.float32), tl.zeros([BK], tl.float32)
    for t in range(0, T):
        U, keys = _row(u, us, b, h, t, x, K), _row(k, ks, b, h, t, x, K)
        image = tl.sum(A * U[None, :], axis=1)
        A -= image[:, None] * (image / (1.0 + tl.sum(U * image, axis=0)))[None, :]
        erase = _unit(keys)
        write = _unit(tl.sum(A * erase[None, :], axis=1))
        change = _row(v, vs, b, h, t, y, V) - tl.sum(S * erase[:, None], axis=0)
        S += write[:, None] * change[None, :]
        query = _row(q, qs, b, h, t, x, K)
        out = tl.sum(S * query[:, None], axis=0)
        if eps is not None:
            sums += keys
            out /= tl.maximum(tl.sum(sums * query, axis=0), eps)
        tl.store(at(o, os, b, h, t) + y * os[3], out.to(o.dtype.element_ty), mask=y < V)
