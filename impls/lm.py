"""A small causal language model over any of the layers: for recall tasks, and to see an operator in its place.

Pre-norm blocks, x += layer(norm(x)); x += mlp(norm(x)), then a norm and the head (tied to the embedding by default);
learned positions are optional. Matrices and embeddings start at N(0, 0.02); what layers keep as plain parameters
(gates' rates and time steps, level weights) keeps its own start.

Padding and decoding are the layers' (module `layers`): with an `attention_mask` the live tokens are packed once, for
the whole model, so the logits of a row have the bits it has alone; positions count live tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattest.impls import arguments, layer_parts, layers
from linattest.impls.layer_parts import Packing
from linattest.impls.layers import LayerCache

LAYERS: dict[str, type[layers.Layer]] = {
    kind.operator: kind
    for kind in (
        layers.Softmax,
        layers.LinearAttention,
        layers.DeltaNet,
        layers.GLA,
        layers.GatedDeltaNet,
        layers.VLA,
        layers.CCQ,
        layers.LogLinear,
    )
}
IGNORED = -100  # a label that counts for nothing, as in torch


@dataclass(frozen=True)
class LMConfig:
    """`layer`: an operator's name ("vla", "gla", "softmax", ...); `layer_options`: keyword arguments of its layer.

    `mlp_ratio`: hidden width of the MLP over hidden_size; `norm`: "layer" or "rms"; `max_positions`: number of learned
    positions, None for none. Raises TypeError or ValueError naming the field.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    layer: str = "vla"
    layer_options: dict[str, Any] = field(default_factory=dict)
    mlp_ratio: float = 4.0
    norm: str = "layer"
    tie_embeddings: bool = True
    max_positions: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "max_positions"):
            if (size := getattr(self, name)) is not None or name != "max_positions":
                arguments.check_size(name, size)
        arguments.check_choice("layer", self.layer, tuple(LAYERS))
        arguments.check_choice("norm", self.norm, ("layer", "rms"))
        arguments.check_number("mlp_ratio", self.mlp_ratio, positive=True)
        arguments.check_flag("tie_embeddings", self.tie_embeddings)


class LMCache(NamedTuple):
    """One LayerCache a block, and how many tokens each row has had, int64 [B]."""

    layers: tuple[LayerCache, ...]
    position: Tensor


class LMOutput(NamedTuple):
    """logits [B, T, vocab_size]; loss (scalar) if labels were given; cache if asked for."""

    logits: Tensor
    loss: Tensor | None
    cache: LMCache | None


class Block(nn.Module):
    """x + layer(norm(x)), then x + mlp(norm(x)); the MLP has one hidden GELU layer."""

    def __init__(self, config: LMConfig, **factory: Any) -> None:
        super().__init__()
        D, hidden = config.hidden_size, max(1, round(config.mlp_ratio * config.hidden_size))
        self.norm, norm = (layer_parts.make_norm("norm", config.norm, D, **factory) for _ in range(2))
        try:
            self.layer = LAYERS[config.layer](D, config.num_heads, **config.layer_options, **factory)
        except TypeError as error:
            raise TypeError(f"layer_options of layer {config.layer!r}: {error}") from error
        self.mlp = nn.Sequential(norm, nn.Linear(D, hidden, **factory), nn.GELU(), nn.Linear(hidden, D, **factory))

    def forward(
        self, x: Tensor, packing: Packing | None, cache: LayerCache | None, use_cache: bool
    ) -> tuple[Tensor, LayerCache | None]:
        offsets, cu_seqlens = (None, None) if packing is None else (packing.offsets, packing.cu_seqlens)
        inner = layer_parts.over_rows(self.norm, offsets, x)
        y, kept = self.layer(inner, cache=cache, use_cache=use_cache, cu_seqlens=cu_seqlens)
        x = x + y
        return x + layer_parts.over_rows(self.mlp, offsets, x), kept


