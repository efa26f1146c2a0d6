"""Asking Arb: an inequality over an interval is proved by boxes that cover it, with an enclosure on each."""

from __future__ import annotations

from collections.abc import Callable

import flint
import msgspec

from linattest.proofs_checks.enclosures.formulas import compiled
from linattest.proofs_checks.pins import shortened
from linattest.proofs_checks.proof import Answer

TOOL = f"python-flint {flint.__version__}"
PRECISION = 200
MOST_BOXES = 1 << 16


def box(low: flint.arb, high: flint.arb) -> flint.arb:
    """The ball that covers [low, high]."""
    return flint.arb((low + high) / 2, ((high - low) / 2).upper())


def nonnegative(formula: str, over: str, low: str, high: str, *, least_width: float = 1e-14) -> Answer:
    """Whether a formula in ``over`` is >= 0 on [low, high] (decimals): boxes are halved until each decides or is too
    narrow."""
    before, flint.ctx.prec = flint.ctx.prec, PRECISION
    try:
        answer = _boxes(compiled(formula, over), flint.arb(low), flint.arb(high), least_width)
    finally:
        flint.ctx.prec = before
    asked = f"for every {over} in [{low}, {high}]\n  0 <= {formula}"
    return msgspec.structs.replace(answer, asked=shortened(asked))


def _boxes(function: Callable[[flint.arb], flint.arb], low: flint.arb, high: flint.arb, least_width: float) -> Answer:
    todo, proved = [(low, high)], 0
    while todo:
        a, b = todo.pop()
        middle = flint.arb(((a + b) / 2).mid())
        if function(box(a, b)) >= 0:
            proved += 1
            continue
        for at in (a, middle, b):
            if function(at) < 0:
                evidence = {"at": at.str(15), "value": function(at).str(15)}
                return Answer(status="refuted", tool=TOOL, evidence=evidence)
        if (b - a).upper() < least_width or proved + len(todo) > MOST_BOXES:
            return Answer(status="unknown", tool=TOOL, evidence={"box": f"[{a.str(10)}, {b.str(10)}]"})
        todo += [(a, middle), (middle, b)]
    return Answer(status="proved", tool=TOOL, evidence={"boxes": str(proved), "bits": str(PRECISION)})


def encloses(formula: str, low: str, high: str) -> Answer:
    """Whether the number that a formula is lies strictly between two decimal bounds."""
    return lies(compiled(formula), formula, low, high)


def lies(value: Callable[[], flint.arb], what: str, low: str, high: str, *, digits: int = 40) -> Answer:
    """Whether a computed number lies strictly between two decimal bounds; the evidence shows so many digits of it.

    ``what`` says in the pin what is computed.
    """
    asked = shortened(f"{low} < {what} < {high}")
    before, flint.ctx.prec = flint.ctx.prec, PRECISION
    try:
        ball = value()
        evidence = {"enclosure": ball.str(digits)}
        if ball > flint.arb(low) and ball < flint.arb(high):
            return Answer(status="proved", tool=TOOL, evidence=evidence, asked=asked)
        outside = ball < flint.arb(low) or ball > flint.arb(high)
        return Answer(status="refuted" if outside else "unknown", tool=TOOL, evidence=evidence, asked=asked)
    finally:
        flint.ctx.prec = before
