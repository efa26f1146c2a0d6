"""The rule about other orders of axes than the two that ``check`` has an option for: each is tried by a wrapper."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from linattest.verify.evidence import Diagnosis, Evidence
from linattest.verify.given import adapter_of
from linattest.verify.preparation import hold_axes
from linattest.verify.rules.layouts import as_called, simply_off, small
from linattest.verify.subject import Subject, hand_over, load

Order = Callable[[list[Any]], list[Any]]


def _swapped(axes: list[Any], i: int, j: int) -> list[Any]:
    axes = list(axes)
    axes[i], axes[j] = axes[j], axes[i]
    return axes


ORDERS: dict[str, Order] = {
    "tokens come first, before the batch": lambda axes: _swapped(axes, 0, 1),
    "features come before heads": lambda axes: _swapped(axes, 2, 3) if len(axes) == 4 else axes,
    "heads come before tokens, but for a gate": lambda axes: _swapped(axes, 1, 2) if len(axes) == 4 else axes,
    "a gate's heads come before its tokens": lambda axes: _swapped(axes, 1, 2) if len(axes) == 3 else axes,
    "heads come before tokens, and features before both": lambda axes: [axes[0], *axes[2:], axes[1]],
}
"""In words, and what becomes of the axes [B, T, H, ..] of an input or output."""


def order(e: Evidence) -> Diagnosis | None:
    """It is right in another order of axes, but for one simple factor if need be."""
    if not e.base.off or e.subject.layout != "seq-first":
        return None
    for words, change in ORDERS.items():
        there = Evidence(_reordered(e, change), [])
        held = there.batch(T=1).options  # of another gate, say, if the function takes that alone
        shapes = {x.name: x.shape.split() for x in e.operator.inputs_of(held)}
        after = {name: change(axes) for name, axes in shapes.items()}
        if after == shapes:
            continue
        looks = small(there)
        off = any(look.off for look in looks)
        besides = simply_off(there, looks) if off else ""
        if off and not besides:
            continue
        out = change(e.operator.output.split())
        axes = "; ".join(f"{name} [{', '.join(x)}]" for name, x in (after | {"o": out}).items())
        return Diagnosis(
            rule="order", fault=f"{'its' if besides else 'it is right, but its'} axes are in another order: {words}"
            + (f"; besides, {besides}" if besides else ""),
            evidence=f"with {axes}, it agrees{' but for that' if besides else ''} in all {len(looks)} small inputs "
            f"({looks[0].batch.case.describe()}, ...); as it was called, {as_called(e)}",
            suggestion="check a wrapper that permutes the inputs before the call and the output after it; no option "
            "of check has this order",
        )  # fmt: skip
    return None


def _reordered(e: Evidence, change: Order) -> Subject:
    """The function behind a wrapper that permutes what goes in and what comes out."""
    function, subject = load(e.subject.function), e.subject
    names = {x.name for x in e.operator.inputs}
    by_position = list(adapter_of(subject).parameters or [x.name for x in e.operator.inputs])
    width = len(e.operator.output.split())

    def moved(theirs: str, x: Any) -> Any:
        known = subject.rename.get(theirs, theirs).removeprefix("-") in names
        return x.permute(change(list(range(x.dim())))) if known and isinstance(x, torch.Tensor) else x

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        given = [moved(name, x) for name, x in zip(by_position, arguments, strict=False)]
        found = function(*given, **{name: moved(name, x) for name, x in keywords.items()})
        o, *rest = found if isinstance(found, tuple | list) else (found,)
        if isinstance(o, torch.Tensor) and o.dim() == width:
            there = change(list(range(width)))
            o = o.permute([there.index(i) for i in range(width)])
        return (o, *rest) if isinstance(found, tuple | list) else o

    return hold_axes(msgspec.structs.replace(subject, function=hand_over(call)))[0]
