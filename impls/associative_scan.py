"""An exclusive associative scan of depth O(log N): work-efficient, any N, differentiable.

Definition: for elements x_0 .. x_{N-1} and an associative `combine(first, second)` with an identity,

    prefix_n = x_0 * x_1 * ... * x_{n-1}    (prefix_0 = identity),      total = prefix_N

Up-sweep: neighbours are combined in pairs, level by level, until one element is left. Down-sweep: the prefix of a pair
is the prefix of its left element; the right element's prefix is that, combined with the left element. Each level is
one batched `combine`, so N elements take about 2 log2 N of them.

Source: Blelloch 1990, "Prefix sums and their applications", section 1.3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Element = tuple[Tensor, ...]  # parts of one or many elements; dimension 1 counts the elements


def exclusive_scan(
    combine: Callable[[Element, Element], Element], elements: Element, identity: Element
) -> tuple[Element, Element]:
    """elements: tensors [G, N, ...]; identity: tensors [G, ...]. Returns (prefixes [G, N, ...], total [G, ...]).

    `combine` gets and returns tuples of tensors [G, n, ...], earlier elements first. Bits do not depend on elements
    that come later: a prefix is built from its own elements alone, in an order that only N and n fix.
    """
    levels = [elements]
    while levels[-1][0].shape[1] > 1:  # up-sweep
        below = levels[-1]
        pairs = below[0].shape[1] // 2
        merged = combine(_every_other(below, 0, pairs), _every_other(below, 1, pairs))
        if below[0].shape[1] % 2:  # an unpaired last element moves up as it is
            merged = tuple(torch.cat([m, part[:, -1:]], 1) for m, part in zip(merged, below, strict=True))
        levels.append(merged)
    prefixes = tuple(part.unsqueeze(1) for part in identity)
    total = tuple(part[:, 0] for part in levels[-1]) if levels[-1][0].shape[1] else identity
    for below in reversed(levels[:-1]):  # down-sweep
        pairs = below[0].shape[1] // 2
        left = tuple(part[:, :pairs] for part in prefixes)
        right = combine(left, _every_other(below, 0, pairs))
        woven = (torch.stack(both, 2).flatten(1, 2) for both in zip(left, right, strict=True))
        odd = below[0].shape[1] % 2
        prefixes = tuple(
            torch.cat([w, part[:, pairs:]], 1) if odd else w for w, part in zip(woven, prefixes, strict=True)
        )
    return prefixes, total


def _every_other(elements: Element, first: int, count: int) -> Element:
    return tuple(part[:, first::2][:, :count] for part in elements)
