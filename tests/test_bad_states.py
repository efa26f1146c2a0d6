"""A bad state raises the promised TypeError or ValueError, which names it and says what is wrong.

Every case is derived from the record: each tensor of a state, each part of a nested one, levels and positions. The
caches of an operator without a state in its record are what it returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from linattest.verify import registry
from linattest.verify.grids import settings
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import keywords, pack_state, resolve, spread

Tree = Any
"""A tensor, or a tuple of trees."""


@dataclass(frozen=True)
class Bad:
    """A state that must be refused: the type of the error and words that its message has."""

    what: str
    state: Tree
    error: type[Exception]
    words: tuple[str, ...]


def call(operator: Operator, variant: Variant, batch: Batch, state: Tree) -> tuple[torch.Tensor, Tree]:
    positional, optional = spread(operator, batch.tensors)
    given = optional | keywords(operator, variant, batch) | {"initial_state": state}
    if "output_final_state" in inspect.signature(resolve(variant.function)).parameters:
        given["output_final_state"] = True
    return resolve(variant.function)(*positional, **given)


def good(operator: Operator, variant: Variant, setting: Any, dtype: str = "float32") -> tuple[Batch, Tree]:
    """Arguments and a state of two sequences; one with levels holds buckets."""
    structure = Structure(B=2, T=1 if variant.kind == "step" else 3, H=2, K=4, V=3, initial_state=True)
    batch = build(operator, Case(operator=operator.name, structure=structure, options=setting, dtype=dtype))
    if batch.state is None:
        return batch, call(operator, variant, batch, None)[1]
    if "position" in batch.state:
        batch.state["position"][:] = 5
        batch.state["S"].zero_()[:, [1, 3]] = 1
    return batch, pack_state(operator, batch.state, batch.options)


def leaves(tree: Tree, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """Every tensor and its path."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    else:
        for i, part in enumerate(tree):
            yield from leaves(part, (*path, i))


def parts(tree: Tree, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], tuple[Tree, ...]]]:
    """Every tuple and its path, the whole first."""
    if not isinstance(tree, torch.Tensor):
        yield path, tuple(tree)
        for i, part in enumerate(tree):
            yield from parts(part, (*path, i))


def swapped(tree: Tree, path: tuple[int, ...], part: Any) -> Tree:
    """The tree with another part at the path."""
    if not path:
        return part
    new = [swapped(x, path[1:], part) if i == path[0] else x for i, x in enumerate(tree)]
    return type(tree)(*new) if hasattr(tree, "_fields") else tuple(new)


def bad_leaves(tree: Tree, recorded: bool) -> Iterator[Bad]:
    """Each tensor in turn: a narrow or another dtype, another shape, no tensor, another device."""
    for path, x in leaves(tree):

        def bad(what: str, part: Any, error: type[Exception], *words: str, path: tuple[int, ...] = path) -> Bad:
            return Bad(f"{list(path)} {what}", swapped(tree, path, part), error, ("initial_state", *words))

        whole = ("int16", "float32") if not x.is_floating_point() else ()
        for dtype in ("bfloat16", "float16", "complex64", "bool", *whole):
            yield bad(dtype, x.to(getattr(torch, dtype)), TypeError, dtype)
        rows = torch.cat([x, x[:1]])
        yield bad("with N + 1 rows", rows, ValueError, str(list(rows.shape)))
        if x.dim() > 1:
            yield bad("narrower", x[..., 1:], ValueError, str(list(x[..., 1:].shape)))
        yield bad("one axis more", x[..., None], ValueError, str(list(x[..., None].shape)))
        yield bad("a list", x.tolist(), TypeError, "list")
        yield bad("None", None, TypeError, "NoneType") if path else bad("a str", "state", TypeError, "str")
        if x.is_floating_point() or recorded:  # the length of a cache may be anywhere, as offsets may
            yield bad("on another device", x.to("meta"), ValueError, "meta", "cpu")


