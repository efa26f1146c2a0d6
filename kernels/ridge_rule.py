"""What a running ridge solve launches, forward and backward.

Forward: `ridge_sums` makes M at the start of every segment. float32: each segment is
walked from there by `ridge_conjugate.solve`. Narrower inputs: by `ridge_walk.walk`, from an inverse of
`ridge_inverse.inverses`; the rows that it marked are done by `ridge_again.walk`, with twice the digits, and those that
this leaves marked by `ridge_conjugate.solve`. Both end at once where nothing is marked.

Backward, with b_t = (lam0 I + M_t)^{-1} ybar_t, the same solve, and Mbar the gradient of the final M:

    xbar_t = b_t,   lam0bar = - sum_t b_t . y_t,   Mbar_0 = sym(Mbar - sum_t b_t y_t^T)
    ubar_s = (Mbar + Mbar^T) u_s - sum_{t >= s} [b_t (y_t . u_s) + y_t (b_t . u_s)]

The last sum is minus what a linear attention that reads u u^T with b, and whose outputs have the gradient y, sends to
its keys and its values: one backward of a decay scan.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import (
    configs,
    decay,
    launch,
    ridge_again,
    ridge_conjugate,
    ridge_inverse,
    ridge_sums,
    ridge_walk,
)
from linattest.kernels.delta_rule import strides
from linattest.kernels.launch import CHUNK, Config, Layout


class Sums(NamedTuple):
    """Of keys, float32: at the start of each segment [segments, H, K], what is added from there until each chunk
    [chunks, H, K], and in the end [N, H, K]."""

    starts: Tensor
    before: Tensor
    final: Tensor


class Penalty(NamedTuple):
    """What all solves of a call share: directions u [B, T, H, K], lam0 as a tensor [H] float32 or (None and) a number,
    where packed sequences begin, and M at the start of each segment [segments, H, K, K]."""

    u: Tensor
    lam: Tensor | None
    number: float
    cu_seqlens: Tensor | None
    edges: Tensor


def penalty(
    u: Tensor, lam: Tensor | None, number: float, initial: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Penalty, Tensor]:
    """Sums of u u^T up to each segment, and the final M [N, H, K, K] (the initial one where there are no tokens)."""
    edges, final, _ = sums(u, None, initial, None, cu_seqlens)
    return Penalty(u, lam, number, cu_seqlens, edges), final


def sums(
    u: Tensor, k: Tensor | None, M: Tensor | None, z: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Sums | None]:
    """M [segments, H, K, K] at the start of each segment and the final one [N, H, K, K], from an initial M or None; of
    z likewise, None without k."""
    B, T, H, K = u.shape
    cut, width = (
        launch.layout(cu_seqlens, Sizes(B, T, H, H, K, K), configs.segment_length(T), u.device),
        launch.width(K),
    )

    def room(*shape: int) -> Tensor:
        return u.new_empty(shape, dtype=torch.float32)

    edges, final = room(cut.segments, H, K, K), room(cut.N, H, K, K)
    chunks = -(-T // CHUNK) + cut.N if cut.packed else B * -(-T // CHUNK)
    z_sums = None if k is None else Sums(room(cut.segments, H, K), room(chunks, H, K), room(cut.N, H, K))
    starts, before, last = (None, None, None) if z_sums is None else z_sums
    config = configs.choose("ridge_sums", u.device, u.dtype, K, K)
    launch.run(
        ridge_sums.sums, cut.segments * H * -(-K // config.block), edges, starts, before, u, k, strides(u, k),
        cut.table, (T, cut.each, H), config=config, K=K, BK=width, BV=config.block, C=CHUNK, LENGTH=cut.length,
        PRECISION=launch.INPUT_PRECISION[u.dtype], PACKED=cut.packed,
    )  # fmt: skip
    block = min(1024, launch.width(K * K))
    programs = -(-(K * K) // block) + (0 if k is None else -(-K // block))
    initial = tuple(None if x is None else x.contiguous() for x in (M, z))
    launch.run(
        ridge_sums.scan, cut.N * H * programs, edges, starts, initial, (final, last), cut.first, cut.each, H,
        config=Config(block, 4, 1), K=K, BLOCK=block, PACKED=cut.packed,
    )  # fmt: skip
    return edges, final, z_sums


def no_gate(x: Tensor) -> Tensor:
    """A zero for every token and head of x [B, T, H, K], in the memory of one."""
    return x.new_zeros(()).expand(x.shape[:3])


def _empty(u: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N or 1, 1, 1, 1]: whether a sequence has no tokens."""
    if cu_seqlens is None:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=u.device)
    return (cu_seqlens.to(u.device).diff() == 0).view(-1, 1, 1, 1)


HALF = 128
"""Largest key width of the walk in half precision: its programs hold a [K, K] matrix."""


