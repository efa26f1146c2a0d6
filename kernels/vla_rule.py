"""What VLA launches, forward and backward: a ridge solve, a delta scan that erases k^ and writes a, and a ratio.

Forward: `ridge_rule` makes k^ and a from k and u; `delta_rule` walks them, and divides each output by the token's
denominator, which `vla_ratio` makes from the running sum of the keys, beside what the walk reads.

Backward: the delta scan's, whose gradient of a write key goes back through its normalisation into the ridge solve's,
whose gradient of x joins that of the erase key and goes back through the normalisation of k. The denominator's
gradient is -(numerator gradient . numerator)/d, and the numerator is linear in what reads it: it is -(q . qbar)/d.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.kernels import decay, delta_rule, delta_scan, launch, ridge_decode, ridge_rule, vla_ratio
from linattest.kernels.delta_rule import Operands
from linattest.kernels.launch import CHUNK, Config
from linattest.kernels.ridge_rule import Penalty, Sums, no_gate, one_token


class Inputs(NamedTuple):
    """q, k, u [B, T, H, K], v [B, T, H, V]; `read` like q: what reads S in its place, if not None; `lam` [H] float32 or
    None (then `number`); `unit`: a is normalised; `eps` the floor of a denominator, None without them."""

    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor
    read: Tensor | None
    lam: Tensor | None
    number: float
    unit: bool
    eps: float | None
    cu_seqlens: Tensor | None


class State(NamedTuple):
    """S [N, H, K, V], M [N, H, K, K], z [N, H, K] float32; of an initial state each may be None."""

    S: Tensor | None
    M: Tensor | None
    z: Tensor | None


class Kept(NamedTuple):
    """What the backward needs: k^ and a [B, T, H, K], |y| [B, T, H] (empty if not `unit`), denominators [B, T, H]
    (empty without), M and z at the starts of segments, and what the delta scan keeps."""

    erase: Tensor
    write: Tensor
    lengths: Tensor
    divisor: Tensor
    penalties: Tensor
    sums: Tensor
    delta: delta_rule.Saved


def forward(x: Inputs, initial: State) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Kept]:
    """o [B, T, H, V] in v's dtype, the final state, and what `backward` takes."""
    packed = x.cu_seqlens is not None
    edges, M, sums = ridge_rule.sums(x.u, x.k, initial.M, initial.z, x.cu_seqlens)
    assert sums is not None
    penalty = Penalty(x.u, x.lam, x.number, x.cu_seqlens, edges)
    erase = launch.output(x.k, x.k.shape, zero=packed, wide=_wide(x))
    lengths = (x.k.new_zeros if packed else x.k.new_empty)(x.k.shape[:3] if x.unit else 0, dtype=torch.float32)
    write = ridge_rule.solve(penalty, x.k, unit=erase, lengths=lengths if x.unit else None, wide=_wide(x))
    operands = _operands(x, erase, write)
    reads, divisor = (None, None) if x.eps is None else _reads(x, operands, sums)
    o, S, saved = delta_rule.forward(operands, 1.0, initial.S, x.cu_seqlens, divisor=divisor, reads=reads)
    divisor = x.k.new_empty(0, dtype=torch.float32) if divisor is None else divisor
    kept = Kept(erase, write, lengths, divisor, edges, sums.starts, saved)
    return launch.rounded(o, x.v.dtype), (S, M, sums.final), kept


def _wide(x: Inputs) -> bool:
    """Whether k^ and a are float32: raw gains, up to 1/lam0, may leave float16's range."""
    return x.k.dtype == torch.float16 and not x.unit


def _operands(x: Inputs, erase: Tensor, write: Tensor) -> Operands:
    """Those of the delta scan, of one dtype."""
    read = x.q if x.read is None else x.read
    read, v = (read.float(), x.v.float()) if _wide(x) else (read, x.v)
    return Operands(read, erase, write, v, None, None)


