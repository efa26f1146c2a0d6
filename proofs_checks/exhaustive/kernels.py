"""Every 16-bit input of the scalar functions that the Triton kernels use: exp, and a reciprocal kept from 0.

Where there is no GPU: float16 in Triton's interpreter, whose casts to bfloat16 truncate. Where there is one, bfloat16
and float16 there too. The evidence says what was run. A GPU takes numbers below 2^-126 for 0, which the kernels know
(they keep a reciprocal's argument above 2e-38): there only range and direction are judged.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import triton

from linattest.proofs_checks.exhaustive import kernel_run
from linattest.proofs_checks.exhaustive.functions import FUNCTIONS, Array, Function, domain, exact, ulps
from linattest.proofs_checks.proof import Answer, Statement, Status

TOOL = f"triton {triton.__version__}"
SECONDS = 300
NORMAL = 2.0**-126
KEPT = 2e-38
"""The least argument of a reciprocal in a kernel."""

INTERPRETER, GPU = "Triton's interpreter", "the GPU"
MODULE = kernel_run.__name__


def places() -> Iterator[tuple[str, str]]:
    """Where a type is tried on this machine."""
    yield "float16", INTERPRETER
    if torch.cuda.is_available():
        yield "bfloat16", GPU
        yield "float16", GPU


@functools.cache
def outputs(place: str, kinds: tuple[str, ...]) -> dict[tuple[str, str], Array]:
    """What the kernel makes of every finite input (above 0 for a reciprocal), by kind and function."""
    settings = {**os.environ, "TRITON_INTERPRET": "1" if place == INTERPRETER else "0"}
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            np.save(Path(folder) / f"{kind}.npy", domain(_function("exp"), kind).double().numpy())
        command = [sys.executable, "-m", MODULE, "cpu" if place == INTERPRETER else "cuda", folder]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{MODULE} in {place}: {done.stderr.strip()[-500:]}")
        found = {tuple(path.stem.split("-")): np.load(path) for path in Path(folder).glob("*-*.npy")}
    return {(kind, name): y for (kind, name), y in found.items()}


def _function(name: str) -> Function:
    return next(f for f in FUNCTIONS if f.name == name)


def _tried(name: str) -> Iterator[tuple[str, str, Array, Array]]:
    """Kind, place, inputs and outputs, where the function's domain is."""
    by_place: dict[str, tuple[str, ...]] = {}
    for kind, place in places():
        by_place[place] = (*by_place.get(place, ()), kind)
    for place, kinds in by_place.items():
        for kind in kinds:
            x = domain(_function("exp"), kind).double().numpy()
            inside = x > 0 if _function(name).positive_only else np.ones(len(x), bool)
            yield kind, place, x[inside], outputs(place, kinds)[kind, name][inside]


def accuracy(name: str, bound: float) -> Answer:
    """Whether every result is within ``bound`` ulp of the exact value rounded to the type."""
    evidence: dict[str, str] = {}
    for kind, place, x, y in _tried(name):
        judged = (x >= KEPT) if name == "reciprocal" else exact(name, kind)[0] >= NORMAL
        error = np.where(judged, ulps(name, kind, torch.from_numpy(y)), 0.0)
        worst = int(np.argmax(error))
        evidence[f"{kind}, {place}"] = f"{judged.sum()} inputs, worst {error[worst]:.6g} ulp at {float(x[worst])!r}"
        if not error[worst] <= bound:
            return _answer("refuted", name, f"within {bound} ulp", evidence)
    return _answer("proved", name, f"within {bound} ulp", evidence)


def monotone(name: str, direction: int) -> Answer:
    """Whether the results never step against the direction."""
    wanted = f"never {'falls' if direction > 0 else 'rises'} with x"
    evidence: dict[str, str] = {}
    for kind, place, x, y in _tried(name):
        wrong = np.flatnonzero((y[1:] < y[:-1]) if direction > 0 else (y[1:] > y[:-1]))
        evidence[f"{kind}, {place}"] = f"{len(wrong)} of {len(x) - 1} steps" + (
            f", first after {float(x[wrong[0]])!r}" if len(wrong) else ""
        )
        if len(wrong) or np.isnan(y).any():
            return _answer("refuted", name, wanted, evidence)
    return _answer("proved", name, wanted, evidence)


def within(name: str, low: float) -> Answer:
    """Whether every result is at least ``low``."""
    evidence: dict[str, str] = {}
    for kind, place, x, y in _tried(name):
        wrong = np.flatnonzero(~(y >= low))
        at = f", first at {float(x[wrong[0]])!r}" if len(wrong) else ""
        evidence[f"{kind}, {place}"] = f"{len(wrong)} of {len(x)} inputs below{at}"
        if len(wrong):
            return _answer("refuted", name, f"at least {low}", evidence)
    return _answer("proved", name, f"at least {low}", evidence)


def _answer(status: Status, name: str, wanted: str, evidence: dict[str, str]) -> Answer:
    function = _function(name)
    if not torch.cuda.is_available():
        evidence |= {"bfloat16": "not run here: it needs a GPU", "float16, the GPU": "not run here: there is none"}
    over = "for every finite float16 x" + (" > 0" if function.positive_only else "")
    asked = (
        f"{over} in {INTERPRETER}, where there is a GPU also bfloat16 and float16 there\n  {name} = {function.exact}"
    )
    return Answer(status=status, tool=TOOL, evidence=evidence, asked=f"{asked}: {wanted}")


def _statements(name: str, least: float) -> Iterator[Statement]:
    function = _function(name)
    every = "every finite float16 input in Triton's interpreter; bfloat16 and float16 where there is a GPU"
    every += "; arguments above 0" if function.positive_only else ""
    way, against = ("increase", "decrease") if function.direction > 0 else ("decrease", "increase")
    yield Statement(
        id=f"functions.{name}.triton", method="exhaustive", assumptions=f"{every}; from 2^-126 on",
        statement=f"{name} in a Triton kernel, in float32 and rounded once, is within 0.505 ulp",
        ask=accuracy, right=(name, 0.505), twin="it is within 0.49 ulp", wrong=(name, 0.49),
    )  # fmt: skip
    yield Statement(
        id=f"functions.{name}.triton-monotone", method="exhaustive", assumptions=every,
        statement=f"{name} in a Triton kernel does not {against} as its input grows",
        ask=monotone, right=(name, function.direction), twin=f"it does not {way}", wrong=(name, -function.direction),
    )  # fmt: skip
    yield Statement(
        id=f"functions.{name}.triton-range", method="exhaustive", assumptions=every,
        statement=f"{name} in a Triton kernel is at least 0",
        ask=within, right=(name, 0.0), twin=f"it is at least {least}", wrong=(name, least),
    )  # fmt: skip


STATEMENTS = (*_statements("exp", 1e-9), *_statements("reciprocal", 1.6e-5))
