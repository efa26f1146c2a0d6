"""Launching: the one place where kernels start, and what every launcher needs around it.

Arguments are checked by `linattest.impls.arguments` before anything here runs. A kernel gets the caller's tensors as
they lie: strides are arguments (a tuple a tensor), nothing is copied. Grids have one axis, which may be as long as
2**31 - 1; the other two end at 65,535.

Precision. float32 inputs: every product of matrices takes three tf32 products (`tf32x3`), about float32's own
accuracy. bfloat16: operands are staged in bfloat16. float16: operands that an accumulation makes (scores, states) may
exceed float16's range, so they are staged in tf32, which has the same 11 bits. Sums are float32 always.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from linattest.impls import arguments
from linattest.kernels import building
from linattest.kernels.building import Launch, here

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs its interpreter, on the CPU: read once, since `triton.jit` reads it when a kernel is defined."""

ENABLE_FP_FUSION = True
"""Whether a multiplication and an addition may become one rounding (Triton's default, said explicitly)."""

INPUT_PRECISION = {torch.float32: "tf32x3", torch.bfloat16: "tf32", torch.float16: "tf32"}
"""How a product of float32 operands is computed, by the dtype of the inputs."""

DTYPES = tuple(INPUT_PRECISION)


class Config(NamedTuple):
    """How a kernel is built: a named tile width (or 0), warps a program, stages of a pipelined loop; registers a
    thread, if it is not the assembler's choice; whether products may use warpgroup instructions, None: by the rule of
    `building.environment`."""

    block: int
    warps: int
    stages: int
    registers: int | None = None
    warpgroups: bool | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Triton's names for it."""
        named = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": ENABLE_FP_FUSION}
        return named if self.registers is None else {**named, "maxnreg": self.registers}


def run(kernel: Any, programs: int, *args: Any, config: Config, **constants: Any) -> None:
    """Launch `kernel` with a grid of `programs` programs, on the device of its first argument; none if there are none.

    Raises:
        RuntimeError: the tensors are on a CPU and Triton is not interpreting.
    """
    if programs == 0:
        return
    if here.recorder is not None:
        here.recorder.append(Launch(kernel, (programs,), args, constants, config))
        return
    first = _first(args)
    assert first is not None, "a launch without a tensor"
    if first.is_cuda:
        index = first.device.index
        with _HERE if index == torch.cuda.current_device() else torch.cuda.device(index):
            building.start(kernel, programs, args, constants, config, index)
    elif INTERPRETED:
        kernel[(programs,)](*args, **constants)
    else:
        raise RuntimeError(
            f"tensors are on {first.device}: kernels run on a GPU, or in Triton's interpreter if TRITON_INTERPRET=1 "
            "is set before Python starts; linattest.impls has the same functions for any device"
        )


def _first(args: tuple[Any, ...]) -> Tensor | None:
    """The first tensor, be it in a tuple."""
    for x in args:
        found = x if isinstance(x, Tensor) else _first(x) if isinstance(x, tuple) else None
        if found is not None:
            return found
    return None


_HERE = contextlib.nullcontext()


# --- arguments -----------------------------------------------------------------------------------------------


def check_dtype(q: Tensor, name: str = "q") -> None:
    """Kernels compute in float32: float64 inputs are refused."""
    if q.dtype not in DTYPES:
        raise TypeError(
            f"{name} has dtype {q.dtype}, expected float32, bfloat16 or float16 (linattest.impls takes float64)"
        )


WIDEST = 256
"""Largest key or value width of a kernel: what a program can keep of a state."""


def check_widths(sizes: arguments.Sizes) -> None:
    """A kernel takes widths 1 to WIDEST."""
    for name, n in (("K", sizes.K), ("V", sizes.V)):
        if n > WIDEST:
            raise ValueError(f"{name} is {n}, expected 1 to {WIDEST} in a kernel (linattest.impls takes any width)")


def check_packing(cu_seqlens: object, sizes: arguments.Sizes, *, validate: bool) -> int:
    """Number of sequences; offsets are looked at only if `validate`."""
    if cu_seqlens is None:
        return sizes.B
    arguments.check_cu_seqlens_shape(cu_seqlens, sizes.B)
    if validate:
        arguments.check_cu_seqlens(cu_seqlens, sizes.B, sizes.T)
    assert isinstance(cu_seqlens, Tensor)
    return cu_seqlens.shape[0] - 1


