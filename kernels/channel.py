"""Launching the decay scan with a gate per key channel: five kernels forward, eight backward (`gla` is its face).

Kept for the backward: the states at the segments' starts. Scratch, in the type in which operands are staged: reads,
writes [B, T, H, K] and A [B, T, H, C]; backward also the states of both directions at each chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import channel_backward, channel_decays, channel_scan, configs, launch
from linattest.kernels.launch import CHUNK, Config, Layout

REACH = {torch.float32: 8.0, torch.bfloat16: 20.0, torch.float16: 20.0}
"""Largest sum of gates that one anchor bridges, by the dtype of the inputs: REACH * 2**-24 is its exponent's error."""

TREE_PROGRAMS = 1024
"""Programs that look for chunks which need a tree: few enough to cost nothing where none does."""

SCAN_BLOCK = 512
"""Elements of a state that one program of `channel_scan.scan` carries."""


def staged(dtype: torch.dtype) -> torch.dtype:
    """What operands of products are stored in, by the dtype of the inputs."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def scratch(like: Tensor, *shape: int) -> Tensor:
    """Uninitialised, for operands of products (float32 in the interpreter, see `launch.rounded`)."""
    return like.new_empty(shape, dtype=torch.float32 if launch.INTERPRETED else staged(like.dtype))


class Scan(NamedTuple):
    """A call: what `channel_decays` makes of q, k, g, and how it is cut into segments and into chunks."""

    reads: Tensor
    writes: Tensor
    scores: Tensor
    totals: Tensor
    sizes: Sizes
    cut: Layout
    chunks: Layout
    dtype: torch.dtype

    def choose(self, kernel: str) -> Config:
        """How to build a kernel that walks segments."""
        return configs.choose(kernel, self.reads.device, staged(self.dtype), self.sizes.K, self.sizes.V)

    def programs(self, config: Config) -> int:
        return self.cut.segments * self.sizes.HV * -(-self.sizes.V // config.block)

    @property
    def device_sizes(self) -> tuple[int, int, int, int]:
        return self.sizes.T, self.cut.each, self.sizes.HV, self.sizes.HV // self.sizes.H

    def constants(self, config: Config) -> dict[str, Any]:
        """Constants of every kernel that walks segments."""
        K, V = self.sizes.K, self.sizes.V
        return {
            "K": K, "V": V, "BK": launch.width(K), "BV": config.block, "C": CHUNK, "LENGTH": self.cut.length,
            "STAGE": launch.stage(self.dtype), "PRECISION": launch.INPUT_PRECISION[self.dtype],
            "PACKED": self.cut.packed,
        }  # fmt: skip


def prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, cu_seqlens: Tensor | None, scale: float) -> Scan:
    """The part of a forward and of a backward that knows no values; of v only the shape is used."""
    sizes = B, T, H, _, K, _ = Sizes(*q.shape[:3], v.shape[2], q.shape[3], v.shape[3])
    cut, chunks = (launch.layout(cu_seqlens, sizes, n, q.device) for n in (configs.segment_length(T), CHUNK))
    reads, writes, scores = scratch(q, B, T, H, K), scratch(q, B, T, H, K), scratch(q, B, T, H, CHUNK)
    totals = q.new_empty(chunks.segments, H, K, dtype=torch.float32)
    reached = q.new_empty(chunks.segments, H, dtype=torch.float32)
    strides = [launch.strides(x) for x in (q, k, g)]
    items = chunks.segments * H
    common: dict[str, Any] = {
        "K": K, "C": CHUNK, "STAGE": launch.stage(q.dtype), "PRECISION": launch.INPUT_PRECISION[q.dtype],
        "PACKED": chunks.packed,
    }  # fmt: skip
    config = configs.choose("channel_prepare", q.device, staged(q.dtype), CHUNK, K)
    launch.run(
        channel_decays.prepare, items, q, k, g, reads, writes, scores, totals, reached, *strides,
        chunks.table, (T, chunks.each, H), scale, config=config, BLOCK=config.block, **common,
    )  # fmt: skip
    config = configs.choose("channel_tree", q.device, staged(q.dtype), CHUNK, K)
    programs = min(items, TREE_PROGRAMS)
    launch.run(
        channel_decays.tree, programs, q, k, g, scores, reached, *strides, chunks.table,
        (T, chunks.each, H, items), scale, programs, config=config, BLOCK=config.block, REACH=REACH[q.dtype], **common,
    )  # fmt: skip
    return Scan(reads, writes, scores, totals, sizes, cut, chunks, q.dtype)


def edges(
    scan: Scan, writes: Tensor, v: Tensor, boundary: Tensor | None, *, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """The state where each segment starts [segments, HV, V, K] and the last one [N, HV, K, V], all float32.

    `reverse`: time runs backwards (reads for writes, the gradient of o for v, that of the final state for `boundary`).
    """
    _, _, H, HV, K, V = scan.sizes
    cut = scan.cut
    states = v.new_empty(cut.segments, HV, V, K, dtype=torch.float32)
    kept = v.new_empty(cut.segments, H, K, dtype=torch.float32)
    final = v.new_empty(cut.N, HV, K, V, dtype=torch.float32)
    config = scan.choose("channel_states")
    launch.run(
        channel_scan.states, scan.programs(config), writes, v, scan.totals, states, kept, None, launch.strides(v),
        cut.table, scan.device_sizes, config=config, REVERSED=reverse, SAVE=False, **scan.constants(config),
    )  # fmt: skip
    launch.run(
        channel_scan.scan, cut.N * HV * -(-(K * V) // SCAN_BLOCK), states, kept,
        None if boundary is None else boundary.contiguous(), final, cut.first, cut.each, (HV, HV // H),
        config=Config(0, 4, 1), K=K, V=V, BLOCK=SCAN_BLOCK, HAS_INITIAL=boundary is not None, REVERSED=reverse,
        PACKED=cut.packed,
    )  # fmt: skip
    return states, final


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """o [B, T, HV, V] in v's dtype, the final state [N, HV, K, V] and the segments' states, which `backward` takes.

    q, k [B, T, H, K], v [B, T, HV, V], g [B, T, H, K], `initial_state` [N, HV, K, V] float32 or None.
    """
    scan = prepare(q, k, v, g, cu_seqlens, scale)
    states, final = edges(scan, scan.writes, v, initial_state)
    o = launch.output(v, v.shape, zero=scan.cut.packed)
    config = scan.choose("channel_outputs")
    launch.run(
        channel_scan.outputs, scan.programs(config), scan.reads, scan.writes, v, scan.scores, o, scan.totals, states,
        None, launch.strides(v), launch.strides(o), scan.cut.table, scan.device_sizes, config=config, REVERSED=False,
        SAVE=False, **scan.constants(config),
    )  # fmt: skip
    return launch.rounded(o, v.dtype), final, states


def chunk_states(scan: Scan, v: Tensor, starts: Tensor) -> Tensor:
    """The state before each chunk [chunks, HV, V, K], as an operand is stored, from those at the segments' starts."""
    _, _, _, HV, K, V = scan.sizes
    config = scan.choose("channel_states")
    saved = scratch(v, scan.chunks.segments, HV, V, K)
    launch.run(
        channel_scan.states, scan.programs(config), scan.writes, v, scan.totals, starts, None, saved,
        launch.strides(v), scan.cut.table, scan.device_sizes, config=config, REVERSED=False, SAVE=True,
        **scan.constants(config),
    )  # fmt: skip
    return saved


