"""What a function under test takes, found by its signature and a few small calls; that in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from linattest.verify import registry
from linattest.verify.adapters import Adapter
from linattest.verify.given import adapter_of, held_options, operator_of, unreached
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.returns import NotDue
from linattest.verify.spec import DTYPES, Operator
from linattest.verify.subject import Subject
from linattest.verify.subjects import run

SUPPORTS = {
    "packed": "packed sequences", "state": "states in and out", "grouped": "grouped heads (HV > H)",
    "rectangular": "K != V", "gradient": "gradients",
}  # fmt: skip
"""The features of a variant, in words."""


def prepare(subject: Subject) -> tuple[Subject, list[str], list[str]]:
    """The description with what the function turns out not to take left out; that in words; and remarks.

    Signature and a few small calls decide. A feature that the signature names is never left out for raising.
    """
    operator, adapter = operator_of(subject), adapter_of(subject)
    takes, reasons = set(subject.supports), dict[str, str]()
    for feature in sorted(set(SUPPORTS) - takes):
        reasons[feature] = "as said"
    takes &= frozenset[str]().union(*(x.supports for x in registry.operator(subject.operator).variants))
    if "packed" in takes and not adapter.takes("cu_seqlens"):
        reasons["packed"] = "since the function has no cu_seqlens (--map theirs=cu_seqlens names it)"
    if not operator.states:
        takes.discard("state")
        reasons.pop("state", None)
    elif "state" in takes and not adapter.takes("initial_state"):
        reasons["state"] = "since the function has no initial_state (--map theirs=initial_state names it)"
    if subject.multiple > 1:
        reasons |= {x: f"since T must be a multiple of {subject.multiple}" for x in {"packed", "state"} & takes}
    subject = _with(subject, takes - set(reasons))
    dtypes, refused = _dtypes(subject)
    held, one_way = hold_axes(msgspec.structs.replace(subject, dtypes=dtypes))
    if one_way:  # what was raised for every dtype may have been raised for the other value of the axis
        dtypes, refused = _dtypes(msgspec.structs.replace(held, dtypes=subject.dtypes))
    subject = msgspec.structs.replace(held, dtypes=dtypes)
    shapes: dict[str, dict[str, Any]] = {"grouped": {"group": 2}, "rectangular": {"V": 8}}
    plain = _trial(subject)
    for feature, sizes in shapes.items():
        if feature not in subject.supports or plain.raised:
            continue
        trial = _trial(subject, **sizes)
        if trial.raised or (trial.returned and not plain.returned):
            reasons[feature] = f"since the function {trial.said}"
    subject = _with(subject, set(subject.supports) - set(reasons))
    left_out = [f"{SUPPORTS[feature]}, {why}" for feature, why in reasons.items() if feature in SUPPORTS]
    left_out += ["properties, since they cut sequences anywhere"] * (subject.multiple > 1)
    left_out += refused + one_way + _settings(operator, subject, adapter)
    return subject, left_out, _remarks(subject, adapter)


def _with(subject: Subject, supports: Iterable[str]) -> Subject:
    return msgspec.structs.replace(subject, supports=tuple(sorted(supports)))


def _dtypes(subject: Subject) -> tuple[tuple[str, ...], list[str]]:
    """The dtypes that it takes, and why the others are not tried; all that were said, if it takes none."""
    trials = {dtype: _trial(subject, dtype) for dtype in subject.dtypes}
    taken = tuple(dtype for dtype, trial in trials.items() if not trial.raised)
    refused = [f"{dtype}, since the function {x.said}" for dtype, x in trials.items() if dtype not in taken]
    said = [f"{dtype}, as said" for dtype in DTYPES if dtype not in subject.dtypes]
    return (taken, said + refused) if taken else (subject.dtypes, said)


def hold_axes(subject: Subject) -> tuple[Subject, list[str]]:
    """The description with an axis held where the function takes one of its values only, as a gate's shape; and why.

    Where it is right in shape for none of them, but raises for all but one, that one is held.
    """
    operator, reasons = operator_of(subject), list[str]()
    with_a_meaning = held_options(operator, subject)
    for option in (x for x in operator.options if not x.passed and x.name in set(with_a_meaning) - set(subject.only)):
        values = list(dict.fromkeys([option.default, *(x[option.name] for x in operator.grid if option.name in x)]))
        trials = _along(subject, option.name, values)
        fine = [value for value, trial in trials.items() if not trial.said]
        kept = fine or [value for value, trial in trials.items() if not trial.raised]
        if len(kept) == 1 and len(values) > 1:
            subject = msgspec.structs.replace(subject, only={**subject.only, option.name: kept[0]})
            reasons += [f"{option.name}={x}, since the function {trials[x].said}" for x in values if x != kept[0]]
    return subject, reasons


def _along(subject: Subject, option: str, values: list[Any]) -> dict[Any, Trial]:
    """A trial of each value of an axis, in the first dtype in which one of them runs."""
    trials: dict[Any, Trial] = {}
    for dtype in subject.dtypes:
        trials = {
            value: _trial(msgspec.structs.replace(subject, only={**subject.only, option: value}), dtype)
            for value in values
        }
        if any(not trial.raised for trial in trials.values()):
            break
    return trials


class Trial(NamedTuple):
    """What a small call raised, or returned instead of what is due; both empty if it is well."""

    raised: str = ""
    returned: str = ""

    @property
    def said(self) -> str:
        """What the function did, in words."""
        return f"raised {self.raised}" if self.raised else self.returned


def _trial(subject: Subject, dtype: str = "", **sizes: Any) -> Trial:
    """A call of 16 tokens, two heads and K = V = 16, unless told otherwise."""
    operator = operator_of(subject)
    knobs: dict[str, Any] = {"T": 16 * subject.multiple, "K": 16, "V": 16, "H": 2, **sizes}
    case = Case(
        operator=operator.name, structure=Structure(**knobs), dtype=dtype or subject.dtypes[0],
        options=operator.grid[0],
    )  # fmt: skip
    try:
        run(operator, operator.variant(subject.variant), build(operator, case))
    except NotDue as error:
        return Trial(returned=str(error).partition(" ")[2])
    except Exception as error:
        return Trial(raised=f"{type(error).__name__}: {error}".splitlines()[0])
    return Trial()


def _settings(operator: Operator, subject: Subject, adapter: Adapter) -> list[str]:
    """Why option settings of the operator's grid are not tried, but for the axes that are held: those are said."""
    every = registry.operator(subject.operator).grid
    reasons = dict.fromkeys(why for o in every if (why := unreached(operator, subject, adapter, o)))
    return [why for why in reasons if "is held" not in why]


