"""What each operator reads besides q, k, v: gates, beta, penalty directions, level weights, CCQ's lam.

An *operands* module turns the hidden states and the projected q, k, v into the operator's tensor arguments, by name
(`forward`), and knows its other arguments (`options`). Gates, beta and the like are float32 (float64 in a float64
layer); what is computed from q, k, v is computed in that dtype too and rounded once. What is not a matrix is a plain
parameter, so that a model-wide initialisation of its `nn.Linear` modules leaves it alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattest.impls import arguments, features, level_weights
from linattest.impls.features import WIDE
from linattest.impls.layer_parts import Widths, rounded_once, widened

# --- gates -----------------------------------------------------------------------------------------------------


class MambaGate(nn.Module):
    """Log gate [N, T, HV] of Mamba-2: g = -exp(A_log) * softplus(W x + dt_bias).

    In float64, where A_log = 100 beside a pre-activation of -200 is a decay of 1 (float32 has inf * 0 there).
    """

    def __init__(self, widths: Widths, **factory: Any) -> None:
        super().__init__()
        self.proj = nn.Linear(widths.D, widths.HV, bias=False, **factory)
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(widths.HV, **factory)) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Decay rates 1 to 16 and time steps 1e-3 to 1e-1, log-uniform (Mamba-2's): softplus(dt_bias) is the step."""
        rates, steps = (torch.empty_like(self.A_log, dtype=torch.float32) for _ in range(2))
        self.A_log.copy_(rates.uniform_(1, 16).log())
        steps.uniform_(math.log(1e-3), math.log(1e-1)).exp_()
        self.dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))

    def forward(self, x: Tensor) -> Tensor:
        pre = self.proj(x)
        step = F.softplus(pre.to(WIDE) + self.dt_bias.to(WIDE))
        return (-torch.exp(self.A_log.to(WIDE)) * step).to(arguments.compute_dtype(pre.dtype))


class LogSigmoidGate(nn.Module):
    """Log gate of GLA, logsigmoid(W x + b) / 16: [N, T, H, K] from a rank-16 W, or [N, T, HV] (`per="head"`)."""

    def __init__(self, widths: Widths, per: str, **factory: Any) -> None:
        super().__init__()
        arguments.check_choice("gate", per, ("channel", "head"))
        D, H, HV, K, _ = widths
        self.shape = (H, K) if per == "channel" else (HV,)
        rank = min(16, D)
        if per == "head":
            self.proj = nn.Sequential(nn.Linear(D, HV, **factory))
        else:
            self.proj = nn.Sequential(nn.Linear(D, rank, bias=False, **factory), nn.Linear(rank, H * K, **factory))

    def forward(self, x: Tensor) -> Tensor:
        return (F.logsigmoid(widened(self.proj(x))) / 16).unflatten(-1, self.shape)


# --- operands, one module an operator --------------------------------------------------------------------------


class Operands(nn.Module):
    """q, k, v as they are (softmax); the base of the others."""

    def options(self) -> dict[str, Any]:
        """Arguments of the operator that are not per token."""
        return {}

    def check_lengths(self, lengths: list[int], state: Any) -> None:
        """ValueError for more tokens, by sequence and after those of the cache, than the layer is made for."""

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        return {"q": q, "k": k, "v": v}


