"""Checks of arguments: every public function in `impls` and every kernel launcher starts here.

Shape, dtype and device checks never look at values, so kernels can afford them on every call. Value checks
(`check_*_values`, and the ones marked "reads values") wait for the device; `impls` always run them. A wrong type or
dtype raises `TypeError`, a wrong shape, device or value `ValueError`, naming argument, value and what was expected.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

INPUT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Sizes(NamedTuple):
    """Sizes of one call: batch, tokens, key heads, value heads, key width, value width."""

    B: int
    T: int
    H: int
    HV: int
    K: int
    V: int


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything else: the dtype of states and of what primitives exchange."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# --- tensors -------------------------------------------------------------------------------------------------


def check_floating(name: str, value: object, allowed: Sequence[torch.dtype] = INPUT_DTYPES) -> Tensor:
    """`value` must be a tensor of one of the `allowed` dtypes; returns it."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in allowed:
        names = ", ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"{name} has dtype {value.dtype}, expected one of: {names}")
    return value


def check_shape(name: str, value: Tensor, shape: Sequence[int], meaning: str) -> None:
    """`value` must have exactly this shape; `meaning` spells it, e.g. "[B, T, H, K]"."""
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {list(value.shape)}, expected {meaning} = {list(shape)}")


def check_device(name: str, value: Tensor, like: Tensor, like_name: str = "q") -> None:
    """`value` must be on the device of `like`."""
    if value.device != like.device:
        raise ValueError(f"{name} is on {value.device}, but {like_name} is on {like.device}: expected one device")


def check_same(
    name: str, value: object, shape: Sequence[int], meaning: str, like: Tensor, like_name: str = "q"
) -> None:
    """`value` must be a tensor of this shape with the dtype and device of `like`."""
    tensor = check_floating(name, value)
    check_shape(name, tensor, shape, meaning)
    if tensor.dtype != like.dtype:
        raise TypeError(f"{name} has dtype {tensor.dtype}, but {like_name} has {like.dtype}: expected one dtype")
    check_device(name, tensor, like, like_name)


def check_rank(name: str, value: object, meaning: str = "[B, T, H, K]") -> Tensor:
    """`value` must be a floating tensor with as many dimensions as `meaning` has names."""
    tensor = check_floating(name, value)
    rank = meaning.count(",") + 1
    if tensor.dim() != rank:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {rank} dimensions {meaning}")
    return tensor


def check_qkv(q: object, k: object, v: object, *, grouped: bool = True) -> Sizes:
    """q, k [B, T, H, K] and v [B, T, HV, V] of one dtype and device, HV a multiple of H (equal if not `grouped`)."""
    query, value = check_rank("q", q), check_rank("v", v, "[B, T, HV, V]")
    B, T, H, K = query.shape
    HV, V = value.shape[2:]
    check_same("k", k, (B, T, H, K), "q's shape [B, T, H, K]", query)
    check_same("v", value, (B, T, HV, V), "[B, T, HV, V]", query)
    check_heads("v", HV, H, grouped=grouped)
    check_widths(K=K, V=V, H=H)
    return Sizes(B, T, H, HV, K, V)


def check_heads(name: str, HV: int, H: int, *, grouped: bool = True) -> None:
    """HV must be a multiple of H, or equal to H if not `grouped`."""
    if not grouped and HV != H:
        raise ValueError(f"{name} has HV = {HV} heads, expected H = {H}: this operator has no grouped heads")
    if H and (HV % H or HV < H):
        raise ValueError(f"{name} has HV = {HV} heads, expected a multiple of q's H = {H}")


def check_widths(**widths: int) -> None:
    """Each width (head count, key width, value width) must be at least 1."""
    for name, width in widths.items():
        if width < 1:
            raise ValueError(f"{name} is {width}, expected at least 1")


def check_per_head(name: str, value: object, shapes: dict[str, Sequence[int]], like: Tensor) -> Tensor:
    """A gate, beta, lam, weight or level weight: one of the named shapes, q's dtype or float32, q's device.

    `shapes` maps the spelling of each accepted shape to its sizes. Returns the tensor.
    """
    tensor = check_floating(name, value)
    if tuple(tensor.shape) not in {tuple(shape) for shape in shapes.values()}:
        expected = " or ".join(f"{meaning} = {list(shape)}" for meaning, shape in shapes.items())
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {expected}")
    if tensor.dtype not in (like.dtype, torch.float32):
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected q's dtype {like.dtype} or torch.float32")
    check_device(name, tensor, like)
    return tensor


def check_state(
    name: str, state: object, shape: Sequence[int], meaning: str, like: Tensor, like_name: str = "q"
) -> None:
    """A state: float32 (float64 if `like` is float64), exact shape, same device."""
    wanted = compute_dtype(like.dtype)
    if not isinstance(state, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor {meaning}, got {type(state).__name__}")
    if state.dtype != wanted:
        raise TypeError(
            f"{name} has dtype {state.dtype}, expected {wanted} for inputs of dtype {like.dtype}: "
            f"states are never kept in a narrower type; convert it with .to({wanted})"
        )
    check_shape(name, state, shape, meaning)
    check_device(name, state, like, like_name)


def check_state_tuple(name: str, state: object, kind: type) -> None:
    """A state made of several tensors must be the NamedTuple `kind` (or a plain tuple of the same length)."""
    fields = kind._fields  # type: ignore[attr-defined]
    if isinstance(state, Tensor) or not isinstance(state, tuple) or len(state) != len(fields):
        raise TypeError(f"{name} must be a {kind.__name__}({', '.join(fields)}), got {type(state).__name__}")


# --- numbers -------------------------------------------------------------------------------------------------


def check_number(name: str, value: object, *, positive: bool = False) -> float:
    """A finite Python number (not a bool, not a tensor), > 0 if `positive`; returns it as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    number = float(value)
    if not math.isfinite(number) or (positive and number <= 0):
        raise ValueError(f"{name} is {value!r}, expected a finite number{' > 0' if positive else ''}")
    return number


def check_scale(scale: object, K: int) -> float:
    """The output scale: `None` means K ** -0.5, otherwise any finite number (0 and negative numbers included)."""
    return K**-0.5 if scale is None else check_number("scale", scale)


def check_chunk_size(chunk_size: object) -> int:
    """A positive power of two."""
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, numbers.Integral):
        raise TypeError(f"chunk_size must be an int, got {type(chunk_size).__name__} {chunk_size!r}")
    size = int(chunk_size)
    if size < 1 or size & (size - 1):
        raise ValueError(f"chunk_size is {size}, expected a power of two (1, 2, 4, ..., 64, ...)")
    return size


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """`value` must be one of the listed words."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of: {', '.join(map(repr, choices))}")