class CausalLM(nn.Module):
    """The model of the module docstring. `device` and `dtype` are those of its parameters."""

    def __init__(
        self, config: LMConfig, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.config, D = config, config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, D, **factory)
        self.positions = None if config.max_positions is None else nn.Embedding(config.max_positions, D, **factory)
        self.blocks = nn.ModuleList([Block(config, **factory) for _ in range(config.num_layers)])
        self.norm = layer_parts.make_norm("norm", config.norm, D, **factory)
        self.head = nn.Linear(D, config.vocab_size, bias=False, **factory)
        self.apply(initialise)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: LMCache | None = None,
        use_cache: bool = False,
    ) -> LMOutput:
        """input_ids int64 or int32 [B, T] -> LMOutput; logits at pads are 0.

        `attention_mask` [B, T]: bool or integer, any pattern; ids at pads may be anything. `labels` int64 [B, T]:
        labels[b, t] is what logits[b, t] should predict (nothing is shifted here), -100 or a pad for "not counted";
        the loss is the mean over what counts, 0 if nothing does. `cache`: go on after the tokens that made it.

        Raises TypeError or ValueError naming the argument.
        """
        B, T = self._check(input_ids, labels, cache)
        packing = layer_parts.packing(input_ids, attention_mask, None)
        ids, wanted = input_ids, labels
        if packing is not None:
            ids, wanted = packing.pack(input_ids), None if labels is None else packing.pack(labels)
        self._check_ids("input_ids", ids)
        x, position = self._embed(ids, packing, cache)
        caches = [None] * len(self.blocks) if cache is None else cache.layers
        kept: list[LayerCache] = []
        for block, own in zip(self.blocks, caches, strict=True):
            x, new = block(x, packing, own, use_cache)
            kept += [new] if use_cache else []
        logits = layer_parts.over_rows(self._read, None if packing is None else packing.offsets, x)
        loss = None if wanted is None else self._loss(logits, wanted)
        if packing is not None:
            logits = packing.unpack(logits, B, T)
        return LMOutput(logits, loss, LMCache(tuple(kept), position) if use_cache else None)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The tokens that follow each row's live ones, [B, max_new_tokens] int64, one decode step a token.

        `temperature` 0 takes the largest logit (the first of equals), otherwise tokens are drawn (by `generator`) from
        softmax(logits / temperature). Raises TypeError or ValueError naming the argument; a row without tokens is one.
        """
        if arguments.check_whole("max_new_tokens", max_new_tokens) < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}, expected at least 0")
        if arguments.check_number("temperature", temperature) < 0:
            raise ValueError(f"temperature is {temperature}, expected at least 0")
        logits, _, cache = self(input_ids, attention_mask, use_cache=True)
        row, new = _last_live(logits, attention_mask), input_ids.new_zeros(len(input_ids), 0, dtype=torch.int64)
        while new.shape[1] < max_new_tokens:
            if new.shape[1]:
                logits, _, cache = self(new[:, -1:], cache=cache, use_cache=True)
                row = logits[:, -1]
            token = row.argmax(-1, keepdim=True)
            if temperature > 0:
                chances = torch.softmax(layer_parts.widened(row) / temperature, -1)
                token = torch.multinomial(chances, 1, generator=generator)
            new = torch.cat([new, token], 1)
        return new

    def _check(self, ids: object, labels: object, cache: object) -> tuple[int, int]:
        for name, value, kinds in (("input_ids", ids, (torch.int64, torch.int32)), ("labels", labels, (torch.int64,))):
            if value is None and name == "labels":
                continue
            if not isinstance(value, Tensor) or value.dtype not in kinds:
                got = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(f"{name} is {got}, expected a tensor of {' or '.join(map(str, kinds))}")
            if value.dim() != 2:
                raise ValueError(f"{name} has shape {list(value.shape)}, expected 2 dimensions [B, T]")
        assert isinstance(ids, Tensor)
        if isinstance(labels, Tensor):
            arguments.check_shape("labels", labels, ids.shape, "[B, T]")
        if cache is not None and (not isinstance(cache, LMCache) or len(cache.layers) != len(self.blocks)):
            raise TypeError(f"cache is a {type(cache).__name__}, expected the LMCache that this model returned")
        return ids.shape[0], ids.shape[1]

    def _check_ids(self, name: str, ids: Tensor, counted: Tensor | None = None) -> None:
        if not arguments.readable(ids):
            return
        outside = (ids < 0) | (ids >= self.config.vocab_size)
        if counted is not None:
            outside &= counted
        if bool(outside.any()):
            raise ValueError(f"{name} holds {ids[outside][0].item()}, expected 0 to {self.config.vocab_size - 1}")

    def _embed(self, ids: Tensor, packing: Packing | None, cache: LMCache | None) -> tuple[Tensor, Tensor]:
        """Embedded tokens, and each row's number of tokens so far."""
        N, T = ids.shape[0] if packing is None else len(packing.offsets) - 1, ids.shape[1]
        start = ids.new_zeros(N, dtype=torch.int64) if cache is None else cache.position
        arguments.check_shape("cache.position", start, (N,), "[B]")
        counts = torch.full_like(start, T) if packing is None else packing.cu_seqlens.diff()
        x = self.embedding(ids)
        if self.positions is None:
            return x, start + counts
        inside = torch.arange(T, device=ids.device)
        if packing is None:
            places = start[:, None] + inside
        else:
            places = (inside + (start - packing.cu_seqlens[:-1]).repeat_interleave(counts))[None]
        limit = self.positions.num_embeddings
        if arguments.readable(places) and bool((places >= limit).any()):
            raise ValueError(
                f"input_ids has a token at position {int(places.max())}, expected less than max_positions = {limit}"
            )
        return x + self.positions(places), start + counts

    def _read(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        counted = labels != IGNORED
        self._check_ids("labels", labels, counted)
        rows = layer_parts.widened(logits).flatten(0, 1)
        total = F.cross_entropy(rows, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / counted.sum().clamp(min=1)


def initialise(module: nn.Module) -> None:
    """N(0, 0.02) for matrices and embeddings, 0 for biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                nn.init.zeros_(parameter)


def _last_live(logits: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Each row's logits [B, vocab_size] at its last live token."""
    B, T = logits.shape[:2]
    live = torch.ones(B, T, dtype=torch.int64, device=logits.device) if attention_mask is None else attention_mask != 0
    places = live * torch.arange(1, T + 1, device=logits.device)
    last = places.amax(1) if T else places.sum(1)
    if bool((last == 0).any()):
        row = int((last == 0).nonzero()[0])
        raise ValueError(f"input_ids row {row} has no live token, expected at least one to go on from")
    return logits[torch.arange(B, device=logits.device), last - 1]
