"""Products whose operands are rounded first, as on a tensor core: bfloat16 to the nearest number, tf32 by truncation.

``RoundedOperands`` runs a float64 computation in which every operand of every matrix product (and triangular solve) is
what a tensor core would be given. An operand that the type holds exactly, as an input of that type, is left alone; of
the others each element loses a random amount, drawn as roundings are distributed, so that seeds give independent
samples of what such a computation loses.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "addbmm": (1, 2), "baddbmm": (1, 2),
    "addmv": (1, 2), "linalg_solve_triangular": (0, 1),
}  # fmt: skip
"""Operations and the places of their operands: what is added to a product stays as it is."""

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

    def dithered(self, x: torch.Tensor, offsets: random.Random) -> torch.Tensor:
        """Each number that is not of this type moved by a random amount, as large as one that rounding takes."""
        count = x.numel()
        size = 1 << max(20, count.bit_length() + 1)
        start = offsets.randrange(size - count) if count else 0
        amount = self.spacing(x).mul_(roundings(self.nearest, size)[start : start + count].view(x.shape))
        return amount.masked_fill_(self.holds(x), 0.0).add_(x)  # infinity and NaN are of every type


@cache
def roundings(nearest: bool, count: int) -> torch.Tensor:
    """A pool of what rounding moves numbers by, in units of their spacing: a stretch of it serves a tensor."""
    amount = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    return amount - 0.5 if nearest else -amount


BFLOAT16 = Format("bfloat16", 7, nearest=True)
TF32 = Format("tf32", 10, nearest=False)


class RoundedOperands(TorchDispatchMode):
    """Round the operands of products: at random with a seed, as the type rounds without one."""

    def __init__(self, form: Format, seed: int | None = None) -> None:
        super().__init__()
        self.form = form
        self.offsets = None if seed is None else random.Random(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = PRODUCTS.get(func._schema.name.removeprefix("aten::").rstrip("_"), ())
        staged = [self.staged(x) if i in places else x for i, x in enumerate(args)]
        return func(*staged, **(kwargs or {}))

    def staged(self, x: torch.Tensor) -> torch.Tensor:
        """An operand as the product gets it."""
        if x.dtype != torch.float64:
            return x
        dense = x.contiguous()
        return self.form.rounded(dense) if self.offsets is None else self.form.dithered(dense, self.offsets)
