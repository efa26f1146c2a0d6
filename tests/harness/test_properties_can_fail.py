"""Every property can fail: for each there is a planted fault that turns it red, and the right code keeps it green."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from linattest.impls import linear, ridge_solve, vla
from linattest.verify import registry
from linattest.verify.examine import Examination, _property
from linattest.verify.grids import settings
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.properties.device import DEVICE
from linattest.verify.properties.machine import reads_offsets_as_int32
from linattest.verify.records import Record
from linattest.verify.subjects import resolve

Result = tuple[torch.Tensor, Any]

attention: Any = linear.recurrent
variational: Any = vla.recurrent

DENSE = Structure(T=10, K=4, V=4, B=2, H=2, initial_state=True)
LONG = Structure(T=34, K=3, V=2, initial_state=True)
PACKED = Structure(T=12, K=3, V=2, H=2, cu_seqlens=(0, 4, 4, 10), initial_state=True)


# --- general properties, on linear attention: o = scale S^T q ------------------------------------------------


def sees_the_future(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    return attention(q, k, v + 1e-6 * v.mean(1, keepdim=True), **given)


def leaks_gradient_to_the_future(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    o, state = attention(q, k, v, **given)
    total = 1e-6 * v.sum(1, keepdim=True)
    return o + (total - total.detach()), state


def squares_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    return attention(q, k, v + 1e-3 * v * v, **given)


def doubles_right_but_does_not_add(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    """|v| is homogeneous, so twice the values give twice the output, bit for bit; but it is not additive in time."""
    return attention(q, k, v + 0.25 * v.abs().cummax(1).values, **given)


def ignores_initial_state(*x: torch.Tensor, initial_state: Any, **given: Any) -> Result:
    return attention(*x, **given)


def depends_on_chunk_size(*x: torch.Tensor, chunk_size: int = 64, **given: Any) -> Result:
    o, state = linear.chunk(*x, chunk_size=chunk_size, **given)
    return o * (1 + 1e-4 * (chunk_size == 32)), state


def carries_over(*x: torch.Tensor, cu_seqlens: Any = None, initial_state: Any = None, **given: Any) -> Result:
    if cu_seqlens is None:
        return attention(*x, initial_state=initial_state, **given)
    o, state = attention(*x, initial_state=initial_state[:1], **given)
    o[:, int(cu_seqlens[-1]) :] = 0
    return o, state.repeat(len(cu_seqlens) - 1, 1, 1, 1)


def leaves_rows_past_the_end(*x: torch.Tensor, cu_seqlens: Any = None, **given: Any) -> Result:
    o, state = attention(*x, cu_seqlens=cu_seqlens, **given)
    if cu_seqlens is not None:
        o[:, int(cu_seqlens[-1]) :] = 1
    return o, state


def depends_on_head_index(*x: torch.Tensor, **given: Any) -> Result:
    o, state = attention(*x, **given)
    return o * (1 + 1e-6 * torch.arange(o.shape[2], dtype=o.dtype)[:, None]), state


def depends_on_batch_index(*x: torch.Tensor, **given: Any) -> Result:
    o, state = attention(*x, **given)
    return o * (1 + 1e-6 * torch.arange(o.shape[0], dtype=o.dtype)[:, None, None, None]), state


def adds_noise(*x: torch.Tensor, **given: Any) -> Result:
    o, state = attention(*x, **given)
    return o + 1e-6 * torch.rand_like(o), state


def adds_noise_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    v = v.clone()
    if v.requires_grad:
        v.register_hook(lambda g: g + 1e-6 * torch.rand_like(g))
    return attention(q, k, v, **given)


def edits_an_input(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    result = attention(q, k, v.clone(), **given)
    v.detach().mul_(2)
    return result


def returns_its_initial_state(*x: torch.Tensor, initial_state: Any = None, **given: Any) -> Result:
    o, state = attention(*x, initial_state=initial_state, **given)
    return o, initial_state.detach().copy_(state.detach()) if initial_state is not None else state


def mixes_heads_by_zero(*x: torch.Tensor, **given: Any) -> Result:
    o, state = attention(*x, **given)
    return o + 0 * o.mean(2, keepdim=True), state


def hides_nan(*x: torch.Tensor, **given: Any) -> Result:
    o, state = attention(*x, **given)
    return o.nan_to_num(0), state


# --- the penalty and what is written with it -----------------------------------------------------------------


def asymmetric_inverse(x: torch.Tensor, u: torch.Tensor, **given: Any) -> Result:
    o, state = ridge_solve.recurrent(x, u, **given)
    return o + 1e-3 * x.roll(1, -1), state


def inverse_with_another_ridge(x: torch.Tensor, u: torch.Tensor, *, lam0: Any, **given: Any) -> Result:
    return ridge_solve.recurrent(x, u, lam0=1.01 * lam0, **given)


def indefinite_inverse(x: torch.Tensor, u: torch.Tensor, **given: Any) -> Result:
    o, state = ridge_solve.recurrent(x, u, **given)
    return -o, state


def state_grows(*x: torch.Tensor, **given: Any) -> Result:
    o, state = variational(*x, **given)
    return o, state._replace(S=1.5 ** x[0].shape[1] * state.S)


def writes_along_the_key(*x: torch.Tensor, lam0: Any, **given: Any) -> Result:
    """A delta rule without the penalty: the write direction is k^ itself."""
    o, state = variational(*x, lam0=lam0 * 1e12, **given)
    return o, state


def never_erases(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, **given: Any) -> Result:
    _, state = variational(q, k, v, u, **given)
    key = torch.nn.functional.normalize(k, dim=-1)
    sums, S = attention(q, key, v, scale=1.0, initial_state=given["initial_state"][0], output_final_state=True)
    return sums, state._replace(S=S)


def beside(operator: str, fault: Callable[..., Any]) -> Callable[..., Result]:
    """A fault that a property brings along, around the operator's chunk form and findable here by its name."""
    wrong = fault(resolve(registry.operator(operator).variant("chunk").function))
    wrong.__name__ = f"{operator}_{fault.__name__}"
    globals()[wrong.__name__] = wrong
    return wrong


