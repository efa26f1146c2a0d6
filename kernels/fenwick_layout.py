"""Where the chunks of a Fenwick tree lie: aligned to each sequence's own position 0, grouped again and again.

A call may start in the middle of a chunk (after a state of any position), so its first chunk may be short in front as
its last may be behind. Chunks are those of 64 tokens of absolute position; a group of height i holds up to 2^radix of
height i - 1. Device code finds a program's place by `place`, a group's number by `number`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels.launch import CHUNK

LOG = CHUNK.bit_length() - 1
"""Bits of a position that lie inside a chunk."""

RADIX = 3
"""Bits of a position that a group adds to those of its members."""


class Groups(NamedTuple):
    """All groups of one height, in order: `count` (an upper bound), `each` in one row of a batch (0 with a table).

    `table` [count, 4] int64 has sequence, first token, end, and the absolute position of the first token, for each
    group (an empty one ends where it begins); `first` [N + 1] int64 the first group of each sequence.
    """

    count: int
    each: int
    table: Tensor | None
    first: Tensor | None


class Cut(NamedTuple):
    """A call's groups by height (0: chunks), and how sequences lie.

    `mode` is 0 for rows of a batch from position 0, 1 for packed sequences, 2 for rows of a batch that start anywhere.
    `spans` [N, 3] int64 (None in mode 0): first token, position before and behind the call, of each sequence.
    """

    N: int
    mode: int
    spans: Tensor | None
    heights: tuple[Groups, ...]

    @property
    def chunks(self) -> Groups:
        return self.heights[0]


def cut(
    cu_seqlens: Tensor | None, position: Tensor | None, sizes: Sizes, L: int, device: torch.device, radix: int = RADIX
) -> Cut:
    """The cut for one call; `position` [N] is that of a state given, None without one. No device value is read.

    A group has 2^radix members. The last height is the first one at which no two whole groups can be siblings, at T
    tokens without a state and 2^(L - 1) with one; with radix 1, the first at which none can be whole.
    """
    B, T = sizes.B, sizes.T
    reach = T if position is None else 1 << (L - 1)
    logs = [LOG, LOG + radix]
    while reach >> (logs[-1] + (radix > 1)):
        logs.append(logs[-1] + radix)
    if cu_seqlens is None and position is None:
        each = [-(-T // (1 << log)) for log in logs]
        return Cut(B, 0, None, tuple(Groups(B * n, n, None, None) for n in each))
    if cu_seqlens is None:
        begin = torch.zeros(B, dtype=torch.int64, device=device)
        length = torch.full_like(begin, T)
    else:
        offsets = cu_seqlens.to(device=device, dtype=torch.int64, non_blocking=True)
        begin, length = offsets[:-1], offsets.diff()
    N = begin.shape[0]
    before = torch.zeros_like(begin) if position is None else position.to(torch.int64)
    spans = torch.stack([begin, before, before + length], 1)
    rows = B if cu_seqlens is None else 1
    counts = [rows * (T >> log) + N * (1 if position is None else 2) if N else 0 for log in logs]
    groups = tuple(_groups(spans, log, count) for log, count in zip(logs, counts, strict=True))
    return Cut(N, 2 if cu_seqlens is None else 1, spans.contiguous(), groups)


def _groups(spans: Tensor, log: int, count: int) -> Groups:
    """The groups of 2^log positions that the spans [N, 3] touch."""
    begin, before, behind = spans.unbind(1)
    low = before >> log
    number = torch.where(behind > before, (behind + (1 << log) - 1 >> log) - low, 0)
    first = torch.nn.functional.pad(number.cumsum(0), (1, 0))
    index = torch.arange(count, device=spans.device)
    sequence = torch.searchsorted(first[1:].contiguous(), index, right=True).clamp_(max=max(len(number) - 1, 0))
    start = (low[sequence] + index - first[sequence]) << log
    position = torch.minimum(torch.maximum(start, before[sequence]), behind[sequence])
    end = torch.minimum(start + (1 << log), behind[sequence])
    shift = begin[sequence] - before[sequence]
    table = torch.stack([sequence, position + shift, torch.maximum(position, end) + shift, position], 1)
    return Groups(count, 0, table.contiguous(), first)


# --- device code ---------------------------------------------------------------------------------------------


@triton.jit
def place(pid, table, T, each, LOG: tl.constexpr, MODE: tl.constexpr):
    """Group number `pid`: (sequence, batch row, first token, end, position of the first token), int64."""
    if MODE == 0:
        n = pid.to(tl.int64) // each
        position = (pid.to(tl.int64) % each) << LOG
        begin, b = position, n
        end = tl.minimum(begin + (1 << LOG), T)
    else:
        row = table + 4 * pid.to(tl.int64)
        n, begin, end, position = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        b = n if MODE == 2 else 0 * n
    return n, b, begin, end, position


@triton.jit
def span(n, spans, T, MODE: tl.constexpr):
    """Of sequence n: its first token in its row, its position before and behind the call."""
    if MODE == 0:
        begin, before = 0 * n, 0 * n
        behind = before + T
    else:
        begin, before, behind = tl.load(spans + 3 * n), tl.load(spans + 3 * n + 1), tl.load(spans + 3 * n + 2)
    return begin, before, behind


@triton.jit
def number(n, position, before, first, each, LOG: tl.constexpr, MODE: tl.constexpr):
    """The number of the group of 2^LOG positions that holds a position of sequence n."""
    base = n * each if MODE == 0 else tl.load(first + n) - (before >> LOG)
    return base + (position >> LOG)


@triton.jit
def chunks_of(position, length, LOG: tl.constexpr):
    """The number of chunks of 2^LOG that `length` tokens from a position on touch."""
    return tl.where(length > 0, ((position + length - 1) >> LOG) - (position >> LOG) + 1, 0)


@triton.jit
def height(e):
    """The number of trailing zeros of e > 0 (int64): the height of the node that ends before chunk e."""
    low = tl.cast(e & -e, tl.float32)  # a power of two, exactly
    return (low.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def bits(e):
    """The number of set bits of e >= 0 (int64)."""
    e = e - ((e >> 1) & 0x5555555555555555)
    e = (e & 0x3333333333333333) + ((e >> 2) & 0x3333333333333333)
    e = (e + (e >> 4)) & 0x0F0F0F0F0F0F0F0F
    e = e + (e >> 8)
    e = e + (e >> 16)
    return ((e + (e >> 32)) & 0x7F).to(tl.int32)
