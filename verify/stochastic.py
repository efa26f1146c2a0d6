"""Random rounding of every operation: Monte Carlo arithmetic on a float64 computation.

Under ``RandomRounding`` every floating result of every PyTorch operation, forward and backward, is moved
by a relative ``+-STEP`` (and an absolute amount that stands for underflow). How far the outputs move says
what a computation in that order must lose; moving only the inputs does not: where two products cancel
exactly, as in the gradient of a ratio at width 1 or in a memory that overwrites itself, no movement of
the inputs moves the output, yet no floating-point evaluation gets it exactly.

Source: Parker 1997, "Monte Carlo Arithmetic"; Verificarlo applies it to compiled programs.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from linattest.verify.tolerance import STEP

MOVES_DATA = frozenset(
    {
        "cat", "stack", "clone", "copy", "_to_copy", "index", "index_select", "gather", "flip", "roll", "repeat",
        "where", "tril", "triu", "masked_fill", "constant_pad_nd", "zeros", "ones", "full", "empty", "eye", "arange",
        "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
        "new_empty_strided", "scalar_tensor", "lift_fresh", "slice_backward", "select_backward", "diagonal_backward",
        "slice_scatter", "select_scatter", "diag_embed", "unfold_backward", "neg", "abs", "sign", "bernoulli",
        "index_put", "scatter", "native_dropout", "rand", "randn", "randint", "amax", "amin", "max", "min", "relu",
        "value_selecting_reduction_backward", "fill", "empty_strided", "_reshape_copy", "view_copy", "expand_copy",
    }
)  # fmt: skip
"""Operations that only move numbers about, or select one of them: exact in every arithmetic."""


class RandomRounding(TorchDispatchMode):
    """Move each floating result by ``x -> x (1 +- STEP) +- tiny``; exact zeros stay.

    Args:
        seed: of the signs; equal seeds and equal operations give equal bits.
        tiny: absolute movement of nonzero results.
        step: relative movement.
    """

    def __init__(self, seed: int, tiny: float, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.offsets = random.Random(seed)
        self.tiny = tiny
        self.scratch = np.empty(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        fresh = fresh_results(func)
        if isinstance(result, torch.Tensor):
            return self.move(result) if fresh[0] else result
        if isinstance(result, tuple) and any(fresh):
            pairs = zip(result, fresh, strict=True)
            return tuple(self.move(x) if isinstance(x, torch.Tensor) and new else x for x, new in pairs)
        return result

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """Move a fresh tensor where it lies; anything but float64 stays as it is.

        In NumPy: most of these tensors are small, and a call costs a tenth of one of PyTorch's under this mode.
        """
        count = x.numel()
        if x.dtype != torch.float64 or count == 0:
            return x
        size = 1 << max(20, count.bit_length() + 1)
        start = self.offsets.randrange(size - count)
        if x.device.type != "cpu":
            return self._move_there(x, size, slice(start, start + count))
        values = x.numpy()
        if self._tiny_counts(values):
            amount = np.sign(values)
            amount *= self.tiny
            amount *= signs(size)[start : start + count].reshape(values.shape)
            values *= factors(size, self.step)[start : start + count].reshape(values.shape)
            values += amount
        else:
            values *= factors(size, self.step)[start : start + count].reshape(values.shape)
        return x

    def _move_there(self, x: torch.Tensor, size: int, stretch: slice) -> torch.Tensor:
        """The same on a GPU, without looking whether `tiny` counts: adding it where it does not changes nothing."""
        drawn = signs_on(x.device, size)[stretch].view(x.shape)
        amount = x.sign().mul_(drawn).mul_(self.tiny)
        return x.mul_(drawn.mul(self.step).add_(1.0)).add_(amount)

    def _tiny_counts(self, values: NDArray[np.float64]) -> bool:
        """Whether a number other than 0 is so small that `tiny` is not below half its last digit."""
        if self.scratch.size < values.size:
            self.scratch = np.empty(values.size)
        sizes = np.abs(values, out=self.scratch[: values.size].reshape(values.shape))
        small = np.count_nonzero(sizes < self.tiny * 2.0**54)
        return bool(small > 0 and small > values.size - np.count_nonzero(values))


@cache
def fresh_results(func: Any) -> tuple[bool, ...]:
    """Which results of an operation hold newly computed numbers: neither moved about nor views of an argument."""
    exact = func._schema.name.removeprefix("aten::").rstrip("_") in MOVES_DATA
    return tuple(not exact and r.alias_info is None for r in func._schema.returns)


@cache
def signs(count: int) -> NDArray[np.float64]:
    """A pool of random +1 and -1; an operation takes a stretch of it from a random place."""
    return np.random.Generator(np.random.PCG64(count)).choice(np.array([-1.0, 1.0]), count)


@cache
def signs_on(device: torch.device, count: int) -> torch.Tensor:
    """The pool on a device."""
    return torch.from_numpy(signs(count)).to(device)


@cache
def factors(count: int, step: float) -> NDArray[np.float64]:
    """1 + step or 1 - step, with the signs of `signs`."""
    return 1.0 + step * signs(count)
