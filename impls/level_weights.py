"""Level weights: how a token's hidden state chooses what it reads of each level of log-linear attention.

Every form maps level features d_t [..., L], a linear projection of the hidden state per head, to weights [..., L]:

    linear         softplus(weight * d)                           weight [H, L], 1 at the start
    mlp_softplus   softplus(act(d w1 + b1) w2 + b2)               w1 [L, hidden], w2 [hidden, L], one MLP for all heads
    mlp_softmax    softmax(act(d w1 + b1) w2 + b2) over levels

At the start w2 = 0 and b2 = 0.54, so that every weight of mlp_softplus is softplus(0.54) = 0.99916 (the exact constant
for 1 is ln(e - 1) = 0.54132) and every weight of mlp_softmax 1/L, whatever the input is.

The paper's formula has no hidden activation and no b1; its public code has GELU and b1 (zero at the start, w1 Xavier
uniform) and hidden = 64. The defaults here are the formula and hidden = 2 L;
`activation="gelu", hidden_bias=True, hidden=64` is the public code, but for mlp_softmax's b2, which starts at 0 there:
softmax does not see the difference. `linear` is the public baseline, where the paper names a projection alone.

Parameters of the weights are plain `nn.Parameter`s: re-initialising every `nn.Linear` of a model, as the public
training script does, leaves the initialisation above alone (only the projection to level features is an `nn.Linear`).

Source: Amin et al. 2026, "Adaptive Memory Decay for Log-Linear Attention", LambdaMLPSoftplus and its ablations; Guo et
al. 2025, "Log-Linear Attention" (baseline).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linattest.impls import arguments, features
from linattest.impls.features import WIDE

ACTIVATIONS = ("identity", "gelu", "softplus")
START = 0.54  # of b2

# --- functional forms: float64 inside, rounded once to float32 (float64 for float64 features) -----------------


@features.full_precision
def linear(d: Tensor, weight: Tensor) -> Tensor:
    """softplus(weight * d): d [..., L] or [..., H, L], weight [L] or [H, L], any floating dtypes.

    Returns the shape of d in float32 (float64 for float64 d). Raises TypeError or ValueError (naming the argument) for
    wrong dtypes, shapes or devices. Source: public code of the paper (module docstring).
    """
    _check_features(d)
    arguments.check_floating("weight", weight)
    if weight.dim() not in (1, 2) or weight.shape != d.shape[-weight.dim() :]:
        raise ValueError(f"weight has shape {list(weight.shape)}, expected d's last sizes, [L] or [H, L]")
    arguments.check_device("weight", weight, d, "d")
    return _softplus(weight.to(WIDE) * d.to(WIDE)).to(arguments.compute_dtype(d.dtype))


@features.full_precision
def mlp_softplus(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: str = "identity"
) -> Tensor:
    """softplus(act(d w1 + b1) w2 + b2): d [..., L], w1 [L, hidden], b1 [hidden] or None, w2 [hidden, L], b2 [L].

    `activation` is "identity", "gelu" (exact, with erf) or "softplus"; dtypes, result and errors as in `linear`.
    Source: paper, LambdaMLPSoftplus.
    """
    return _softplus(_mlp(d, w1, b1, w2, b2, activation)).to(arguments.compute_dtype(d.dtype))


@features.full_precision
def mlp_softmax(
    d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: str = "identity"
) -> Tensor:
    """softmax over the levels of act(d w1 + b1) w2 + b2; everything else as in `mlp_softplus`."""
    return torch.softmax(_mlp(d, w1, b1, w2, b2, activation), -1).to(arguments.compute_dtype(d.dtype))


def _check_features(d: object) -> int:
    """d [..., L]; returns L."""
    tensor = arguments.check_floating("d", d)
    if not tensor.dim() or not tensor.shape[-1]:
        raise ValueError(f"d has shape {list(tensor.shape)}, expected [..., L] with L at least 1")
    return tensor.shape[-1]


def _mlp(d: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor, activation: str) -> Tensor:
    """act(d w1 + b1) w2 + b2 in float64."""
    L = _check_features(d)
    hidden = arguments.check_rank("w1", w1, "[L, hidden]").shape[-1]
    shapes = {"w1": (w1, (L, hidden), "[L, hidden]"), "w2": (w2, (hidden, L), "[hidden, L]"), "b2": (b2, (L,), "[L]")}
    if b1 is not None:
        shapes["b1"] = (b1, (hidden,), "[hidden]")
    for name, (value, shape, meaning) in shapes.items():
        arguments.check_shape(name, arguments.check_floating(name, value), shape, meaning)
        arguments.check_device(name, value, d, "d")
    arguments.check_choice("activation", activation, ACTIVATIONS)
    h = d.to(WIDE) @ w1.to(WIDE)
    if b1 is not None:
        h = h + b1.to(WIDE)
    if activation == "gelu":
        h = h * torch.special.erfc(h * -(0.5**0.5)) / 2  # h Phi(h); `gelu` cancels to 0 below -5
    elif activation == "softplus":
        h = _softplus(h)
    return h @ w2.to(WIDE) + b2.to(WIDE)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); `nn.functional.softplus` is x itself above 20, which is off by 2e-9."""
    return torch.logaddexp(x, x.new_zeros(()))


