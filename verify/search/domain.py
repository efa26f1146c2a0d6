"""What a search may choose from: stated bounds on every input, and coordinates that do not leave them.

An input is a function of *free* numbers: a value row is one of the unit ball, a key the normalised feature map of a
raw key, a tied penalty direction u_t = W x_t / |W x_t| / sqrt(K) of the same raw key and one matrix W (as a layer
makes it). ``keep`` moves free numbers back to where they may be, so that ascent on them stays feasible.

``check`` proves afterwards, in high precision, that the float64 inputs are what the bounds say: each lies within
``SLACK`` of the exact function of its free numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from linattest.verify.inputs import Batch, Case, Scalar, Structure, resolve_options
from linattest.verify.numbers import MpContext
from linattest.verify.signature import Input, State
from linattest.verify.spec import Operator
from linattest.verify.values import KEYS

Tensors = dict[str, torch.Tensor]
Numbers = list[Any]
Tie = Literal["tied", "free"]

TIES: tuple[Tie, ...] = ("tied", "free")
"""How penalty directions are bound: made from the raw keys by one matrix, or any vectors of length at most 1."""

REACH = 8.0
"""Raw keys lie in [-8, 8]: a feature map makes them 3e-4 to 9."""

SLACK = 2.0**-40
"""An input may differ by this (1e-12) from the exact function of its free numbers: float64's rounding of a matrix
product, a feature map and a norm, 2**13 units of it."""

_BITS = 200


class InfeasibleError(ValueError):
    """An input is not within the bounds that were stated, or no bounds are stated for it."""


def phi(x: torch.Tensor) -> torch.Tensor:
    """The feature map ELU(x) + 1."""
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length 1 (a zero row stays zero)."""
    length = x.norm(dim=-1, keepdim=True)
    return x / torch.where(length > 0, length, 1)


def _into_ball(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1)


def _exact_unit(mp: Any, row: Numbers) -> Numbers:
    length = mp.sqrt(mp.fdot(row, row))
    if not length:
        raise InfeasibleError("a row of zeros has no direction, expected one of length 1")
    return [x / length for x in row]


def _exact_phi(mp: Any, row: Numbers) -> Numbers:
    return [x + 1 if x > 0 else mp.exp(x) for x in row]


def _exact_ball(mp: Any, row: Numbers) -> Numbers:
    return _exact_unit(mp, row) if mp.fdot(row, row) > 1 else row


@dataclass(frozen=True)
class Rule:
    """Bounds of one kind of input: in words, from free numbers in float64, and from them exactly (a row at a time)."""

    bound: str
    keep: Callable[[torch.Tensor], torch.Tensor]
    value: Callable[[torch.Tensor], torch.Tensor]
    exact: Callable[[Any, Numbers], Numbers]
    span: tuple[float, float] | None = None


def _interval(low: float, high: float) -> Rule:
    bound = f"{{0}} <= {high:g}" if low == -REACH else f"{low:g} <= {{0}} <= {high:g}"
    return Rule(
        bound,
        lambda x: x.clamp(low, high),
        lambda x: x,
        lambda mp, row: [min(max(x, mp.mpf(low)), mp.mpf(high)) for x in row],
        (low, high),
    )


BALL = Rule("|{0}| <= 1", _into_ball, lambda x: x, _exact_ball)
SPHERE = Rule("|{0}| = 1", lambda x: x.clamp(-1, 1), unit, lambda mp, row: _exact_unit(mp, row))
FEATURE = Rule(
    "|{0}| = 1, {0} = phi(x)/|phi(x)|, phi = ELU + 1, |x_i| <= 8",
    lambda x: x.clamp(-REACH, REACH),
    lambda x: unit(phi(x)),
    lambda mp, row: _exact_unit(mp, _exact_phi(mp, row)),
)
TIED = Rule("{0} = W x/|W x|/sqrt(K), one matrix W, x the raw key", unit, unit, _exact_unit)

RULES: Mapping[str, Rule] = {
    "real": BALL,
    "unit": SPHERE,
    "feature": FEATURE,
    "unit_feature": FEATURE,
    "direction": TIED,
    "beta": _interval(0, 1),
    "rate": _interval(0, 1),
    "weight": _interval(0, 1),
    "level": _interval(0, 1),
    "log_gate": _interval(-REACH, 0),
}
"""Bounds by the domain of an input (values.py)."""


