"""One operation, called three ways: eagerly, under a gradient, and inside `torch.compile`.

A kernel module writes a `forward` and a `backward` of tensors and numbers. `Operation` makes of them an
`autograd.Function` for eager calls (thin: a dispatcher's overhead is the price of a whole kernel at small T) and
custom operators of `torch.library`, with fake implementations, for a compiler's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from linattest.impls.once import once_only
from linattest.kernels import building, launch

Results = tuple[Tensor, ...]


class Operation:
    """`name`'s forward and backward, tied together.

    forward(*inputs) -> (*public results, *saved ones). Its first `tensors` inputs are tensors (or None), the rest are
    numbers or integer tensors. backward(*inputs, *saved, *gradients of the public results) -> gradients of the first
    `tensors` inputs, an empty tensor for an input that is None. Both are annotated: the operator's schema is read off.
    Results never alias inputs.
    """

    def __init__(
        self, name: str, forward: Callable[..., Results], backward: Callable[..., Results], *, tensors: int, public: int
    ) -> None:
        self.tensors, self.public = tensors, public
        self.forward, self.backward = building.watched(forward), building.watched(backward)
        self.compiled = _register(self, name, forward, backward)
        self.eager = _function(self)

    def __call__(self, *inputs: Any) -> Results:
        """The public results."""
        inputs = tuple([near(x) for x in inputs])
        if torch.compiler.is_compiling():
            return self.compiled(*inputs)[: self.public]
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            return self.eager.apply(*inputs)
        return self.forward(*inputs)[: self.public]

    def gradients(self, inputs: Sequence[Any], saved: Sequence[Tensor], upstream: Sequence[Tensor | None]) -> list[Any]:
        """Gradients of all inputs: None for those that have none."""
        found = self.backward(*inputs, *saved, *map(near, upstream))
        own = [g if isinstance(x, Tensor) else None for g, x in zip(found, inputs, strict=False)]
        return own + [None] * (len(inputs) - len(own))


def near(x: Any) -> Any:
    """An input [B, T, H] or [B, T, H, D] as it is, or a copy where it is spread out so far that tokens of eight chunks,
    or channels of a token, lie 2**31 elements apart: within a tile a kernel counts in 32 bits."""
    if not isinstance(x, Tensor) or x.dim() < 3:
        return x
    shape, strides = x.shape, x.stride()
    far = min(shape[1], 8 * launch.CHUNK) * strides[1] >= FAR or (x.dim() > 3 and shape[3] * strides[3] >= FAR)
    return x.contiguous() if far else x


FAR = 1 << 31
"""Elements that a signed 32-bit offset cannot count."""


def _function(operation: Operation) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Results:
            results = operation.forward(*inputs)
            tensors = [x for x in inputs if isinstance(x, Tensor)]
            ctx.numbers = [None if isinstance(x, Tensor) else (x,) for x in inputs]
            ctx.save_for_backward(*tensors, *results[operation.public :])
            ctx.set_materialize_grads(False)
            return results[: operation.public]

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Any, ...]:
            saved = list(ctx.saved_tensors)
            inputs = [number[0] if number else saved.pop(0) for number in ctx.numbers]
            with torch.no_grad():
                gradients = operation.gradients(inputs, saved, upstream)
            real = [g for g in gradients if g is not None]
            sources = [x for x in (*inputs, *upstream) if isinstance(x, Tensor) and x.requires_grad]
            checked = iter(once_only(real, *sources))
            return tuple(None if g is None else next(checked) for g in gradients)

    return Function


def _register(
    operation: Operation, name: str, forward_: Callable[..., Results], backward_: Callable[..., Results]
) -> Any:
    forward = torch.library.custom_op(f"linattest::{name}", forward_, mutates_args=())
    backward = torch.library.custom_op(f"linattest::{name}_backward", backward_, mutates_args=())
    for op, function in ((forward, forward_), (backward, backward_)):
        op.register_fake(_faked(function))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        ctx.numbers = [None if isinstance(x, Tensor) else (x,) for x in inputs]
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)), *output[operation.public :])
        ctx.set_materialize_grads(False)

    def derivative(ctx: Any, *upstream: Tensor | None) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        inputs = [number[0] if number else saved.pop(0) for number in ctx.numbers]
        found = backward(*inputs, *saved, *map(near, upstream[: operation.public]))
        own = [g if isinstance(x, Tensor) else None for g, x in zip(found, inputs, strict=False)]
        return (*own, *[None] * (len(inputs) - len(own)))

    forward.register_autograd(derivative, setup_context=setup)
    return forward


def _faked(function: Callable[..., Results]) -> Callable[..., Results]:
    """What an operation allocates, without what it launches."""

    def fake(*inputs: Any) -> Results:
        with building.recording():
            return function(*inputs)

    return fake