# --- modules: hidden states [B, T, hidden_size] -> level_weights [B, T, HV, L] --------------------------------


class _LevelWeights(nn.Module):
    """The projection to level features, which all forms share."""

    def __init__(self, hidden_size: int, num_heads: int, num_levels: int) -> None:
        super().__init__()
        self.hidden_size = arguments.check_size("hidden_size", hidden_size)
        self.num_heads = arguments.check_size("num_heads", num_heads)
        self.num_levels = arguments.check_size("num_levels", num_levels)
        self.features = nn.Linear(hidden_size, num_heads * num_levels, bias=False)

    def level_features(self, hidden_states: Tensor) -> Tensor:
        """Hidden states [B, T, hidden_size] -> d [B, T, HV, L]."""
        x = arguments.check_rank("hidden_states", hidden_states, "[B, T, hidden_size]")
        if x.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden_states has width {x.shape[-1]}, expected hidden_size = {self.hidden_size}")
        return self.features(x).unflatten(-1, (self.num_heads, self.num_levels))


class LambdaLinear(_LevelWeights):
    """The baseline softplus(weight * d), weight [num_heads, num_levels] (module docstring).

    Maps hidden states [B, T, hidden_size] to level weights [B, T, num_heads, num_levels], float32 (float64 if the
    projection gives float64). Raises TypeError or ValueError (naming the argument) for sizes that are no positive
    whole numbers and for hidden states of another shape. Source: public code of the paper.
    """

    def __init__(self, hidden_size: int, num_heads: int, num_levels: int) -> None:
        super().__init__(hidden_size, num_heads, num_levels)
        self.weight = nn.Parameter(torch.empty(num_heads, num_levels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight = 1; the projection as nn.Linear has it."""
        self.features.reset_parameters()
        nn.init.ones_(self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return linear(self.level_features(hidden_states), self.weight)


class _LambdaMLP(_LevelWeights):
    """The parameters of both MLP forms."""

    b1: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_levels: int,
        *,
        hidden: int | None = None,
        activation: str = "identity",
        hidden_bias: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, num_levels)
        arguments.check_choice("activation", activation, ACTIVATIONS)
        self.activation = activation
        self.hidden = 2 * num_levels if hidden is None else arguments.check_size("hidden", hidden)
        self.w1 = nn.Parameter(torch.empty(num_levels, self.hidden))
        with_bias = arguments.check_flag("hidden_bias", hidden_bias)
        self.register_parameter("b1", nn.Parameter(torch.empty(self.hidden)) if with_bias else None)
        self.w2 = nn.Parameter(torch.empty(self.hidden, num_levels))
        self.b2 = nn.Parameter(torch.empty(num_levels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w1 Xavier uniform, b1 = 0, w2 = 0, b2 = 0.54; the projection as nn.Linear has it."""
        self.features.reset_parameters()
        nn.init.xavier_uniform_(self.w1)
        if self.b1 is not None:
            nn.init.zeros_(self.b1)
        nn.init.zeros_(self.w2)
        nn.init.constant_(self.b2, START)


class LambdaMLPSoftplus(_LambdaMLP):
    """softplus(act(d w1 + b1) w2 + b2): an independent weight for each level (module docstring).

    Maps hidden states [B, T, hidden_size] to level weights [B, T, num_heads, num_levels], float32 (float64 if the
    projection gives float64); `hidden` is 2 * num_levels by default, `activation` "identity", "gelu" or "softplus",
    `hidden_bias` says whether there is a b1. Raises TypeError or ValueError (naming the argument) for wrong sizes,
    activations, flags, and hidden states of another shape. Source: paper, LambdaMLPSoftplus.
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        d = self.level_features(hidden_states)
        return mlp_softplus(d, self.w1, self.b1, self.w2, self.b2, self.activation)


class LambdaMLPSoftmax(_LambdaMLP):
    """softmax(act(d w1 + b1) w2 + b2) over levels, which then compete; everything else as `LambdaMLPSoftplus`."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        d = self.level_features(hidden_states)
        return mlp_softmax(d, self.w1, self.b1, self.w2, self.b2, self.activation)
