"""What a Fenwick scan with one gate a head launches (public functions: log_linear.py).

Forward, at T = 4096 three launches and one more for each factor of 8 in T: `fenwick_scan.states` makes the nodes of
each group of 8 chunks, `.sweep` those between groups, and `fenwick_outputs.outputs` reads them, all chunks at once. A
state behind the call, if asked for, takes one more.

Backward: `fenwick_upstream.gather` and `.descend` where there is more than one group, `.carry`,
`fenwick_backward.gradients` and `.gates`.

Memory is linear in T: a node [K, V] a chunk of 64 tokens, in bfloat16 for bfloat16 inputs, is kept for a backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import (
    configs,
    delta_rule,
    fenwick_backward,
    fenwick_outputs,
    fenwick_scan,
    fenwick_upstream,
    launch,
)
from linattest.kernels.fenwick_layout import LOG, RADIX, Cut, cut
from linattest.kernels.launch import Config


class Operands(NamedTuple):
    """What a scan reads: q, k [B, T, H, K], v [B, T, HV, V], g [B, T, HV], lam [B, T, HV, L]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    lam: Tensor

    @property
    def sizes(self) -> Sizes:
        return Sizes(*self.q.shape[:3], self.v.shape[2], self.q.shape[3], self.v.shape[3])

    @property
    def L(self) -> int:
        return self.lam.shape[3]

    @property
    def kind(self) -> torch.dtype:
        """The type in which nodes are kept: that in which they meet a tensor core."""
        return torch.bfloat16 if self.q.dtype == torch.bfloat16 and not launch.INTERPRETED else torch.float32


class Start(NamedTuple):
    """The state that a call starts from: S [N, L, HV, K, V] contiguous and position [N], both None without one."""

    S: Tensor | None
    position: Tensor | None


def constants(x: Operands, config: Config, cut: Cut) -> dict[str, Any]:
    """Of every kernel that handles tiles."""
    _, _, _, _, K, V = x.sizes
    return {
        "K": K, "V": V, "BK": launch.width(K), "BV": config.block, "LOG": LOG, "STAGE": launch.stage(x.q.dtype),
        "PRECISION": launch.INPUT_PRECISION[x.q.dtype], "MODE": cut.mode,
    }  # fmt: skip


