"""A GPU that several processes of a campaign use at once: how much each takes, and when one is done for.

Without a share, the heaviest input takes what its neighbours need, and theirs fail with it. After a fault in a kernel
nothing runs on a GPU from the same process again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from linattest.verify import devices

MEMORY = 0.7
"""What the workers of a campaign may take of a GPU's memory in all; contexts, and what one takes alone, are beside."""

DEAD = 70
"""Exit code of a worker that cannot use its GPU any more."""

Answer = TypeVar("Answer")

_workers = 0

_turn: AbstractContextManager[Any] = nullcontext()


def among(workers: int, turn: AbstractContextManager[Any]) -> None:
    """This process is one of so many that use a GPU at once; `turn` is their lock: one at a time takes more."""
    global _workers, _turn
    _workers, _turn = workers, turn


def claim(device: str) -> None:
    """Before a job: whether the GPU still answers, and at most this process's share of its memory.

    A worker whose GPU does not answer ends: its job, which did nothing wrong, is given to a fresh one.
    """
    if devices.kind(device) == "cpu" or devices.missing(device):
        return
    try:
        torch.cuda.synchronize(torch.device(device))
    except RuntimeError:
        if not _workers:
            raise
        os._exit(DEAD)
    _limit(device, _share())


def release() -> None:
    """Give back what lies idle, since a neighbour's binaries need room too. A fault shows where the next job begins."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.empty_cache()
        except RuntimeError:
            return


def with_room(device: str, function: Callable[[], Answer]) -> Answer:
    """What a function answers; where this process's share is too small for it, it is called again alone."""
    try:
        return function()
    except torch.OutOfMemoryError:
        if not _workers:
            raise
    with alone(device):
        return function()


@contextmanager
def alone(device: str) -> Iterator[None]:
    """Beyond this process's share for a while, for what is larger than any share; what lies idle is given back. One
    worker of a campaign at a time."""
    with _turn:
        release()
        _limit(device, 1.0)
        try:
            yield
        finally:
            release()
            _limit(device, _share())


def _share() -> float:
    return MEMORY / _workers if _workers else 1.0


def _limit(device: str, part: float) -> None:
    """The allocator gives back what lies idle before it refuses. Without a GPU there is nothing to limit."""
    if not torch.cuda.is_initialized():
        return
    torch.cuda.set_per_process_memory_fraction(part, torch.device(device).index)
