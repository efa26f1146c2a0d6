"""What is timed: for every operator with kernels, its inputs at a length, and its functions by name.

Values are what a trained layer might produce (unit keys, decaying gates, rates between 0 and 1), drawn anew for every
length and set of inputs. Adversarial values are the business of `linattest verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes, dtype and device of one measurement; widths K = V = `D`, as many value heads as key heads.

    `levels`: Fenwick levels, 0 for as many as T tokens need.
    """

    T: int
    levels: int = 0
    B: int = 1
    H: int = 16
    D: int = 128
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def normal(self, *extra: int, seed: int) -> Tensor:
        """Standard normal numbers [B, T, H, *extra], float32."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(self.B, self.T, self.H, *extra, generator=generator, device=self.device)


Draw = Callable[[Shape, int], Tensor]

STRIDE = 1000
"""Seeds of one set of inputs."""


def _real(s: Shape, seed: int) -> Tensor:
    return s.normal(s.D, seed=seed).to(s.dtype)


def _unit(s: Shape, seed: int) -> Tensor:
    return F.normalize(s.normal(s.D, seed=seed), dim=-1).to(s.dtype)


def _feature(s: Shape, seed: int) -> Tensor:
    return (F.elu(s.normal(s.D, seed=seed)) + 1).to(s.dtype)


def _unit_feature(s: Shape, seed: int) -> Tensor:
    return F.normalize(F.elu(s.normal(s.D, seed=seed)) + 1, dim=-1).to(s.dtype)


def _direction(s: Shape, seed: int) -> Tensor:
    """Of length D ** -0.5, with an uneven spectrum: a random map of random vectors."""
    generator = torch.Generator(s.device).manual_seed(seed + 1)
    mixing = torch.randn(s.D, s.D, generator=generator, device=s.device)
    return (F.normalize(s.normal(s.D, seed=seed) @ mixing, dim=-1) * s.D**-0.5).to(s.dtype)


def _head_gate(s: Shape, seed: int) -> Tensor:
    return F.logsigmoid(s.normal(seed=seed) + 4)


def _channel_gate(s: Shape, seed: int) -> Tensor:
    return (F.logsigmoid(s.normal(s.D, seed=seed)) / 16).to(s.dtype)


def _rate(s: Shape, seed: int) -> Tensor:
    return torch.sigmoid(s.normal(seed=seed)).to(s.dtype)


def _levels(s: Shape) -> int:
    return s.levels or (s.T - 1).bit_length() + 1


def _level_weights(s: Shape, seed: int) -> Tensor:
    return F.softplus(s.normal(_levels(s), seed=seed)).to(s.dtype)


def _parameter(first: int, *more: int) -> Draw:
    """Parameters that all heads share, sizes in levels: float32, as a layer keeps them."""

    def draw(s: Shape, seed: int) -> Tensor:
        generator, sizes = torch.Generator(s.device).manual_seed(seed), [n * _levels(s) for n in (first, *more)]
        return torch.randn(sizes, generator=generator, device=s.device) * sizes[0] ** -0.5

    return draw


def _write(s: Shape, seed: int) -> Tensor:
    return _unit(s, _shared(seed))


def _erase(s: Shape, seed: int) -> Tensor:
    """Near the key that is written: independent ones would make a state that grows for ever."""
    noise = 0.5 * s.D**-0.5 * s.normal(s.D, seed=seed)
    return F.normalize(_unit(s, _shared(seed)).float() + noise, dim=-1).to(s.dtype)


def _shared(seed: int) -> int:
    """One seed for all inputs of a set."""
    return seed // STRIDE * STRIDE + STRIDE - 1


@dataclass(frozen=True)
class Workload:
    """An operator in one variant: its inputs by name, fixed keywords, and whether softmax attention is its rival.

    `given`: "module:name" of a function of somebody else's that is measured in the place of ours. `others`: other
    forms of it, which are timed beside, by name. `parameters`: inputs that all heads share; with them the operator is
    composed with what makes its level weights (``composed``).
    """

    operator: str
    variant: str
    draws: Mapping[str, Draw]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    attention: bool = True
    given: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """How `--operators` and the tables call it."""
        return f"{self.operator}-{self.variant}" if self.variant else self.operator

    def inputs(self, shape: Shape, seed: int) -> Tensors:
        """One set of inputs; another seed gives another set."""
        return {name: draw(shape, STRIDE * seed + 10 * i) for i, (name, draw) in enumerate(self.draws.items())}

    def function(self, room: str, name: str) -> str:
        """ "module:name" of its function in `impls` or `kernels`."""
        if self.parameters:
            return f"benchmarks.composed:{room}_{self.variant}_{name}"
        return f"linattest.{room}.{self.operator}:{name}"


_QKV: dict[str, Draw] = {"q": _real, "k": _unit, "v": _real}
_GATE: dict[str, Draw] = {"g": _head_gate}
_BETA: dict[str, Draw] = {"beta": _rate}
_CCQ: dict[str, Draw] = {"q": _unit_feature, "k": _unit_feature, "v": _real, "lam": _rate}
_MLP: dict[str, Draw] = {"w1": _parameter(1, 2), "w2": _parameter(2, 1), "b2": _parameter(1)}
_LOOPS = {"loop:python": "linattest.impls.vla:recurrent", "loop:kernel": "linattest.kernels.vla_sequential:forward"}

WORKLOADS = (
    Workload("gla", "head", _QKV | _GATE),
    Workload("gla", "channel", _QKV | {"g": _channel_gate}),
    Workload("gated_delta_net", "", _QKV | _GATE | _BETA),
    Workload("ccq", "gla", _CCQ | _GATE, {"backbone": "gla"}),
    Workload("ccq", "gated_delta_net", _CCQ | _GATE | _BETA, {"backbone": "gated_delta_net"}),
    Workload("delta_net", "", _QKV | _BETA),
    Workload("linear", "", _QKV),
    Workload("delta_scan", "", {"q": _real, "erase": _erase, "write": _write, "v": _real}),
    Workload("covariance_contract", "", {"q": _unit_feature, "k": _unit_feature, "lam": _rate}, attention=False),
    Workload("ridge_solve", "", {"x": _feature, "u": _direction}, {"lam0": 0.1}, attention=False),
    Workload("vla", "", {"q": _feature, "k": _feature, "v": _real, "u": _direction}, others=_LOOPS),
    Workload("log_linear", "", _QKV | _GATE | {"level_weights": _level_weights}),
    Workload("log_linear", "delta", _QKV | _GATE | _BETA | {"level_weights": _level_weights}),
    Workload(
        "log_linear",
        "linear",
        _QKV | _GATE | {"d": _level_weights, "weight": _parameter(1)},
        parameters=frozenset({"weight"}),
    ),
    Workload("log_linear", "mlp_softplus", _QKV | _GATE | {"d": _level_weights} | _MLP, parameters=frozenset(_MLP)),
    Workload("log_linear", "mlp_softmax", _QKV | _GATE | {"d": _level_weights} | _MLP, parameters=frozenset(_MLP)),
)
"""The most important first: a run that ends early has measured these."""


def output_of(answer: Any) -> Tensor:
    """The output of a function that may return its state too."""
    return answer[0] if isinstance(answer, tuple) else answer


def first_of(inputs: Tensors) -> Tensor:
    """The first input: q, or what is solved for; [B, T, H, D] as the output where K = V."""
    return next(iter(inputs.values()))


def call(function: Callable[..., Any], workload: Workload, inputs: Tensors, **more: Any) -> Any:
    """A public function on inputs, by their names."""
    return function(**inputs, **workload.keywords, **more)
