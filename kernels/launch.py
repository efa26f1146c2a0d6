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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from linattest.impls import arguments

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
    `environment`."""

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


class Launch(NamedTuple):
    """One launch as a recorder sees it: kernel, grid, arguments in order, constants, how it is built."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    config: Config


_recorders: list[list[Launch]] = []


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Launches are appended to the list that this yields, and not made: tensors may be of the meta device."""
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders.remove(launches)


def run(kernel: Any, programs: int, *args: Any, config: Config, **constants: Any) -> None:
    """Launch `kernel` with a grid of `programs` programs, on the device of its first argument; none if there are none.

    Raises:
        RuntimeError: the tensors are on a CPU and Triton is not interpreting.
    """
    if programs == 0:
        return
    if _recorders:
        _recorders[-1].append(Launch(kernel, (programs,), args, constants, config))
        return
    first = next(x for x in args if isinstance(x, Tensor))
    if first.is_cuda:
        index = first.device.index
        with _HERE if index == torch.cuda.current_device() else torch.cuda.device(index):
            _launch(kernel, programs, args, constants, config, index)
    elif INTERPRETED:
        kernel[(programs,)](*args, **constants)
    else:
        raise RuntimeError(
            f"tensors are on {first.device}: kernels run on a GPU, or in Triton's interpreter if TRITON_INTERPRET=1 "
            "is set before Python starts; linattest.impls has the same functions for any device"
        )


_HERE = contextlib.nullcontext()

_built: dict[Any, tuple[Any, tuple[Any, ...], Any]] = {}
"""Binary, constants in the order of the signature, and the kernel, which must live on for its id to be its own."""


def _launch(
    kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any], config: Config, index: int
) -> None:
    """Launch what was built for such arguments, or have Triton build it.

    Triton's own way to a binary costs more host time than a small kernel runs; what it specialises on (`_kind`) and the
    constants name the binary as well.
    """
    key = (id(kernel), index, config, *constants.values(), *map(_kind, args))
    built = _built.get(key)
    if built is None:
        with _set(environment(constants, config)):
            binary = kernel[(programs,)](*args, **constants, **config.options)
        _built[key] = binary, tuple(constants[name] for name in kernel.arg_names[len(args) :]), kernel
    else:
        binary, tail, _ = built
        binary[(programs, 1, 1)](*args, *tail)


def _kind(x: Any) -> Any:
    """What Triton builds for: the type of an argument, whether it is 1 or divisible by 16, how a tensor is aligned."""
    kind = x.__class__
    if kind is int:
        return "1" if x == 1 else (x & 15 == 0, x.bit_length() > 31)
    if isinstance(x, tuple):
        known = _known.get(id(x))
        return tuple([_kind(y) for y in x]) if known is None else known[1]
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() & 15 == 0
    return ("constant", x.value) if kind is triton.language.constexpr else kind


_known: dict[int, tuple[Any, Any]] = {}
"""Tuples and their kinds by identity, which they keep since they are kept: to look at their numbers at every launch
would cost more host time than all else."""


ROOM = 4096
"""Tuples that are kept before all are forgotten."""


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make the tuple for some numbers one time; its kind is known then. ROOM of them, for shapes may go on changing."""
    made: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(make)
    def get(*numbers: Any) -> Any:
        found = made.get(numbers)
        if found is None:
            if len(made) >= ROOM:
                for x in made.values():
                    del _known[id(x)]
                made.clear()
            made[numbers] = found = make(*numbers)
            _known[id(found)] = found, tuple([_kind(y) for y in found])
        return found

    return get


TILES = ("BK", "BV", "BLOCK", "ROWS", "R")
"""Constants of kernels that are widths of tiles."""


def environment(constants: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Variables that Triton compiles under, by a kernel's constants and how it is built.

    Products with a tile narrower than 64 do without Hopper's warpgroup instructions: what Triton 3.6 and its assembler
    make of them reads outside of shared memory there, and gives wrong numbers or a fault (seen for tiles whose rows are
    32 and 64 bytes, and for some of 128, with four warps and with eight). Wide tiles of float32 have them: without,
    kernels spill ten times as much. A kernel of half precision that was seen right with them at 64 channels and more,
    or wrong where the rule would let it have them, says so in its config.
    """
    wide = constants.get("STAGE") == triton.language.float32 or constants.get("PRECISION") == "tf32x3"
    narrow = any(constants.get(name, 64) < 64 for name in TILES)
    seen = config.warpgroups is True and not wide and constants.get("BK", 64) >= 64
    without = config.warpgroups is False or (narrow and not seen)
    return {"DISABLE_MMA_V3": "1"} if without else {}


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
    """Strides over batch, tokens, heads and channels of [B, T, H] or [B, T, H, D]: (., ., ., 0) for the former."""
    return _four(*x.stride())


@once
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
