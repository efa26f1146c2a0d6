"""What the arguments of an operator are: its input tensors, state tensors and options, and when each exists.

Frozen, self-checking and free of imports of ours, like ``spec``, which builds the operator's record of them.
Shapes are written with the field's letters: ``B`` batch, ``T`` tokens, ``H`` key heads, ``HV`` value heads (a
multiple of ``H``), ``K`` key width, ``V`` value width, ``L`` Fenwick levels, ``N`` sequences (``B``, or the number
of packed sequences).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_LETTERS = frozenset({"B", "T", "H", "HV", "K", "V", "L", "N"})

When = Callable[[Mapping[str, Any]], bool]
"""A condition on the resolved options of a case: the input, state or option exists only where it holds."""


def option_is(name: str, *values: object) -> When:
    """The condition that an option has one of these values (True, if none are given)."""
    wanted = values or (True,)
    return lambda options: options.get(name) in wanted


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_shape(owner: str, shape: str) -> None:
    unknown = [letter for letter in shape.split() if letter not in _LETTERS]
    require(not unknown, f"{owner}: shape={shape!r} has unknown letters {unknown}, known: {sorted(_LETTERS)}")


def _check_tensor(x: Input | State, start: str, what: str) -> None:
    kind = type(x).__name__
    require(x.name.isidentifier(), f"{kind}: name={x.name!r}, expected {what}")
    check_shape(f"{kind} {x.name!r}", x.shape)
    require(x.shape.startswith(start), f"{kind} {x.name!r}: shape={x.shape!r}, expected '{start}..'")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One tensor argument: its keyword, its shape ("B T H K") and the domain its values are drawn from.

    An input with a condition ``when`` is passed by keyword, and only where the condition holds.
    """

    name: str
    shape: str
    domain: str
    when: When | None = None

    def __post_init__(self) -> None:
        _check_tensor(self, "B T H", "a keyword")

    @property
    def per_value_head(self) -> bool:
        """Whether the third axis counts value heads rather than key heads."""
        return "HV" in self.shape.split()


@dataclass(frozen=True, kw_only=True)
class State:
    """One tensor of the recurrent state: field name, shape ("N HV K V") and value domain.

    ``part`` groups the tensors of a nested state: those of one part make a tuple (or are the tensor itself), the
    parts in their order the state. Domain "position" is a whole number (int64) that has no gradient.
    """

    name: str
    shape: str
    domain: str
    when: When | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        _check_tensor(self, "N", "a field name")

    @property
    def per_value_head(self) -> bool:
        """Whether the head axis counts value heads rather than key heads."""
        return "HV" in self.shape.split()

    @property
    def head_axis(self) -> int | None:
        """Which axis counts heads; ``None`` for what all heads of a sequence share."""
        letters = self.shape.split()
        return next((i for i, letter in enumerate(letters) if letter in ("H", "HV")), None)

    @property
    def whole(self) -> bool:
        """Whether it is a whole number."""
        return self.domain == "position"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One scalar or keyword argument. A float is a number that rounding moves, and may be differentiated.

    ``default=None`` with ``derived`` set names a value computed from the shape: ``"K**-0.5"``. ``shape`` is what a
    differentiable option may be as a tensor, besides a scalar: one number a key head, "H", or a value head, "HV".
    ``passed=False`` marks an axis of the harness, such as whether an optional input is given: no implementation
    gets it as an argument.
    """

    name: str
    default: float | bool | str | None
    differentiable: bool = False
    derived: str | None = None
    when: When | None = None
    shape: Literal["H", "HV"] = "H"
    passed: bool = True

    def __post_init__(self) -> None:
        require(self.name.isidentifier(), f"Option: name={self.name!r}, expected a keyword")
        require(self.shape in ("H", "HV"), f"Option {self.name!r}: shape={self.shape!r}, expected 'H' or 'HV'")
        require(
            self.derived in (None, "K**-0.5"), f"Option {self.name!r}: derived={self.derived!r}, expected 'K**-0.5'"
        )
        require(
            (self.default is None) == (self.derived is not None),
            f"Option {self.name!r}: default={self.default!r} and derived={self.derived!r}, expected exactly one",
        )
