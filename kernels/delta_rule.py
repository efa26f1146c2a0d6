"""What a delta scan launches, forward and backward (public functions: delta_scan.py, delta_net.py, gated_delta_net.py).

Forward, up to five launches: `delta_inverse.inverses` and `.reads`, a program a chunk, make all that needs no state;
then `delta_walk.transitions` walks each segment to its affine map, `.scan` joins the maps to the state at each
segment's start (both only where a sequence has more than one segment), and `.outputs` walks each segment from there.

Backward, up to five: `delta_backward_walk.residuals` walks again, keeping states and residuals; `.accumulate`, `.scan`
and `.carry` do for gradients of states, from the other end, what a forward does for states; `delta_backward.gradients`
makes the rest, a program a chunk.

Memory is linear in T: 2 C numbers a token and head in the staging type and one [K + V, K] map a segment are kept for a
backward, which makes two states a chunk and two values a token.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import building, configs, delta_backward, delta_backward_walk, delta_inverse, delta_walk, launch
from linattest.kernels.blocks import CHUNK
from linattest.kernels.launch import Config, Layout

PLANES = {torch.float32: 1, torch.float16: 1, torch.bfloat16: 1}
"""Products an operand made in a forward kernel takes: two where it is staged in bfloat16 and one rounding is too
many."""

Strides: TypeAlias = tuple[int | triton.language.constexpr, ...]


class Operands(NamedTuple):
    """What a scan reads. `write` is None where it is beta * erase (then beta is not None)."""

    q: Tensor
    erase: Tensor
    write: Tensor | None
    v: Tensor
    g: Tensor | None
    beta: Tensor | None

    @property
    def sizes(self) -> Sizes:
        (B, T, H, K), (_, _, HV, V) = self.q.shape, self.v.shape
        return Sizes(B, T, H, HV, K, V)

    @property
    def per(self) -> tuple[int, int, int]:
        """Value heads per head of q, of erase and of write."""
        HV, write = self.v.shape[2], self.erase if self.write is None else self.write
        return HV // self.q.shape[2], HV // self.erase.shape[2], HV // write.shape[2]


class Saved(NamedTuple):
    """What the backward pass needs besides the operands: rows of Tm, reads, factors, maps and states of segments."""

    tm: Tensor
    reads: Tensor
    factors: Tensor
    maps: Tensor


class Cut(NamedTuple):
    """Where the segments and the chunks of a call lie."""

    segments: Layout
    chunks: Layout

    @classmethod
    def of(cls, x: Operands, cu_seqlens: Tensor | None) -> Cut:
        sizes, device = x.sizes, x.q.device
        length = configs.segment_length(sizes.T)
        return cls(launch.layout(cu_seqlens, sizes, length, device), launch.layout(cu_seqlens, sizes, CHUNK, device))

    @property
    def alone(self) -> bool:
        """Whether no sequence has a second segment."""
        return not self.segments.packed and self.segments.each <= 1


def strides(*tensors: Tensor | None) -> tuple[Strides, ...]:
    """`launch.strides` of each; zeros for those that are absent.

    Those within a tile, over tokens and channels, become constants of a kernel, so that addresses take no registers:
    the walks have none to spare. Over tokens it is the number of heads times the width, whatever T is.
    """
    return tuple([_fixed(0, 0, 0) if x is None else _fixed(*x.stride()) for x in tensors])


@building.once
def _fixed(b: int, t: int, h: int, c: int = 0) -> Strides:
    return (b, t, h, c) if launch.INTERPRETED else (b, triton.language.constexpr(t), h, triton.language.constexpr(c))


def _kind(dtype: torch.dtype) -> torch.dtype:
    """The type in which what one kernel makes is kept for another."""
    return torch.bfloat16 if dtype == torch.bfloat16 and not launch.INTERPRETED else torch.float32


def _kept_planes(dtype: torch.dtype) -> int:
    """Planes of Tm, whatever a forward reads of it: a backward needs its digits (see delta_backward_walk.py)."""
    return 2 if dtype == torch.bfloat16 else 1


def precision(dtype: torch.dtype, planes: int) -> str:
    """For products of float32 operands that no bfloat16 rounding follows."""
    return "tf32x3" if planes == 2 else launch.INPUT_PRECISION[dtype]


def _constants(x: Operands, segments: Layout, config: Config) -> dict[str, object]:
    """Of every kernel that walks segments."""
    return dict(
        K=x.sizes.K, V=x.sizes.V, BK=launch.width(x.sizes.K), BV=config.block, C=CHUNK, LENGTH=segments.length,
        STAGE=launch.stage(x.q.dtype), PRECISION=launch.INPUT_PRECISION[x.q.dtype], PACKED=segments.packed,
    )  # fmt: skip


def _walk_config(name: str, x: Operands) -> Config:
    """How a forward walk is built: otherwise where write keys are apart, which are one more tile of each chunk."""
    wide = 64 < x.sizes.K <= 128 and x.sizes.V > 64
    apart = wide and x.write is not None and x.q.dtype == torch.bfloat16
    return configs.choose(f"{name}_apart" if apart else name, x.q.device, x.q.dtype, x.sizes.K, x.sizes.V)


def _at_once(width: int) -> int:
    """Channels of a map that a scan over segments reads at once: all of them where they fit into shared memory."""
    return width if width <= 128 else 64


def _beyond(state: Tensor | None, cut: Cut, x: Operands) -> Tensor:
    """Room [N, HV, K, V] for states at the far ends of sequences, already right for those without tokens."""
    shape = (cut.segments.N, x.sizes.HV, x.sizes.K, x.sizes.V)
    if x.sizes.T > 0 and not cut.segments.packed:
        return x.q.new_empty(shape, dtype=torch.float32)
    return x.q.new_zeros(shape, dtype=torch.float32) if state is None else state.clone()


# --- forward -------------------------------------------------------------------------------------------------


def forward(
    x: Operands, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None, *, planes: int | None = None,
    divisor: Tensor | None = None, reads: Tensor | None = None,
) -> tuple[Tensor, Tensor, Saved]:  # fmt: skip
    """o [B, T, HV, V] in v's dtype, the final state [N, HV, K, V] float32, and what `backward` takes.

    q [B, T, H, K]; erase, write [B, T, H or HV, K]; v [B, T, HV, V]; g, beta [B, T, HV]; `initial_state`
    [N, HV, K, V] float32 or None: checked before. With `divisor` [B, T, HV] float32, o is divided by it. `reads`: what
    `delta_inverse.reads` would make of them, if there is such already (in a `room_of_reads`).
    """
    B, T, _, HV, K, V = x.sizes
    planes, cut = PLANES[x.q.dtype] if planes is None else planes, Cut.of(x, cu_seqlens)
    initial = None if initial_state is None else initial_state.contiguous()
    tm = x.q.new_empty(B, T, HV, max(planes, _kept_planes(x.q.dtype)) * CHUNK, dtype=_kind(x.q.dtype))
    made, reads = reads is not None, room_of_reads(x, planes) if reads is None else reads
    factors = x.q.new_empty(B, T, HV, 2, dtype=torch.float32)
    maps = x.q.new_empty(0 if cut.alone else cut.segments.segments, HV, K + V, K, dtype=torch.float32)
    saved = Saved(tm, reads, factors, maps)
    _invert(x, saved, cut.chunks, planes)
    if not made:
        _read(x, saved, cut.chunks, scale, planes)
    if not cut.alone:
        _connect(x, saved, initial, cut.segments, planes)
    o, final = launch.output(x.v, x.v.shape, zero=cut.segments.packed), _beyond(initial, cut, x)
    config = _walk_config("delta_outputs", x)
    launch.run(
        delta_walk.outputs, cut.segments.segments * HV * -(-V // config.block),
        o, x.q, x.erase, x.write, x.v, divisor, *saved, (initial, final),
        strides(o, x.q, x.erase, x.write, x.v, divisor, *saved[:3]), (cut.segments.table, cut.segments.first),
        (T, cut.segments.each, HV, *x.per), scale,
        config=config, PLANES=planes, **_constants(x, cut.segments, config),
    )  # fmt: skip
    return launch.rounded(o, x.v.dtype), final, saved


def room_of_reads(x: Operands, planes: int | None = None) -> Tensor:
    """[B, T, HV, planes * CHUNK], not filled: for what each token reads of what its chunk wrote."""
    planes = PLANES[x.q.dtype] if planes is None else planes
    return x.q.new_empty(*x.v.shape[:3], planes * CHUNK, dtype=_kind(x.q.dtype))


def _invert(x: Operands, saved: Saved, chunks: Layout, planes: int) -> None:
    """Fill `tm` and `factors`."""
    _, T, _, HV, K, _ = x.sizes
    _, per_erase, per_write = x.per
    launch.run(
        delta_inverse.inverses, chunks.segments * HV, saved.tm, saved.factors, x.erase, x.write, x.g, x.beta,
        strides(saved.tm, saved.factors, x.erase, x.write, x.g, x.beta), chunks.table,
        (T, chunks.each, HV, per_erase, per_write),
        config=Config(0, 1, 2), K=K, BLOCK=min(32, launch.width(K)), C=CHUNK, R=CHUNK // 4,
        PLANES=saved.tm.shape[3] // CHUNK,
        PRODUCT=launch.INPUT_PRECISION[x.q.dtype], PRECISION=precision(x.q.dtype, planes), PACKED=chunks.packed,
    )  # fmt: skip


def _read(x: Operands, saved: Saved, chunks: Layout, scale: float, planes: int) -> None:
    """Fill `reads`."""
    _, T, _, HV, K, _ = x.sizes
    per_query, _, per_write = x.per
    write = x.erase if x.write is None else x.write
    launch.run(
        delta_inverse.reads, chunks.segments * HV, saved.reads, x.q, write, x.g, x.beta,
        strides(saved.reads, x.q, write, x.g, x.beta), chunks.table, (T, chunks.each, HV, per_query, per_write), scale,
        config=Config(0, 4, 1), K=K, BLOCK=min(launch.width(K), 256 // x.q.element_size()), C=CHUNK, PLANES=planes,
        PRECISION=launch.INPUT_PRECISION[x.q.dtype], PACKED=chunks.packed,
    )  # fmt: skip


def _connect(x: Operands, saved: Saved, initial: Tensor | None, segments: Layout, planes: int) -> None:
    """Fill `maps`: each segment's map, then in its rows B the states between segments."""
    _, T, _, HV, K, V = x.sizes
    _, per_erase, per_write = x.per
    config = _walk_config("delta_transitions", x)
    blocks = -(-K // config.block) - (-V // config.block)
    launch.run(
        delta_walk.transitions, segments.segments * HV * blocks,
        saved.maps, saved.tm, saved.factors, x.erase, x.write, x.v,
        strides(saved.tm, saved.factors, x.erase, x.write, x.v), segments.table, segments.first,
        (T, segments.each, HV, per_erase, per_write),
        config=config, PLANES=planes, **_constants(x, segments, config),
    )  # fmt: skip
    config, rows, width = configs.choose("delta_scan", x.q.device, x.q.dtype, K, V), 16, launch.width(K)
    launch.run(
        delta_walk.scan, segments.N * HV * -(-V // rows), saved.maps, initial, segments.first, segments.each, HV,
        config=config, K=K, V=V, BK=width, ROWS=rows, BLOCK=_at_once(width),
        PRECISION=precision(x.q.dtype, planes), PACKED=segments.packed,
    )  # fmt: skip


# --- backward ------------------------------------------------------------------------------------------------


class _Walked(NamedTuple):
    """What a backward's walks leave: states before chunks and their gradients behind them [chunks, HV, V, K]; residuals
    and the gradients of what the triangular systems were solved for, which are those of v [B, T, HV, V]."""

    starts: Tensor
    ends: Tensor
    residuals: Tensor
    du: Tensor


def backward(
    x: Operands, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None, saved: Saved,
    do: Tensor | None, dfinal: Tensor | None, *, wide: bool = False,
) -> tuple[Operands, Tensor]:  # fmt: skip
    """Gradients of the operands, in their dtypes (None for those that are None), and of the initial state. If `wide`,
    those of q, erase and write are float32.

    The first four arguments are the forward's, `saved` what it kept, do [B, T, HV, V] in v's dtype (or
    float32 beside float16), dfinal [N, HV, K, V] float32; None is zero.
    """
    B, T, _, HV, K, V = x.sizes
    cut = Cut.of(x, cu_seqlens)
    initial, dfinal = (None if s is None else s.contiguous() for s in (initial_state, dfinal))
    do = torch.zeros_like(x.v) if do is None else do
    kind, states = _kind(x.q.dtype), (cut.chunks.segments, HV, V, K)
    walked = _Walked(
        x.q.new_empty(states, dtype=kind), x.q.new_empty(states, dtype=kind), x.q.new_empty(B, T, HV, V, dtype=kind),
        (x.q.new_zeros if cut.chunks.packed else x.q.new_empty)(B, T, HV, V, dtype=kind),
    )  # fmt: skip
    _walk_again(x, saved, walked, initial, cut.segments)
    dinitial = _walk_back(x, saved, walked, do, dfinal, cut, scale)
    return _gradients(x, walked, do, cut.chunks, scale, wide), dinitial


def _walk_again(x: Operands, saved: Saved, walked: _Walked, initial: Tensor | None, segments: Layout) -> None:
    """Fill `starts` and `residuals`."""
    _, T, _, HV, K, V = x.sizes
    _, per_erase, per_write = x.per
    config = configs.choose("delta_residuals", x.q.device, x.q.dtype, K, V)
    launch.run(
        delta_backward_walk.residuals, segments.segments * HV * -(-V // config.block),
        walked.starts, walked.residuals, x.erase, x.write, x.v, saved.tm, saved.factors, saved.maps, initial,
        strides(walked.residuals, x.erase, x.write, x.v, saved.tm, saved.factors), (segments.table, segments.first),
        (T, segments.each, HV, per_erase, per_write), config=config, **_constants(x, segments, config),
    )  # fmt: skip


def _walk_back(
    x: Operands, saved: Saved, walked: _Walked, do: Tensor, dfinal: Tensor | None, cut: Cut, scale: float
) -> Tensor:
    """Fill `ends` and `du`; the gradient of the initial state."""
    _, T, _, HV, K, V = x.sizes
    segments, dinitial = cut.segments, _beyond(dfinal, cut, x)
    upper = x.q.new_empty(0 if cut.alone else segments.segments, HV, V, K, dtype=torch.float32)
    # a stage holds twice as much at 256 channels, or in tf32: two have no room
    roomy = "_roomy" if launch.width(K) > 128 or launch.stage(x.q.dtype) == triton.language.float32 else ""
    config = configs.choose(f"delta_carry{roomy}", x.q.device, x.q.dtype, K, V)
    inputs = (x.erase, x.write, x.q, do, saved.tm, saved.reads, saved.factors)
    places, sizes = (segments.table, segments.first), (T, segments.each, HV, *x.per)
    programs, planes = segments.segments * HV * -(-V // config.block), _kept_planes(x.q.dtype)
    constants = _constants(x, segments, config) | {"PLANES": planes}
    if not cut.alone:
        launch.run(
            delta_backward_walk.accumulate, programs, upper, dfinal, inputs, strides(*inputs), places, sizes, scale,
            config=config, **constants,
        )  # fmt: skip
        rows, width = 16, launch.width(K)
        launch.run(
            delta_backward_walk.scan, segments.N * HV * -(-V // rows), upper, saved.maps, segments.first, segments.each,
            HV, config=configs.choose("delta_scan", x.q.device, x.q.dtype, K, V), K=K, V=V, BK=width, ROWS=rows,
            BLOCK=_at_once(width), PRECISION=launch.INPUT_PRECISION[x.q.dtype], PACKED=segments.packed,
        )  # fmt: skip
    launch.run(
        delta_backward_walk.carry, programs, walked.du, walked.ends, upper, (dfinal, dinitial), inputs,
        strides(walked.du, *inputs), places, sizes, scale, config=config, **constants,
    )  # fmt: skip
    return dinitial


def _gradients(x: Operands, walked: _Walked, do: Tensor, chunks: Layout, scale: float, wide: bool) -> Operands:
    """Gradients of the operands, from what the walks left."""
    B, T, _, HV, K, V = x.sizes

    def room(like: Tensor) -> Tensor:
        return launch.output(like, (B, T, HV, K), zero=chunks.packed, wide=wide or like.shape[2] < HV)

    def of(like: Tensor, gradient: Tensor) -> Tensor:
        return launch.over_groups(gradient, like.shape[2], torch.float32 if wide else like.dtype)

    dq, derase, dwrite = room(x.q), room(x.erase), None if x.write is None else room(x.write)
    dg, dbeta = (None if y is None else launch.output(y, y.shape, zero=chunks.packed) for y in (x.g, x.beta))
    values = min(64, launch.width(V) // 2) if V > 16 else 16  # with one block alone, a compiler holds it all along
    config = configs.choose("delta_gradients", x.q.device, x.q.dtype, 64, K)  # its block is of key channels
    inputs, results = (x.q, x.erase, x.write, x.g, x.beta, do), (dq, derase, dwrite, dg, dbeta)
    launch.run(
        delta_backward.gradients, chunks.segments * HV, results, inputs, walked,
        strides(*results, *inputs, walked.residuals, walked.du), chunks.table,
        (T, chunks.each, HV, *x.per), scale, config=config, K=K, V=V, BK=config.block, BV=values,
        C=CHUNK, STAGE=launch.stage(x.q.dtype), PRECISION=launch.INPUT_PRECISION[x.q.dtype], PACKED=chunks.packed,
    )  # fmt: skip
    return Operands(
        of(x.q, dq), of(x.erase, derase), None if dwrite is None or x.write is None else of(x.write, dwrite),
        launch.rounded(walked.du, x.v.dtype),
        None if dg is None or x.g is None else launch.rounded(dg, x.g.dtype),
        None if dbeta is None or x.beta is None else launch.rounded(dbeta, x.beta.dtype),
    )  # fmt: skip
