"""The vocabulary of the harness: what an operator is, and what is known about it.

Every record here is frozen and checks itself when it is made. This module imports nothing of
linattest, so that a page, a plugin or a user's own file can describe an operator without pulling in
an implementation. Shapes are written with the field's letters: ``B`` batch, ``T`` tokens, ``H`` key
heads, ``HV`` value heads (a multiple of ``H``), ``K`` key width, ``V`` value width, ``N`` sequences
(``B``, or the number of packed sequences).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Every floating type an operator takes, widest first."""

FEATURES = frozenset({"packed", "state", "grouped", "rectangular", "gradient"})
"""What a variant may support: packed sequences, states in and out, HV > H, K != V, backward."""

_LETTERS = frozenset({"B", "T", "H", "HV", "K", "V", "N"})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _check_slug(owner: str, name: str) -> None:
    _require(
        bool(name) and name.replace("_", "").replace("-", "").isalnum() and name == name.lower(),
        f"{owner}: name={name!r}, expected lower-case letters, digits, '_' or '-'",
    )


def _check_shape(owner: str, shape: str) -> None:
    unknown = [letter for letter in shape.split() if letter not in _LETTERS]
    _require(not unknown, f"{owner}: shape={shape!r} has unknown letters {unknown}, known: {sorted(_LETTERS)}")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One tensor argument: its keyword, its shape ("B T H K") and the domain its values are drawn from."""

    name: str
    shape: str
    domain: str

    def __post_init__(self) -> None:
        _require(self.name.isidentifier(), f"Input: name={self.name!r}, expected a keyword")
        _check_shape(f"Input {self.name!r}", self.shape)
        _require(self.shape.startswith("B T H"), f"Input {self.name!r}: shape={self.shape!r}, expected 'B T H..'")

    @property
    def per_value_head(self) -> bool:
        """Whether the second-last axis counts value heads rather than key heads."""
        return "HV" in self.shape.split()


@dataclass(frozen=True, kw_only=True)
class State:
    """One tensor of the recurrent state: field name, shape ("N HV K V") and value domain.

    ``when`` names the boolean option without which this tensor does not exist (it is then ``None``).
    """

    name: str
    shape: str
    domain: str
    when: str | None = None

    def __post_init__(self) -> None:
        _require(self.name.isidentifier(), f"State: name={self.name!r}, expected a field name")
        _check_shape(f"State {self.name!r}", self.shape)
        _require(self.shape.startswith("N H"), f"State {self.name!r}: shape={self.shape!r}, expected 'N H..'")

    @property
    def per_value_head(self) -> bool:
        """Whether the head axis counts value heads rather than key heads."""
        return "HV" in self.shape.split()


@dataclass(frozen=True, kw_only=True)
class Option:
    """One scalar or keyword argument. A float is a number that rounding moves, and may be differentiated.

    ``default=None`` with ``derived`` set names a value computed from the shape: ``"K**-0.5"``. ``unless``
    names a boolean option under which this one has no meaning and is not passed. ``shape`` is what a
    differentiable option may be as a tensor, besides a scalar: one number a key head, "H", or a value head, "HV".
    """

    name: str
    default: float | bool | str | None
    differentiable: bool = False
    derived: str | None = None
    unless: str | None = None
    shape: Literal["H", "HV"] = "H"

    def __post_init__(self) -> None:
        _require(self.name.isidentifier(), f"Option: name={self.name!r}, expected a keyword")
        _require(self.shape in ("H", "HV"), f"Option {self.name!r}: shape={self.shape!r}, expected 'H' or 'HV'")
        _require(
            self.derived in (None, "K**-0.5"), f"Option {self.name!r}: derived={self.derived!r}, expected 'K**-0.5'"
        )
        _require(
            (self.default is None) == (self.derived is not None),
            f"Option {self.name!r}: default={self.default!r} and derived={self.derived!r}, expected exactly one",
        )


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A low-precision operand inside an implementation, whose rounding is a named term of its error budget.

    ``function`` ("module:name") measures the term: ``(operator, batch, backward) -> {output name: error}``
    (staging.py). ``dtypes`` are the input dtypes for which the operand is staged.
    """

    name: str
    function: str
    dtypes: tuple[str, ...] = DTYPES


