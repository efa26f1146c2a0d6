"""The delta scan in Triton: a state from which each token erases along one key and writes along another.

    S_t = exp(g_t) (I - write_t erase_t^T) S_{t-1} + write_t v_t^T,      o_t = scale S_t^T q_t     (S [K, V] per head)

Up to five launches: `delta_inverse.inverses` and `.reads`, a program a chunk, make all that needs no state; then
`delta_walk.transitions` walks each segment to its affine map, `.scan` joins the maps to the state at each segment's
start (both only where a sequence has more than one segment), and `.outputs` walks each segment from there.

Memory is linear in T: 2 C numbers a token and head in the staging type, and one [K + V, K] map a segment. Forward only.

Sources: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (UT transform).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import configs, delta_inverse, delta_walk, launch
from linattest.kernels.blocks import CHUNK
from linattest.kernels.launch import Config, Layout

PLANES = {torch.float32: 1, torch.float16: 1, torch.bfloat16: 1}
"""Products an operand made in a kernel takes: two where it is staged in bfloat16 and one rounding is too many."""


Strides: TypeAlias = tuple[int | triton.language.constexpr, ...]


class Operands(NamedTuple):
    """What a scan reads. `write` is None where it is beta * erase (then beta is not None)."""

    q: Tensor
    erase: Tensor
    write: Tensor | None
    v: Tensor
    g: Tensor | None
    beta: Tensor | None


class Saved(NamedTuple):
    """What the backward pass needs besides the operands: rows of Tm, reads, factors, maps and states of segments."""

    tm: Tensor
    reads: Tensor
    factors: Tensor
    maps: Tensor
    segments: Layout
    chunks: Layout


def strides(*tensors: Tensor | None) -> tuple[Strides, ...]:
    """`launch.strides` of each; zeros for those that are absent.

    Those within a tile, over tokens and channels, become constants of a kernel, so that addresses take no registers:
    the walks have none to spare. Over tokens it is the number of heads times the width, whatever T is.
    """
    return tuple(_fixed(*((0, 0, 0, 0) if x is None else launch.strides(x))) for x in tensors)


def _fixed(b: int, t: int, h: int, c: int) -> Strides:
    return (b, t, h, c) if launch.INTERPRETED else (b, triton.language.constexpr(t), h, triton.language.constexpr(c))


def forward(
    x: Operands,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    output_final_state: bool,
    planes: int | None = None,
) -> tuple[Tensor, Tensor | None, Saved]:
    """o [B, T, HV, V], the final state [N, HV, K, V] float32 if asked for, and what a backward pass needs."""
    B, T, H, K = x.q.shape
    HV, V = x.v.shape[2:]
    sizes, device, dtype = Sizes(B, T, H, HV, K, V), x.q.device, x.q.dtype
    planes = PLANES[dtype] if planes is None else planes
    segments = launch.layout(cu_seqlens, sizes, configs.segment_length(T), device)
    chunks = launch.layout(cu_seqlens, sizes, CHUNK, device)
    stage = torch.bfloat16 if dtype == torch.bfloat16 and not launch.INTERPRETED else torch.float32
    tm = torch.empty(B, T, HV, planes * CHUNK, dtype=stage, device=device)
    reads = torch.empty_like(tm)
    factors = torch.empty(B, T, HV, 2, dtype=torch.float32, device=device)
    alone = not segments.packed and segments.each <= 1
    maps = torch.empty(0 if alone else segments.segments, HV, K + V, K, dtype=torch.float32, device=device)
    o = launch.output(x.v, (B, T, HV, V), zero=segments.packed)
    final = _final(initial_state, segments, sizes, device) if output_final_state else None
    saved = Saved(tm, reads, factors, maps, segments, chunks)
    _invert(x, saved, sizes, planes)
    if not alone:
        _connect(x, saved, initial_state, sizes, planes)
    _walk(o, final, x, saved, initial_state, sizes, scale, planes)
    return launch.rounded(o, dtype), final, saved


def _final(initial: Tensor | None, segments: Layout, sizes: Sizes, device: torch.device) -> Tensor:
    """Room for final states, already right for sequences without tokens."""
    shape = (segments.N, sizes.HV, sizes.K, sizes.V)
    if sizes.T > 0 and not segments.packed:
        return torch.empty(shape, dtype=torch.float32, device=device)
    return torch.zeros(shape, dtype=torch.float32, device=device) if initial is None else initial.clone()


def _per(x: Operands) -> tuple[int, int, int]:
    """Value heads per head of q, of erase and of write."""
    HV = x.v.shape[2]
    return HV // x.q.shape[2], HV // x.erase.shape[2], HV // (x.write if x.write is not None else x.erase).shape[2]


def precision(dtype: torch.dtype, planes: int) -> str:
    """For products of float32 operands that no bfloat16 rounding follows."""
    return "tf32x3" if planes == 2 else launch.INPUT_PRECISION[dtype]


def _invert(x: Operands, saved: Saved, sizes: Sizes, planes: int) -> None:
    per_query, per_erase, per_write = _per(x)
    block = min(32, launch.width(sizes.K))
    launch.run(
        delta_inverse.inverses, saved.chunks.segments * sizes.HV,
        saved.tm, saved.factors, x.erase, x.write, x.g, x.beta,
        strides(saved.tm, saved.factors, x.erase, x.write, x.g, x.beta), saved.chunks.table,
        (sizes.T, saved.chunks.each, sizes.HV, per_erase, per_write),
        config=Config(0, 1, 2), K=sizes.K, BLOCK=block, C=CHUNK, R=CHUNK // 4, PLANES=planes,
        PRODUCT=launch.INPUT_PRECISION[x.q.dtype], PRECISION=precision(x.q.dtype, planes), PACKED=saved.chunks.packed,
    )  # fmt: skip

    write = x.erase if x.write is None else x.write
    launch.run(
        delta_inverse.reads, saved.chunks.segments * sizes.HV, saved.reads, x.q, write, x.g, x.beta,
        strides(saved.reads, x.q, write, x.g, x.beta), saved.chunks.table,
        (sizes.T, saved.chunks.each, sizes.HV, per_query, per_write),
        config=Config(0, 4, 1), K=sizes.K, BK=launch.width(sizes.K), C=CHUNK, PLANES=planes,
        PRECISION=launch.INPUT_PRECISION[x.q.dtype], PACKED=saved.chunks.packed,
    )  # fmt: skip


def _common(x: Operands, saved: Saved, sizes: Sizes, planes: int, config: Config) -> dict[str, object]:
    return dict(
        K=sizes.K, V=sizes.V, BK=launch.width(sizes.K), BV=config.block, C=CHUNK, LENGTH=saved.segments.length,
        STAGE=launch.stage(x.q.dtype), PLANES=planes, PRECISION=launch.INPUT_PRECISION[x.q.dtype],
        PACKED=saved.segments.packed,
    )  # fmt: skip


def _connect(x: Operands, saved: Saved, initial: Tensor | None, sizes: Sizes, planes: int) -> None:
    """Fill `maps`: each segment's map, then in its rows B the states between segments."""
    _, T, _, HV, K, V = sizes
    segments = saved.segments
    config = configs.choose("delta_transitions", x.q.device, x.q.dtype, K, V)
    blocks = -(-K // config.block) - (-V // config.block)
    _, per_erase, per_write = _per(x)
    launch.run(
        delta_walk.transitions, segments.segments * HV * blocks,
        saved.maps, saved.tm, saved.factors, x.erase, x.write, x.v,
        strides(saved.tm, saved.factors, x.erase, x.write, x.v), segments.table, segments.first,
        (T, segments.each, HV, per_erase, per_write),
        config=config, **_common(x, saved, sizes, planes, config),
    )  # fmt: skip
    config = configs.choose("delta_scan", x.q.device, x.q.dtype, K, V)
    rows, width = 16, launch.width(K)
    launch.run(
        delta_walk.scan, segments.N * HV * -(-V // rows), saved.maps, initial, segments.first, segments.each, HV,
        config=config, K=K, V=V, BK=width, ROWS=rows, BLOCK=min(64, width),
        PRECISION=precision(x.q.dtype, planes), PACKED=segments.packed,
    )  # fmt: skip


def _walk(
    o: Tensor, final: Tensor | None, x: Operands, saved: Saved, initial: Tensor | None, sizes: Sizes, scale: float,
    planes: int,
) -> None:  # fmt: skip
    _, T, _, HV, K, V = sizes
    segments = saved.segments
    config = configs.choose("delta_outputs", x.q.device, x.q.dtype, K, V)
    launch.run(
        delta_walk.outputs, segments.segments * HV * -(-V // config.block),
        o, x.q, x.erase, x.write, x.v, saved.tm, saved.reads, saved.factors, saved.maps, (initial, final),
        strides(o, x.q, x.erase, x.write, x.v, saved.tm, saved.reads, saved.factors), (segments.table, segments.first),
        (T, segments.each, HV, *_per(x)), scale,
        config=config, **_common(x, saved, sizes, planes, config),
    )  # fmt: skip