def forward(
    x: Operands, start: Start, cu_seqlens: Tensor | None, scale: float, *, output_final_state: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o [B, T, HV, V] in v's dtype; the state's S behind the call [N, L, HV, K, V], empty if not asked for; nodes and
    logs, which a backward takes. Arguments are checked before."""
    _, T, H, HV, K, V = x.sizes
    where = cut(cu_seqlens, start.position, x.sizes, x.L, x.q.device)
    final = x.q.new_empty((where.N if output_final_state else 0, x.L, HV, K, V), dtype=torch.float32)
    nodes, logs = _nodes(x, start, where, final if output_final_state else None)
    o = launch.output(x.v, x.v.shape, zero=where.mode == 1)
    config = configs.choose("fenwick_outputs", x.q.device, x.q.dtype, K, V)
    places, sizes = (where.chunks.table, where.chunks.first), (T, where.chunks.each, HV, HV // H, x.L)
    launch.run(
        fenwick_outputs.outputs, where.chunks.count * HV * -(-V // config.block), o, *x, nodes, logs, start.S,
        where.spans, delta_rule.strides(o, *x), places, sizes, scale, config=config,
        **constants(x, config, where),
    )  # fmt: skip
    if output_final_state:
        config = configs.choose("fenwick_final", x.q.device, x.q.dtype, K, V)
        launch.run(
            fenwick_outputs.final_state, where.N * HV * x.L * -(-V // config.block), final, x.k, x.v, x.g, logs,
            start.S, where.spans, delta_rule.strides(x.k, x.v, x.g), places, sizes, config=config,
            **constants(x, config, where),
        )  # fmt: skip
    return launch.rounded(o, x.v.dtype), final, nodes, logs


def _nodes(x: Operands, start: Start, where: Cut, final: Tensor | None) -> tuple[Tensor, Tensor]:
    """All nodes [chunks, HV, K, V] and their sums of gates [chunks, HV]; into `final` those that it will hold."""
    _, T, H, HV, K, V = x.sizes
    chunks = where.chunks
    nodes = x.q.new_empty(chunks.count, HV, K, V, dtype=x.kind)
    logs = x.q.new_empty(chunks.count, HV, dtype=torch.float32)
    config = configs.choose("fenwick_states", x.q.device, x.q.dtype, K, V)
    above = len(where.heights) - 1  # heights of groups; the roots of the last one are no one's
    roots, totals = _roots(x, where, 1 if above > 1 else 0)
    launch.run(
        fenwick_scan.states, where.heights[1].count * HV * -(-V // config.block), nodes, logs, roots, totals, x.k, x.v,
        x.g, start.S, final, where.spans, delta_rule.strides(x.k, x.v, x.g),
        (where.heights[1].table, chunks.first), (T, where.heights[1].each, chunks.each, HV, HV // H, x.L),
        config=config, **constants(x, config, where),
    )  # fmt: skip
    block = min(1024, launch.width(K * V))
    for i in range(2, above + 1):
        below, group = where.heights[i - 1 : i + 1]
        children, sums = roots, totals
        roots, totals = _roots(x, where, i if i < above else 0)
        launch.run(
            fenwick_scan.sweep, group.count * HV * -(-(K * V) // block), nodes, logs, children, sums, roots, totals,
            start.S, final, where.spans, (group.table, below.first, chunks.first),
            (T, group.each, below.each, chunks.each, HV, x.L), config=Config(block, 4, 2), SIZE=K * V, BLOCK=block,
            LOG=LOG + RADIX * (i - 1), C=LOG, MODE=where.mode,
        )  # fmt: skip
    return nodes, logs


def _roots(x: Operands, where: Cut, height: int) -> tuple[Tensor | None, Tensor | None]:
    """Room for the roots of groups and their sums of gates, float32; none for height 0."""
    if not height:
        return None, None
    _, _, _, HV, K, V = x.sizes
    count = where.heights[height].count
    return (
        x.q.new_empty(count, HV, K, V, dtype=torch.float32),
        x.q.new_empty(count, HV, dtype=torch.float32),
    )


# --- backward ------------------------------------------------------------------------------------------------


class _Upstream(NamedTuple):
    """What a backward's walks share: inputs, the tree, states and their gradients, scale."""

    x: Operands
    do: Tensor
    tree: tuple[Tensor, Tensor]
    outer: tuple[Tensor | None, Tensor | None, Tensor | None]
    where: Cut
    scale: float

    @property
    def strides(self) -> tuple[delta_rule.Strides, ...]:
        return delta_rule.strides(self.x.q, self.do, self.x.g, self.x.lam)


def backward(
    x: Operands, start: Start, cu_seqlens: Tensor | None, scale: float, nodes: Tensor, logs: Tensor, do: Tensor | None,
    dfinal: Tensor | None,
) -> tuple[Operands, Tensor]:  # fmt: skip
    """Gradients of the operands, in their dtypes, and of the state's S before the call (empty without one).

    The first four arguments are the forward's, nodes and logs what it kept, do [B, T, HV, V] in v's dtype, dfinal
    [N, L, HV, K, V] float32; None is zero.
    """
    _, _, _, HV, K, V = x.sizes
    where = cut(cu_seqlens, start.position, x.sizes, x.L, x.q.device)
    do = torch.zeros_like(x.v) if do is None else do
    dfinal = None if dfinal is None else dfinal.contiguous()
    dinitial = None if start.S is None else initial_gradient(start, where, dfinal)
    up = _Upstream(x, do, (nodes, logs), (start.S, dfinal, dinitial), where, scale)
    upper, through = _descend(up)
    config = configs.choose("fenwick_carry", x.q.device, x.q.dtype, K, V)
    few = -(-V // config.block)
    ends = x.q.new_empty(where.chunks.count, HV, K, V, dtype=x.kind)
    passing = x.q.new_empty(where.chunks.count, HV, few, dtype=torch.float32)
    group = where.heights[1]
    launch.run(
        fenwick_upstream.carry, group.count * HV * few, ends, passing, (x.q, do, x.g, x.lam), upper, up.tree, up.outer,
        where.spans, up.strides, (group.table, where.chunks.first),
        (x.sizes.T, group.each, where.chunks.each, HV, HV // x.sizes.H, x.L), scale, config=config,
        **constants(x, config, where),
    )  # fmt: skip
    found = _gradients(up, ends, passing, through)
    return found, x.q.new_empty(0) if dinitial is None else dinitial


def initial_gradient(start: Start, where: Cut, dfinal: Tensor | None) -> Tensor:
    """Room for the gradient of the state before the call: right already for sequences without tokens."""
    assert start.S is not None and start.position is not None and where.spans is not None
    if dfinal is None:
        return torch.zeros_like(start.S)
    L = dfinal.shape[1]
    level = torch.arange(L, device=dfinal.device)
    before, behind = where.spans[:, 1:2], where.spans[:, 2:3]
    bit = level - 1 + torch.where((level == L - 1) & (before >> (L - 1) > 0), 1, 0)
    held = (bit >= 0) & ((before >> bit.clamp_min(0)) & 1 == 1) & (before == behind)
    return torch.where(held[:, :, None, None, None], dfinal, 0.0)


def _descend(up: _Upstream) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of states behind groups of 8 chunks, and what passes through groups; None with one group alone."""
    x, where = up.x, up.where
    _, T, H, HV, K, V = x.sizes
    group, log = where.heights[1], LOG + RADIX
    J = ((T if up.outer[0] is None else 1 << (x.L - 1)) >> log).bit_length()
    if J == 0:
        return None, None
    found = x.q.new_empty(group.count, J, HV, K, V, dtype=torch.float32)
    totals = x.q.new_empty(group.count, HV, dtype=torch.float32)
    config = configs.choose("fenwick_gather", x.q.device, x.q.dtype, K, V)
    launch.run(
        fenwick_upstream.gather, group.count * J * HV * -(-V // config.block), found, totals, x.q, up.do, x.g, x.lam,
        up.strides, group.table, (T, group.each, HV, HV // H, x.L, J), up.scale, config=config,
        **constants(x, config, where),
    )  # fmt: skip
    heights = max(2, 1 << (J - 1).bit_length())
    block = max(16, min(launch.width(K * V), 2048 // heights))
    blocks = -(-(K * V) // block)
    upper = x.q.new_empty(group.count, HV, K, V, dtype=torch.float32)
    through = x.q.new_empty(group.count, HV, blocks, dtype=torch.float32)
    launch.run(
        fenwick_upstream.descend, where.N * HV * blocks, upper, through, found, totals, up.tree, up.outer, where.spans,
        (group.first, where.chunks.first), (T, group.each, where.chunks.each, HV, x.L, J), config=Config(block, 4, 2),
        SIZE=K * V, BLOCK=block, HEIGHTS=heights, LOG=log, C=LOG, MODE=where.mode,
    )  # fmt: skip
    return upper, through


def _gradients(up: _Upstream, ends: Tensor, passing: Tensor, through: Tensor | None) -> Operands:
    """Gradients of the operands, from what the walks left."""
    x, do, where = up.x, up.do, up.where
    B, T, H, HV, K, V = x.sizes
    zero = where.mode == 1
    dq, dk = (launch.output(x.q, (B, T, HV, K), zero=zero, wide=HV > H) for _turn in range(2))
    dv, dg = launch.output(x.v, x.v.shape, zero=zero), launch.output(x.g, x.g.shape, zero=zero)
    dlam = launch.output(x.lam, x.lam.shape, zero=True)  # of levels that no token reads, too
    partial = x.q.new_empty(B, T, HV, dtype=torch.float32)
    high = x.q.new_empty(where.chunks.count, HV, dtype=torch.float32)
    config = configs.choose("fenwick_gradients", x.q.device, x.q.dtype, K, V)
    chunks, group = where.chunks, where.heights[1]
    results, inputs = (dq, dk, dv, dlam, partial), (*x, do)
    launch.run(
        fenwick_backward.gradients, chunks.count * HV, (*results, high), inputs, up.tree, ends, up.outer[:2],
        where.spans, delta_rule.strides(*results, *inputs), (chunks.table, chunks.first),
        (T, chunks.each, HV, HV // H, x.L), up.scale, config=config, **constants(x, config, where),
    )  # fmt: skip
    few, many = passing.shape[2], 1 if through is None else through.shape[2]
    launch.run(
        fenwick_backward.gates, group.count * HV, dg, partial, high, passing, through,
        delta_rule.strides(dg, partial), where.spans, (group.table, chunks.first),
        (T, group.each, chunks.each, HV, few, many), config=Config(0, 1, 1), LOG=LOG,
        BLOCKS=max(2, 1 << (few - 1).bit_length()), MANY=max(2, 1 << (many - 1).bit_length()), MODE=where.mode,
    )  # fmt: skip
    dq, dk = (launch.over_groups(y, H, x.q.dtype) for y in (dq, dk))
    return Operands(dq, dk, *(launch.rounded(y, like.dtype) for y, like in ((dv, x.v), (dg, x.g), (dlam, x.lam))))
