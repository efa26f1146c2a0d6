"""Level weights from level features in one launch: what `linattest.impls.level_weights` makes in a dozen.

    linear         softplus(weight * d)                           weight [L] or [H, L]
    mlp_softplus   softplus(act(d w1 + b1) w2 + b2)               w1 [L, hidden], w2 [hidden, L]
    mlp_softmax    softmax(act(d w1 + b1) w2 + b2) over levels

Arguments, results and errors as there, for float32, bfloat16 and float16 features; all arithmetic is float32. The
result is the argument `level_weights` of `log_linear.chunk` and `.step`. Gradients of parameters are sums over
programs, made in the same order every time.

Source: [AdaptiveDecay].
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from linattest.impls import arguments
from linattest.kernels import launch
from linattest.kernels.blocks import dot, dot_add
from linattest.kernels.launch import Config
from linattest.kernels.library import Operation

ACTIVATIONS = ("identity", "gelu", "softplus")
ROWS = 64
"""Feature vectors that a program handles at a time."""

PROGRAMS = 264
"""Programs at most: each keeps the gradients of the parameters."""


def linear(d: Tensor, weight: Tensor) -> Tensor:
    """softplus(weight * d): d [..., L] or [..., H, L], weight [L] or [H, L]; the shape of d, in float32."""
    _check_features(d)
    arguments.check_floating("weight", weight)
    if weight.dim() not in (1, 2) or weight.shape != d.shape[-weight.dim() :]:
        raise ValueError(f"weight has shape {list(weight.shape)}, expected d's last sizes, [L] or [H, L]")
    arguments.check_device("weight", weight, d, "d")
    return LINEAR(d, weight)[0]


def mlp_softplus(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: str = "identity"
) -> Tensor:
    """softplus(act(d w1 + b1) w2 + b2): d [..., L], w1 [L, hidden], b1 [hidden] or None, w2 [hidden, L], b2 [L]."""
    return _mlp(d, w1, b1, w2, b2, activation, normalised=False)


def mlp_softmax(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: str = "identity"
) -> Tensor:
    """softmax over the levels of act(d w1 + b1) w2 + b2; everything else as in `mlp_softplus`."""
    return _mlp(d, w1, b1, w2, b2, activation, normalised=True)


def _mlp(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: str, *, normalised: bool
) -> Tensor:
    L = _check_features(d)
    hidden = arguments.check_rank("w1", w1, "[L, hidden]").shape[-1]
    shapes = {"w1": (w1, (L, hidden), "[L, hidden]"), "w2": (w2, (hidden, L), "[hidden, L]"), "b2": (b2, (L,), "[L]")}
    if b1 is not None:
        shapes["b1"] = (b1, (hidden,), "[hidden]")
    for name, (value, shape, meaning) in shapes.items():
        arguments.check_shape(name, arguments.check_floating(name, value), shape, meaning)
        arguments.check_device(name, value, d, "d")
    if hidden > launch.WIDEST:
        raise ValueError(f"hidden is {hidden}, expected at most {launch.WIDEST} in a kernel")
    arguments.check_choice("activation", activation, ACTIVATIONS)
    return MLP(d, w1, b1, w2, b2, ACTIVATIONS.index(activation), normalised)[0]


def _check_features(d: object) -> int:
    """d [..., L]; returns L."""
    tensor = arguments.check_floating("d", d)
    if not tensor.dim() or not 1 <= tensor.shape[-1] <= 64:
        raise ValueError(f"d has shape {list(tensor.shape)}, expected [..., L] with L from 1 to 64")
    if tensor.dtype not in launch.DTYPES:
        raise TypeError(f"d has dtype {tensor.dtype}, expected float32, bfloat16 or float16")
    return tensor.shape[-1]


# --- device code ---------------------------------------------------------------------------------------------


@triton.jit
def log1p(e):
    """log(1 + e) for e in [0, 1], to the last digits: what 1 + e rounds away comes back as a factor."""
    u = 1.0 + e
    return tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def sigmoid(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """act(x) and its derivative."""
    if ACTIVATION == 1:
        phi = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        return x * phi, phi + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    if ACTIVATION == 2:
        return softplus(x), sigmoid(x)
    return x, tl.full(x.shape, 1.0, tl.float32)


@triton.jit
def matrix(ptr, rows, columns, strides, R, C):
    """[rows, columns] of a parameter [R, C] in float32, 0 beyond."""
    mask = (rows < R)[:, None] & (columns < C)[None, :]
    return tl.load(ptr + rows[:, None] * strides[0] + columns[None, :] * strides[1], mask=mask, other=0.0).to(
        tl.float32
    )


@triton.jit
def linear_weights(out, dd, dweight, d, weight, upstream, sizes, BL: tl.constexpr, ROWS: tl.constexpr,
                   BACKWARD: tl.constexpr):  # fmt: skip
    """out [rows, L]; backward dd [rows, L] and dweight [rows, L], not yet summed. weight [H, L]; sizes rows, H, L."""
    count, H, L = sizes
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    l = tl.arange(0, BL)
    where, mask = r[:, None] * L + l[None, :], (r < count)[:, None] & (l < L)[None, :]
    x = tl.load(d + where, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight + (r % H)[:, None] * L + l[None, :], mask=mask, other=0.0).to(tl.float32)
    if BACKWARD:
        dz = tl.load(upstream + where, mask=mask, other=0.0) * sigmoid(w * x)
        tl.store(dd + where, dz * w, mask=mask)
        tl.store(dweight + where, dz * x, mask=mask)
    else:
        tl.store(out + where, softplus(w * x), mask=mask)


@triton.jit
def mlp_weights(
    results, d, parameters, upstream, strides, sizes,
    BL: tl.constexpr, BH: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, NORMALISED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out [rows, L]; with an upstream gradient dd [rows, L], and of each program dw1 [BL, BH], db1 [BH], dw2 [BH, BL],
    db2 [BL]. parameters w1, b1 (or None), w2, b2, strides of w1 and w2; sizes rows, L, hidden, programs."""
    out, dd, dw1, db1, dw2, db2 = results
    w1, b1, w2, b2 = parameters
    count, L, hidden, programs = sizes
    pid = tl.program_id(0).to(tl.int64)
    l, j = tl.arange(0, BL), tl.arange(0, BH)
    first, second = matrix(w1, l, j, strides[0], L, hidden), matrix(w2, j, l, strides[1], hidden, L)
    bias = tl.load(b2 + l, mask=l < L, other=0.0).to(tl.float32)
    inner = tl.zeros([BH], tl.float32)
    if b1 is not None:
        inner += tl.load(b1 + j, mask=j < hidden, other=0.0).to(tl.float32)
    of_first, of_second = tl.zeros([BL, BH], tl.float32), tl.zeros([BH, BL], tl.float32)
    of_inner, of_bias = tl.zeros([BH], tl.float32), tl.zeros([BL], tl.float32)
    for block in range(pid, tl.cdiv(count, ROWS), programs):
        r = block * ROWS + tl.arange(0, ROWS)
        where, mask = r[:, None] * L + l[None, :], (r < count)[:, None] & (l < L)[None, :]
        x = tl.load(d + where, mask=mask, other=0.0).to(tl.float32)  # [ROWS, BL]
        h, slope = activated(dot(x, first, PRECISION) + inner[None, :], ACTIVATION)  # [ROWS, BL] [BL, BH]
        h = tl.where((j < hidden)[None, :], h, 0.0)
        z = dot(h, second, PRECISION) + bias[None, :]  # [ROWS, BH] [BH, BL]
        p = z
        if NORMALISED:
            z = tl.where((l < L)[None, :], z, -1e30)
            p = tl.exp(z - tl.max(z, axis=1)[:, None])
            p = p / tl.sum(p, axis=1)[:, None]
        if upstream is None:
            tl.store(out + where, p if NORMALISED else softplus(z), mask=mask)
        else:
            dz = tl.load(upstream + where, mask=mask, other=0.0)
            if NORMALISED:
                dz = p * (dz - tl.sum(p * dz, axis=1)[:, None])
            else:
                dz *= sigmoid(z)
            dh = dot(dz, tl.trans(second), PRECISION) * slope  # [ROWS, BL] [BL, BH]
            dh = tl.where((j < hidden)[None, :], dh, 0.0)
            tl.store(dd + where, dot(dh, tl.trans(first), PRECISION), mask=mask)  # [ROWS, BH] [BH, BL]
            of_second = dot_add(of_second, tl.trans(h), dz, PRECISION)  # [BH, ROWS] [ROWS, BL]
            of_first = dot_add(of_first, tl.trans(x), dh, PRECISION)  # [BL, ROWS] [ROWS, BH]
            of_inner += tl.sum(dh, axis=0)
            of_bias += tl.sum(dz, axis=0)
    if upstream is not None:
        tl.store(dw1 + (pid * BL + l[:, None]) * BH + j[None, :], of_first)
        tl.store(dw2 + (pid * BH + j[:, None]) * BL + l[None, :], of_second)
        tl.store(db1 + pid * BH + j, of_inner)
        tl.store(db2 + pid * BL + l, of_bias)


