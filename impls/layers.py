"""Attention layers: the operators of this package as `nn.Module`s over one projection block.

    q, k, v = projections(x), optionally through a short causal convolution and SiLU       (layer_parts)
    o       = operator(q, k, v, what it reads besides)                                     (layer_operands)
    y       = out_proj(norm(o)), the norm optional, over each head's width

`Softmax`, `LinearAttention`, `DeltaNet`, `GLA`, `GatedDeltaNet`, `VLA`, `CCQ`, `LogLinear` differ in the middle line
only. Parametrisations are those of the field's standard layers: beta = sigmoid(W x); GLA's gate logsigmoid(W x)/16;
Mamba-2's gate -exp(A_log) softplus(W x + dt_bias); unit keys and queries for delta rules; ELU + 1 features for the
normalised operators; VLA's and CCQ's own are those of their papers (section 2 of each).

Padding. With an `attention_mask` the live tokens are packed (`cu_seqlens`), run and put back, so that padding cannot
leak: its content is never read, its output is 0 and its gradient exactly 0. A row has the bits it has alone.

Decoding. `forward(..., use_cache=True)` returns a cache of one entry a row (or packed sequence): the operator's state
and the convolution's last inputs; `forward(..., cache=cache)` goes on from it, by any number of tokens (one token: the
operator's `step`). A cache is never modified, and of fixed size for all but `Softmax`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn

from linattest.impls import arguments, layer_operands, layer_parts
from linattest.impls.layer_parts import Packing


class LayerCache(NamedTuple):
    """What decoding goes on from: the operator's state (one entry a row) and conv [N, conv_size, channels] or None."""

    state: Any
    conv: Tensor | None


class Common(TypedDict, total=False):
    """Keyword arguments that every layer takes; their meaning and defaults are in `Layer`."""

    num_value_heads: int | None
    head_dim: int | None
    value_dim: int | None
    conv_size: int | None
    output_norm: str | None
    backend: str
    chunk_size: int
    device: torch.device | str | None
    dtype: torch.dtype | None


