"""Running sums at the starts of segments: M of u u^T, and z of keys for VLA's denominators.

`sums` gives what each segment adds (and of z what it adds before each chunk), `scan` turns that into what was there
before it, in place, and the final sums. An initial M is read as (M + M^T)/2; a sequence without tokens passes its state
through as it is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot_add, first_chunk, segment, store_matrix, tile


@triton.jit
def sums(
    M, z, before, u, k, strides, table, sizes,
    K: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """M [segments, H, K, K], z [segments, H, K] float32: what each segment adds; before [chunks, H, K] float32: what of
    z it adds before each of its chunks; z, before and k may be None.

    A program is BV columns of M in a segment of a head. strides are those of u, k; sizes T, segments in a row and H.
    """
    T, each, H = sizes
    us, ks = strides
    blocks: tl.constexpr = (K + BV - 1) // BV
    pid = tl.program_id(0)
    h, s = pid // blocks % H, pid // (blocks * H)
    i, x, y = tl.arange(0, C), tl.arange(0, BK), pid % blocks * BV + tl.arange(0, BV)
    _, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    width = tl.where(pid % blocks == 0, K, 0)  # of keys: one program has them all
    added, keys = tl.zeros([BK, BV], tl.float32), tl.zeros([BK], tl.float32)
    chunk = first_chunk(s, table, T, each, LENGTH, C, PACKED)
    for t0 in range(begin, end, C):
        live = t0 + i < end
        directions = at(u, us, b, h, t0)
        rows = tile(directions, us, i, x, live, K)  # [C, BK]
        columns = tile(directions, us, i, y, live, K) if BV < BK else rows  # [C, BV]
        added = dot_add(added, tl.trans(rows), columns, PRECISION)  # [BK, C] [C, BV]
        if k is not None:
            tl.store(before + ((chunk + (t0 - begin) // C) * H + h) * K + x, keys, mask=x < width)
            keys += tl.sum(tile(at(k, ks, b, h, t0), ks, i, x, live, width).to(tl.float32), axis=0)
    index = s.to(tl.int64) * H + h
    store_matrix(M + index * (K * K), x, y, added, K, K)
    if k is not None:
        tl.store(z + index * K + x, keys, mask=x < width)


@triton.jit
def _scanned(sums, index, step, count, start, where, mask):
    """In place, `count` sums from `index` on: what each adds -> what is before it; what is behind the last."""
    for _ in range(0, count):
        ptr = sums + index + where
        added = tl.load(ptr, mask=mask, other=0.0)
        tl.store(ptr, start, mask=mask)
        start += added
        index += step
    return start


@triton.jit
def scan(
    M, z, initial, final, first, each, H, K: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """In place: what segments add -> M and z at their starts; `final` and `initial` are (M [N, H, K, K], z [N, H, K]),
    of which both z, and the initial ones, may be None. A program is BLOCK numbers of a head's M, or (the last) its z.
    """
    blocks: tl.constexpr = (K * K + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    programs: tl.constexpr = blocks if z is None else blocks + (K + BLOCK - 1) // BLOCK
    block, h, n = pid % programs, pid // programs % H, (pid // (programs * H)).to(tl.int64)
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    head = n * H + h
    start = tl.zeros([BLOCK], tl.float32)
    if block < blocks:
        where = block * BLOCK + tl.arange(0, BLOCK)
        mask = where < K * K
        if initial[0] is not None:
            start = tl.load(initial[0] + head * (K * K) + where, mask=mask, other=0.0)
            mirrored = where % K * K + where // K
            other = tl.load(initial[0] + head * (K * K) + mirrored, mask=mask, other=0.0)
            start = tl.where(end > begin, (start + other) / 2.0, start)
        start = _scanned(M, (begin * H + h) * (K * K), H * (K * K), end - begin, start, where, mask)
        tl.store(final[0] + head * (K * K) + where, start, mask=mask)
    elif z is not None:
        where = (block - blocks) * BLOCK + tl.arange(0, BLOCK)
        mask = where < K
        if initial[1] is not None:
            start = tl.load(initial[1] + head * K + where, mask=mask, other=0.0)
        start = _scanned(z, (begin * H + h) * K, H * K, end - begin, start, where, mask)
        tl.store(final[1] + head * K + where, start, mask=mask)