def check_lam0(lam0: object, H: int, like: Tensor, *, values: bool = True, like_name: str = "q") -> None:
    """The ridge: a number or a floating tensor, scalar or [H], finite and > 0 (reads values unless told not to)."""
    if not isinstance(lam0, Tensor):
        check_number("lam0", lam0, positive=True)
        return
    check_floating("lam0", lam0)
    if lam0.dim() != 0 and tuple(lam0.shape) != (H,):
        raise ValueError(f"lam0 has shape {list(lam0.shape)}, expected a scalar or [H] = [{H}]")
    check_device("lam0", lam0, like, like_name)
    if values:
        _refuse("lam0", lam0, ~((lam0 > 0) & torch.isfinite(lam0)), "a finite number > 0 for each head")


# --- values (all of these read the tensor) -------------------------------------------------------------------


def readable(tensor: Tensor) -> bool:
    """Whether values can be looked at: not while a CUDA graph is captured, which runs nothing."""
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _refuse(name: str, tensor: Tensor, bad: Tensor, expected: str) -> None:
    """Raise for the first element marked `bad`, with its index and value."""
    if bool(bad.any()):
        index = bad.nonzero()[0].tolist()
        value = tensor.detach()[tuple(index)].item()
        count = int(bad.sum())
        raise ValueError(
            f"{name}{index if index else ''} is {value}, expected {expected} "
            f"({count} of {bad.numel()} elements are out of range)"
        )


def check_gate_values(name: str, g: Tensor) -> None:
    """A log gate: <= 0, -inf allowed (it resets the state), NaN refused."""
    _refuse(name, g, ~(g <= 0), "a log gate <= 0 (natural log of the decay; -inf is a reset)")


def check_finite_values(name: str, value: Tensor) -> None:
    """No NaN, no infinity (beta, lam, level weights)."""
    _refuse(name, value, ~torch.isfinite(value), "a finite number")


def check_non_negative_values(name: str, value: Tensor) -> None:
    """Finite and >= 0 (observation weights)."""
    _refuse(name, value, ~((value >= 0) & torch.isfinite(value)), "a finite number >= 0")


def levels_needed(position: int, T: int) -> int:
    """Fenwick levels used by tokens position .. position + T - 1: bit_length(max(position + T - 1, 0)) + 1."""
    return max(position + T - 1, 0).bit_length() + 1


def check_levels(level_weights: Tensor, L: int, position: int, T: int) -> None:
    """There must be a weight for every level that the sequence reaches."""
    needed = levels_needed(position, T)
    if needed > L:
        raise ValueError(
            f"level_weights has L = {L} levels, expected at least {needed} for {T} tokens after position {position}"
        )


def check_cu_seqlens(cu_seqlens: object, B: int, T: int) -> list[int] | None:
    """Offsets of packed sequences, as a list (reads values); `None` stays `None`.

    int32 or int64 [N + 1] on any device, B = 1, starts at 0, never decreases (equal neighbours are an empty sequence),
    ends at most at T.
    """
    if cu_seqlens is None:
        return None
    check_cu_seqlens_shape(cu_seqlens, B)
    assert isinstance(cu_seqlens, Tensor)
    offsets: list[int] = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(f"cu_seqlens starts at {offsets[0]}, expected 0")
    for i, (start, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if end < start:
            raise ValueError(f"cu_seqlens[{i + 1}] is {end} after {start}, expected non-decreasing offsets")
    if offsets[-1] > T:
        raise ValueError(f"cu_seqlens ends at {offsets[-1]}, expected at most T = {T}")
    return offsets


def check_cu_seqlens_shape(cu_seqlens: object, B: int) -> None:
    """The part of `check_cu_seqlens` that does not read values."""
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens must be a torch.Tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens has dtype {cu_seqlens.dtype}, expected torch.int32 or torch.int64")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1:
        raise ValueError(f"cu_seqlens has shape {list(cu_seqlens.shape)}, expected [N + 1]")
    if B != 1:
        raise ValueError(f"inputs have B = {B}, expected B = 1 with cu_seqlens (sequences are packed along T)")


def check_flag(name: str, value: object) -> bool:
    """A switch is True or False, not something that happens to be true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected True or False")
    return value


def check_whole(name: str, value: object) -> int:
    """A whole number; True is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected a whole number")
    return value


def check_size(name: str, value: object) -> int:
    """A whole number of at least 1; returns it."""
    number = check_whole(name, value)
    check_widths(**{name: number})
    return number


def check_one_token(T: int) -> None:
    """`step` takes exactly one token."""
    if T != 1:
        raise ValueError(f"inputs have T = {T} tokens, expected 1 in a decode step (use recurrent or chunk for more)")
