"""The models of a recipe: `impls.lm` with the layer that is asked for, and the papers' departures from it.

Variants (everything else is an option of a layer):

    channel_gate           "DeltaNet" as [VLA] compares with it, as far as its text and log say: the delta rule without
                           beta, whose memory a gate sigmoid(W x) decays, one a value channel. It is `gated_delta_net`
                           with a value head for each channel, beta = 1 and that gate. At initialisation |S_1000| is
                           1.4 to 1.7 (`linattest experiment vla.state-norm-table`); the public log has 1.2 for what it
                           calls DeltaNet, and DeltaNet as published has 6.5. In training, backend "triton" has a kernel
                           for such heads (`linattest.kernels.delta_channels`), which neither decodes nor takes states.
    reinitialised_levels   level weights as the public training script of [AdaptiveDecay] leaves them: it starts every
                           linear map anew from N(0, 0.02) and every bias from 0, those of the level weights too.

VLA with A = I, the delta rule on VLA's features and normaliser, is `vla` with lam0 = 1e12: beside that, no penalty
survives float32. Level weights that depend on the level alone are `mlp_softplus` with w1 and w2 frozen: softplus(b2).
"""

from __future__ import annotations

from fnmatch import fnmatch
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattest.impls import layer_operands, lm
from linattest.impls.features import norm
from linattest.impls.layer_parts import Widths, rounded_once, widened
from linattest.impls.layers import GatedDeltaNet
from linattest.impls.level_weights import LambdaMLPSoftmax, LambdaMLPSoftplus
from linattest.verify.experiments.recipe import Model, Shape

SEQUENTIAL = "delta_channels"
"""The kernel of channel_gate."""


def build(
    model: Model, shape: Shape, vocab_size: int, longest: int, *, seed: int, backend: str = "chunk"
) -> lm.CausalLM:
    """The model on the CPU, its parameters drawn by ``seed``; torch's own random numbers go on as if it were not made.

    Raises:
        TypeError, ValueError: an option that the layer has not or refuses, a variant of another layer, a pattern of
            ``freeze`` that names no parameter.
    """
    options = {**shape.options, **model.options}
    options.setdefault("backend", backend if _has_kernel(model.layer, options) else "chunk")
    for name in ("conv_size", "output_norm"):
        if options.get(name) is False:  # TOML has no null: false takes off what the shape has for all
            del options[name]
    H, K = shape.num_heads, shape.hidden_size // shape.num_heads
    if model.layer == "log_linear":
        options.setdefault("max_length", longest)
    channel_gate = model.variant == "channel_gate"
    kind = options.pop("output_norm", None) if channel_gate else None
    if channel_gate:
        if model.layer != "gated_delta_net":
            raise ValueError(
                f"model {model.name}: layer is {model.layer!r}, expected 'gated_delta_net' for channel_gate"
            )
        # triangles of a chunk are made for every channel: of 16 tokens they cost a seventh of what those of 64 do
        options = {"chunk_size": 16, **options, "num_value_heads": H * K, "value_dim": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = lm.CausalLM(
            lm.LMConfig(
                vocab_size=vocab_size, hidden_size=shape.hidden_size, num_layers=shape.num_layers, num_heads=H,
                layer=model.layer, layer_options=options, mlp_ratio=shape.mlp_ratio, norm=shape.norm,
                max_positions=longest if shape.positions else None,
            )
        )  # fmt: skip
        if channel_gate:
            for layer in (m for m in made.modules() if isinstance(m, GatedDeltaNet)):
                if layer.backend == "triton":
                    layer.operator = SEQUENTIAL
                layer.operands = ChannelGate(layer.widths)
                layer.operands.apply(lm.initialise)
                setattr(layer, "norm", None if kind is None else ByHead(K, kind))  # noqa: B010  typed narrower there
        if model.variant == "reinitialised_levels":
            _reinitialise(made, model)
    _freeze(made, model)
    return made


def modules(model: Model, shape: Shape, backend: str) -> list[str]:
    """What `build` loads by a name that it makes: the model's operator in `impls`, and its kernel if it has one."""
    found = [f"linattest.impls.{model.layer}"]
    backend = {**shape.options, **model.options}.get("backend", backend)
    if backend == "triton" and _has_kernel(model.layer, {**shape.options, **model.options}):
        found.append(f"linattest.kernels.{SEQUENTIAL if model.variant == 'channel_gate' else model.layer}")
    return found


def _has_kernel(layer: str, options: dict[str, Any]) -> bool:
    """Not softmax, whose form here is PyTorch's own, nor linear attention's normaliser."""
    normalised = layer == "linear" and options.get("normalizer", True)
    return not normalised and find_spec(f"linattest.kernels.{layer}") is not None


class ChannelGate(layer_operands.Operands):
    """Operands of `gated_delta_net`: unit q and k, beta = 1, log gate logsigmoid(W x + b) of every value channel."""

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        self.gate = nn.Linear(widths.D, widths.HV)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        """As the other operands."""
        g = F.logsigmoid(widened(self.gate(x)))
        return {"q": rounded_once(norm, q), "k": rounded_once(norm, k), "v": v, "beta": torch.ones_like(g), "g": g}


class ByHead(nn.Module):
    """The output norm over the channels of a head, which are value heads of width 1 here: o [B, T, H K, 1]."""

    def __init__(self, K: int, kind: str) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(K) if kind == "layer" else nn.RMSNorm(K, eps=1e-5)

    @property
    def weight(self) -> nn.Parameter:
        """The norm's weight, whose dtype the layer asks for."""
        return self.inner.weight

    def forward(self, o: Tensor) -> Tensor:
        """The same shape."""
        return self.inner(o.squeeze(-1).unflatten(-1, (-1, self.weight.shape[0]))).flatten(-2).unsqueeze(-1)


@torch.no_grad()
def _reinitialise(made: lm.CausalLM, model: Model) -> None:
    found = [m for m in made.modules() if isinstance(m, LambdaMLPSoftplus | LambdaMLPSoftmax)]
    if not found:
        raise ValueError(f"model {model.name}: has no level weights of an MLP, expected some for reinitialised_levels")
    for weights in found:
        for matrix in (weights.w1, weights.w2):
            nn.init.normal_(matrix, std=0.02)
        for bias in (weights.b1, weights.b2):
            if bias is not None:
                nn.init.zeros_(bias)


def _freeze(made: lm.CausalLM, model: Model) -> None:
    for pattern in model.freeze:
        found = [p for name, p in made.named_parameters() if fnmatch(name, pattern)]
        if not found:
            known = ", ".join(name for name, _ in made.named_parameters())
            raise ValueError(f"model {model.name}: freeze has {pattern!r}, which matches no parameter of {known}")
        for parameter in found:
            parameter.requires_grad_(False)
