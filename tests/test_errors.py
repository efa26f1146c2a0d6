"""A bad argument raises the promised TypeError or ValueError, which names the argument and the value.

And the smallest good ones (no token, no batch row, one token) give what they should. Every case is derived from the
record of an operator and the signature of a variant: shapes, domains, options, keywords.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from linattest.verify import registry
from linattest.verify.spec import Input, Operator, Variant
from linattest.verify.subjects import resolve

SIZES = {"B": 2, "T": 3, "H": 2, "HV": 2, "K": 4, "V": 3}
OURS = [(o, v) for o in registry.OPERATORS for v in o.variants if v.function.startswith("linattest.impls.")]
PAIRS = [pytest.param(o, v, id=f"{o.name}-{v.name}") for o, v in OURS]
Given = dict[str, Any]


def valid(operator: Operator, variant: Variant, **sizes: int) -> Given:
    """Good keyword arguments of the smallest interesting shape."""
    sizes = SIZES | ({"T": 1} if variant.kind == "step" else {}) | sizes
    generator = torch.Generator().manual_seed(len(operator.name))
    given: Given = {}
    for x in operator.inputs_of():
        value = torch.rand([sizes[letter] for letter in x.shape.split()], generator=generator) + 0.5
        given[x.name] = -value if x.domain == "log_gate" else value
    required = {name for name, p in parameters(variant).items() if p.default is inspect.Parameter.empty}
    return given | {option.name: option.default for option in operator.options if option.name in required}


def parameters(variant: Variant) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(resolve(variant.function)).parameters)


def call(variant: Variant, given: Given) -> tuple[torch.Tensor, Any]:
    """Output and final state."""
    wants = {"output_final_state": True} if "output_final_state" in parameters(variant) else {}
    return resolve(variant.function)(**given, **variant.options, **wants)


def leaves(state: Any) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else list(state)


def rebuilt(state: Any, parts: list[Any]) -> Any:
    return parts[0] if isinstance(state, torch.Tensor) else type(state)(*parts)


def swapped(state: Any, i: int, part: Any) -> Any:
    """The state with its i-th tensor replaced."""
    parts: list[Any] = leaves(state)
    return rebuilt(state, [*parts[:i], part, *parts[i + 1 :]])


def some_state(operator: Operator, variant: Variant, given: Given) -> Any:
    """A state of the shape the variant itself returns; numbers are random and no matrix is symmetric.

    A cache of keys and values (no state in the record) holds what it holds.
    """
    state = call(variant, given)[1]
    generator = torch.Generator().manual_seed(7)
    if not operator.states_of():
        return state
    return rebuilt(state, [torch.randn(x.shape, generator=generator).to(x.dtype) for x in leaves(state)])


@dataclass(frozen=True)
class Bad:
    """A call that must be refused: its arguments, the type of the error and words that its message has."""

    what: str
    make: Callable[[], Given]
    error: type[Exception]
    words: tuple[str, ...]


def bad_inputs(operator: Operator, variant: Variant) -> Iterator[Bad]:
    """Every input in turn: each axis too long, a missing axis, wrong dtypes, no tensor, another device."""
    optional = {name for name, p in parameters(variant).items() if p.default is None}
    letters = {letter for x in operator.inputs_of() for letter in x.shape.split()}
    lone = len(operator.inputs_of()) == 1  # nothing to disagree with

    def bad(x: Input, what: str, change: Callable[[torch.Tensor], Any], error: type[Exception], *words: str) -> Bad:
        named = () if x is operator.inputs_of()[0] else (x.name,)  # the first is what others are compared with

        def made() -> Given:
            given = valid(operator, variant)
            return given | {x.name: change(given[x.name])}

        return Bad(f"{x.name} {what}", made, error, (*named, *words))

    for x in operator.inputs_of():
        for axis, letter in enumerate(x.shape.split()):
            alone = sum(letter in y.shape.split() for y in operator.inputs_of()) == 1
            if not (lone or (alone and letter == "V")):  # a size that nothing else has is a legal one
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
        if x.name not in optional:
            yield bad(x, "None", lambda t: None, TypeError, x.name, "NoneType")
    for letter in sorted(letters & {"H", "HV", "K", "V"}):
        yield Bad(f"{letter} = 0", lambda n=letter: valid(operator, variant, **({"HV": 0 if n == "H" else 2} | {n: 0})),
                  ValueError, (letter, "0"))  # fmt: skip
    if {"H", "HV"} <= letters:
        yield Bad("HV = 3 of H = 2", lambda: valid(operator, variant, HV=3), ValueError, ("HV = 3", "H = 2"))
    values = [x for x in operator.inputs_of() if x.shape.endswith(" V")]
    if values and "grouped" not in variant.supports:
        yield bad(values[0], "of HV = 4 heads, ungrouped", lambda t: t.repeat(1, 1, 2, 1), ValueError, "4", "2")
    if variant.kind == "step":
        for T in (0, 2):
            yield Bad(f"T = {T}", lambda T=T: valid(operator, variant, T=T), ValueError, (f"T = {T}", "1"))


def bad_values(operator: Operator, variant: Variant) -> Iterator[Bad]:
    """Gates out of their domain: the message has the index and the value."""
    refused = {"log_gate": (math.nan, 1.0, 5.0, math.inf, 1e-30), "beta": (math.nan, math.inf, -math.inf)}
    for x in operator.inputs_of():
        for value in refused.get(x.domain, ()):
            given = valid(operator, variant)
            given[x.name][1, -1, 0] = value
            words = f"{x.name}[1, {given[x.name].shape[1] - 1}, 0]", str(torch.tensor(value).item())
            yield Bad(f"{x.name} = {value}", lambda given=given: given, ValueError, words)


def bad_options(operator: Operator, variant: Variant) -> Iterator[Bad]:
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
        "gain": [("half", "half", V)],
        "inverse": [("lu", "lu", V)],
        "nudge": [("nan", math.nan, V)],
        "nudge_period": [("-1", -1, V), ("20", 20, V)],  # 20 needs inverse="sherman-morrison"
    }
    ridge_only = ("0", "-1", "0.0", "-1.0")  # a number without a sign to keep has no other rule
    for option in operator.options:
        if option.differentiable and option.name not in table:
            table[option.name] = [bad for bad in table["lam0"] if bad[0] not in ridge_only]
    for name in (name for name in table if name in parameters(variant)):
        for word, value, error in table[name]:
            given = valid(operator, variant) | {name: value}
            yield Bad(f"{name} = {word}", lambda given=given: given, error, (name, word.strip("[]")))


def bad_offsets(operator: Operator, variant: Variant) -> Iterator[Bad]:
    """cu_seqlens, where the variant takes it: six rows in one batch row."""
    if "cu_seqlens" not in parameters(variant):
        return
    listed = {
        "starts at 1": ([1, 6], "1"), "starts at -1": ([-1, 6], "-1"), "decreases": ([0, 4, 2, 6], "2 after 4"),
        "ends at 7": ([0, 7], "7"), "rank 2": ([[0, 6]], "[1, 2]"), "rank 0": (0, "[]"), "nothing": ([], "[0]"),
    }  # fmt: skip

    def bad(what: str, offsets: object, error: type[Exception], word: str, B: int = 1) -> Bad:
        return Bad(
            f"cu_seqlens {what}",
            lambda: valid(operator, variant, B=B, T=6) | {"cu_seqlens": offsets},
            error,
            ("cu_seqlens", word),
        )

    for what, (offsets, word) in listed.items():
        yield bad(what, torch.tensor(offsets, dtype=torch.int32), ValueError, word)
    for what, offsets in {
        "list": [0, 6], "float32": torch.tensor([0.0, 6.0]), "int16": torch.tensor([0, 6], dtype=torch.int16),
        "bool": torch.tensor([False, True]),
    }.items():  # fmt: skip
        yield bad(what, offsets, TypeError, what)
    yield bad("with B = 2", torch.tensor([0, 3]), ValueError, "B = 2", B=2)


def bad_states(operator: Operator, variant: Variant) -> Iterator[Bad]:
    """Every part of a state in turn: narrow dtypes, another shape, no tensor, another device; too few parts."""
    if "initial_state" not in parameters(variant):
        return
    settings = [{}, {"normalizer": True}] if "normalizer" in parameters(variant) else [{}]
    for options in settings:
        given = valid(operator, variant) | options
        state = some_state(operator, variant, given)
        parts = leaves(state)

        def bad(what: str, changed: Any, error: type[Exception], *words: str, given: Given = given) -> Bad:
            tag = "normalised state" if given.get("normalizer") else "state"
            changed = given | {"initial_state": changed}
            return Bad(f"{tag} {what}", lambda: changed, error, ("initial_state", *words))

        for i, part in enumerate(parts):
            swap = functools.partial(swapped, state, i)
            for dtype in ("bfloat16", "float16", "complex64"):
                yield bad(f"{i} {dtype}", swap(part.to(getattr(torch, dtype))), TypeError, dtype)
            rows = torch.cat([part, part[:1]])
            yield bad(f"{i} with N + 1 rows", swap(rows), ValueError, str(list(rows.shape)))
            if part.dim() > 1:
                yield bad(f"{i} narrower", swap(part[..., 1:]), ValueError, str(list(part[..., 1:].shape)))
            yield bad(f"{i} a list", swap(part.tolist()), TypeError, "list")
            if part.is_floating_point():
                yield bad(f"{i} on another device", swap(part.to("meta")), ValueError, "meta", "cpu")
        yield bad("a str", "state", TypeError, "str")
        yield bad("too many parts", tuple([*parts, parts[0]]), TypeError, "tuple")


REFUSED = [
    pytest.param(variant, bad, id=f"{operator.name}-{variant.name}-{bad.what}")
    for operator, variant in OURS
    for source in (bad_inputs, bad_values, bad_options, bad_offsets, bad_states)
    for bad in source(operator, variant)
]


@pytest.mark.parametrize("variant, bad", REFUSED)
def test_a_bad_argument_is_refused_by_name_and_value(variant: Variant, bad: Bad):
    given = bad.make()
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    before = {name: (x._version, x.clone()) for name, x in tensors.items()}
    with pytest.raises(bad.error) as caught:
        resolve(variant.function)(**given, **variant.options)
    missing = [word for word in bad.words if word not in str(caught.value)]
    assert not missing, f"{bad.what}: {caught.value} lacks {missing}"
    for name, x in tensors.items():
        assert x._version == before[name][0], f"{name} was written to"
