"""The tree over chunks behind `fenwick_scan`: node states by an up-sweep, read with one weight per height.

Chunks are counted from the sequence's very first token, whatever state a call starts from. Node i of height j covers
the chunks i 2^j .. (i + 1) 2^j - 1; its bucket B is what they wrote and its transition P what they do to an earlier
state, so that a state X before the node is P X + B after it, and

    (P, B) of a node = (P_right P_left, P_right B_left + B_right)      of its two halves.

Chunk n reads, for each set bit j of n, the node (n >> j) - 1 of height j: together they cover everything before it. A
node's transition is a number (kept as [1, 1], a multiple of the identity) or a [K, K] matrix; `product` serves both.

Source: [Fenwick94]; [LogLinear].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Height(NamedTuple):
    """The nodes first, first + 1, ... of one height: P [G, m, 1 or K, 1 or K], B [G, m, K, V]."""

    first: int
    P: Tensor
    B: Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, where a [..., 1, 1] factor stands for that multiple of the identity."""
    if (1, 1) in (left.shape[-2:], right.shape[-2:]):
        return left * right
    return left @ right


def identity(P: Tensor) -> Tensor:
    """The transition [G, 1, *, *] that changes nothing, of the kind of P [G, m, *, *]."""
    return torch.eye(P.shape[-1], dtype=P.dtype, device=P.device).expand(P.shape[0], 1, -1, -1)


def sweep(P: Tensor, B: Tensor, first: int, buckets: Mapping[int, Tensor], count: int) -> list[Height]:
    """Nodes of heights 0 .. count - 1 over the chunks first, first + 1, ... with the leaves P, B [G, m, ...].

    `buckets[j]` [G, K, V] is what the state at the start of chunk `first` holds for each set bit j of `first`: the
    left neighbour of the first node of height j. It has been carried to that chunk already, so its transition counts
    as the identity.
    """
    heights: list[Height] = []
    for j in range(count):
        if first % 2:
            first, P, B = first - 1, torch.cat([identity(P), P], 1), torch.cat([buckets[j].unsqueeze(1), B], 1)
        heights.append(Height(first, P, B))
        pairs = P.shape[1] // 2  # an unpaired last node is part of no larger one
        (P_left, P_right), (B_left, B_right) = ((x[:, 0 : 2 * pairs : 2], x[:, 1 : 2 * pairs : 2]) for x in (P, B))
        first, P, B = first // 2, product(P_right, P_left), product(P_right, B_left) + B_right
    return heights


def read(heights: Sequence[Height], o: Tensor, reads: Tensor, weights: Tensor, first: int) -> Tensor:
    """o [G, N, C, V] + what chunks first .. first + N - 1 read of the nodes, by reads [G, N, C, K] at their starts.

    `weights` [G, N, C, >= heights] holds each token's weight for height 0, 1, ...
    """
    chunks = torch.arange(first, first + reads.shape[1], device=o.device)
    o, reads = o.clone(), reads.clone()  # one copy each, instead of one per height
    for j, (start, P, B) in enumerate(heights):
        readers = ((chunks >> j) & 1).nonzero().squeeze(1)
        if not readers.numel():
            continue
        nodes = (chunks[readers] >> j) - 1 - start
        rows = reads.index_select(1, readers)
        part = weights[..., j, None].index_select(1, readers) * (rows @ B.index_select(1, nodes))
        o.index_add_(1, readers, part)
        if j + 1 < len(heights):  # on to earlier nodes: back through this one
            reads.index_copy_(1, readers, product(rows, P.index_select(1, nodes)))
    return o


def collect(heights: Sequence[Height], chunk: int, after: Tensor | None) -> dict[int, Tensor]:
    """The bucket [G, K, V] of each set bit of `chunk`, carried to that chunk's start and through `after` [G, *, *]."""
    buckets: dict[int, Tensor] = {}
    for j, (start, P, B) in enumerate(heights):
        if (chunk >> j) & 1:
            node = (chunk >> j) - 1 - start
            buckets[j] = B[:, node] if after is None else product(after, B[:, node])
            after = P[:, node] if after is None else product(after, P[:, node])
    return buckets
