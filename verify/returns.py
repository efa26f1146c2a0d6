"""What a function under test gave back, held to what is due: how many values, of which type, dtype and shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from linattest.verify.spec import Operator
from linattest.verify.subject import Subject

KNOWN = frozenset(("N", "H", "HV", "K", "V"))
"""Letters of a state's shape whose sizes are those of the inputs."""


class NotDue(TypeError):
    """A function returned something else than what is due; the message starts with its name and "returned"."""


class ShapeError(NotDue):
    """An output of another shape than is due: ``got`` and ``due``, in the function's own layout, and its axes.

    ``swapped``: what came second has the shape that is due of the first.
    """

    def __init__(
        self, name: str, what: str, got: tuple[int, ...], due: tuple[int, ...], axes: list[str], swapped: bool = False
    ) -> None:
        self.what, self.got, self.due, self.axes = what, got, due, f"[{', '.join(axes)}]"
        self.swapped = swapped
        super().__init__(
            f"{name} returned {what} of shape {list(got)}, expected {list(due)} = {self.axes}"
            + ("; the second value has that shape: return (o, final state)" if swapped else "")
        )


def parts(subject: Subject, operator: Operator, result: Any) -> tuple[torch.Tensor, list[Any]]:
    """o, and what came after it. Raises ``NotDue`` for a count or a type that is not due."""
    o, *rest = result if isinstance(result, tuple | list) and result else (result,)
    if not isinstance(o, torch.Tensor):
        raise NotDue(f"{subject.name} returned {described(result)}, expected o or (o, final state)")
    states = operator.states  # a state may come as one value, or as its parts or tensors side by side
    if len(rest) not in {0, 1, len({x.part for x in states}), len(states)}:
        raise NotDue(
            f"{subject.name} returned {len(rest) + 1} values, {described(result)}, expected 2 at most: o or "
            "(o, final state)"
        )
    return o, rest


def hold_output(
    subject: Subject, operator: Operator, o: torch.Tensor, rest: list[Any], sizes: Mapping[str, int], dtype: Any
) -> None:
    """Refuse an output of another dtype or shape than is due.

    Args:
        o: in the function's own layout.
        rest: what came after it.
        sizes: by letter of the operator's shapes.
        dtype: that of the inputs.

    Raises:
        NotDue: names what came and what was expected.
    """
    axes = operator.output.split()
    if subject.layout == "head-first":
        axes[1], axes[2] = axes[2], axes[1]
    got, due = tuple(o.shape), tuple(sizes[x] for x in axes)
    second = rest[0] if rest else None
    if got != due and isinstance(second, torch.Tensor) and tuple(second.shape) == due:
        raise ShapeError(subject.name, "o", got, due, axes, swapped=True)
    if o.dtype != dtype and not subject.any_dtype:
        raise NotDue(
            f"{subject.name} returned o in {o.dtype} for inputs in {dtype}, expected {dtype} (--any-dtype accepts it)"
        )
    if got != due:
        raise ShapeError(subject.name, "o", got, due, axes)


def hold_state(subject: Subject, operator: Operator, state: Any, sizes: Mapping[str, int]) -> None:
    """Refuse a state that is not made of tensors of the shapes that are due.

    Shapes are held to the states that an operator has under every option, in the order of its record.

    Raises:
        NotDue: names what came and what was expected.
    """
    leaves = list(_leaves(state))
    odd = next((x for x in leaves if not isinstance(x, torch.Tensor)), None)
    if odd is not None:
        raise NotDue(f"{subject.name} returned a final state with {described(odd)} in it, expected tensors")
    due = [x for x in operator.states if x.when is None]
    if len(due) != len(leaves):
        return  # those of an option, or a count that is refused where the options are known
    for x, leaf in zip(due, leaves, strict=True):
        axes = x.shape.split()
        if not set(axes) <= KNOWN:
            continue
        if subject.transpose_state and len(axes) >= 4:
            axes[-1], axes[-2] = axes[-2], axes[-1]
        shape = tuple(sizes[axis] for axis in axes)
        if tuple(leaf.shape) != shape:
            raise ShapeError(subject.name, f"the final state {x.name}", tuple(leaf.shape), shape, axes)


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, tuple | list):
        for part in state:
            yield from _leaves(part)
    elif state is not None:
        yield state


def described(x: Any) -> str:
    """A value in few words: its kind, and the shape of a tensor."""
    if isinstance(x, torch.Tensor):
        return f"a tensor {list(x.shape)}"
    if isinstance(x, tuple | list):
        return f"({', '.join(described(part) for part in x)})"
    return "None" if x is None else f"a {type(x).__name__}"