# --- launches ------------------------------------------------------------------------------------------------


def _run_linear(d: Tensor, weight: Tensor, upstream: Tensor | None) -> tuple[Tensor, Tensor]:
    """(out, empty), or (dd, dweight for each row)."""
    L = d.shape[-1]
    d, weight = d.contiguous(), weight.contiguous()
    found = tuple(torch.empty_like(d, dtype=torch.float32) for _ in range(1 if upstream is None else 2))
    out, *rest = found
    launch.run(
        linear_weights, -(-d.numel() // L // ROWS), out, out, rest[0] if rest else out, d, weight,
        out if upstream is None else upstream.contiguous(), (d.numel() // L, weight.numel() // L, L),
        config=Config(0, 4, 1), BL=launch.width(L), ROWS=ROWS, BACKWARD=upstream is not None,
    )  # fmt: skip
    return out, rest[0] if rest else out


def _linear(d: Tensor, weight: Tensor) -> tuple[Tensor]:
    return (_run_linear(d, weight, None)[0],)


def _linear_backward(d: Tensor, weight: Tensor, upstream: Tensor | None) -> tuple[Tensor, Tensor]:
    upstream = torch.zeros_like(d, dtype=torch.float32) if upstream is None else upstream
    dd, dweight = _run_linear(d, weight, upstream)
    return launch.rounded(dd, d.dtype), dweight.view(-1, *weight.shape).sum(0).to(weight.dtype)


LINEAR = Operation("level_weights_linear", _linear, _linear_backward, tensors=2, public=1)


def _run_mlp(
    d: Tensor, parameters: tuple[Tensor, Tensor | None, Tensor, Tensor], activation: int, normalised: bool,
    upstream: Tensor | None,
) -> tuple[Any, ...]:  # fmt: skip
    w1, b1, w2, b2 = parameters
    (L, hidden), rows = w1.shape, d.numel() // w1.shape[0]
    at_once = ROWS if upstream is None else ROWS // 4  # a backward keeps much else in registers
    d, programs = d.contiguous(), min(PROGRAMS, -(-rows // at_once))
    BL, BH = launch.width(L), launch.width(hidden)

    def room(*shape: int) -> Tensor:
        return d.new_empty(0 if upstream is None else programs, *shape, dtype=torch.float32)

    one = torch.empty_like(d, dtype=torch.float32)  # the weights, or the gradient of d
    partial = room(BL, BH), room(BH), room(BH, BL), room(BL)
    launch.run(
        mlp_weights, programs, (one, one, *partial), d,
        (w1, None if b1 is None else b1.contiguous(), w2, b2.contiguous()),
        None if upstream is None else upstream.contiguous(), (w1.stride(), w2.stride()), (rows, L, hidden, programs),
        config=Config(0, 4, 1), BL=BL, BH=BH, ROWS=at_once, ACTIVATION=activation, NORMALISED=normalised,
        PRECISION="tf32x3",
    )  # fmt: skip
    return one, partial


def _mlp_forward(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: int, normalised: bool
) -> tuple[Tensor]:
    return (_run_mlp(d, (w1, b1, w2, b2), activation, normalised, None)[0],)


def _mlp_backward(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: int, normalised: bool,
    upstream: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    upstream = torch.zeros_like(d, dtype=torch.float32) if upstream is None else upstream
    dd, partial = _run_mlp(d, (w1, b1, w2, b2), activation, normalised, upstream)
    dw1, db1, dw2, db2 = (x.sum(0) for x in partial)
    L, hidden = w1.shape
    return (
        launch.rounded(dd, d.dtype), dw1[:L, :hidden].to(w1.dtype),
        d.new_empty(0) if b1 is None else db1[:hidden].to(b1.dtype), dw2[:hidden, :L].to(w2.dtype),
        db2[:L].to(b2.dtype),
    )  # fmt: skip


MLP = Operation("level_weights_mlp", _mlp_forward, _mlp_backward, tensors=5, public=1)
