"""Rules about one input that enters as another: with the wrong sign, or with a constant factor, which is fitted."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import least_squares

from linattest.verify.evidence import Arrays, Diagnosis, Evidence, Look, arrays
from linattest.verify.subjects import run

STEPS = 12
"""Steps that a fit may take, of two runs of the reference each; a factor within 20% takes about four."""


def sign(e: Evidence) -> Diagnosis | None:
    """A log-gate of the other sign: the function is right when it is given the negative."""
    if e.base.error or "o" not in e.base.bad:
        return None
    for name, x in e.base.batch.tensors.items():
        if e.domain(name) != "log_gate":
            continue
        got = run(e.operator, e.variant, e.changed(e.base.batch, **{name: -x}).copy()).values
        if not Look(e.base.batch, arrays(got), e.base.exact, e.base.slack).bad:
            return Diagnosis(
                rule="sign", fault=f"{name} is applied with the wrong sign",
                evidence=f"given -{name} in place of {name}, every output is right",
                suggestion=f"log-gates are at most 0, and exp({name}) is what is kept of the state; if yours is the "
                f"negative by convention: --map {_negated(e, name)}",
            )  # fmt: skip
    return None


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