def _remarks(subject: Subject, adapter: Adapter) -> list[str]:
    """What a reader should know of how it was called."""
    notes: list[str] = []
    for theirs, parameter in (adapter.parameters or {}).items():
        derived = next((x.derived for x in adapter.operator.options if x.name == theirs), None)
        if derived and parameter.default is not None and theirs not in subject.fixed:
            default = "none" if parameter.default is parameter.empty else repr(parameter.default)
            notes.append(f"{theirs}={derived} is passed, since its default is {default}")
    if adapter.packs_alone:
        notes.append("each row of a batch is a sequence of a pack, since its cu_seqlens has no default")
    notes += [f"{theirs} gets {ours}" for theirs, ours in subject.rename.items()]
    notes += [f"{theirs}={value} is passed" for theirs, value in subject.fixed.items()]
    notes += [f"{name} is 0 and not passed" for name in subject.drop]
    told = {
        "states are [.., V, K]": subject.transpose_state, "tensors are head-first": subject.layout == "head-first",
        "inputs are made contiguous": subject.contiguous, "an output of another dtype is cast": subject.any_dtype,
        f"T is a multiple of {subject.multiple}": subject.multiple > 1,
        "operands of matrix products may be rounded to the type of the inputs": subject.operands,
        f"tensors are moved to {subject.device}": subject.device != "cpu",
    }  # fmt: skip
    return notes + [words for words, holds in told.items() if holds]