def bad_parts(tree: Tree) -> Iterator[Bad]:
    """Each tuple in turn: too many or too few of it, a list of them, only its first tensor."""
    for path, part in parts(tree):
        first = next(leaves(part))[1]
        wrong = {
            "too long": (*part, first),
            "too short": part[:-1],
            "a list": list(part),
            "a tensor": first,
            "a str": "x",
        }
        for what, value in wrong.items():
            words = "initial_state", type(value).__name__
            yield Bad(f"{list(path)} {what}", swapped(tree, path, value), TypeError, words)
    if isinstance(tree, torch.Tensor):
        yield Bad("two tensors", (tree, tree), TypeError, ("initial_state", "tuple"))


def bad_levels(operator: Operator, batch: Batch) -> Iterator[Bad]:
    """Positions that are none or too far, and values in levels that hold no bucket."""
    if "position" not in (batch.state or {}):
        return
    state = dict(batch.state or {})

    def bad(what: str, error: type[Exception], *words: str, **changed: torch.Tensor) -> Bad:
        return Bad(what, pack_state(operator, state | changed, batch.options), error, words)

    L, S = state["S"].shape[1], state["S"]
    for p, words in {
        -1: ("initial_state.position[1]", "-1"),
        -(2**62): ("initial_state.position[1]", str(-(2**62))),
        2 ** (L - 1): ("level_weights", f"L = {L}", str(L + 1), str(2 ** (L - 1))),
        2**62: ("level_weights", f"L = {L}", str(2**62)),
        0: ("initial_state.S[1, 1]", "initial_state.position[1]", "0"),
        4: ("initial_state.S[1, 1]", "initial_state.position[1]", "4"),
    }.items():
        yield bad(f"position {p}", ValueError, *words, position=torch.tensor([5, p]))
    for level in sorted({*range(L)} - {1, 3}):
        for value in (1.0, float("nan"), -1e-38):
            held = S.clone()
            held[1, level, -1, -1, -1] = value
            yield bad(f"level {level} = {value}", ValueError, f"initial_state.S[1, {level}]", "5", S=held)


def refused() -> Iterator[Any]:
    for operator in registry.OPERATORS:
        for variant in (v for v in operator.variants if v.function.startswith("linattest.impls.")):
            if "initial_state" not in inspect.signature(resolve(variant.function)).parameters:
                continue
            seen: list[Any] = []
            for setting in settings(operator):
                batch, tree = good(operator, variant, setting)
                words = [setting[x.name] for x in operator.options if x.passed and isinstance(setting.get(x.name), str)]
                kept = [x.name for x in operator.states_of(batch.options)], words
                if kept in seen:
                    continue
                seen.append(kept)
                words = [operator.name, variant.name, *(f"{k}={x}" for k, x in setting.items())]
                for bad in (*bad_leaves(tree, bool(operator.states)), *bad_parts(tree), *bad_levels(operator, batch)):
                    yield pytest.param(operator, variant, batch, bad, id="-".join([*words, bad.what]))


@pytest.mark.parametrize("operator, variant, batch, bad", list(refused()))
def test_a_bad_state_is_refused_by_name(operator: Operator, variant: Variant, batch: Batch, bad: Bad):
    with pytest.raises(bad.error) as caught:
        call(operator, variant, batch, bad.state)
    missing = [word for word in bad.words if word not in str(caught.value)]
    assert not missing, f"{bad.what}: {caught.value} lacks {missing}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_state_in_the_inputs_own_narrow_dtype_is_refused(dtype: str):
    """A state is float32 beside narrow inputs; the one that comes to hand has theirs."""
    for operator in registry.OPERATORS:
        for variant in (v for v in operator.variants if "state" in v.supports and "impls" in v.function):
            batch, tree = good(operator, variant, settings(operator)[0], dtype)
            narrow = (bad for bad in bad_leaves(tree, bool(operator.states)) if bad.what.endswith(dtype))
            for bad in narrow if batch.state else ():  # a cache without a record holds what came in
                with pytest.raises(TypeError, match=dtype):
                    call(operator, variant, batch, bad.state)


def test_a_good_state_is_accepted():
    """What the bad ones are made of."""
    for operator in registry.OPERATORS:
        for variant in (v for v in operator.variants if "state" in v.supports and "impls" in v.function):
            for setting in settings(operator):
                batch, tree = good(operator, variant, setting)
                assert call(operator, variant, batch, tree)[0].isfinite().all()
