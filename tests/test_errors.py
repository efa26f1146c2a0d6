"""A bad argument raises the promised TypeError or ValueError, which names the argument and the value.

Every case is derived from the record of an operator and the signature of a variant: shapes, domains, options, keywords,
under each option setting what no setting before it had. States are in test_bad_states.py.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from linattest.verify import registry
from linattest.verify.grids import settings
from linattest.verify.inputs import Scalar, resolve_options
from linattest.verify.signature import Input
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import resolve

SIZES = {"B": 2, "T": 3, "H": 2, "HV": 2, "K": 4, "V": 3, "L": 4}
Given = dict[str, Any]
EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Bad:
    """A call that must be refused: its arguments, the type of the error and words that its message has."""

    what: str
    make: Callable[[], Given]
    error: type[Exception]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A variant under an option setting, and what other settings of it have been tried with."""

    operator: Operator
    variant: Variant
    setting: Mapping[str, Scalar]
    seen: set[Any] = field(default_factory=set)

    @property
    def options(self) -> Mapping[str, Scalar | None]:
        return resolve_options(self.operator, self.setting)

    @property
    def inputs(self) -> list[Input]:
        return self.operator.inputs_of(self.options)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(resolve(self.variant.function)).parameters)

    def needs(self, name: str) -> bool:
        return name not in self.parameters or self.parameters[name].default is EMPTY

    def new(self, *marks: Any) -> bool:
        """Whether this has not been asked before."""
        fresh = marks not in self.seen
        self.seen.add(marks)
        return fresh

    def value(self, x: Input, **sizes: int) -> torch.Tensor:
        """A good tensor."""
        known = SIZES | ({"T": 1} if self.variant.kind == "step" else {}) | sizes
        generator = torch.Generator().manual_seed(len(self.operator.name + x.name))
        value = torch.rand([known[letter] for letter in x.shape.split()], generator=generator) + 0.5
        return -value if x.domain == "log_gate" else value

    def valid(self, **sizes: int) -> Given:
        """Good keyword arguments of the smallest interesting shape."""
        passed = {x.name for x in self.operator.options if x.passed}
        required = {name for name in passed & self.parameters.keys() if self.needs(name)}
        chosen = {k: x for k, x in self.options.items() if k in required or (k in self.setting and k in passed)}
        return {x.name: self.value(x, **sizes) for x in self.inputs} | chosen


def bad_inputs(place: Place) -> Iterator[Bad]:
    """Every input in turn: each axis too long, a missing axis, wrong dtypes, no tensor, another device, none at all."""
    lone = len(place.inputs) == 1  # nothing to disagree with

    def bad(x: Input, what: str, change: Callable[[torch.Tensor], Any], error: type[Exception], *words: str) -> Bad:
        named = () if x is place.inputs[0] else (x.name,)  # the first is what others are compared with
        # with HV = H, the wrong shape could be the right one of another form of the input
        sizes = {"HV": 4} if sum(y.name == x.name for y in place.operator.inputs) > 1 else {}

        def made() -> Given:
            given = place.valid(**sizes)
            return given | {x.name: change(given[x.name])}

        return Bad(f"{x.name} {what}", made, error, (*named, *words))

    for x in (x for x in place.inputs if place.new(x.name, x.shape)):
        for axis, letter in enumerate(x.shape.split()):
            alone = sum(letter in y.shape.split() for y in place.inputs) == 1
            if not (lone or (alone and letter in "VL")):  # a size that nothing else has is a legal one
                yield bad(
                    x, f"longer along {letter}", lambda t, i=axis: torch.cat([t, t.narrow(i, 0, 1)], i), ValueError
                )
        yield bad(x, "one axis short", lambda t: t[..., 0], ValueError)
        yield bad(x, "one axis more", lambda t: t[None], ValueError)
        if not lone:
            yield bad(x, "float16 among float32", lambda t: t.half(), TypeError, "float16", "float32")
            yield bad(x, "on another device", lambda t: t.to("meta"), ValueError, "meta", "cpu")
        for dtype in (torch.int64, torch.bool, torch.complex64):
            word = str(dtype).removeprefix("torch.")
            yield bad(x, word, lambda t, dtype=dtype: t.to(dtype), TypeError, x.name, word)
        yield bad(x, "a list", lambda t: t.tolist(), TypeError, x.name, "list")
        if place.needs(x.name):
            yield bad(x, "None", lambda t: None, TypeError, x.name, "NoneType")
            rest = {y.name for y in place.inputs} - {x.name}
            made = lambda rest=rest: {k: t for k, t in place.valid().items() if k in rest or k in place.options}  # noqa: E731
            yield Bad(f"{x.name} left out", made, TypeError, (x.name, "missing"))
        if "L" in x.shape.split():
            few = 0 if place.variant.kind == "step" else 2
            yield bad(x, "too few levels", lambda t, few=few: t[..., :few], ValueError, f"L = {few}", str(few + 1))