@dataclass(frozen=True)
class Space:
    """The bounded inputs of one operator at one size: one sequence, one head, ``T`` tokens, widths ``K`` and ``V``."""

    operator: Operator
    T: int
    K: int
    V: int
    given: Mapping[str, Scalar]
    tie: Tie = "tied"

    def __post_init__(self) -> None:
        if self.tie not in TIES:
            raise InfeasibleError(f"tie={self.tie!r}, expected one of {TIES}")
        if min(self.T, self.K, self.V) < 1:
            raise InfeasibleError(f"T={self.T}, K={self.K}, V={self.V}, expected at least 1 each")

    @cached_property
    def options(self) -> dict[str, Scalar | None]:
        """Every option of the operator, resolved."""
        return resolve_options(self.operator, self.given)

    @cached_property
    def inputs(self) -> list[Input]:
        """The inputs that exist under these options."""
        return self.operator.inputs_of(self.options)

    @cached_property
    def directions(self) -> list[str]:
        """Names of the penalty directions among the inputs."""
        return [x.name for x in self.inputs if x.domain == "direction"]

    @cached_property
    def raw(self) -> str | None:
        """The input whose free numbers are the raw keys: the first key-like one that is no query."""
        keys = (x.name for x in self.inputs if x.domain in KEYS - {"direction"} and x.name != "q")
        return next(keys, None)

    @cached_property
    def memory(self) -> State | None:
        """The state that is written with values: what grows, and what Jacobians are taken of."""
        return next((x for x in self.operator.states_of(self.options) if x.domain in ("state", "buckets")), None)

    def rule(self, x: Input) -> Rule:
        """The rule of an input. Raises ``InfeasibleError`` where there is none."""
        if x.domain not in RULES:
            raise InfeasibleError(f"{x.name}: no bounds are stated for domain {x.domain!r}, only for {sorted(RULES)}")
        if self.tied(x) and self.raw is None:
            raise InfeasibleError(f"{self.operator.name!r} has no key to tie the penalty direction {x.name!r} to")
        return BALL if x.domain == "direction" and self.tie == "free" else RULES[x.domain]

    def tied(self, x: Input) -> bool:
        """Whether an input is made from the raw keys by one matrix."""
        return x.domain == "direction" and self.tie == "tied"

    @property
    def bounds(self) -> list[str]:
        """The bounds in words, one an input."""
        return [self.rule(x).bound.format(f"{x.name}_t") for x in self.inputs]

    @property
    def structure(self) -> Structure:
        """One sequence of one head."""
        return Structure(T=self.T, K=self.K, V=self.V)

    def case(self, seed: int = 0) -> Case:
        """What records call an input of this space."""
        return Case(
            operator=self.operator.name, structure=self.structure, dtype="float64", family="searched", seed=seed,
            options=self.given, gradient=False,
        )  # fmt: skip

    def batch(self, tensors: Tensors, seed: int = 0) -> Batch:
        """Inputs ``[R, T, 1, ..]``, in any order, as a batch without initial state."""
        ordered = {x.name: tensors[x.name] for x in self.inputs if x.name in tensors}
        return Batch(self.case(seed), ordered, None, self.options, {})

    def draw(self, starts: int, rng: np.random.Generator) -> Tensors:
        """Random free numbers of so many independent inputs, ``[starts, T, 1, ..]`` (W: ``[starts, K, K]``)."""
        free: Tensors = {}
        for x in self.inputs:
            shape, span = (starts, *self.structure.shape(x.shape)[1:]), self.rule(x).span
            if self.tied(x):
                free[x.name] = torch.from_numpy(rng.standard_normal((starts, self.K, self.K)))
                continue
            free[x.name] = torch.from_numpy(rng.standard_normal(shape) if span is None else rng.uniform(*span, shape))
        return self.keep(free)

    def keep(self, free: Tensors) -> Tensors:
        """The nearest free numbers that are allowed; a matrix W has largest entry 1 (only its direction counts)."""
        kept: Tensors = {}
        for x in self.inputs:
            value = free[x.name]
            kept[x.name] = (
                value / value.abs().amax((-2, -1), keepdim=True) if self.tied(x) else self.rule(x).keep(value)
            )
        return kept

    def values(self, free: Tensors) -> Tensors:
        """The operator's inputs, differentiable in the free numbers."""
        return {
            x.name: self._tie(free, x.name) if self.tied(x) else self.rule(x).value(free[x.name]) for x in self.inputs
        }

    def _tie(self, free: Tensors, name: str) -> torch.Tensor:
        assert self.raw is not None
        return unit(free[self.raw] @ free[name].mT.unsqueeze(1)) / self.K**0.5

    def check(self, free: Tensors, tensors: Tensors) -> float:
        """Prove one input (``R = 1``) feasible: the largest distance of a number from what it stands for.

        Raises:
            InfeasibleError: a missing or non-finite tensor, or a row further than ``SLACK`` from its bound.
        """
        ctx, worst = MpContext(_BITS), 0.0
        for x in self.inputs:
            shape = (1, *self.structure.shape(x.shape)[1:])
            if x.name not in tensors or x.name not in free or tuple(tensors[x.name].shape) != shape:
                raise InfeasibleError(f"{x.name}: expected free numbers and a tensor of shape {shape}")
            got = tensors[x.name].double().reshape(self.T, -1).tolist()
            for t, row in enumerate(got):
                exact = self._exact_row(ctx.mp, x, free, t)
                gap = max(abs(ctx.mp.mpf(a) - b) for a, b in zip(row, exact, strict=True))
                if not gap <= SLACK:
                    raise InfeasibleError(
                        f"{x.name}[{t}] = {row} is {float(gap):.3g} away from its bound "
                        f"{self.rule(x).bound.format(x.name + '_t')!r}, at most {SLACK:.1g}"
                    )
                worst = max(worst, float(gap))
        return worst

    def _exact_row(self, mp: Any, x: Input, free: Tensors, t: int) -> Numbers:
        def row(name: str) -> Numbers:
            return [mp.mpf(y) for y in free[name][0, t].reshape(-1).tolist()]

        if not self.tied(x):
            return self.rule(x).exact(mp, row(x.name))
        assert self.raw is not None
        raw = row(self.raw)
        image = [mp.fdot([mp.mpf(y) for y in line], raw) for line in free[x.name][0].tolist()]
        return [y / mp.sqrt(self.K) for y in _exact_unit(mp, image)]