CARRIED_STATE = Staged(name="state between tokens", function="linattest.verify.staging:carried_state")
"""A decode step receives and returns its state in the accumulation type: one rounding of it a token."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One implementation of an operator: where it lives and what it can do.

    ``function`` is "module:name", imported when it is run, so that a page imports no implementation.
    ``kind="step"`` marks a one-token decode step, which the harness drives through the sequence.
    ``options`` are keywords fixed for this variant; ``staged`` are the named terms of its error budget.
    """

    name: str
    function: str
    kind: Literal["sequence", "step"] = "sequence"
    options: Mapping[str, object] = field(default_factory=dict)
    supports: frozenset[str] = FEATURES
    dtypes: tuple[str, ...] = DTYPES
    staged: tuple[Staged, ...] = ()

    def __post_init__(self) -> None:
        _check_slug("Variant", self.name)
        _require(
            self.function.count(":") == 1, f"Variant {self.name!r}: function={self.function!r}, expected 'module:name'"
        )
        unknown = sorted(self.supports - FEATURES)
        _require(not unknown, f"Variant {self.name!r}: supports {unknown}, known: {sorted(FEATURES)}")
        wrong = sorted(set(self.dtypes) - set(DTYPES))
        _require(not wrong, f"Variant {self.name!r}: dtypes {wrong}, known: {DTYPES}")


def ours(operator: str, *names: str, supports: frozenset[str] = FEATURES) -> tuple[Variant, ...]:
    """The variants that ``linattest.impls.<operator>`` exposes under these names."""
    return tuple(
        Variant(
            name=name,
            function=f"linattest.impls.{operator}:{name}",
            kind="step" if name == "step" else "sequence",
            supports=supports,
            staged=(CARRIED_STATE,) if name == "step" and "state" in supports else (),
        )
        for name in names
    )


@dataclass(frozen=True, kw_only=True)
class Property:
    """Something that must hold on every input: its name, one sentence, and the check.

    ``check`` takes a probe (``linattest.verify.probe.Probe``) and yields findings; an empty answer
    means the property could not be tried there. ``needs`` are variant features it depends on. Each of ``faults``
    takes a right function (a variant's) and returns a wrong one that must turn the property red.
    """

    name: str
    statement: str
    check: Callable[[Any], Iterable[Any]]
    needs: frozenset[str] = frozenset()
    faults: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = ()

    def __post_init__(self) -> None:
        _check_slug("Property", self.name)
        _require(bool(self.statement), f"Property {self.name!r}: statement is empty")
        _require(self.needs <= FEATURES, f"Property {self.name!r}: needs {sorted(self.needs - FEATURES)}")


@dataclass(frozen=True, kw_only=True)
class Limitation:
    """A known failure, as data: where it fails and why. It must keep failing, or a full campaign says so.

    A ratio above ``most`` is not the known failure but another one.
    """

    variant: str
    why: str
    dtypes: tuple[str, ...] = DTYPES
    families: tuple[str, ...] = ()
    directions: tuple[str, ...] = ("forward", "gradient")
    properties: tuple[str, ...] = ()
    most: float = float("inf")
    link: str = ""

    def __post_init__(self) -> None:
        _require(bool(self.why), f"Limitation of {self.variant!r}: why is empty")

    def covers(self, variant: str, dtype: str, family: str, direction: str, what: str) -> bool:
        """Whether this limitation speaks of the given case (``what`` names the property tried)."""
        if direction == "property":
            return variant == self.variant and dtype in self.dtypes and what in self.properties
        return (
            variant == self.variant
            and dtype in self.dtypes
            and (not self.families or family in self.families)
            and direction in self.directions
        )


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The record of an operator: everything else in the harness is parametrised by it.

    ``oracle(ctx, head)`` is written from the definition over a number context
    (``linattest.verify.numbers``) for one sequence and one value head; it returns the output rows and
    the final state. ``reference`` names the variant whose float64 run measures sensitivity. ``grid`` lists
    option settings, ``families`` value families, that ``verify`` covers.
    """

    name: str
    title: str
    inputs: tuple[Input, ...]
    output: str
    oracle: Callable[[Any, Any], tuple[list[Any], dict[str, Any]]]
    variants: tuple[Variant, ...]
    states: tuple[State, ...] = ()
    state_type: str | None = None
    options: tuple[Option, ...] = ()
    grid: tuple[Mapping[str, float | bool | str], ...] = ({},)
    families: tuple[str, ...] = ("random",)
    reference: str = "recurrent"
    properties: tuple[Property, ...] = ()
    limitations: tuple[Limitation, ...] = ()
    reading: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_slug("Operator", self.name)
        _check_shape(f"Operator {self.name!r}", self.output)
        names = [variant.name for variant in self.variants]
        _require(len(set(names)) == len(names), f"Operator {self.name!r}: variants {names} repeat a name")
        _require(self.reference in names, f"Operator {self.name!r}: reference={self.reference!r} is none of {names}")
        for limitation in self.limitations:
            _require(
                limitation.variant in names,
                f"Operator {self.name!r}: limitation of {limitation.variant!r}, which is none of {names}",
            )
        known = {option.name for option in self.options}
        for options in self.grid:
            _require(
                set(options) <= known, f"Operator {self.name!r}: grid sets {sorted(set(options) - known)}, unknown"
            )

    def variant(self, name: str) -> Variant:
        """The variant of that name. Raises ``KeyError`` that lists the known ones."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(f"operator {self.name!r} has no variant {name!r}; it has {[v.name for v in self.variants]}")