def _reads(x: Inputs, operands: Operands, sums: Sums) -> tuple[Tensor, Tensor]:
    """What each token reads of what its chunk wrote (see `delta_rule.room_of_reads`), and denominators [B, T, H]."""
    B, T, H, K = x.q.shape
    cut = delta_rule.Cut.of(operands, x.cu_seqlens)
    divisor = (x.q.new_ones if cut.chunks.packed else x.q.new_empty)(B, T, H, dtype=torch.float32)
    reads = delta_rule.room_of_reads(operands)
    read = None if operands.q is x.q else operands.q
    assert operands.write is not None
    launch.run(
        vla_ratio.reads, cut.chunks.segments * H, reads, divisor, x.q, read, operands.write, x.k,
        (sums.starts, sums.before), delta_rule.strides(reads, divisor, x.q, read, operands.write, x.k),
        (cut.chunks.table, cut.chunks.first, cut.segments.first), (T, cut.chunks.each, cut.segments.each, H), x.eps,
        config=Config(0, 4, 1), K=K, BLOCK=min(launch.width(K), 256 // operands.q.element_size()), C=CHUNK,
        PER=cut.segments.length // CHUNK, PLANES=reads.shape[3] // CHUNK,
        PRECISION=launch.INPUT_PRECISION[x.q.dtype], PACKED=cut.chunks.packed,
    )  # fmt: skip
    return reads, divisor


def step(x: Inputs, initial: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One token: o [B, 1, H, V] in v's dtype, S, M and z after it."""
    B, _, H, K = x.q.shape
    erase, write, reader = (x.k.new_empty(B, 1, H, K, dtype=torch.float32) for _ in range(3))
    M, z = (x.k.new_empty(B, H, *shape, dtype=torch.float32) for shape in ((K, K), (K,)))
    S, before, sums = (None if y is None else y.contiguous() for y in initial)
    launch.run(
        ridge_decode.vla_step, B * H, (erase, write, reader, M, z), x.q, x.k, x.u, x.read, x.lam, (before, sums),
        delta_rule.strides(x.q, x.k, x.u, x.read), H, x.number, x.eps,
        config=one_token(K), K=K, BK=launch.width(K), UNIT=x.unit,
    )  # fmt: skip
    o, S = delta_scan.STEP.forward(reader, erase, write, x.v, None, None, S, 1.0)
    return o, S, M, z


# --- backward ------------------------------------------------------------------------------------------------


class Gradients(NamedTuple):
    """Of the inputs in their dtypes, of lam0 [H] and of the initial state in float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor
    read: Tensor | None
    lam: Tensor
    S: Tensor
    M: Tensor
    z: Tensor


def backward(x: Inputs, initial: State, kept: Kept, do: Tensor | None, final: State) -> Gradients:
    """From the gradients of o and of the final state (None is zero), and what the forward was given and kept."""
    do = torch.zeros_like(x.v) if do is None else do
    operands = _operands(x, kept.erase, kept.write)
    upstream = (do if x.eps is None else do / kept.divisor.unsqueeze(3)).to(_upstream_type(x, operands))
    found, dS = delta_rule.backward(operands, 1.0, initial.S, x.cu_seqlens, kept.delta, upstream, final.S, wide=True)
    assert found.write is not None
    dq, dsums, dz = _of_sums(x, kept, found.q, final.z)
    dread = None if x.read is None else found.q.to(x.read.dtype)
    dy, y = found.write, kept.write.float()
    if x.unit:
        dy, y = _tangents(kept.write, dy, lengths=kept.lengths), y * kept.lengths.unsqueeze(3)
    penalty = Penalty(x.u, x.lam, x.number, x.cu_seqlens, kept.penalties)
    dx, du, dlam, dM = ridge_rule.backward(penalty, y, dy, final.M, initial.M)
    dk = _tangents(x.k, found.erase, second=dx, beside=dsums)
    dq, dk = dq.to(x.q.dtype), dk.to(x.k.dtype)
    return Gradients(dq, dk, found.v.to(x.v.dtype), du, dread, dlam, dS, dM, dz)


def _upstream_type(x: Inputs, operands: Operands) -> torch.dtype:
    """Denominators grow with the tokens: what is divided by them would be subnormal in float16."""
    return torch.float32 if x.eps is not None and x.q.dtype == torch.float16 else operands.v.dtype


def _of_sums(x: Inputs, kept: Kept, dq: Tensor, dz: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """The whole gradient of q, what the denominators and the final z send to k, and the gradient of the initial z; dq
    is the gradient of what reads S."""
    ratio, own = torch.zeros_like(dq[..., :1]), dq if x.read is None else torch.zeros_like(dq)
    if x.eps is not None:
        d = kept.divisor.unsqueeze(3)
        floor = ctypes.c_float(x.eps).value  # as a kernel has it
        reader = x.q if x.read is None else x.read
        ratio = torch.where(d <= floor, 0.0, -(dq * reader).sum(3, keepdim=True) / d)
    kind = torch.bfloat16 if x.q.dtype == torch.bfloat16 and not launch.INTERPRETED else torch.float32
    q, k = x.q.to(kind), x.k.to(kind)
    ones, final = k.new_ones(()).expand(*k.shape[:3], 1), None if dz is None else dz.unsqueeze(3)
    if x.eps is None and dz is None:
        return own, None, kept.sums.new_zeros(_sequences(x), *kept.sums.shape[1:])
    of_q, of_k, _, _, start = decay.backward(
        q, k, ones, no_gate(k), None, x.cu_seqlens, 1.0, kept.sums.unsqueeze(3), ratio.to(kind), final
    )  # fmt: skip
    return own + of_q, of_k, start.squeeze(3)


def _sequences(x: Inputs) -> int:
    return x.q.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


def _tangents(
    x: Tensor, first: Tensor, *, lengths: Tensor | None = None, second: Tensor | None = None,
    beside: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """See `vla_ratio.tangents`; float32."""
    B, T, H, K = x.shape
    dx, width = x.new_empty(x.shape, dtype=torch.float32), launch.width(K)
    rows = max(1, 2048 // width)
    inputs = (x, lengths, first, second, beside)
    launch.run(
        vla_ratio.tangents, -(-(B * T * H) // rows), dx, *inputs,
        delta_rule.strides(dx, *inputs), (T, H, B * T * H),
        config=Config(rows, 4, 1), K=K, BK=width, ROWS=rows,
    )  # fmt: skip
    return dx
