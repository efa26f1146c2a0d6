"""Powers of two: where the definition is homogeneous in an argument, so is every implementation, bit for bit.

Which arguments those are, and to which degree the output and each state follow, is read off the page's own oracle: it
runs in mpmath on a handful of numbers, with one argument times 2^10 and times 2^-10. An ``eps`` that is active makes
the two disagree, and then there is nothing to hold anybody to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mpmath
import torch

from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import MpContext
from linattest.verify.oracle import heads, numbers_of
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import brief
from linattest.verify.spec import Operator, Property

FACTOR = 4.0
SIGNED = (-1.0, FACTOR)
"""By what the scale is multiplied: -1 is what some code takes for "not given"."""

SMALL = Structure(T=5, K=3, V=2)
SHIFT = 10
CONTEXT = MpContext(300)
AGREE = 2.0**-200
"""Two results of 300 bits that are one number differ by a few roundings, much less than this."""

Degrees = Mapping[str, int]
"""Power of the factor by output name: "o" and each "state.<name>"."""

_known: dict[tuple[Any, ...], dict[str, Degrees]] = {}


def degrees(operator: Operator, case: Case) -> dict[str, Degrees]:
    """The arguments (inputs, and the option "scale") in which the definition is homogeneous under a case's options."""
    key = (operator.oracle, *sorted(case.options.items()))
    if key not in _known:
        _known[key] = dict(_homogeneous(operator, case))
    return _known[key]


def _homogeneous(operator: Operator, case: Case) -> Iterator[tuple[str, Degrees]]:
    small = Case(operator=operator.name, structure=SMALL, dtype="float64", options=case.options)
    batch = build(operator, small)
    scaled = "scale" in batch.options
    batch = batch.with_(options={**batch.options, "scale": 1.0}) if scaled else batch
    base = _values(operator, batch)
    for name in (*batch.tensors, *(["scale"] if scaled else [])):
        up, down = (_values(operator, multiplied(batch, name, 2.0**e)) for e in (SHIFT, -SHIFT))
        found = {what: _degree(base[what], up[what], down[what]) for what in base}
        if all(degree is not None for degree in found.values()):
            yield name, {what: degree for what, degree in found.items() if degree is not None}


def _values(operator: Operator, batch: Batch) -> dict[str, list[Any]]:
    """The oracle's numbers, by output name."""
    _, _, head = next(heads(operator, batch, CONTEXT))
    outputs, final = operator.oracle(CONTEXT, head)
    return {"o": [x for row in outputs for x in numbers_of(CONTEXT, row)]} | {
        f"state.{x.name}": numbers_of(CONTEXT, final[x.name]) for x in operator.states_of(batch.options)
    }


def _degree(base: list[Any], up: list[Any], down: list[Any]) -> int | None:
    """d, if all of ``up`` is ``base`` times 2^(SHIFT d) and all of ``down`` divided by it."""
    first = next((i for i, x in enumerate(base) if x != 0), None)
    if first is None or up[first] == 0:
        return None if any(up) or any(down) or first is not None else 0
    degree = round(float(mpmath.log(abs(up[first] / base[first]), 2)) / SHIFT)
    for values, sign in ((up, 1), (down, -1)):
        wanted = [x * mpmath.mpf(2) ** (sign * SHIFT * degree) for x in base]
        if any(abs(x - y) > AGREE * abs(y) for x, y in zip(values, wanted, strict=True)):
            return None
    return degree


def multiplied(batch: Batch, name: str, factor: float, follow: Degrees | None = None) -> Batch:
    """The batch with an argument times a factor, and the initial state with the powers of it that belong to that."""
    if name == "scale":
        return batch.with_(options={**batch.options, "scale": factor * float(batch.options["scale"] or 1)})
    state = batch.state
    if state is not None and follow is not None:
        state = {k: x * factor ** follow[f"state.{k}"] if x.is_floating_point() else x for k, x in state.items()}
    return batch.with_(tensors={**batch.tensors, name: batch.tensors[name] * factor}, state=state)


def scaling(probe: Probe) -> Iterator[Finding]:
    """Each homogeneous argument times 4, the scale times -1 too."""
    known = degrees(probe.operator, probe.batch.case)
    if "scale" in known and not probe.accepts("scale"):  # a user's kernel may take its scale as fixed
        known = {name: found for name, found in known.items() if name != "scale"}
    batch = brief(probe)
    if "scale" in known:
        batch = batch.with_(options={**batch.options, "scale": 1.0})
    plain = probe.run(batch)
    for name, follow in known.items():
        for factor in SIGNED if name == "scale" else (FACTOR,):
            got = probe.run(multiplied(batch, name, factor, follow))
            for what, x in plain.values.items():
                wanted = x * factor ** follow[what] if x.is_floating_point() else x
                yield probe.same_bits(
                    _where_normal(got[what], wanted, x), wanted, f"{what} for {name} times {factor:g}"
                )


def _where_normal(got: torch.Tensor, wanted: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """The result, and what is wanted where a number is so small that rounding it and doubling it do not commute."""
    if not got.is_floating_point() or got.shape != wanted.shape:
        return got
    least = torch.finfo(wanted.dtype).smallest_normal
    small = (plain.abs() < least) | (wanted.abs() < least)
    return torch.where(small & got.isfinite(), wanted, got)


# --- planted faults ----------------------------------------------------------------------------------------------


def minus_one_is_not_given(right: Callable[..., Any]) -> Callable[..., Any]:
    """A scale of -1 counts as none."""

    def wrong(*x: torch.Tensor, scale: float | None = None, **given: Any) -> Any:
        return right(*x, scale=None if scale == -1 else scale, **given)

    return wrong


def adds_an_absolute_epsilon(right: Callable[..., Any]) -> Callable[..., Any]:
    """1e-3 beside the output, as of a guard against division by zero."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o + 1e-3, state

    return wrong


def keeps_the_state_in_fixed_point(right: Callable[..., Any]) -> Callable[..., Any]:
    """The final state is rounded to a grid of 2^-20, as a fixed-point format would."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o, (state * 2**20).round() / 2**20 if isinstance(state, torch.Tensor) else state

    return wrong


SCALING = Property(
    name="scaling",
    promise=True,
    statement="where the definition is homogeneous, a power of two in an argument is one in the results, bitwise",
    check=scaling,
    faults=(minus_one_is_not_given, adds_an_absolute_epsilon, keeps_the_state_in_fixed_point),
)