def shows(fault: Callable[..., Any]) -> Structure:
    """Where a fault of a general property shows."""
    return PACKED if fault is reads_offsets_as_int32 else DENSE


ANYWHERE = [p for p in registry.GENERAL if p not in DEVICE]
"""test_devices.py plants the faults of the others: they are kernels' alone."""

PLANTED: tuple[tuple[str, str, Callable[..., Result], Structure], ...] = (
    ("causality", "linear", sees_the_future, DENSE),
    ("causality", "linear", leaks_gradient_to_the_future, DENSE),
    ("linearity", "linear", squares_values, DENSE),
    ("linearity", "linear", doubles_right_but_does_not_add, DENSE),
    ("split", "linear", ignores_initial_state, DENSE),
    ("chunk-size", "linear", depends_on_chunk_size, LONG),
    ("packed", "linear", carries_over, PACKED),
    ("packed", "linear", leaves_rows_past_the_end, PACKED),
    ("permutation", "linear", depends_on_head_index, DENSE),
    ("permutation", "linear", depends_on_batch_index, DENSE),
    ("repeatable", "linear", adds_noise, DENSE),
    ("repeatable", "linear", adds_noise_backward, DENSE),
    ("inputs-unchanged", "linear", edits_an_input, DENSE),
    ("inputs-unchanged", "linear", returns_its_initial_state, DENSE),
    ("nan-contained", "linear", mixes_heads_by_zero, DENSE),
    ("nan-contained", "linear", hides_nan, DENSE),
    ("inverse", "ridge_solve", asymmetric_inverse, DENSE),
    ("inverse", "ridge_solve", inverse_with_another_ridge, DENSE),
    ("inverse", "ridge_solve", indefinite_inverse, DENSE),
    ("bounded-state", "vla", state_grows, DENSE),
    ("energy-norm", "vla", writes_along_the_key, DENSE),
    ("spectral-norm", "vla", writes_along_the_key, DENSE),
    ("delta-net-limit", "vla", never_erases, DENSE),
    *((p.name, "linear", beside("linear", f), shows(f)) for p in ANYWHERE for f in p.faults),
    *((p.name, o.name, beside(o.name, f), DENSE) for o in registry.OPERATORS for p in o.properties for f in p.faults),
)
"""Property, operator, planted fault, and the structure on which it shows."""

NAMES = [f"{name}-{fault.__name__}" for name, _, fault, _ in PLANTED]


@functools.cache
def where_tried(name: str, operator: str, structure: Structure) -> tuple[Structure, dict[str, Any]]:
    """The first of the structure, with and without state, and of the option settings with which there is something
    to try."""
    bare = msgspec.structs.replace(structure, initial_state=False)
    places = [(s, options) for s in (structure, bare) for options in settings(registry.operator(operator))]
    return next((p for p in places if attempt(name, operator, None, *p).ratios["findings"]), places[0])


def attempt(
    name: str, operator: str, function: Callable[..., Result] | None, structure: Structure, options: Any = None
) -> Record:
    """Try a property on a function, or on the operator's own chunk form. Inputs are new: faults may edit them."""
    record = registry.operator(operator)
    if options is None:
        structure, options = where_tried(name, operator, structure)
    case = Case(operator=operator, structure=structure, seed=4, gradient=False, options=options)
    variant = record.variant("chunk")
    if function is not None:
        variant = dataclasses.replace(variant, name="planted", function=f"{__name__}:{function.__name__}")
    (found,) = (p for p in registry.properties(record) if p.name == name)
    return _property(Examination(record, build(record, case)), variant, found)


@pytest.mark.parametrize(("name", "operator", "fault", "structure"), PLANTED, ids=NAMES)
def test_fault_turns_the_property_red(name: str, operator: str, fault: Any, structure: Structure):
    record = attempt(name, operator, fault, structure)
    assert record.status == "fail", f"{record.status}: {record.message}"
    assert record.what == name and record.message


@pytest.mark.parametrize(("name", "operator", "fault", "structure"), PLANTED, ids=NAMES)
def test_without_the_fault_the_property_is_tried_and_green(name: str, operator: str, fault: Any, structure: Structure):
    record = attempt(name, operator, None, structure)
    assert record.status == "pass", record.message
    assert record.ratios["findings"], "nothing was tried, so nothing could fail"


def test_every_property_has_a_planted_fault():
    known = {(p.name, operator.name) for operator in registry.OPERATORS for p in registry.properties(operator)}
    assert {name for name, _ in known} == {name for name, *_ in PLANTED} | {p.name for p in DEVICE}
    assert {(name, operator) for name, operator, *_ in PLANTED} <= known
