"""Memory that is allocated and not written, made to show: a context in which it holds a number of one's choice.
And memory beside what is allocated: a context in which it says whether somebody wrote there.

Python's entry points are replaced, since launchers allocate through them. The switch in torch,
``torch.utils.deterministic.fill_uninitialized_memory``, acts only under ``torch.use_deterministic_algorithms``,
which exchanges the algorithms under test for others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

ALLOCATORS = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)
"""What returns memory as it finds it."""


@contextmanager
def poisoned(value: float = math.nan) -> Iterator[None]:
    """Fill what ``torch.empty`` and its kin return, and put them back at the end. Contexts may be nested.

    Args:
        value: for floating tensors; where it is NaN, tensors of whole numbers hold their largest and of truth values
            True, otherwise they hold the value (True unless it is 0).
    """
    with _replaced(ALLOCATORS, lambda allocate, _: _filled(allocate, value)):
        yield


Allocate = Callable[..., torch.Tensor]


@contextmanager
def _replaced(entries: Sequence[tuple[Any, str]], change: Callable[[Allocate, str], Allocate]) -> Iterator[None]:
    """Other functions in place of PyTorch's, until the end."""
    before = [(owner, name, vars(owner).get(name)) for owner, name in entries]
    try:
        for owner, name in entries:
            setattr(owner, name, change(getattr(owner, name), name))
        yield
    finally:
        for owner, name, own in before:
            if own is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _filled(allocate: Callable[..., torch.Tensor], value: float) -> Callable[..., torch.Tensor]:
    @functools.wraps(allocate)
    def wrapper(*args: object, **kwargs: object) -> torch.Tensor:
        x = allocate(*args, **kwargs)
        with torch.no_grad():
            if x.dtype.is_floating_point or x.dtype.is_complex:
                return x.fill_(value)
            if math.isnan(value):
                return x.fill_(True if x.dtype is torch.bool else torch.iinfo(x.dtype).max)
            return x.fill_(int(value))

    return wrapper


# --- what lies beside it -----------------------------------------------------------------------------------------

ZEROED = ((torch, "zeros"), (torch, "zeros_like"), (torch.Tensor, "new_zeros"))
"""What returns memory of zeros: a launcher's output may lie there too."""

GUARD = 64
"""Elements before and behind: a multiple of every alignment that a kernel may be compiled for."""

CANARY = 77
"""What they hold: every dtype has it."""


class Guards:
    """The buffers that tensors were taken from, and where in them."""

    def __init__(self) -> None:
        self._buffers: list[tuple[torch.Tensor, int, str]] = []

    def around(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A tensor of the same values, shape and strides inside a buffer of its own."""
        if not x.numel() or x.dtype is torch.bool or x.device.type == "meta":
            return x
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        with torch.no_grad():
            buffer = torch.full((span + 2 * GUARD,), CANARY, dtype=x.dtype, device=x.device)
            empty = torch.tensor([], dtype=x.dtype, device=x.device)  # no view of the buffer, which autograd would mind
            inside = empty.set_(buffer.untyped_storage(), GUARD, x.shape, x.stride())
            inside.copy_(x)
        self._buffers.append((buffer, span, f"{name}{tuple(x.shape)} {x.dtype}"))
        return inside.requires_grad_(x.requires_grad)

    def looked_at(self) -> Iterator[tuple[str, bool]]:
        """(words, whether its guards are whole) of every buffer."""
        for buffer, span, name in self._buffers:
            around = torch.cat([buffer[:GUARD], buffer[GUARD + span :]])
            lost = int((around != CANARY).sum())
            yield f"{name}: {lost} of {2 * GUARD} elements beside it overwritten", lost == 0


@contextmanager
def guarded() -> Iterator[Guards]:
    """Take what ``torch.empty``, ``torch.zeros`` and their kin return from inside larger buffers with known ends."""
    guards = Guards()

    def wrapped(allocate: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
        @functools.wraps(allocate)
        def wrapper(*args: object, **kwargs: object) -> torch.Tensor:
            return guards.around(allocate(*args, **kwargs), name)

        return wrapper

    with _replaced((*ALLOCATORS, *ZEROED), wrapped):
        yield guards