def solve(p: Penalty, x: Tensor, *, unit: Tensor | None = None, lengths: Tensor | None = None, wide: bool = False) -> (
    Tensor
):  # fmt: skip
    """y [B, T, H, K] in x's dtype, or float32 if `wide`; fills `unit` and `lengths` (see ridge_conjugate.solve).

    For bfloat16 and float16 directions in half precision, and the rows that this cannot do in float32.
    """
    B, T, H, K = x.shape
    cut = launch.layout(p.cu_seqlens, Sizes(B, T, H, H, K, K), configs.segment_length(T), x.device)
    y = launch.output(x, x.shape, zero=cut.packed, wide=wide)
    marks = clean = None
    if p.u.dtype != torch.float32 and K <= HALF:
        marks = x.new_empty(B, T, H, dtype=torch.int8)
        clean = _walk(p, x, (y, unit, lengths, marks), cut)
    width, programs, results = launch.width(K), cut.segments * H, (y, unit, lengths, marks)
    C = CHUNK if width <= 32 else min(32, 4096 // width)
    rooms = (x.new_empty(programs, 2, C, K, dtype=torch.float32), x.new_empty(programs, K, K, dtype=torch.float32))
    launch.run(
        ridge_conjugate.solve, programs, results, clean, x, p.u, p.lam, p.edges, rooms, strides(*results, x, p.u),
        cut.table, (T, cut.each, H), p.number, config=Config(C, 8 if width >= 64 else 4, 1, 255), K=K, BK=width,
        BLOCK=16, C=C, LENGTH=cut.length, PRECISION="tf32x3", PACKED=cut.packed,
    )  # fmt: skip
    return y


def _walk(p: Penalty, x: Tensor, results: tuple[Tensor | None, ...], cut: Layout) -> Tensor:
    """Fill what half precision can, and the marks of the rest; [segments, H] int32: whether there are none."""
    _, T, H, K = x.shape
    width, programs = launch.width(K), cut.segments * H
    inverse, room = (x.new_empty(cut.segments, H, 2, K, K, dtype=torch.float16) for _ in range(2))
    sound, clean = (x.new_empty(cut.segments, H, n, dtype=torch.int32) for n in (2, 1))
    rest = (strides(*results, x, p.u), cut.table, (T, cut.each, H), p.number)
    constants = dict(
        K=K, BK=width, C=CHUNK, HEAD=_head(K), LENGTH=cut.length, STAGE=triton.language.float16, PACKED=cut.packed
    )
    launch.run(
        ridge_inverse.inverses, programs, inverse, room, sound, clean, results, x, p.u, p.edges, p.lam, *rest,
        config=Config(0, 8 if width > 64 else 4, 1), **constants,
    )  # fmt: skip
    for kernel in (ridge_walk.walk, ridge_again.walk):
        launch.run(
            kernel, programs, results, clean, x, p.u, p.lam, inverse, sound, room, *rest,
            config=Config(0, 4, 1), **constants,
        )  # fmt: skip
    return clean


def _head(K: int) -> int:
    """Chunks at the start of a sequence that ridge_walk.py cannot be expected to do: with VLA's directions, of length
    1/sqrt(K), trace(N) is 64/(K lam0) in the first, and repeated ones are a K-th of that many."""
    return 1 if K > 64 else 2 if K > 32 else 4


def one_token(K: int) -> Config:
    """How a kernel is built that holds a penalty."""
    return Config(0, 16, 1, 128) if K > 128 else Config(0, 8 if K > 64 else 4, 1)


def backward(p: Penalty, y: Tensor, dy: Tensor | None, dfinal: Tensor | None, initial: Tensor | None) -> tuple[
    Tensor, Tensor, Tensor, Tensor
]:  # fmt: skip
    """Gradients of x [B, T, H, K] float32, of u (in its dtype), of lam0 [H] (if it is a tensor) and of the initial M,
    from those of y and the final M (None is zero); y [B, T, H, K] as `solve` gave it, float32."""
    kind = torch.bfloat16 if p.u.dtype == torch.bfloat16 and not launch.INTERPRETED else torch.float32
    dx = torch.zeros_like(y) if dy is None else solve(p, dy, wide=True)
    dlam = y.new_empty(0) if p.lam is None else -(dx * y).sum((0, 1, 3))
    b, out, u = dx.to(kind), y.to(kind), p.u.to(kind)
    minus = None if dfinal is None else -dfinal
    _, dkeys, dvalues, _, dstart = decay.backward(
        b, u, u, no_gate(u), None, p.cu_seqlens, 1.0, p.edges, out, minus
    )  # fmt: skip
    dinitial = -(dstart + dstart.mT) / 2
    if dfinal is not None and initial is not None and (p.cu_seqlens is not None or p.u.shape[1] == 0):
        dinitial = torch.where(_empty(p.u, p.cu_seqlens), dfinal, dinitial)
    return dx, -(dkeys.float() + dvalues).to(p.u.dtype), dlam, dinitial
