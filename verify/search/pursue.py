"""One objective from the first start to the saved witnesses: search, shorten, shrink, check, keep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from linattest.verify.search import measured
from linattest.verify.search.ascent import KEEP, Found, Progress, ascend, fewest_tokens, shorten
from linattest.verify.search.confirm import DIGITS, RefusedError
from linattest.verify.search.domain import InfeasibleError, Space
from linattest.verify.search.explore import explore
from linattest.verify.search.objectives import OBJECTIVES, Objective, exponent, growth, memory_of
from linattest.verify.search.witness import Witness, certify, save

CASES_A_STEP = 5
"""Cases that exploration may try for each step that ascent may take."""


@dataclass(frozen=True)
class Order:
    """What is asked for: an objective, what counts as found (``None``: anything), and how much to spend."""

    objective: str
    at_least: float | None = None
    variant: str = "chunk"
    dtype: str = "float32"
    seconds: float = 120.0
    starts: int = 8
    steps: int = 400
    seed: int = 0
    digits: int = DIGITS


@dataclass(frozen=True)
class Result:
    """What came of an order: the witnesses kept (as found, and shrunk) with their files, or why there are none."""

    order: Order
    kept: tuple[tuple[Witness, Path], ...]
    best: float | None
    tried: int
    seconds: float
    interrupted: bool = False
    refused: str = ""
    growth: float | None = None

    @property
    def found(self) -> bool:
        """Whether there is a witness, of the value asked for if one was."""
        return bool(self.kept)


def pursue(space: Space, order: Order, folder: Path, progress: Progress | None = None) -> Result:
    """Search for one objective and save what is found; inputs of ``space`` for ascent, up to its sizes otherwise.

    Raises:
        InfeasibleError: the objective is not defined for the operator.
    """
    return (_ascend if order.objective in OBJECTIVES else _explore)(space, order, folder, progress)


def _ascend(space: Space, order: Order, folder: Path, progress: Progress | None) -> Result:
    start, objective = time.monotonic(), OBJECTIVES[order.objective]
    memory_of(space, objective.name)
    found = ascend(
        space, objective, seed=order.seed, starts=order.starts, steps=order.steps, seconds=order.seconds,
        progress=progress,
    )  # fmt: skip
    if found is None:
        return Result(order, (), None, 0, time.monotonic() - start)
    if order.at_least is not None and found.value < order.at_least:
        return Result(order, (), found.value, found.steps, time.monotonic() - start, found.interrupted)
    kept: list[tuple[Witness, Path]] = []
    refused, interrupted, slope = "", found.interrupted, None
    try:
        for form, shrunk in _forms(found, objective, order.at_least):
            one = certify(
                form, objective, at_least=order.at_least, seed=order.seed, digits=order.digits, shrunk=shrunk
            )  # fmt: skip
            kept.append((one.witness, save(folder, one)))
            slope = slope or (_exponent(form) if objective.name == "state-norm" else None)
    except (InfeasibleError, RefusedError) as error:
        refused = str(error)
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.monotonic() - start
    return Result(order, tuple(kept), found.value, found.steps, seconds, interrupted, refused, slope)


def _forms(found: Found, objective: Objective, floor: float | None) -> Iterator[tuple[Found, bool]]:
    """The find in short numbers; then, if there is a floor and time, with the fewest tokens that reach it."""
    short = shorten(found, objective, max(KEEP * found.value, floor or 0.0))
    yield short, False
    if floor is not None and not found.interrupted:
        yield shorten(fewest_tokens(short, objective, floor), objective, floor), True


def _exponent(found: Found) -> float | None:
    return exponent(growth(found.space, found.tensors))


def _explore(space: Space, order: Order, folder: Path, progress: Progress | None) -> Result:
    start = time.monotonic()
    explored = explore(
        space.operator, order.objective, variant=order.variant, dtype=order.dtype, tokens=space.T, width=space.K,
        seed=order.seed, seconds=order.seconds, most=CASES_A_STEP * order.steps, at_least=order.at_least,
        progress=progress,
    )  # fmt: skip
    best, smallest = explored.best, explored.smallest
    forms = [(best, False), (smallest, True)] if order.at_least is not None else [(best, False)]
    kept: list[tuple[Witness, Path]] = []
    for reached, shrunk in forms:
        if reached is None or (order.at_least is not None and reached.value < order.at_least):
            continue
        witness = measured.certify(
            reached, order.objective, variant=order.variant, at_least=order.at_least, shrunk=shrunk
        )  # fmt: skip
        kept.append((witness, measured.keep(folder, witness, reached)))
    value = None if best is None else best.value
    return Result(order, tuple(kept), value, explored.tried, time.monotonic() - start, explored.interrupted)
