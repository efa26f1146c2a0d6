"""What VLA does to chunks and tokens: the denominators of its ratio, and gradients of normalised vectors.

d_t = max(z_t . q_t, eps),   z_t = z_{t-1} + k_t           (d_t = eps where z_t . q_t <= eps; NaN stays)

The denominators need scores of a chunk's queries with its keys, and where they are made the delta scan's with its write
keys are too: what is loaded is the same.

n = x / |x|:   xbar = (nbar - n (n . nbar)) / |x|, and 0 for a row of zeros
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot_add, put, segment, tile
from linattest.kernels.ridge_conjugate import normalised


@triton.jit
def reads(
    reads, d, q, read, write, k, sums, strides, places, sizes, eps,
    K: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, PER: tl.constexpr, PLANES: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """d [B, T, H] float32, and reads [B, T, H, PLANES * C] as `delta_inverse.reads` does, lower(R W^T), with R of
    `read`, or of q if it is None; a program is a chunk of a head, in PER a segment.

    sums: z at the starts of segments [segments, H, K], and what is added to it until each chunk [chunks, H, K]. strides
    are those of reads, d, q, read, write, k; places: the table of chunks, and the first chunk and the first segment of
    each sequence; sizes T, chunks in a row, segments in a row and H.
    """
    T, each, each_segment, H = sizes
    rs, ds, qs, os, ws, ks = strides
    table, first_chunk, first_segment = places
    c, h, i = tl.program_id(0) // H, tl.program_id(0) % H, tl.arange(0, C)
    n, b, t0, end = segment(c, table, T, each, C, PACKED)
    if PACKED:
        s = tl.load(first_segment + n) + (c - tl.load(first_chunk + n)) // PER
    else:
        s = n * each_segment + c % each // PER
    live = t0 + i < end
    starts, added = sums[0] + (s.to(tl.int64) * H + h) * K, sums[1] + tl.program_id(0).to(tl.int64) * K
    M, scores, past = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32), tl.zeros([C], tl.float32)
    for k0 in range(0, K, BLOCK):
        x = k0 + tl.arange(0, BLOCK)
        Q, W = tile(at(q, qs, b, h, t0), qs, i, x, live, K), tile(at(write, ws, b, h, t0), ws, i, x, live, K)
        keys = tile(at(k, ks, b, h, t0), ks, i, x, live, K)  # [C, BLOCK], all
        scores = dot_add(scores, Q, tl.trans(keys), PRECISION)  # [C, BLOCK] [BLOCK, C]
        z = tl.load(starts + x, mask=x < K, other=0.0) + tl.load(added + x, mask=x < K, other=0.0)
        past += tl.sum(Q.to(tl.float32) * z[None, :], axis=1)
        if read is not None:
            Q = tile(at(read, os, b, h, t0), os, i, x, live, K)
        M = dot_add(M, Q, tl.trans(W), PRECISION)  # [C, BLOCK] [BLOCK, C]
    lower = i[:, None] >= i[None, :]
    past += tl.sum(tl.where(lower, scores, 0.0), axis=1)
    tl.store(at(d, ds, b, h, t0) + i * ds[1], tl.where(past <= eps, eps, past), mask=live)
    M = tl.where(lower, M, 0.0)
    ptr = at(reads, rs, b, h, t0)
    put(ptr, rs, i, i, live, M, C)
    if PLANES == 2:
        put(ptr, rs, i, C + i, live, M - M.to(reads.dtype.element_ty).to(tl.float32), 2 * C)


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
