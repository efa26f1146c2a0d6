"""Rules about one input that enters as another: its negative, its exponential, some function of it, or a multiple."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import least_squares

from linattest.verify.evidence import Arrays, Diagnosis, Evidence, Look, arrays
from linattest.verify.subjects import run

STEPS = 12
"""Steps that a fit may take, of two runs of the reference each; a factor within 20% takes about four."""


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp2 is taken of {g}, where exp is due": lambda g: g * math.log(2),
    "{g} is multiplied by 1/ln 2, then exp is taken of it": lambda g: g / math.log(2),
    "{g} is applied twice": lambda g: 2 * g, "{g} is applied by half": lambda g: g / 2,
    "the gate is sigmoid({g}), where exp({g}) is due": torch.nn.functional.logsigmoid,
    "the gate is exp(-softplus({g})), where exp({g}) is due": lambda g: -torch.nn.functional.softplus(g),
    "the gate is exp(-exp({g})), where exp({g}) is due": lambda g: -g.exp(),
    "{g} is summed over the tokens before it is applied": lambda g: g.cumsum(1),
    "{g} is summed over the tokens of each chunk of 16 before it is applied": lambda g: _summed(g, 16),
    "{g} is summed over the tokens of each chunk of 32 before it is applied": lambda g: _summed(g, 32),
    "{g} is summed over the tokens of each chunk of 64 before it is applied": lambda g: _summed(g, 64),
    **{f"{{g}} is clamped from below, at {c:g}": lambda g, c=c: g.clamp(min=c) for c in
       (-0.1, -0.5, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0)},
}  # fmt: skip
"""What a log-gate enters as, in words, and how that is made of it; never more than 0, which no reference takes."""

ADVICE = {
    "sigmoid": "exp(g) is what is kept of the state: the log of the sigmoid is taken before, by the caller",
    "softplus": "exp(g) is what is kept of the state: g comes as it is to be applied",
    "exp(-exp": "exp(g) is what is kept of the state: g comes as it is to be applied",
    "summed": "each token's own gate decays the state between two tokens; a sum belongs between the tokens of a chunk",
    "clamped": "a log-gate may be anything up to -inf: leave no clamp in, and mask differences before exp",
}
"""By a word of what a gate enters as: what to look at."""


def _summed(g: torch.Tensor, chunk: int) -> torch.Tensor:
    return torch.cat([x.cumsum(1) for x in g.split(chunk, 1)], 1) if g.shape[1] else g


def passed_through(e: Evidence) -> Diagnosis | None:
    """A log-gate that enters as a function of itself."""
    if e.base.error or "o" not in e.base.bad or not np.isfinite(e.base.got["o"]).all():
        return None
    for name, x in e.base.batch.tensors.items():
        if e.domain(name) != "log_gate":
            continue
        for words, change in CHANGES.items():
            made = change(x.double())
            if not e.explains(e.base, e.exact(e.changed(e.base.batch, **{name: made}))):
                continue
            return Diagnosis(
                rule="passed-through", fault=words.format(g=name),
                evidence=f"o is the exact output for that gate within its rounding, and off by {e.base.worst()} for "
                f"{name}",
                suggestion=next((x for key, x in ADVICE.items() if key in words), f"look where {name} enters"),
            )  # fmt: skip
    return None


def sign(e: Evidence) -> Diagnosis | None:
    """A log-gate of the other sign, or the gate itself: the function is right when it is given that."""
    if e.base.error or "o" not in e.base.bad:
        return None
    for name, x in e.base.batch.tensors.items():
        if e.domain(name) != "log_gate":
            continue
        if _agrees(e, name, -x, x):
            return Diagnosis(
                rule="sign", fault=f"{name} is applied with the wrong sign",
                evidence=f"given -{name} in place of {name}, every output is right",
                suggestion=f"log-gates are at most 0, and exp({name}) is what is kept of the state; if yours is the "
                f"negative by convention: --map {_negated(e, name)}",
            )  # fmt: skip
        if _agrees(e, name, x.exp(), x.exp().double().log()):
            return Diagnosis(
                rule="sign", fault=f"it expects the gate itself, exp({name}), not its log",
                evidence=f"given exp({name}) in place of {name}, every output is right; as it was called, o is off by "
                f"{e.base.worst()}",
                suggestion=f"log-gates are at most 0, and exp({name}) is what is kept of the state: leave the log out, "
                f"or check a wrapper that passes {name}.exp()",
            )  # fmt: skip
    return None


def _agrees(e: Evidence, name: str, given: torch.Tensor, stands_for: torch.Tensor) -> bool:
    """Whether the function is right for the gate that a value of its own convention stands for."""
    batch = e.base.batch
    got = run(e.operator, e.variant, e.changed(batch, **{name: given}).copy()).values
    exact = e.exact(e.changed(batch, **{name: stands_for}))
    kept = {output: exact[output] for output in e.base.exact if output in got}
    return not Look(batch, arrays(got), kept, e.base.slack).bad


def _negated(e: Evidence, name: str) -> str:
    """The option that negates an input, under the function's own name for it."""
    theirs, ours = next((x for x in e.subject.rename.items() if x[1].removeprefix("-") == name), (name, name))
    return f"{theirs}={'' if ours.startswith('-') else '-'}{name}"


def factor(e: Evidence) -> Diagnosis | None:
    """An input of the operator, times a number."""
    if e.base.error or "o" not in e.base.bad or not np.isfinite(e.base.got["o"]).all():
        return None
    for name in e.base.batch.tensors:
        found = _fitted(e, name)
        if found is not None and e.explains(e.base, _answer(e, name, found)):
            return Diagnosis(
                rule="factor", fault=f"{name} is multiplied by {found:.6g}",
                evidence=f"o is the exact output for {found:.6g} {name} within its rounding, and off by "
                f"{e.base.relative():.2g} of the largest for {name}; the factor is fitted",
                suggestion=f"look for a constant that {name} is multiplied or divided by, or a sum that counts some "
                f"of {name} once too often",
            )  # fmt: skip
    return None


def _fitted(e: Evidence, name: str) -> float | None:
    """The factor of an input with which the reference comes closest to the output, searched from 1."""
    got, size = e.base.got["o"], float(np.max(np.abs(e.base.exact["o"])))

    def distance(x: np.ndarray) -> np.ndarray:
        return ((_answer(e, name, float(x[0]))["o"] - got) / size).ravel()

    try:
        fit = least_squares(distance, [1.0], bounds=(0, np.inf), xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=STEPS)
    except ValueError:  # the search came to values that the operator refuses, or to infinity
        return None
    return float(fit.x[0])


def _answer(e: Evidence, name: str, by: float) -> Arrays:
    batch = e.base.batch
    x = batch.tensors[name].double()
    return e.exact(e.changed(batch, **{name: torch.where(x == 0, x, x * by)}))