def value_gradients(scan: Scan, do: Tensor, dfinal: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """dv, gradients of the state after each chunk [chunks, HV, V, K] and of the initial state [N, HV, K, V]."""
    _, _, _, HV, K, V = scan.sizes
    ends, dinitial = edges(scan, scan.reads, do, dfinal, reverse=True)
    config = scan.choose("channel_outputs")
    saved = scratch(do, scan.chunks.segments, HV, V, K)
    dv = launch.output(do, do.shape, zero=scan.cut.packed)
    launch.run(
        channel_scan.outputs, scan.programs(config), scan.writes, scan.reads, do, scan.scores, dv, scan.totals, ends,
        saved, launch.strides(do), launch.strides(dv), scan.cut.table, scan.device_sizes, config=config, REVERSED=True,
        SAVE=True, **scan.constants(config),
    )  # fmt: skip
    return dv, saved, dinitial


def pair_gradients(scan: Scan, v: Tensor, do: Tensor) -> Tensor:
    """[B, T, H, C]: dA of each chunk, mirrored at its diagonal."""
    B, T, H, HV, _, V = scan.sizes
    met = scratch(v, B, T, H, CHUNK)
    config = configs.choose("channel_pairs", v.device, staged(v.dtype), CHUNK, V)
    constants = {name: x for name, x in scan.constants(config).items() if name not in ("K", "BK", "LENGTH")}
    launch.run(
        channel_backward.pairs, scan.chunks.segments * H, v, do, met, launch.strides(v), launch.strides(do),
        scan.chunks.table, (T, scan.chunks.each, HV, HV // H), config=config, **constants,
    )  # fmt: skip
    return met


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float,
    boundaries: Tensor, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, g (in their dtypes) and the initial state, from those of o and the final state.

    The first seven arguments are the forward's, `boundaries` what it saved, do [B, T, HV, V] in v's dtype, dfinal
    [N, HV, K, V] float32; None is zero.
    """
    do = torch.zeros_like(v) if do is None else do
    scan = prepare(q, k, v, g, cu_seqlens, scale)
    starts = chunk_states(scan, v, boundaries)
    dv, ends, dinitial = value_gradients(scan, do, dfinal)
    met = pair_gradients(scan, v, do)
    dq, dk, dg = (launch.output(x, x.shape, zero=scan.cut.packed) for x in (q, k, g))
    _, T, H, HV, K, V = scan.sizes
    config = configs.choose("channel_gradients", q.device, staged(q.dtype), CHUNK, K)
    constants = scan.constants(Config(min(32, launch.width(V)), 0, 0))
    del constants["BK"], constants["LENGTH"]
    launch.run(
        channel_backward.gradients, scan.chunks.segments * H * -(-K // config.block), q, k, v, g, do, met, starts, ends,
        dq, dk, dg, tuple(launch.strides(x) for x in (q, k, v, g, do)), scan.chunks.table,
        (T, scan.chunks.each, HV, HV // H), scale, config=config, BLOCK=config.block, **constants,
    )  # fmt: skip
    dq, dk, dv, dg = (launch.rounded(x, y.dtype) for x, y in ((dq, q), (dk, k), (dv, v), (dg, g)))
    return dq, dk, dv, dg, dinitial
