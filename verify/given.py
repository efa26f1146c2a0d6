"""The record under which a function of a user is judged: the operator's own, with that function as its variant."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from linattest.verify import registry
from linattest.verify.adapters import Adapter
from linattest.verify.inputs import Batch, Case, build, resolve_options
from linattest.verify.oracle import Head, convert
from linattest.verify.spec import CARRIED_STATE, OPERANDS, Operator, Staged, Variant
from linattest.verify.subject import Subject, SubjectError, load
from linattest.verify.subjects import provide, resolve

_RECORDS: dict[str, Operator] = {}


def operator_of(subject: Subject) -> Operator:
    """The operator's record with two variants: its reference, and the function under test.

    Raises:
        KeyError: no such operator.
        SubjectError: the function cannot be imported, or its signature does not fit.
    """
    key = subject.key
    if key not in _RECORDS:
        operator = _without(registry.operator(subject.operator), subject)
        adapter = Adapter(subject, operator, load(subject.function))
        adapter.check([x.name for x in operator.inputs_of(held_options(operator, subject))])
        path = f"{subject.variant}:{len(_RECORDS)}"
        provide(path, adapter)
        _RECORDS[key] = replace(
            operator,
            variants=(*_ours(operator, subject), _variant(operator, subject, path)),
            grid=settings(operator, subject, adapter),
            limitations=(),
        )
    return _RECORDS[key]


def _ours(operator: Operator, subject: Subject) -> tuple[Variant, ...]:
    """The reference, and the form on which operands' terms are measured where they are asked for (staging.py)."""
    measured = {operator.reference, *(("chunk",) if subject.operands else ())}
    return tuple(variant for variant in operator.variants if variant.name in measured)


def adapter_of(subject: Subject) -> Adapter:
    """The function as it is called. Raises as ``operator_of``."""
    found: Any = resolve(operator_of(subject).variant(subject.variant).function)
    return found


def batch_of(subject: Subject, case: Case) -> Batch:
    """The tensors of a case. No gradient comes through a final state that the function does not return."""
    batch = build(operator_of(subject), case)
    if "state" in subject.supports:
        return batch
    return batch.with_(cotangents={name: x if name == "o" else 0 * x for name, x in batch.cotangents.items()})


def _variant(operator: Operator, subject: Subject, path: str) -> Variant:
    carried = (CARRIED_STATE,) if subject.kind == "step" and "state" in subject.supports else ()
    return Variant(
        name=subject.variant, function=path, kind=subject.kind, supports=frozenset(subject.supports),
        dtypes=subject.dtypes, staged=(*carried, *(operands_of(subject.operator) if subject.operands else ())),
    )  # fmt: skip


def operands_of(name: str) -> tuple[Staged, ...]:
    """The terms that an operator's own variants have for operands of matrix products; a kernel's, if none has any."""
    own = dict.fromkeys(term for x in registry.operator(name).variants for term in x.staged if term != CARRIED_STATE)
    return tuple(own) or OPERANDS


def held_options(operator: Operator, subject: Subject) -> dict[str, Any]:
    """The resolved options of the first setting that the function is asked for.

    Raises:
        SubjectError: an option or value that the operator has not.
    """
    try:
        return resolve_options(operator, subject.only)
    except ValueError as error:
        raise SubjectError(str(error)) from error


def settings(operator: Operator, subject: Subject, adapter: Adapter) -> tuple[dict[str, Any], ...]:
    """The option settings of the operator's grid that reach the function; what is held, if none of them does."""
    found = [dict(options) for options in operator.grid if not unreached(operator, subject, adapter, options)]
    return tuple(found) or (dict(subject.only),)


def unreached(operator: Operator, subject: Subject, adapter: Adapter, options: Any) -> str:
    """Why an option setting is not tried with this function; empty if it is."""
    resolved = resolve_options(operator, options)
    for name, value in subject.only.items():
        if resolved.get(name) != value:
            return f"{name}={resolved.get(name)}, since {name}={value} is held"
    for option in operator.options:
        value = options.get(option.name, option.default)
        held = option.name in subject.only
        if option.passed and not held and value != option.default and not adapter.takes(option.name):
            return f"{option.name}={value}, since the function has no {option.name}"
    for x in operator.inputs_of(resolved):
        if not adapter.takes(x.name) and adapter.parameters is not None:
            return f"{', '.join(f'{k}={v}' for k, v in options.items())}, since the function has no {x.name}"
    return ""


def _without(operator: Operator, subject: Subject) -> Operator:
    """The operator with some inputs 0 and not passed: those its reference may be called without."""
    if not subject.drop:
        return operator
    scalar = {x.name for x in operator.inputs if len(x.shape.split()) == 3}
    parameters = inspect.signature(resolve(operator.variant(operator.reference).function)).parameters
    optional = {name for name, p in parameters.items() if p.default is not p.empty}
    wrong = sorted(set(subject.drop) - (scalar & optional))
    if wrong:
        raise SubjectError(f"{operator.name} cannot be judged without {', '.join(wrong)}")

    @wraps(operator.oracle)  # its module names the page, by which answers are cached
    def oracle(ctx: Any, head: Head) -> Any:
        zeros = [convert(ctx, np.float64(0.0))] * head.T
        return operator.oracle(ctx, replace(head, inputs={**head.inputs, **dict.fromkeys(subject.drop, zeros)}))

    inputs = tuple(x for x in operator.inputs if x.name not in subject.drop)
    return replace(operator, inputs=inputs, oracle=oracle)
