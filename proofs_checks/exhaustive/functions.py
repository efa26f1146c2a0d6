"""Every bfloat16 and every float16 input of the scalar functions that the implementations use.

Exact values come from Arb at 120 bits, as an unevaluated sum of two doubles (relative error below 2^-104): enough to
tell 0.5 ulp from more. Two forms of each function are judged: `wide`, computed in float64 and rounded once, as the
implementations do, and `native`, PyTorch's own on the 16-bit type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import flint
import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linattest.impls import features, level_weights
from linattest.proofs_checks.enclosures.formulas import compiled
from linattest.proofs_checks.proof import Answer, Statement

Array = NDArray[np.float64]
BITS = 120
TOOL = f"python-flint {flint.__version__}, torch {torch.__version__}"
KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Function:
    """A scalar function: exact (a formula in x), as implementations compute it from float64 on, PyTorch's own, its
    direction and its range. ``tight``: a bound in ulp that its wide form just misses."""

    name: str
    exact: str
    form: Callable[[Tensor], Tensor]
    native: Callable[[Tensor], Tensor]
    direction: int = 1
    positive_only: bool = False
    low: float = 0.0
    high: float = math.inf
    tight: float = 0.49


def _level_weight(x: Tensor) -> Tensor:
    """The level weights' softplus, of features that are scores."""
    return level_weights.linear(x.unsqueeze(-1), torch.ones(1, dtype=x.dtype)).squeeze(-1)


FUNCTIONS = (
    Function("exp", "exp(x)", torch.exp, torch.exp),
    Function("sigmoid", "1 / (1 + exp(-x))", torch.sigmoid, torch.sigmoid, high=1.0),
    Function("softplus", "log1p(exp(x)) if x < 0 else x + log1p(exp(-x))", _level_weight, torch.nn.functional.softplus),
    Function("elu + 1", "x + 1 if x >= 0 else exp(x)", features.phi,
             lambda x: torch.nn.functional.elu(x) + 1, tight=0.5 - 1e-9),
    Function("reciprocal", "1 / x", torch.reciprocal, torch.reciprocal, direction=-1, positive_only=True),
)  # fmt: skip