def strides(x: Tensor) -> tuple[int, int, int, int]:
    """Strides over batch, tokens, heads and channels of [B, T, H] or [B, T, H, D]: (., ., ., 0) for the former. Over a
    batch of one row it is 0: no binary depends on what it might be."""
    b, *rest = x.stride()
    return _four(0 if x.shape[0] == 1 else b, *rest)


@building.once
def _four(b: int, t: int, h: int, c: int = 0) -> tuple[int, int, int, int]:
    return (b, t, h, c)


def stage(dtype: torch.dtype) -> triton.language.dtype:
    """The type in which operands made inside a kernel meet a tensor core."""
    return triton.language.bfloat16 if dtype == torch.bfloat16 else triton.language.float32


@functools.cache
def width(n: int) -> int:
    """The tile that holds n channels: a power of two, at least 16 for tensor cores."""
    return max(16, 1 << (n - 1).bit_length())


def output(like: Tensor, shape: Sequence[int], *, zero: bool, wide: bool = False) -> Tensor:
    """A fresh contiguous tensor for a kernel to fill, float32 in the interpreter (see `rounded`) or if `wide`.

    `zero` where a kernel leaves rows alone: those behind the last packed sequence.
    """
    dtype = torch.float32 if INTERPRETED or wide else like.dtype
    return like.new_zeros(shape, dtype=dtype) if zero else like.new_empty(shape, dtype=dtype)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a kernel stored, in its public dtype. The interpreter truncates float32-to-bfloat16 casts: torch rounds."""
    return x if x.dtype == dtype else x.to(dtype)


def over_groups(x: Tensor, H: int, dtype: torch.dtype) -> Tensor:
    """Gradients [B, T, HV, K] of a tensor with H heads: summed over each group of value heads, rounded once."""
    B, T, HV, K = x.shape
    return rounded(x if HV == H else x.view(B, T, H, HV // H, K).sum(3), dtype)


# --- where sequences lie -------------------------------------------------------------------------------------

CHUNK = 64
"""Tokens in a chunk, of every kernel."""


class Layout(NamedTuple):
    """A cut of all sequences into segments of at most `length` tokens, a program (or several) each.

    `segments` is their number, an upper bound for packed sequences: their offsets stay on the device. `each` is the
    number in one row of a batch (0 if packed). Packed: `table` [segments, 4] int32 has sequence, first token, end and
    the number of the first chunk of each segment (an empty one ends where it begins), `first` [N + 1] the first segment
    of each sequence.
    """

    N: int
    length: int
    segments: int
    each: int
    table: Tensor | None
    first: Tensor | None

    @property
    def packed(self) -> bool:
        return self.table is not None


def layout(cu_seqlens: Tensor | None, sizes: arguments.Sizes, length: int, device: torch.device) -> Layout:
    """The cut for one call; `length` is a multiple of CHUNK. No device value is read: a CUDA graph can capture it."""
    if cu_seqlens is None:
        each = -(-sizes.T // length)
        return Layout(sizes.B, length, sizes.B * each, each, None, None)
    offsets = cu_seqlens.to(device=device, dtype=torch.int64, non_blocking=True)
    N = offsets.shape[0] - 1
    count = -(-sizes.T // length) + N if N else 0
    first, chunks = _firsts(offsets, length), _firsts(offsets, CHUNK)
    index = torch.arange(count, device=device)
    sequence = torch.searchsorted(first[1:].contiguous(), index, right=True).clamp_(max=max(N - 1, 0))
    before = index - first[sequence]
    begin = offsets[sequence] + before * length
    end = torch.maximum(begin, torch.minimum(begin + length, offsets[sequence + 1]))
    table = torch.stack([sequence, begin, end, chunks[sequence] + before * (length // CHUNK)], 1)
    return Layout(N, length, count, 0, table.int().contiguous(), first.int())


def _firsts(offsets: Tensor, length: int) -> Tensor:
    """[N + 1]: the number of pieces of `length` tokens before each sequence."""
    pieces = (offsets.diff() + (length - 1)).div(length, rounding_mode="floor")
    return torch.nn.functional.pad(pieces.cumsum(0), (1, 0))
