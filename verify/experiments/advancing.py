"""Runs advanced for a slice of time, one or several of a device in turn, from checkpoint to checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from linattest.verify.experiments import stepping
from linattest.verify.experiments.training import Progress, Run, Trainer, finished


def advance(run: Run, folder: Path, seconds: float) -> Progress:
    """Train for so many seconds (at least a step), from the run's checkpoint in ``folder`` if it has one, to a new one.

    A run that is done is not begun again. Raises what the model or the task raises, ``ValueError`` for a task whose
    targets its tokens do not give.
    """
    (found,) = _abreast([run], folder, seconds)
    if isinstance(found, Exception):
        raise found
    return found


def advance_all(runs: Sequence[Run], folder: Path, seconds: float) -> list[Progress | str]:
    """As `advance` for several runs of one device, a step of each in turn; in words what one raised.

    On a GPU each has a stream of its own: what the step of a small model leaves idle, those of the others use.
    """
    found = _abreast(runs, folder, seconds)
    return [f"{type(x).__name__}: {x}" if isinstance(x, Exception) else x for x in found]


def _abreast(runs: Sequence[Run], folder: Path, seconds: float) -> list[Progress | Exception]:
    end = time.perf_counter() + seconds
    found: dict[int, Progress | Exception] = {}
    trainers: dict[int, Trainer] = {}
    lanes = [stepping.lane(run.device) for run in runs]

    def tried(n: int, what: Callable[[int], Any]) -> None:
        """An error ends its run, and no other."""
        try:
            with lanes[n]:
                what(n)
        except Exception as error:
            found[n] = error
            trainers.pop(n, None)

    def begin(n: int) -> None:
        if (done := finished(folder / f"{runs[n].key}.json")) is not None:
            found[n] = done
        else:
            trainers[n] = Trainer(runs[n], folder / f"{runs[n].key}.pt")

    def keep(n: int) -> None:
        found[n] = trainers[n].keep(folder)

    with settled(runs[0].device):
        for n in range(len(runs)):
            tried(n, begin)
        while going := [n for n, x in trainers.items() if not x.done and (x.fresh or time.perf_counter() < end)]:
            for n in going:
                tried(n, lambda n: trainers[n].step())
        for n in list(trainers):
            tried(n, keep)
    return [found[n] for n in range(len(runs))]


@contextmanager
def settled(device: str) -> Iterator[None]:
    """One thread on a CPU: how a sum is shared out would change its last bit.

    It is no slower, either, for models of this size: beside other work, threads spin while they wait for each other.
    """
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