def inputs(kind: str) -> Tensor:
    """Every finite number of the type, in increasing order (one zero)."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = bits.view(KINDS[kind])
    return torch.unique(x[torch.isfinite(x)].double()).to(KINDS[kind])


@functools.cache
def exact(name: str, kind: str) -> tuple[Array, Array]:
    """The exact value at every input as hi + lo; infinite where it is beyond the type."""
    function = next(f for f in FUNCTIONS if f.name == name)
    before, flint.ctx.prec = flint.ctx.prec, BITS
    try:
        hi, lo, formula = [], [], compiled(function.exact, "x")
        for x in domain(function, kind).double().tolist():
            value = formula(flint.arb(x))
            top = float(value)
            hi.append(top)
            lo.append(float(value - top) if np.isfinite(top) else 0.0)
        return np.array(hi), np.array(lo)
    finally:
        flint.ctx.prec = before


def domain(function: Function, kind: str) -> Tensor:
    """The inputs the function takes."""
    x = inputs(kind)
    return x[x > 0] if function.positive_only else x


def ulps(name: str, kind: str, got: Tensor) -> Array:
    """|got - exact| in units in the last place of the exact value in the type; overflow to inf is judged by range."""
    hi, lo = exact(name, kind)
    about = torch.finfo(KINDS[kind])
    exponent = np.floor(np.log2(np.maximum(np.abs(hi), about.smallest_normal)))
    ulp = about.eps * 2.0**exponent
    y = got.double().numpy()
    largest = about.max * (1 + about.eps / 4)  # from here on rounding to nearest gives infinity
    beyond = np.abs(hi) >= largest
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs((y - hi) - lo) / ulp
    return np.where(beyond, np.where(np.isinf(y), 0.0, np.inf), np.where(np.isnan(error), np.inf, error))


def _evaluate(function: Function, kind: str, form: str) -> Tensor:
    x = domain(function, kind)
    return function.form(x.double()).to(KINDS[kind]) if form == "wide" else function.native(x)


def accuracy(function: Function, form: str, bound: float) -> Answer:
    """Whether every result of both types is within `bound` ulp, and no step of the function goes the wrong way."""
    return _asked(_accurate(function, form, bound), function, form, f"within {bound} ulp")


def _accurate(function: Function, form: str, bound: float) -> Answer:
    evidence: dict[str, str] = {}
    for kind in KINDS:
        x, got = domain(function, kind), _evaluate(function, kind, form)
        error = ulps(function.name, kind, got)
        worst = int(np.argmax(error))
        evidence[kind] = f"{len(x)} inputs, worst {error[worst]:.6g} ulp at {x[worst].item()!r}"
        if not error[worst] <= bound:
            return Answer(status="refuted", tool=TOOL, evidence=evidence)
    return Answer(status="proved", tool=TOOL, evidence=evidence)


def monotone(function: Function, form: str, direction: int) -> Answer:
    """Whether the results never step against the direction, over every pair of neighbouring inputs of both types."""
    never = f"never {'falls' if direction > 0 else 'rises'} with x"
    return _asked(_steps(function, form, direction), function, form, never)


def _steps(function: Function, form: str, direction: int) -> Answer:
    for kind in KINDS:
        y = _evaluate(function, kind, form).double()
        wrong = ((y[1:] - y[:-1]) * direction < 0).nonzero()
        if len(wrong):
            at = domain(function, kind)[int(wrong[0])].item()
            return Answer(status="refuted", tool=TOOL, evidence={kind: f"{len(wrong)} steps, first after {at!r}"})
    return Answer(status="proved", tool=TOOL, evidence={"pairs": "every pair of neighbouring inputs of both types"})


def inside(function: Function, form: str, low: float, high: float) -> Answer:
    """Whether every result of both types lies in [low, high]; a NaN lies nowhere."""
    return _asked(_ranged(function, form, low, high), function, form, f"in [{low}, {high}]")


def _ranged(function: Function, form: str, low: float, high: float) -> Answer:
    evidence: dict[str, str] = {}
    for kind in KINDS:
        y = _evaluate(function, kind, form).double()
        evidence[kind] = f"{y.min().item()!r} to {y.max().item()!r}"
        wrong = (~((y >= low) & (y <= high))).nonzero()
        if len(wrong):
            at = domain(function, kind)[int(wrong[0])].item()
            return Answer(status="refuted", tool=TOOL, evidence={kind: f"{len(wrong)} outside, first at {at!r}"})
    return Answer(status="proved", tool=TOOL, evidence=evidence)


def _asked(answer: Answer, function: Function, form: str, wanted: str) -> Answer:
    over = f"for every finite {' and '.join(KINDS)} x" + (" > 0" if function.positive_only else "")
    asked = f"{over}\n  {function.name} = {function.exact}, {form}: {wanted}"
    return msgspec.structs.replace(answer, asked=asked)


def _statements(function: Function) -> tuple[Statement, ...]:
    slug = function.name.replace(" + ", "-plus-")
    every = "every finite bfloat16 and float16 input" + (" above 0" if function.positive_only else "")
    way, against = ("increase", "decrease") if function.direction > 0 else ("decrease", "increase")
    return (
        Statement(
            id=f"functions.{slug}.wide", method="exhaustive", assumptions=every,
            statement=f"{function.name} in float64, rounded once, is within 0.505 ulp",
            ask=accuracy, right=(function, "wide", 0.505),
            twin="it is within 0.49 ulp" if function.tight == 0.49 else "it is within 0.5 - 1e-9 ulp",
            wrong=(function, "wide", function.tight),
        ),
        Statement(
            id=f"functions.{slug}.monotone", method="exhaustive", assumptions=every,
            statement=f"{function.name} in float64, rounded once, does not {against} as its input grows",
            ask=monotone, right=(function, "wide", function.direction),
            twin=f"it does not {way}", wrong=(function, "wide", -function.direction),
        ),
        _range(function, slug, every),
    )  # fmt: skip


def _range(function: Function, slug: str, every: str) -> Statement:
    """The ends are reached (a reciprocal's by no finite input but nearly), so a twin just inside is wrong."""
    low, high, words, twin = (0.0, 1.0, "in [0, 1]", (0.0, 1 - 1e-9, "in [0, 1 - 1e-9]"))
    if math.isinf(function.high):
        least = 1e-5 if function.positive_only else 1e-9
        high, words, twin = math.inf, "at least 0", (least, math.inf, f"at least {least}")
    return Statement(
        id=f"functions.{slug}.range", method="exhaustive", assumptions=every,
        statement=f"{function.name} in float64, rounded once, is {words}",
        ask=inside, right=(function, "wide", low, high),
        twin=f"it is {twin[2]}", wrong=(function, "wide", *twin[:2]),
    )  # fmt: skip


def _off(name: str, bound: float) -> Answer:
    """Whether PyTorch's own form is off by more than `bound` ulp somewhere: refuting `accuracy` gives a witness."""
    found = accuracy(next(f for f in FUNCTIONS if f.name == name), "native", bound)
    turned = {"proved": "refuted", "refuted": "proved"}
    status = turned.get(found.status, found.status)
    return msgspec.structs.replace(found, status=status, asked=f"not {found.asked}")


NATIVE = (
    Statement(
        id="functions.sigmoid.native", method="exhaustive", assumptions="PyTorch on this machine's CPU",
        statement="torch.sigmoid on bfloat16 is off by more than 20 ulp somewhere: implementations widen first",
        ask=_off, right=("sigmoid", 20),
        twin="torch.exp is", wrong=("exp", 20),
    ),
    Statement(
        id="functions.elu-plus-1.native", method="exhaustive", assumptions="PyTorch on this machine's CPU",
        statement="elu(x) + 1 on the 16-bit types is off by more than 200 ulp somewhere: exp(x) is taken below 0",
        ask=_off, right=("elu + 1", 200),
        twin="torch.reciprocal is", wrong=("reciprocal", 200),
    ),
)  # fmt: skip

STATEMENTS = (*(statement for function in FUNCTIONS for statement in _statements(function)), *NATIVE)
