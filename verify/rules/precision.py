"""Rules about rounding, overflow, dtypes and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.rules.hypotheses import constant, in_words
from linattest.verify.tolerance import TORCH_DTYPES, accumulation, unit_roundoff

GROWTH = (16, 64, 200)
"""Lengths at which the error of a run is measured."""

STEEP = (-2.0, -6.0, -50.0)
"""Log-gates whose sums over a chunk leave the exponent range of float32 with the wrong sign."""


INPUTS: tuple[dict[str, Any], ...] = (
    {}, {"initial_state": True}, {"group": 2}, {"cu_seqlens": (0, 5, 37, 66)}, {"T": 130},
)  # fmt: skip
"""Kinds of input for which a gradient is looked at, the plain one first."""


def rounding_of(e: Evidence) -> Diagnosis | None:
    """Errors as large as the roundoff of a narrower type."""
    for dtype in [x for x in ("float32", "float64") if x in e.subject.dtypes]:
        look = e.base if dtype == e.dtype else e.look(dtype=dtype)
        if "o" not in look.bad or not np.isfinite(look.got["o"]).all():
            continue
        error = look.got["o"] - look.exact["o"]
        rms = float(np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(look.exact["o"] ** 2)))
        if abs(float(np.mean(error * np.sign(look.exact["o"])))) > 0.5 * float(np.mean(np.abs(error))):
            continue  # a bias, not rounding
        types = ["bfloat16", "float16", *["float32"] * (dtype == "float64")]
        narrow = min(types, key=lambda x: abs(math.log2(rms / unit_roundoff(x))))
        if not unit_roundoff(narrow) / 16 <= rms <= 16 * unit_roundoff(narrow):
            continue
        grown = [(T, e.look(T=T, dtype=dtype)) for T in GROWTH]
        sizes = ", ".join(f"{x.relative():.2g} at T = {T}" for T, x in grown if not x.error)
        also = " (or tf32)" if narrow == "float16" else ""
        return Diagnosis(
            rule="precision", fault=f"{dtype} inputs are computed in {narrow}{also}, in part or throughout",
            evidence=f"o is off by {rms:.2g} in root mean square, {rms / unit_roundoff(narrow):.2g} roundings of "
            f"{narrow}, without a bias; the largest error is {sizes} of the largest output{_rounded(e, look, narrow)}",
            suggestion=f"accumulate in {accumulation(dtype)}: state, gates and products"
            + (f"; if {dtype} is not meant to be supported, leave it out with --dtype" if dtype == "float64" else ""),
        )  # fmt: skip
    return None


def _rounded(e: Evidence, look: Look, narrow: str) -> str:
    """Whether it is the answer for rounded inputs: all of them, or all but the gates."""
    cast = {k: x.to(TORCH_DTYPES[narrow]).to(x.dtype) for k, x in look.batch.tensors.items()}
    gates = {x.name for x in e.operator.inputs_of(look.batch.options) if x.domain == "log_gate"}
    open_gates = {name: x for name, x in cast.items() if name not in gates}
    for words, tensors in ("inputs", cast), (f"inputs (but {', '.join(gates)})", look.batch.tensors | open_gates):
        if e.explains(look, e.exact(look.batch.with_(tensors=tensors))):
            return f"; o is the exact output for {words} rounded to {narrow}"
    return ""


def overflow(e: Evidence) -> Diagnosis | None:
    """NaN or infinity where the exact value is finite, for steep gates or as such."""
    gates = [x.name for x in e.operator.inputs_of(e.base.batch.options) if x.domain == "log_gate"]
    backward = e.supports("gradient") and e.fails("gradient")
    batch = e.batch()
    tried = {"ordinary inputs": batch}
    for value in [*STEEP, -math.inf] if gates else []:
        steep = {name: torch.full_like(batch.tensors[name], value) for name in gates}
        tried[f"all log-gates {value:g}"] = e.changed(batch, **steep)
    for words, there in tried.items():
        look = e.look(there, backward=backward)
        lost = {name: int((~np.isfinite(x) & np.isfinite(look.exact[name])).sum()) for name, x in look.got.items()}
        lost = {name: count for name, count in lost.items() if count}
        if lost:
            counted = ", ".join(f"{count} entries of {name}" for name, count in lost.items())
            where = f" (tokens {look.tokens[0]} to {look.tokens[-1]})" if look.tokens else ""
            steeply = "" if words.startswith("ordinary") else " for steep gates"
            return Diagnosis(
                rule="overflow", fault=f"{', '.join(lost)}: not finite{steeply}, where the exact value is",
                evidence=f"{words}: {counted} are NaN or infinite{where}",
                suggestion="exp of a positive difference of sums overflows: mask before exp, sum within a segment "
                "only, and never -inf - -inf",
            )  # fmt: skip
    return None


def twice_rounded(e: Evidence, dtype: str) -> str:
    """Words for an output that is off by two roundings where one is due; empty for another error."""
    look = e.look(dtype=dtype, K=12)  # K**-0.5 is no power of two
    if look.error or not np.isfinite(look.got["o"]).all() or dtype not in ("bfloat16", "float16"):
        return ""
    got, exact = look.got["o"], look.exact["o"]
    large = np.abs(exact) > float(np.max(np.abs(exact), initial=0.0)) / 100  # small ones are sums that cancel
    roundings = float(np.max(np.abs((got - exact)[large] / exact[large]), initial=0.0)) / unit_roundoff(dtype)
    if not 1.1 < roundings < 3.5:
        return ""
    return (
        f"no output is off by more than {roundings:.2g} roundings of {dtype}, where one is due: something is still "
        f"computed after the cast to {dtype} (a scale, a sum of two parts); cast last. "
        "If operands of matrix products are meant to be rounded: --operands"
    )


def gradient(e: Evidence) -> Diagnosis | None:
    """The output is right, the gradient of some inputs is not."""
    if not e.fails("gradient") or e.base.off:
        return None
    settings: list[dict[str, Any]] = [{"options": x} for x in e.operator.grid[1:]]
    for knobs in [*INPUTS, *settings]:
        feature = {"initial_state": "state", "group": "grouped", "cu_seqlens": "packed"}.get(next(iter(knobs), ""), "")
        if feature and not e.supports(feature):
            continue
        look = e.look(backward=True, **knobs)
        bad = [name for name in look.bad if name.startswith("d ")]
        if look.error or not bad or len(bad) < len(look.bad):
            continue
        right = [name for name in look.exact if name.startswith("d ") and name not in bad]
        kinds = "; ".join(f"{name} {_kind(e, look, name)}" for name in bad)
        return Diagnosis(
            rule="gradient", fault=f"the gradient is wrong for {', '.join(x.removeprefix('d ') for x in bad)}, "
            "while the output is right",
            evidence=f"{kinds}. Right: {', '.join(right) or 'none'} ({look.batch.case.describe()})",
            suggestion="check that term of the backward pass; a factor, a sum over heads or chunks, a detach",
        )  # fmt: skip
    return None


def _kind(e: Evidence, look: Look, name: str) -> str:
    got = look.got[name]
    if not got.any():
        return "is missing (exactly 0)"
    if not np.isfinite(got).all():
        return f"is not finite in {int((~np.isfinite(got)).sum())} of {got.size} entries"
    factor = constant(look, name)
    if factor is not None:
        return f"is {in_words(factor, look.batch.case.structure.K)} times the exact one"
    wrong, text = look.wrong(name), f"is off by {look.relative(name):.2g} of the largest"
    if got.ndim >= 3 and not name.startswith("d state"):
        tokens = np.nonzero(wrong.any(axis=(0, *range(2, got.ndim))))[0]
        text += f", in {len(tokens)} of {got.shape[1]} tokens (first {tokens[0]}, last {tokens[-1]})"
    return text
