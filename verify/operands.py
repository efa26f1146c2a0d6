"""Products whose operands are rounded first, as on a tensor core: bfloat16 to the nearest number, tf32 by truncation.

``RoundedOperands`` runs a float64 computation in which every operand of every matrix product (and triangular solve) is
what a tensor core would be given. Inputs that the type holds exactly are left alone, also where they were only moved
about; of all else each element loses a random amount, drawn as roundings are distributed, so that seeds give
independent samples of what such a computation loses. What was computed loses it even if the type happens to hold it:
beside a key that is a unit vector beta * k is such, and a kernel that rounds beta * v instead loses as much.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "addbmm": (1, 2), "baddbmm": (1, 2),
    "addmv": (1, 2), "linalg_solve_triangular": (0, 1),
}  # fmt: skip
"""Operations and the places of their operands: what is added to a product stays as it is."""

MOVES = frozenset(
    {"_to_copy", "cat", "clone", "constant_pad_nd", "copy", "flip", "gather", "index", "index_select", "masked_fill",
     "neg", "repeat", "roll", "stack", "tril", "triu", "where"}
)  # fmt: skip
"""Operations whose results are made of their operands' numbers and zeros (views are none: they share their memory)."""

EMPTY = ("new_", "zeros_like", "ones_like", "full_like", "empty_like")
"""How the names of operations begin that take no numbers of their operand."""

MANTISSA = 52
"""Stored bits of a float64."""

EXPONENT = -1 << MANTISSA
"""Mask of sign and exponent."""


@dataclass(frozen=True)
class Format:
    """A type of operands: its stored bits of mantissa, and whether the rest is rounded to nearest or cut off."""

    name: str
    bits: int
    nearest: bool

    def holds(self, x: torch.Tensor) -> torch.Tensor:
        """Where a float64 tensor is exactly of this type (its range is taken to be float32's and not asked for)."""
        return (x.view(torch.int64) & ((1 << (MANTISSA - self.bits)) - 1)) == 0

    def spacing(self, x: torch.Tensor) -> torch.Tensor:
        """The distance from each number to the next of larger size, with the number's sign."""
        return (x.view(torch.int64) & EXPONENT).view(torch.float64).mul_(2.0**-self.bits)

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """What a float64 tensor becomes in this type."""
        lost = MANTISSA - self.bits
        given = x.view(torch.int64)
        if self.nearest:  # ties away from zero: no harm, since a tie is rare
            given = given + (1 << (lost - 1))
        return torch.where(x.isfinite(), (given & (-1 << lost)).view(torch.float64), x)

    def dithered(self, x: torch.Tensor, offsets: random.Random, exact: bool = True) -> torch.Tensor:
        """Each number (if `exact`, each that is not of this type) moved at random, by as much as a rounding may.

        What is cut off loses half a unit on average. Numbers of this type, which nothing is cut off, stand for others
        that a kernel has in their place, of which more or less may be cut off: they are moved either way. Else the ones
        of a triangle of ones would all shrink, and hide how much what they sum has shrunk.
        """
        count = x.numel()
        size = 1 << max(20, count.bit_length() + 1)
        start = offsets.randrange(size - count) if count else 0
        amount = self.spacing(x).mul_(roundings(self.nearest, size, x.device)[start : start + count].view(x.shape))
        if exact:
            amount.masked_fill_(self.holds(x), 0.0)
        elif not self.nearest:
            amount.add_(self.spacing(x).mul_(self.holds(x)), alpha=0.5)
        if not bool(amount.sum().isfinite()):  # infinity and NaN are of every type
            amount.masked_fill_(~x.isfinite(), 0.0)
        return amount.add_(x)


@cache
def roundings(nearest: bool, count: int, device: torch.device) -> torch.Tensor:
    """A pool of what rounding moves numbers by, in units of their spacing: a stretch of it serves a tensor."""
    amount = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64).to(device)
    return amount - 0.5 if nearest else -amount


BFLOAT16 = Format("bfloat16", 7, nearest=True)
TF32 = Format("tf32", 10, nearest=False)
TF32X3 = Format("tf32x3", 21, nearest=False)
"""Two pieces of tf32: 22 bits with the leading one, and of a product of two such numbers not its smallest part."""


class RoundedOperands(TorchDispatchMode):
    """Round the operands of products: at random with a seed, as the type rounds without one.

    ``states`` are the last two sizes of state matrices: where two such are multiplied, number by number, that is a
    product too, whose sum follows (what a gate's gradient is made of); a kernel keeps both as operands.
    """

    def __init__(self, form: Format, seed: int | None = None, states: Collection[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.form, self.states = form, states
        self.offsets = None if seed is None else random.Random(seed)
        self.computed: set[int] = set()
        """Memory of what is no input."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        places = self._matrices(args) if name == "mul" else PRODUCTS.get(name.rstrip("_"), ())
        staged = [self.staged(x) if i in places else x for i, x in enumerate(args)]
        found = func(*staged, **(kwargs or {}))
        if self.offsets is not None:
            self._remember(name, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)], found)
        return found

    def _matrices(self, args: Any) -> tuple[int, ...]:
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in args]
        return (0, 1) if shapes[0] == shapes[1] and shapes[0][-2:] in self.states else ()

    def _remember(self, name: str, given: list[torch.Tensor], found: Any) -> None:
        """Whether the results are inputs that were moved about."""
        numbers = [] if name.startswith(EMPTY) else [x for x in given if x.is_floating_point()]
        moved = name.rstrip("_") in MOVES and not any(_memory(x) in self.computed for x in numbers)
        old = {_memory(x) for x in given}
        for x in tree_leaves(found):
            if not isinstance(x, torch.Tensor):
                continue
            if _memory(x) not in old:  # no view, and not in place
                (self.computed.discard if moved or not numbers else self.computed.add)(_memory(x))
            elif name.endswith("_") and not moved:
                self.computed.add(_memory(x))

    def staged(self, x: torch.Tensor) -> torch.Tensor:
        """An operand as the product gets it."""
        if x.dtype != torch.float64:
            return x
        dense = x.contiguous()
        if self.offsets is None:
            return self.form.rounded(dense)
        return self.form.dithered(dense, self.offsets, _memory(x) not in self.computed)


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()