class Features(Operands):
    """linear: q and k through the feature map ELU + 1."""

    def __init__(self, widths: Widths, *, normalizer: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.normalizer = arguments.check_flag("normalizer", normalizer)

    def options(self) -> dict[str, Any]:
        return {"normalizer": self.normalizer}

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        return {"q": rounded_once(features.phi, q), "k": rounded_once(features.phi, k), "v": v}


class Penalised(Features):
    """vla: features, and the penalty direction u = norm(W_u k) / sqrt(K), W_u shared by the heads; k before phi."""

    def __init__(
        self, widths: Widths, *, normalizer: bool = True, lam0: float = 0.1, learn_lam0: bool = False, **factory: Any
    ) -> None:
        super().__init__(widths, normalizer=normalizer)
        arguments.check_heads("num_value_heads", widths.HV, widths.H, grouped=False)
        self.u_proj = nn.Linear(widths.K, widths.K, bias=False, **factory)
        self.lam0 = arguments.check_number("lam0", lam0, positive=True)
        self.raw_lam0 = None
        if arguments.check_flag("learn_lam0", learn_lam0):
            start = self.lam0 + math.log(-math.expm1(-self.lam0))  # softplus^{-1}(lam0)
            self.raw_lam0 = nn.Parameter(torch.full((widths.H,), start, **factory))

    def options(self) -> dict[str, Any]:
        lam0 = self.lam0 if self.raw_lam0 is None else F.softplus(widened(self.raw_lam0))
        return {**super().options(), "lam0": lam0}

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        direction = rounded_once(lambda y: features.norm(y) * k.shape[-1] ** -0.5, self.u_proj(k))
        return {**super().forward(x, q, k, v), "u": direction}


class Delta(Operands):
    """delta_net: unit q and k, beta = sigmoid(W x)."""

    def __init__(self, widths: Widths, **factory: Any) -> None:
        super().__init__()
        self.beta_proj = nn.Linear(widths.D, widths.HV, bias=False, **factory)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        units = {"q": rounded_once(features.norm, q), "k": rounded_once(features.norm, k), "v": v}
        return {**units, "beta": torch.sigmoid(widened(self.beta_proj(x)))}


class GatedDelta(Delta):
    """gated_delta_net: as `Delta`, with a Mamba-2 gate."""

    def __init__(self, widths: Widths, **factory: Any) -> None:
        super().__init__(widths, **factory)
        self.gate = MambaGate(widths, **factory)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        return {**super().forward(x, q, k, v), "g": self.gate(x)}


class Gated(Operands):
    """gla: q, k, v as they are, and GLA's gate."""

    def __init__(self, widths: Widths, *, gate: str = "channel", **factory: Any) -> None:
        super().__init__()
        self.gate = LogSigmoidGate(widths, gate, **factory)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        return {**super().forward(x, q, k, v), "g": self.gate(x)}


class Decayed(Operands):
    """log_linear without delta: q, k, v as they are, and a Mamba-2 gate."""

    def __init__(self, widths: Widths, **factory: Any) -> None:
        super().__init__()
        self.gate = MambaGate(widths, **factory)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        return {**super().forward(x, q, k, v), "g": self.gate(x)}


class Levels(Operands):
    """log_linear: a Mamba-2 gate and level weights; with `delta` also unit q and k and beta."""

    def __init__(
        self,
        widths: Widths,
        *,
        max_length: int,
        kind: str = "mlp_softplus",
        options: dict[str, Any] | None = None,
        delta: bool = False,
        **factory: Any,
    ) -> None:
        super().__init__()
        arguments.check_choice("level_weights", kind, tuple(LEVEL_WEIGHTS))
        self.max_length = arguments.check_size("max_length", max_length)
        L = arguments.levels_needed(0, max_length)
        self.gated = (GatedDelta if arguments.check_flag("delta", delta) else Decayed)(widths, **factory)
        self.weights = LEVEL_WEIGHTS[kind](widths.D, widths.HV, L, **(options or {})).to(**factory)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        return {**self.gated(x, q, k, v), "level_weights": self.weights(x)}

    def check_lengths(self, lengths: list[int], state: Any) -> None:
        before = [0] * len(lengths) if state is None else state[1].tolist()
        for n, (seen, more) in enumerate(zip(before, lengths, strict=True)):
            if seen + more > self.max_length:
                raise ValueError(
                    f"hidden_states has {more} tokens for row {n} after {seen} in its cache, expected at most "
                    f"max_length = {self.max_length} in all"
                )


class Contracted(Operands):
    """ccq on a backbone: its operands, and lam = sigmoid(w_lam . q + b_lam) with q as the operator gets it."""

    def __init__(self, widths: Widths, backbone: str, options: dict[str, Any], **factory: Any) -> None:
        super().__init__()
        arguments.check_choice("backbone", backbone, tuple(BACKBONES))
        self.name = backbone
        self.backbone = BACKBONES[backbone](widths, **options, **factory)
        bound = widths.K**-0.5
        self.w_lam = nn.Parameter(torch.empty(widths.H, widths.K, **factory).uniform_(-bound, bound))
        self.b_lam = nn.Parameter(torch.zeros(widths.H, **factory))

    def options(self) -> dict[str, Any]:
        return {**self.backbone.options(), "backbone": self.name}

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        operands = self.backbone(x, q, k, v)
        lam = (widened(operands["q"]) * widened(self.w_lam)).sum(-1) + widened(self.b_lam)
        return {**operands, "lam": torch.sigmoid(lam)}


LEVEL_WEIGHTS = {
    "linear": level_weights.LambdaLinear,
    "mlp_softplus": level_weights.LambdaMLPSoftplus,
    "mlp_softmax": level_weights.LambdaMLPSoftmax,
}
BACKBONES = {
    "linear": Features,
    "gla": Gated,
    "delta_net": Delta,
    "gated_delta_net": GatedDelta,
    "vla": Penalised,
}
