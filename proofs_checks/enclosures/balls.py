"""Asking Arb: an inequality over an interval is proved by boxes that cover it, with an enclosure on each."""

from __future__ import annotations

from collections.abc import Callable

import flint

from linattest.proofs_checks.proof import Answer

TOOL = f"python-flint {flint.__version__}"
PRECISION = 200
MOST_BOXES = 1 << 16

Function = Callable[[flint.arb], flint.arb]


def box(low: flint.arb, high: flint.arb) -> flint.arb:
    """The ball that covers [low, high]."""
    return flint.arb((low + high) / 2, ((high - low) / 2).upper())


def nonnegative(function: Function, low: str, high: str, *, least_width: float = 1e-14) -> Answer:
    """Whether function >= 0 on [low, high] (decimal strings): boxes are halved until each decides or is too narrow."""
    before, flint.ctx.prec = flint.ctx.prec, PRECISION
    try:
        todo, proved = [(flint.arb(low), flint.arb(high))], 0
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
    finally:
        flint.ctx.prec = before


def encloses(value: Callable[[], flint.arb], low: str, high: str, *, digits: int = 40) -> Answer:
    """Whether a number lies strictly between two decimal bounds; the evidence shows so many digits of it."""
    before, flint.ctx.prec = flint.ctx.prec, PRECISION
    try:
        ball = value()
        evidence = {"enclosure": ball.str(digits)}
        if ball > flint.arb(low) and ball < flint.arb(high):
            return Answer(status="proved", tool=TOOL, evidence=evidence)
        outside = ball < flint.arb(low) or ball > flint.arb(high)
        return Answer(status="refuted" if outside else "unknown", tool=TOOL, evidence=evidence)
    finally:
        flint.ctx.prec = before