class Layer(nn.Module):
    """What all layers share. Subclasses name their `operator` and set `operands`.

    hidden_size D and num_heads H; `num_value_heads` HV, a multiple of H (default H: no grouped heads); `head_dim` K
    (default D / H); `value_dim` V (default K); `conv_size`: window of the short convolution (default none);
    `output_norm`: "layer" or "rms", over each head's V outputs (default none); `backend`: "recurrent" (token loop),
    "chunk" or "triton" (`linattest.kernels`); `chunk_size` of backend="chunk", a power of two.

    Raises TypeError or ValueError naming the argument; ValueError naming `backend` if there is no such kernel.
    """

    operator: str
    operands: layer_operands.Operands

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_value_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        conv_size: int | None = None,
        output_norm: str | None = None,
        backend: str = "chunk",
        chunk_size: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.widths = layer_parts.check_widths(hidden_size, num_heads, num_value_heads, head_dim, value_dim)
        layer_parts.load(self.operator, backend)
        self.backend, self.chunk_size = backend, arguments.check_chunk_size(chunk_size)
        self.projections = layer_parts.Projections(self.widths, conv_size, **factory)
        self.norm = None
        if output_norm is not None:
            self.norm = layer_parts.make_norm("output_norm", output_norm, self.widths.V, **factory)
        self.out_proj = nn.Linear(self.widths.HV * self.widths.V, hidden_size, bias=False, **factory)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: LayerCache | None = None,
        use_cache: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, LayerCache | None]:
        """hidden_states [B, T, D] in the parameters' dtype -> (output [B, T, D], cache or None).

        `attention_mask` [B, T], bool or integer (1 = token): any pattern, also a row without tokens. `cu_seqlens`
        [N + 1], with B = 1, instead of it: packed sequences; rows beyond the last give 0. `cache`: a LayerCache of
        N = B rows (or sequences), which these tokens follow; a new one is returned with `use_cache`, otherwise None.

        Raises TypeError or ValueError (naming the argument) for wrong shapes, dtypes, devices, masks and offsets; what
        the operator refuses (NaN in a gate, a state of another shape) has the operator's error.
        """
        B, T = self._check(hidden_states, cache, use_cache)
        packing = layer_parts.packing(hidden_states, attention_mask, cu_seqlens)
        offsets = None if packing is None else packing.offsets
        x = hidden_states if packing is None else packing.pack(hidden_states)
        lengths = [T] * B if offsets is None else [end - start for start, end in itertools.pairwise(offsets)]
        state, conv = (None, None) if cache is None else cache
        if cache is not None:
            layer_parts.check_cache(state, conv, len(lengths), self.projections.conv is not None)
        self.operands.check_lengths(lengths, state)
        tensors, conv = self._project(x, conv, offsets)
        one_token = cache is not None and packing is None and T == 1
        o, state = self._form(one_token, packing, use_cache)(**tensors, initial_state=state)
        y = layer_parts.over_rows(self._output, offsets, o)
        if packing is not None:
            y = packing.unpack(y, B, T)
        return y, LayerCache(state, conv) if use_cache else None

    def _check(self, x: Tensor, cache: object, use_cache: object) -> tuple[int, int]:
        arguments.check_rank("hidden_states", x, "[B, T, D]")
        B, T = x.shape[:2]
        arguments.check_shape("hidden_states", x, (B, T, self.widths.D), "[B, T, hidden_size]")
        weight = self.out_proj.weight
        arguments.check_device("hidden_states", x, weight, "the layer")
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"hidden_states has dtype {x.dtype}, expected {weight.dtype}, the dtype of the layer")
        arguments.check_flag("use_cache", use_cache)
        if cache is not None and not isinstance(cache, LayerCache):
            raise TypeError(f"cache is a {type(cache).__name__}, expected the LayerCache that this layer returned")
        return B, T

    def _project(
        self, x: Tensor, cache: Tensor | None, offsets: list[int] | None
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """The operator's tensors [1 or B, T, ...] and the new convolution cache; each packed sequence by itself."""
        N = x.shape[0] if offsets is None else len(offsets) - 1

        def one(n: int, rows: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
            own = cache if offsets is None or cache is None else cache[n : n + 1]
            (q, k, v), kept = self.projections(rows, own)
            return self.operands(rows, q, k, v), kept

        parts = layer_parts.each_sequence(one, offsets, x)
        kept = [part[1] for part in parts if part[1] is not None]
        conv = torch.cat(kept)[:N] if kept else None
        return layer_parts.join([part[0] for part in parts]), conv

    def _form(self, one_token: bool, packing: Packing | None, use_cache: bool) -> Callable[..., tuple[Tensor, Any]]:
        """The operator's function for this call, with the arguments that are not per token."""
        module, options = layer_parts.load(self.operator, self.backend), self.operands.options()
        if one_token:
            return functools.partial(module.step, **options)
        options |= {"output_final_state": use_cache, "cu_seqlens": None if packing is None else packing.cu_seqlens}
        if self.backend == "chunk":
            options["chunk_size"] = self.chunk_size
        return functools.partial(module.recurrent if self.backend == "recurrent" else module.chunk, **options)

    def _output(self, o: Tensor) -> Tensor:
        if self.norm is not None:
            o = self.norm(o.to(self.norm.weight.dtype))  # under autocast o is narrower than the parameters
        return self.out_proj(o.flatten(-2))

    def factory(self) -> dict[str, Any]:
        """Device and dtype for parameters that belong to this layer."""
        return {"device": self.out_proj.weight.device, "dtype": self.out_proj.weight.dtype}


# --- the layers ------------------------------------------------------------------------------------------------


class Softmax(Layer):
    """Causal softmax attention (no positions of its own): the baseline. Its cache grows with every token."""

    operator = "softmax"

    def __init__(self, hidden_size: int, num_heads: int, **common: Unpack[Common]) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.Operands()


class LinearAttention(Layer):
    """Linear attention on ELU + 1 features; `normalizer=False`: without the division by z . q."""

    operator = "linear"

    def __init__(self, hidden_size: int, num_heads: int, *, normalizer: bool = True, **common: Unpack[Common]) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.Features(self.widths, normalizer=normalizer)


class DeltaNet(Layer):
    """DeltaNet: unit keys and queries, beta = sigmoid(W x)."""

    operator = "delta_net"

    def __init__(self, hidden_size: int, num_heads: int, **common: Unpack[Common]) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.Delta(self.widths, **self.factory())


class GLA(Layer):
    """Gated linear attention, g = logsigmoid(W x + b)/16: a `gate` per key "channel" (W of rank 16) or per "head"."""

    operator = "gla"

    def __init__(self, hidden_size: int, num_heads: int, *, gate: str = "channel", **common: Unpack[Common]) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.Gated(self.widths, gate=gate, **self.factory())


class GatedDeltaNet(Layer):
    """Gated DeltaNet: as `DeltaNet`, with Mamba-2's gate."""

    operator = "gated_delta_net"

    def __init__(self, hidden_size: int, num_heads: int, **common: Unpack[Common]) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.GatedDelta(self.widths, **self.factory())


class VLA(Layer):
    """Variational linear attention: ELU + 1 features, u = norm(W_u k)/sqrt(K) of the key before the feature map.

    `lam0` > 0; `learn_lam0`: one a head, softplus of a parameter that starts there. No grouped heads.
    """

    operator = "vla"

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        lam0: float = 0.1,
        learn_lam0: bool = False,
        normalizer: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.Penalised(
            self.widths, normalizer=normalizer, lam0=lam0, learn_lam0=learn_lam0, **self.factory()
        )


class CCQ(Layer):
    """Curvature-conditioned queries on a `backbone`, lam = sigmoid(w_lam . q + b_lam) per head.

    `backbone`: "linear", "gla", "delta_net", "gated_delta_net" or "vla"; `backbone_options`: that layer's own keyword
    arguments, e.g. {"gate": "head"}. q is the query that the backbone reads with (features, unit vectors).
    """

    operator = "ccq"

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        backbone: str = "gla",
        backbone_options: dict[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(hidden_size, num_heads, **common)
        self.operands = layer_operands.Contracted(self.widths, backbone, backbone_options or {}, **self.factory())


class LogLinear(Layer):
    """Log-linear attention for up to `max_length` tokens a sequence, with Mamba-2's gate.

    `level_weights`: "linear", "mlp_softplus" or "mlp_softmax", a function of the hidden state (module
    `level_weights`), `level_options` its keyword arguments, e.g. {"activation": "gelu"}; `delta`: the gated delta rule
    as transition, with unit keys and queries and beta = sigmoid(W x).
    """

    operator = "log_linear"

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        max_length: int,
        level_weights: str = "mlp_softplus",
        level_options: dict[str, Any] | None = None,
        delta: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(hidden_size, num_heads, **common)
        levels: dict[str, Any] = {"max_length": max_length, "kind": level_weights, "options": level_options}
        self.operands = layer_operands.Levels(self.widths, **levels, delta=delta, **self.factory())
