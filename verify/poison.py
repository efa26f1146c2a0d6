"""Memory that is allocated and not written, made to show: a context in which it holds a number of one's choice.

Python's entry points are replaced, since launchers allocate through them. The switch in torch,
``torch.utils.deterministic.fill_uninitialized_memory``, acts only under ``torch.use_deterministic_algorithms``,
which exchanges the algorithms under test for others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    before = [(owner, name, vars(owner).get(name)) for owner, name in ALLOCATORS]
    try:
        for owner, name in ALLOCATORS:
            setattr(owner, name, _filled(getattr(owner, name), value))
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
