"""Parts of the layers: packing of live tokens, and the projections to q, k, v with an optional short convolution.

Bits. A row of a matrix product depends, in its last bit, on how many rows are multiplied with it (on a CPU float32
rows differ when a sequence has up to 5 tokens, float64 rows up to 3), and vectorised functions treat the last few
elements of a tensor differently from the rest. So nothing here ever runs over several packed sequences at once: each
one is projected by itself (`each_sequence`), as if it were alone, and operators do the same with `cu_seqlens`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattest.impls import arguments

R = TypeVar("R")


class Widths(NamedTuple):
    """Hidden size, key heads, value heads, key width, value width."""

    D: int
    H: int
    HV: int
    K: int
    V: int


def check_widths(D: int, H: int, HV: int | None, K: int | None, V: int | None) -> Widths:
    """Checked sizes with their defaults."""
    HV = H if HV is None else HV
    for name, size in (
        ("hidden_size", D),
        ("num_heads", H),
        ("num_value_heads", HV),
        ("head_dim", K),
        ("value_dim", V),
    ):
        if size is not None:
            arguments.check_size(name, size)
    arguments.check_heads("num_value_heads", HV, H)
    if K is None and D % H:
        raise ValueError(f"hidden_size is {D}, expected a multiple of num_heads = {H} (or a head_dim)")
    K = D // H if K is None else K
    return Widths(D, H, HV, K, K if V is None else V)


def load(operator: str, backend: str) -> ModuleType:
    """The module with an operator's `chunk` and `step`; a kernel is imported only when it is asked for."""
    arguments.check_choice("backend", backend, ("recurrent", "chunk", "triton"))
    if backend != "triton":
        return importlib.import_module(f"linattest.impls.{operator}")
    name = f"linattest.kernels.{operator}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, "triton"):
            raise
        missing = "Triton is not installed" if error.name == "triton" else f"there is no {name}"
        raise ValueError(f"backend is 'triton', but {missing}: expected 'chunk' or 'recurrent' here") from error


# --- packing ---------------------------------------------------------------------------------------------------


class Packing(NamedTuple):
    """The tokens that run: rows `index` of the flattened [B * T], as the sequences that `cu_seqlens` divides."""

    index: Tensor
    cu_seqlens: Tensor
    offsets: list[int]

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [1, total, ...]; what is left out is never read and has zero gradient."""
        return x.flatten(0, 1).index_select(0, self.index).unsqueeze(0)

    def unpack(self, y: Tensor, B: int, T: int) -> Tensor:
        """[1, total, ...] -> [B, T, ...], 0 where no token ran."""
        rows = y.new_zeros(B * T, *y.shape[2:]).index_copy(0, self.index, y[0])
        return rows.reshape(B, T, *y.shape[2:])


def packing(x: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None) -> Packing | None:
    """How to pack x [B, T, ...], or None if it runs as it is.

    `attention_mask` [B, T], bool or an integer dtype with 0 and 1, in any pattern: row b becomes sequence b.
    `cu_seqlens` as in operators (B = 1). Raises TypeError or ValueError naming the argument; not both may be given.
    """
    B, T = x.shape[:2]
    if attention_mask is None:
        offsets = arguments.check_cu_seqlens(cu_seqlens, B, T)
        if offsets is None:
            return None
        assert cu_seqlens is not None
        return Packing(torch.arange(offsets[-1], device=x.device), cu_seqlens, offsets)
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens is given beside attention_mask, expected one of them: the mask packs by itself")
    live = check_attention_mask(attention_mask, x)
    ends = live.sum(1).cumsum(0)
    offsets = [0, *ends.tolist()]
    return Packing(live.flatten().nonzero()[:, 0], torch.tensor(offsets, device=x.device), offsets)


def check_attention_mask(mask: object, x: Tensor) -> Tensor:
    """The mask as bool, or an error that names it (reads values)."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask must be a torch.Tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and (mask.dtype.is_floating_point or mask.dtype.is_complex):
        raise TypeError(f"attention_mask has dtype {mask.dtype}, expected torch.bool or an integer dtype (1 = token)")
    arguments.check_shape("attention_mask", mask, x.shape[:2], "[B, T]")
    arguments.check_device("attention_mask", mask, x, "the input")
    live = mask != 0
    if bool((live & (mask != 1)).any()):
        raise ValueError(f"attention_mask holds {mask[live & (mask != 1)][0].item()}, expected 0 (pad) or 1 (token)")
    return live


