"""The decay scan with one gate a head: what a forward and a backward launch (one gate a channel: channel.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import configs, decay_backward, decay_scan, launch
from linattest.kernels.launch import CHUNK, Config, Layout


class Scan(NamedTuple):
    """A call's cut into segments and what all its launches share."""

    sizes: Sizes
    cut: Layout
    dtype: torch.dtype

    @classmethod
    def of(cls, q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> Scan:
        (B, T, H, K), (_, _, HV, V) = q.shape, v.shape
        sizes = Sizes(B, T, H, HV, K, V)
        return cls(sizes, launch.layout(cu_seqlens, sizes, configs.segment_length(sizes.T), q.device), q.dtype)

    def constants(self, config: Config) -> dict[str, Any]:
        """Constants of every kernel that walks segments."""
        _, _, _, _, K, V = self.sizes
        return {
            "K": K, "V": V, "BK": launch.width(K), "BV": config.block, "C": CHUNK, "LENGTH": self.cut.length,
            "STAGE": launch.stage(self.dtype), "PRECISION": launch.INPUT_PRECISION[self.dtype],
            "PACKED": self.cut.packed,
        }  # fmt: skip

    @property
    def device_sizes(self) -> tuple[int, int, int, int]:
        return (self.sizes.T, self.cut.each, self.sizes.HV, self.sizes.HV // self.sizes.H)

    def programs(self, config: Config) -> int:
        return self.cut.segments * self.sizes.HV * -(-self.sizes.V // config.block)

    def edges(
        self, k: Tensor, v: Tensor, g: Tensor, boundary: Tensor | None, scale: float, *, reversed_: bool
    ) -> tuple[Tensor, Tensor]:
        """States at segments' starts (ends, if reversed) [segments, HV, K, V], and beyond the last [N, HV, K, V]."""
        _, _, _, HV, K, V = self.sizes
        states = k.new_empty(self.cut.segments, HV, K, V, dtype=torch.float32)
        totals = k.new_empty(self.cut.segments, HV, dtype=torch.float32)
        config = configs.choose("decay_states", k.device, self.dtype, K, V)
        launch.run(
            decay_scan.states, self.programs(config), k, v, g, states, totals, *map(launch.strides, (k, v, g)),
            self.cut.table, self.device_sizes, scale, config=config, REVERSED=reversed_, **self.constants(config),
        )  # fmt: skip
        final = k.new_empty(self.cut.N, HV, K, V, dtype=torch.float32)
        block = min(1024, launch.width(K * V))
        launch.run(
            decay_scan.scan, self.cut.N * HV * -(-(K * V) // block), states, totals,
            None if boundary is None else boundary.contiguous(), final, self.cut.first, self.cut.each, HV,
            config=Config(block, 4, 4), SIZE=K * V, BLOCK=block, HAS_INITIAL=boundary is not None,
            PACKED=self.cut.packed, REVERSED=reversed_,
        )  # fmt: skip
        return states, final

    def walk(
        self, k: Tensor, v: Tensor, g: Tensor, edges: Tensor, chunks: int, scale: float, *, reversed_: bool
    ) -> Tensor:
        """States at chunks' starts (ends, if reversed) [chunks, HV, K, V]: in bfloat16 if that is how they are used."""
        _, _, _, HV, K, V = self.sizes
        kind = torch.bfloat16 if self.dtype == torch.bfloat16 and not launch.INTERPRETED else torch.float32
        states = k.new_empty(chunks, HV, K, V, dtype=kind)
        config = configs.choose("decay_walk", k.device, self.dtype, K, V)
        launch.run(
            decay_scan.walk, self.programs(config), k, v, g, edges, states, *map(launch.strides, (k, v, g)),
            self.cut.table, self.device_sizes, scale, config=config, REVERSED=reversed_, **self.constants(config),
        )  # fmt: skip
        return states


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """o [B, T, HV, V] in v's dtype, the final state [N, HV, K, V] and the segments' states, which `backward` takes.

    q, k [B, T, H, K], v [B, T, HV, V], g [B, T, HV], `initial_state` [N, HV, K, V] float32 or None: checked before.
    """
    scan = Scan.of(q, v, cu_seqlens)
    edges, final = scan.edges(k, v, g, initial_state, 1.0, reversed_=False)
    o = launch.output(v, v.shape, zero=scan.cut.packed)
    config = configs.choose("decay_outputs", q.device, q.dtype, q.shape[3], v.shape[3])
    launch.run(
        decay_scan.outputs, scan.programs(config), q, k, v, g, o, edges, *map(launch.strides, (q, k, v, g, o)),
        scan.cut.table, scan.device_sizes, scale, config=config, **scan.constants(config),
    )  # fmt: skip
    return launch.rounded(o, v.dtype), final, edges


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float,
    edges: Tensor, do: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, g (in their dtypes) and the initial state, from those of o and the final state.

    The first seven arguments are the forward's, `edges` what it kept, do [B, T, HV, V] in v's dtype, dfinal
    [N, HV, K, V] float32; None is zero.
    """
    scan = Scan.of(q, v, cu_seqlens)
    B, T, H, HV, K, V = scan.sizes
    do = torch.zeros_like(v) if do is None else do
    upper, dinitial = scan.edges(q, do, g, dfinal, scale, reversed_=True)
    cut = launch.layout(cu_seqlens, scan.sizes, CHUNK, q.device)
    starts = scan.walk(k, v, g, edges, cut.segments, 1.0, reversed_=False)
    ends = scan.walk(q, do, g, upper, cut.segments, scale, reversed_=True)
    dq, dk = (launch.output(q, (B, T, HV, K), zero=cut.packed, wide=HV > H) for _ in range(2))
    dv, dg = launch.output(v, v.shape, zero=cut.packed), launch.output(g, g.shape, zero=cut.packed)
    config = configs.choose("decay_gradients", q.device, q.dtype, K, V)
    constants = scan.constants(config)
    del constants["LENGTH"]
    launch.run(
        decay_backward.gradients, cut.segments * HV, q, k, v, g, do, starts, ends, dq, dk, dv, dg,
        tuple(map(launch.strides, (q, k, v, g, do, dq, dk, dv, dg))), cut.table, (T, cut.each, HV, HV // H), scale,
        config=config, **constants,
    )  # fmt: skip
    dq, dk = (launch.over_groups(x, H, q.dtype) for x in (dq, dk))
    return dq, dk, launch.rounded(dv, v.dtype), launch.rounded(dg, g.dtype), dinitial
