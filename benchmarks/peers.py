"""What an operator is measured beside: the backends of softmax attention, and flash-linear-attention if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.common import resolve
from benchmarks.workloads import Shape, Tensors

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
GPU_BACKENDS, CPU_BACKENDS = ("cudnn", "flash", "efficient"), ("flash", "math")
"""Those that are timed on each kind of device. On a GPU the last of all would make a T by T matrix."""


def softmax_inputs(shape: Shape, seed: int, queries: int | None = None) -> Tensors:
    """q, k, v [B, H, T, D] contiguous, as attention kernels like them best; `queries`: the last rows of q alone."""
    names = ("q", "k", "v")
    drawn = {name: shape.normal(shape.D, seed=1000 * seed + i).to(shape.dtype) for i, name in enumerate(names)}
    dense = {name: x.transpose(1, 2).contiguous() for name, x in drawn.items()}
    if queries is not None:
        dense["q"] = dense["q"][:, :, -queries:].contiguous()
    return dense


def softmax(backend: str) -> Callable[[Tensors], Tensor]:
    """Causal softmax attention by one backend; one query is the last token's, which sees all keys."""

    def run(x: Tensors) -> Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=x["q"].shape[2] > 1)

    return run


def softmax_reference(x: Tensors, rows: int = 64) -> Tensor:
    """The last rows of the first head in float64 [B, 1, rows, D]: softmax of all scores, written out."""
    q, k, v = (x[name][:, :1].double() for name in ("q", "k", "v"))
    q = q[:, :, -rows:]
    T, n = k.shape[2], q.shape[2]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    last = torch.arange(T - n, T, device=q.device)[:, None]
    hidden = torch.arange(T, device=q.device) > last
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v


@dataclass(frozen=True)
class Peer:
    """A function of fla for one workload: its path, what it calls our inputs ("-x": negated), fixed keywords."""

    path: str
    names: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, inputs: Tensors) -> Tensors:
        """Our inputs under its names."""
        wanted = {name: name for name in inputs} if not self.names else self.names
        return {theirs: -inputs[ours[1:]] if ours[0] == "-" else inputs[ours] for theirs, ours in wanted.items()}


_QKV = {"q": "q", "k": "k", "v": "v"}

FLA = {
    "gla-head": Peer("fla.ops.simple_gla:chunk_simple_gla"),
    "gla-channel": Peer("fla.ops.gla:chunk_gla"),
    "delta_net": Peer("fla.ops.delta_rule:chunk_delta_rule"),
    "gated_delta_net": Peer("fla.ops.gated_delta_rule:chunk_gated_delta_rule"),
    "delta_scan": Peer(
        "fla.ops.generalized_delta_rule.iplr:chunk_iplr_delta_rule",
        {"q": "q", "k": "write", "v": "v", "a": "-erase", "b": "write"},
    ),
    "log_linear": Peer(
        "fla.ops.log_linear_attn:chunk_log_linear_attn", {**_QKV, "g": "g", "level_scales": "level_weights"}
    ),
}
"""By the name of a workload. The others have no match there."""


def fla(name: str) -> tuple[str, Callable[[Tensors], Tensor]] | None:
    """fla's implementation of a workload and its name here; ``None`` without the package or a match.

    Raises:
        ImportError, AttributeError: it is installed, and has no such function.
    """
    peer = FLA.get(name)
    if peer is None or importlib.util.find_spec("fla") is None:
        return None
    function = resolve(peer.path)

    def run(inputs: Tensors) -> Tensor:
        answer = function(**peer.arguments(inputs))
        return answer[0] if isinstance(answer, tuple) else answer

    return f"fla:{peer.path.partition(':')[2]}", run
