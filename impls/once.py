"""Backwards that are formulas: differentiable once, and an error (not a wrong number) the second time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _OnceOnly(torch.autograd.Function):
    """(count, *gradients, *sources) -> gradients, tied to the sources so that a second derivative meets the error."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, ...]:
        raise RuntimeError("cannot differentiate twice: this operator's backward is a formula, differentiable once")


def once_only(gradients: Sequence[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a custom backward, such that differentiating them raises.

    `once_differentiable` of torch raises only where its error node lies on the path asked for; asked for the inputs
    of the forward it is silently passed by, and the second derivative is wrong.
    """
    if not torch.is_grad_enabled():
        return tuple(gradients)
    return _OnceOnly.apply(len(gradients), *gradients, *sources)