def bad_sizes(place: Place) -> Iterator[Bad]:
    """Sizes that all inputs agree about, and that are none; several value heads where there is one a key head."""
    letters = {letter for x in place.inputs for letter in x.shape.split()}
    values = [x for x in place.inputs if x.shape.endswith(" V")]
    ungrouped = place.operator.ungrouped is not None and place.operator.ungrouped(place.options)
    if values and (ungrouped or (not place.setting and "grouped" not in place.variant.supports)):
        wide = lambda: place.valid() | {values[0].name: place.value(values[0], HV=4, H=4)}  # noqa: E731
        yield Bad("HV = 4 heads, ungrouped", wide, ValueError, (values[0].name, "4", "2"))
    if place.setting:
        return
    for letter in sorted(letters & {"H", "HV", "K", "V"}):
        sizes = {"HV": 0 if letter == "H" else 2} | {letter: 0}
        yield Bad(f"{letter} = 0", lambda sizes=sizes: place.valid(**sizes), ValueError, (letter, "0"))
    if {"H", "HV"} <= letters:
        yield Bad("HV = 3 of H = 2", lambda: place.valid(HV=3), ValueError, ("HV = 3", "H = 2"))
    if place.variant.kind == "step":
        for T in (0, 2):
            yield Bad(f"T = {T}", lambda T=T: place.valid(T=T), ValueError, (f"T = {T}", "1"))


def bad_values(place: Place) -> Iterator[Bad]:
    """Numbers out of their domain: the message has the index and the value."""
    finite = (math.nan, math.inf, -math.inf)
    refused = {domain: finite for domain in ("beta", "rate", "level")}
    refused |= {"log_gate": (math.nan, 1.0, 5.0, math.inf, 1e-30), "weight": (*finite, -1.0, -1e-30)}
    for x in place.inputs:
        for value in refused.get(x.domain, ()) if place.new("values", x.name, x.shape) else ():
            given = place.valid()
            index = [1, given[x.name].shape[1] - 1, *[0] * (given[x.name].dim() - 2)]
            given[x.name][tuple(index)] = value
            words = f"{x.name}{index}", str(torch.tensor(value).item())
            yield Bad(f"{x.name} = {value}", lambda given=given: given, ValueError, words)