def check_cache(state: Any, conv: Tensor | None, N: int, convolves: bool) -> None:
    """A cache must hold a state, and inputs of the convolution if there is one, of N rows or packed sequences."""
    if state is None:
        raise ValueError("cache.state is None, expected the state that this layer returned")
    if (conv is not None) != convolves:
        raise ValueError(f"cache.conv is a {type(conv).__name__}, expected that of a layer of this conv_size")
    while not isinstance(state, Tensor):
        state = state[0]
    for name, part in (("state", state), ("conv", conv)):
        if part is not None and part.shape[0] != N:
            raise ValueError(f"cache.{name} has {part.shape[0]} rows, expected N = {N}: one a row or packed sequence")


def each_sequence(function: Callable[..., R], offsets: list[int] | None, *inputs: Tensor) -> list[R]:
    """`function(n, *rows)` for each packed sequence n (0 for an unpacked batch), on a fresh copy of its rows.

    With no sequence at all there is one call on empty rows, for the shapes.
    """
    if offsets is None:
        return [function(0, *inputs)]
    bounds = list(zip(offsets, offsets[1:], strict=False)) or [(0, 0)]
    return [function(n, *(x[:, start:end].clone() for x in inputs)) for n, (start, end) in enumerate(bounds)]


def over_rows(function: Callable[[Tensor], Tensor], offsets: list[int] | None, x: Tensor) -> Tensor:
    """A function of single tokens (a projection, an MLP) over x [B, T, ...], one packed sequence at a time."""
    parts = each_sequence(lambda _, rows: function(rows), offsets, x)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def join(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Named tensors [1, t, ...] of packed sequences, one sequence after the other."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}


# --- projections -----------------------------------------------------------------------------------------------


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over the last `size` tokens, then SiLU: no bias.

        y_t = silu( sum_j weight[:, j] * x_{t - size + 1 + j} )

    The cache [N, size, channels] holds the last `size` inputs, oldest first, zeros before the first token: the
    layout of the field's kernels, of which slot 0 is never read again. Source: the convolution of [Mamba2].
    """

    def __init__(self, channels: int, size: int, **factory: Any) -> None:
        super().__init__()
        self.size = arguments.check_size("conv_size", size)
        self.weight = nn.Parameter(torch.empty(channels, size, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -(self.size**-0.5), self.size**-0.5)

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [N, T, channels] -> (y, new cache), in x's dtype; sums in float32 (float64 for float64)."""
        N, T, C = x.shape
        if cache is None:
            cache = x.new_zeros(N, self.size, C)
        arguments.check_same("cache.conv", cache, (N, self.size, C), "[N, conv_size, channels]", x, "the projection")
        # One tensor for old and new inputs: whatever of the old cache survives in the new one, or is read by a short
        # piece, has its gradient by construction.
        seen = torch.cat([cache, x], 1)
        taps, inputs = widened(self.weight), widened(seen)
        y = functools.reduce(torch.add, (taps[:, j] * inputs[:, j + 1 : j + 1 + T] for j in range(self.size)))
        return F.silu(y).to(x.dtype), seen[:, T:].clone()


class Projections(nn.Module):
    """Hidden states [N, T, D] -> q, k [N, T, H, K] and v [N, T, HV, V], optionally through a short convolution."""

    def __init__(self, widths: Widths, conv_size: int | None, **factory: Any) -> None:
        super().__init__()
        self.widths = widths
        D, H, HV, K, V = widths
        self.q_proj, self.k_proj = (nn.Linear(D, H * K, bias=False, **factory) for _ in range(2))
        self.v_proj = nn.Linear(D, HV * V, bias=False, **factory)
        self.conv = None if conv_size is None else ShortConvolution(2 * H * K + HV * V, conv_size, **factory)

    def forward(self, x: Tensor, cache: Tensor | None) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        _, H, HV, K, V = self.widths
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.conv is not None:
            joined, cache = self.conv(torch.cat([q, k, v], -1), cache)
            q, k, v = joined.split((H * K, H * K, HV * V), -1)
        return (q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V))), cache


def make_norm(name: str, kind: object, width: int, **factory: Any) -> nn.LayerNorm | nn.RMSNorm:
    """The norm that argument `name` asks for, over the last dimension."""
    arguments.check_choice(name, kind, ("layer", "rms"))
    return nn.LayerNorm(width, **factory) if kind == "layer" else nn.RMSNorm(width, eps=1e-5, **factory)


def widened(x: Tensor) -> Tensor:
    """In the dtype of states: float32, or float64 as it is."""
    return x.to(arguments.compute_dtype(x.dtype))


def rounded_once(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(widened(x)).to(x.dtype)
