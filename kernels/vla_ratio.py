"""What VLA does to single tokens: the denominators of its ratio, and gradients of normalised vectors.

d_t = max(z_t . q_t, eps),   z_t = z_{t-1} + k_t           (d_t = eps where z_t . q_t <= eps; NaN stays)
n = x / |x|:   xbar = (nbar - n (n . nbar)) / |x|, and 0 for a row of zeros
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, segment, tile
from linattest.kernels.ridge_conjugate import normalised


@triton.jit
def denominators(
    d, q, k, edges, strides, table, sizes, eps,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """d [B, T, H] float32; a program is a segment of a head, edges [segments, H, K] is z at its start.

    strides are those of d, q, k; sizes T, segments in a row and H.
    """
    T, each, H = sizes
    ds, qs, ks = strides
    s, h = tl.program_id(0) // H, tl.program_id(0) % H
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    i, x = tl.arange(0, C), tl.arange(0, BK)
    z = tl.load(edges + tl.program_id(0).to(tl.int64) * K + x, mask=x < K, other=0.0)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        Q, keys = tile(at(q, qs, b, h, t0), qs, i, x, live, K), tile(at(k, ks, b, h, t0), ks, i, x, live, K)  # [C, BK]
        scores = dot(Q, tl.trans(keys), PRECISION)  # [C, BK] [BK, C]
        sums = tl.sum(tl.where(i[:, None] >= i[None, :], scores, 0.0), axis=1)
        sums += tl.sum(Q.to(tl.float32) * z[None, :], axis=1)
        tl.store(at(d, ds, b, h, t0) + i * ds[1], tl.where(sums <= eps, eps, sums), mask=live)
        z += tl.sum(keys.to(tl.float32), axis=0)


@triton.jit
def tangents(
    dx, x, lengths, first, second, beside, strides, sizes,
    K: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx [B, T, H, K]: the gradient of x from that of n = x/|x|, which is first + second, plus `beside`.

    `lengths` [B, T, H] float32: x is n already (up to a rounding), and this is what it was divided by. `lengths`,
    `second` and `beside` may be None. A program is ROWS rows (b, t, h); strides are those of dx, x, lengths, first,
    second, beside; sizes T, H and the number of rows.
    """
    T, H, count = sizes
    dxs, xs, ls, fs, ss, bs = strides
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channels = tl.arange(0, BK)
    mask = (row < count)[:, None] & (channels < K)[None, :]
    b, t, h = row // (T * H), row // H % T, row % H
    n, length = normalised(_rows(x, xs, b, t, h, channels, mask))  # [ROWS, BK]
    if lengths is not None:
        length = tl.load(lengths + b * ls[0] + t * ls[1] + h * ls[2], mask=row < count, other=0.0)
    g = _rows(first, fs, b, t, h, channels, mask)
    if second is not None:
        g += _rows(second, ss, b, t, h, channels, mask)
    g -= n * tl.sum(n * g, axis=1)[:, None]
    g = tl.where((length == 0.0)[:, None], 0.0, g / length[:, None])
    if beside is not None:
        g += _rows(beside, bs, b, t, h, channels, mask)
    where = b * dxs[0] + t * dxs[1] + h * dxs[2]
    tl.store(dx + where[:, None] + channels[None, :] * dxs[3], g.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def _rows(x, strides, b, t, h, channels, mask):
    """[ROWS, BK] float32 of tokens that need not be neighbours."""
    where = b * strides[0] + t * strides[1] + h * strides[2]
    return tl.load(x + where[:, None] + channels[None, :] * strides[3], mask=mask, other=0.0).to(tl.float32)
