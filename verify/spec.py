"""The vocabulary of the harness: what an operator is, and what is known about it.

Every record here is frozen and checks itself when it is made. This module imports nothing of
linattest but ``signature`` (its arguments), so that a page, a plugin or a user's own file can describe an
operator without pulling in an implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from linattest.verify.signature import Input, Option, State, When, check_shape, require

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Every floating type an operator takes, widest first."""

PLACES = ("cpu", "interpreter", "cuda")
"""Where a variant may run: a CPU, Triton's interpreter (on a CPU, for its semantics alone), a GPU."""

FEATURES = frozenset({"packed", "state", "grouped", "rectangular", "gradient"})
"""What a variant may support: packed sequences, states in and out, HV > H, K != V, backward."""


def _check_slug(owner: str, name: str) -> None:
    require(
        bool(name) and name.replace("_", "").replace("-", "").isalnum() and name == name.lower(),
        f"{owner}: name={name!r}, expected lower-case letters, digits, '_' or '-'",
    )


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A low-precision operand inside an implementation, whose rounding is a named term of its error budget.

    ``function`` ("module:name") measures the term: ``(operator, batch, backward) -> {output name: error}``
    (staging.py). ``dtypes`` are the input dtypes for which the operand is staged. ``seldom``: it is so small that it is
    measured only where a verdict would be red without.
    """

    name: str
    function: str
    dtypes: tuple[str, ...] = DTYPES
    seldom: bool = False


CARRIED_STATE = Staged(name="state between tokens", function="linattest.verify.staging:carried_state")
"""A decode step receives and returns its state in the accumulation type: one rounding of it a token."""

OPERANDS = (
    Staged(
        name="bfloat16 operands of matrix products",
        function="linattest.verify.staging:bfloat16_operands",
        dtypes=("bfloat16",),
    ),
    Staged(
        name="tf32 operands of matrix products", function="linattest.verify.staging:tf32_operands", dtypes=("float16",)
    ),
    Staged(
        name="tf32x3 operands of matrix products",
        function="linattest.verify.staging:tf32x3_operands",
        dtypes=("float32",),
        seldom=True,
    ),
)
"""What a kernel computes and feeds to a tensor core again: scores, states, decayed values, residuals."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One implementation of an operator: where it lives and what it can do.

    ``function`` is "module:name", imported when it is run, so that a page imports no implementation.
    ``kind="step"`` marks a one-token decode step, which the harness drives through the sequence.
    ``options`` are keywords fixed for this variant; ``serves`` the values of the operator's options that it takes,
    where it does not take them all; ``staged`` are the named terms of its error budget; ``places`` where it can run
    (``PLACES``).
    """

    name: str
    function: str
    kind: Literal["sequence", "step"] = "sequence"
    options: Mapping[str, object] = field(default_factory=dict)
    serves: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    supports: frozenset[str] = FEATURES
    dtypes: tuple[str, ...] = DTYPES
    staged: tuple[Staged, ...] = ()
    places: frozenset[str] = frozenset({"cpu", "cuda"})

    def __post_init__(self) -> None:
        _check_slug("Variant", self.name)
        require(
            self.function.count(":") == 1, f"Variant {self.name!r}: function={self.function!r}, expected 'module:name'"
        )
        unknown = sorted(self.supports - FEATURES)
        require(not unknown, f"Variant {self.name!r}: supports {unknown}, known: {sorted(FEATURES)}")
        wrong = sorted(set(self.dtypes) - set(DTYPES))
        require(not wrong, f"Variant {self.name!r}: dtypes {wrong}, known: {DTYPES}")
        nowhere = sorted(self.places - set(PLACES)) or not self.places
        require(not nowhere, f"Variant {self.name!r}: places {sorted(self.places)}, expected some of {PLACES}")

    def takes(self, options: Mapping[str, object]) -> bool:
        """Whether it serves these settings of the operator's options; one that is not in force does not matter."""
        return all(options[name] in values for name, values in self.serves.items() if name in options)

    @property
    def kernel(self) -> bool:
        """Whether it is made for a GPU: on a CPU it needs an interpreter, or cannot run."""
        return "cpu" not in self.places


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