def bad_options(place: Place) -> Iterator[Bad]:
    """Numbers and words out of their domain, for every keyword that the variant has."""
    number = ("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf)
    positive = (*number, ("0", 0.0), ("-1", -1.0))
    wrong_type = ("str", "1"), ("bool", True), ("complex", 1j)
    T, V = TypeError, ValueError
    ridge = [("0.0", torch.tensor(0.0), V), ("-1.0", torch.tensor([0.1, -1.0]), V), ("inf", torch.tensor(math.inf), V)]
    ridge += [("nan", torch.tensor([math.nan, 0.1]), V), ("[3]", torch.ones(3), V), ("[1, 2]", torch.ones(1, 2), V)]
    ridge += [("int64", torch.tensor(1), T), ("NoneType", None, T), ("meta", torch.ones((), device="meta"), V)]
    sizes = [(str(n), n, V) for n in (0, -64, 3, 48, 63)] + [("float", 64.0, T), ("NoneType", None, T)]
    table: dict[str, Sequence[tuple[str, Any, type[Exception]]]] = {
        "lam0": [(w, x, V) for w, x in positive] + [(w, x, T) for w, x in wrong_type] + ridge,
        "eps": [(w, x, V) for w, x in positive] + [(w, x, T) for w, x in wrong_type] + [("NoneType", None, T)],
        "scale": [(w, x, V) for w, x in number] + [(w, x, T) for w, x in (*wrong_type, ("Tensor", torch.ones(())))],
        "chunk_size": [*sizes, ("str", "64", T), ("bool", True, T)],
        "inverse": [("lu", "lu", V)],
        "nudge": [("nan", math.nan, V)],
        "nudge_period": [("-1", -1, V), ("20", 20, V)],  # 20 needs inverse="sherman-morrison"
    }
    ridge_only = ("0", "-1", "0.0", "-1.0")  # a number without a sign to keep has no other rule
    for option in (x for x in place.operator.options if x.passed):
        if option.differentiable and option.name not in table:
            table[option.name] = [bad for bad in table["lam0"] if bad[0] not in ridge_only]
        elif isinstance(option.default, bool):
            table[option.name] = [("int", 1, T), ("str", "True", T), ("NoneType", None, T)]
        elif isinstance(option.default, str):
            table[option.name] = [("half", "half", V), ("None", None, V), ("True", True, V)]
    for name in (name for name in table if name in place.parameters or name in place.options):
        for word, value, error in table[name] if place.new("option", name) else ():
            made = lambda name=name, value=value: place.valid() | {name: value}  # noqa: E731
            yield Bad(f"{name} = {word}", made, error, (name, word.strip("[]")))


def unexpected(place: Place) -> Iterator[Bad]:
    """An argument that means nothing here: of another setting, or of nobody."""
    inputs = {x.name: place.value(x) for x in place.operator.inputs}
    normalised = {"normalizer": True} if "normalizer" in place.options else {}
    live = {x.name for x in place.inputs} | resolve_options(place.operator, {**place.setting, **normalised}).keys()
    numbers = {x.name: x.default for x in place.operator.options if x.passed}
    others = {k: x for k, x in (inputs | numbers).items() if k not in live and k not in place.parameters}
    for name, value in (others | {"nonsense": 1}).items():
        made = lambda name=name, value=value: place.valid() | {name: value}  # noqa: E731
        yield Bad(f"{name} unexpected", made, TypeError, (name,))


def bad_offsets(place: Place) -> Iterator[Bad]:
    """cu_seqlens, where the variant takes it: six rows in one batch row."""
    if "cu_seqlens" not in place.parameters or place.setting:
        return
    listed = {
        "starts at 1": ([1, 6], "1"), "starts at -1": ([-1, 6], "-1"), "decreases": ([0, 4, 2, 6], "2 after 4"),
        "ends at 7": ([0, 7], "7"), "rank 2": ([[0, 6]], "[1, 2]"), "rank 0": (0, "[]"), "nothing": ([], "[0]"),
    }  # fmt: skip

    def bad(what: str, offsets: object, error: type[Exception], word: str, B: int = 1) -> Bad:
        made = lambda: place.valid(B=B, T=6) | {"cu_seqlens": offsets}  # noqa: E731
        return Bad(f"cu_seqlens {what}", made, error, ("cu_seqlens", word))

    for what, (offsets, word) in listed.items():
        yield bad(what, torch.tensor(offsets, dtype=torch.int32), ValueError, word)
    for what, offsets in {
        "list": [0, 6], "float32": torch.tensor([0.0, 6.0]), "int16": torch.tensor([0, 6], dtype=torch.int16),
        "bool": torch.tensor([False, True]),
    }.items():  # fmt: skip
        yield bad(what, offsets, TypeError, what)
    yield bad("with B = 2", torch.tensor([0, 3]), ValueError, "B = 2", B=2)


def refused() -> Iterator[Any]:
    for operator in registry.OPERATORS:
        for variant in (v for v in operator.variants if v.function.startswith("linattest.impls.")):
            seen: set[Any] = set()
            for setting in settings(operator):
                place = Place(operator, variant, setting, seen)
                words = [operator.name, variant.name, *(f"{k}={x}" for k, x in setting.items())]
                for source in (bad_inputs, bad_sizes, bad_values, bad_options, unexpected, bad_offsets):
                    for bad in source(place):
                        yield pytest.param(variant, bad, id="-".join([*words, bad.what]))


@pytest.mark.parametrize("variant, bad", list(refused()))
def test_a_bad_argument_is_refused_by_name_and_value(variant: Variant, bad: Bad):
    given = bad.make()
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    before = {name: x._version for name, x in tensors.items()}
    with pytest.raises(bad.error) as caught:
        resolve(variant.function)(**given, **variant.options)
    missing = [word for word in bad.words if word not in str(caught.value)]
    assert not missing, f"{bad.what}: {caught.value} lacks {missing}"
    for name, x in tensors.items():
        assert x._version == before[name], f"{name} was written to"