def kernels(
    operator: str,
    *names: str,
    supports: frozenset[str] = FEATURES,
    serves: Mapping[str, tuple[object, ...]] | None = None,
    staged: tuple[Staged, ...] = OPERANDS,
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16"),
) -> tuple[Variant, ...]:
    """The variants "triton" and "triton-step": what ``linattest.kernels.<operator>`` exposes as chunk and step.

    Args:
        names: "chunk", "step"; both if none are given.
        serves: of an option, the values that kernels take; all of every option if not given.
        staged: the budget's terms for the operands of the chunk form's matrix products. A step has none, forward or
            backward, and carries its state from token to token.
    """
    found: list[Variant] = []
    for name in names or ("chunk", "step"):
        require(name in ("chunk", "step"), f"kernels({operator!r}): name={name!r}, expected 'chunk' or 'step'")
        step = name == "step"
        carried = (CARRIED_STATE,) if "state" in supports else ()
        found.append(
            Variant(
                name="triton-step" if step else "triton", function=f"linattest.kernels.{operator}:{name}",
                kind="step" if step else "sequence", supports=supports, dtypes=dtypes, serves=serves or {},
                staged=carried if step else staged, places=frozenset({"interpreter", "cuda"}),
            )
        )  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Property:
    """Something that must hold on every input: its name, one sentence, and the check.

    ``check`` takes a probe (``linattest.verify.probe.Probe``) and yields findings; an empty answer
    means the property could not be tried there. ``needs`` are variant features it depends on. Each of ``faults``
    takes a right function (a variant's) and returns a wrong one that must turn the property red. ``promise`` marks what
    goes beyond right values (equal bits in another batch, layout or mode): ours keep it, a user's function need not.
    """

    name: str
    statement: str
    check: Callable[[Any], Iterable[Any]]
    needs: frozenset[str] = frozenset()
    promise: bool = False
    faults: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = ()

    def __post_init__(self) -> None:
        _check_slug("Property", self.name)
        require(bool(self.statement), f"Property {self.name!r}: statement is empty")
        require(self.needs <= FEATURES, f"Property {self.name!r}: needs {sorted(self.needs - FEATURES)}")


@dataclass(frozen=True, kw_only=True)
class Limitation:
    """A known failure, as data: where it fails and why. It must keep failing, or a full campaign says so.

    A ratio above ``most`` is not the known failure but another one. One that is ``rare`` shows with one seed in dozens:
    that a campaign does not meet it says nothing. It must have a ``most``, since little else holds it in bounds. One
    that is ``local`` is a property that fails on some processors only: bits of somebody else's library.
    """

    variant: str
    why: str
    dtypes: tuple[str, ...] = DTYPES
    families: tuple[str, ...] = ()
    directions: tuple[str, ...] = ("forward", "gradient")
    properties: tuple[str, ...] = ()
    most: float = float("inf")
    rare: bool = False
    local: bool = False
    link: str = ""

    def __post_init__(self) -> None:
        require(bool(self.why), f"Limitation of {self.variant!r}: why is empty")
        require(not self.rare or self.most < float("inf"), f"Limitation of {self.variant!r}: rare, and without most")
        require(not self.local or bool(self.properties), f"Limitation of {self.variant!r}: local, and of no property")

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
    option settings, ``families`` value families, that ``verify`` covers. Under the options of which ``ungrouped``
    holds there is one value head a key head, whatever a variant supports elsewhere.
    """

    name: str
    title: str
    inputs: tuple[Input, ...]
    output: str
    oracle: Callable[[Any, Any], tuple[list[Any], dict[str, Any]]]
    variants: tuple[Variant, ...]
    states: tuple[State, ...] = ()
    options: tuple[Option, ...] = ()
    grid: tuple[Mapping[str, float | bool | str], ...] = ({},)
    families: tuple[str, ...] = ("random",)
    reference: str = "recurrent"
    ungrouped: When | None = None
    properties: tuple[Property, ...] = ()
    limitations: tuple[Limitation, ...] = ()
    reading: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_slug("Operator", self.name)
        check_shape(f"Operator {self.name!r}", self.output)
        names = [variant.name for variant in self.variants]
        require(len(set(names)) == len(names), f"Operator {self.name!r}: variants {names} repeat a name")
        require(self.reference in names, f"Operator {self.name!r}: reference={self.reference!r} is none of {names}")
        for limitation in self.limitations:
            require(
                limitation.variant in names,
                f"Operator {self.name!r}: limitation of {limitation.variant!r}, which is none of {names}",
            )
        known = {option.name for option in self.options}
        for options in self.grid:
            require(set(options) <= known, f"Operator {self.name!r}: grid sets {sorted(set(options) - known)}, unknown")

    def inputs_of(self, options: Mapping[str, Any] | None = None) -> list[Input]:
        """The inputs that exist under resolved options (the defaults, if none are given), in order."""
        return self._existing(self.inputs, options)

    def states_of(self, options: Mapping[str, Any] | None = None) -> list[State]:
        """The state tensors that exist under resolved options (the defaults, if none are given), in order."""
        return self._existing(self.states, options)

    def _existing(self, parts: Iterable[Any], options: Mapping[str, Any] | None) -> list[Any]:
        if options is None:
            options = {option.name: option.default for option in self.options}
        return [x for x in parts if x.when is None or x.when(options)]

    def variant(self, name: str) -> Variant:
        """The variant of that name. Raises ``KeyError`` that lists the known ones."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(f"operator {self.name!r} has no variant {name!r}; it has {[v.name for v in self.variants]}")
