"""Rules about how a function behaves: what it raises, modifies or promises, and on which inputs alone it is wrong."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from linattest.verify import registry
from linattest.verify.evidence import Diagnosis, Evidence
from linattest.verify.records import Record
from linattest.verify.subjects import run

DIGITS = r"\d+"

STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Lengths that tell apart what T must be a multiple of: each power of two, and once and a half of it."""


HINTS = {
    "nan-contained": "0 * NaN is NaN: leave later tokens out by a slice or where(), not by a product with 0",
}  # fmt: skip
"""By property: what often breaks it."""


def raises(e: Evidence) -> Diagnosis | None:
    """It raised, or came back with something else than what is due."""
    errors = [r for r in e.failed if r.status == "error"]
    if not errors:
        return None
    kinds = Counter(re.sub(DIGITS, "#", r.message) for r in errors)
    kind, count = kinds.most_common(1)[0]
    mine = [r for r in errors if re.sub(DIGITS, "#", r.message) == kind]
    fine = [r for r in e.records if r.status != "error"]
    if all(r.direction == "property" for r in fine):  # some run nothing where something cannot be run
        fine = []
    evidence = f"{count} of {len(e.records)} checks ended in {mine[0].message!r}" + (
        f"; {len(errors) - count} in something else" if len(errors) > count else ""
    )
    smallest = f"the smallest such case: {min(mine, key=_size).case.describe()}"
    ran, raised = _lengths(e)
    if step := _multiple(ran, raised):
        return Diagnosis(
            rule="raises", fault=f"it raises unless T is a multiple of {step}",
            evidence=f"{evidence}; it ran for T = {_listed(ran)} and raised for T = {_listed(raised)}",
            suggestion=f"if it is meant to: --multiple-of {step}; else pad, and mask the last chunk. {smallest}",
        )  # fmt: skip
    returns = kind.partition(": ")[2].startswith(f"{re.sub(DIGITS, '#', e.subject.name)} returned")
    return Diagnosis(
        rule="raises", fault=f"it {'returns what is not due' if returns else 'raises'}"
        + (_common(mine, fine) or _limit(ran, raised)),
        evidence=evidence,
        suggestion="return o in the inputs' layout and dtype, or (o, final state)" if returns else smallest,
    )  # fmt: skip


def _lengths(e: Evidence) -> tuple[list[int], list[int]]:
    """The lengths that ran and those that raised; none of either where T is not what it raises for."""
    if e.subject.multiple > 1 or not any(r.status == "error" and r.case.structure.T for r in e.failed):
        return [], []
    errors = {T: bool(e.look(T=T).error) for T in STEPS}
    return [T for T in STEPS if not errors[T]], [T for T in STEPS if errors[T]]


def _multiple(ran: list[int], raised: list[int]) -> int:
    """The N > 1 of which T must be a multiple; 0 if none fits."""
    step = min(ran, default=1)
    return step if step > 1 and all(T % step for T in raised) and not any(T % step for T in ran) else 0


def _limit(ran: list[int], raised: list[int]) -> str:
    """In words, up to which length it ran, if longer ones alone raised."""
    if not ran or not raised or max(ran) > min(raised):
        return ""
    return f" for long sequences: it ran up to T = {max(ran)} and raised from T = {min(raised)} on"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _size(record: Record) -> int:
    s = record.case.structure
    return s.T * s.K * s.V * s.B * s.H


def _common(bad: list[Record], fine: list[Record]) -> str:
    """What all bad cases have and no other: in words, or nothing."""
    if not fine:
        return " on every input"
    marks = {
        "for an empty sequence (T = 0)": lambda r: r.case.structure.T == 0,
        "for packed sequences": lambda r: r.case.structure.cu_seqlens is not None,
        "for grouped heads": lambda r: r.case.structure.group > 1,
        "for one token (T = 1)": lambda r: r.case.structure.T == 1,
        "with an initial state": lambda r: r.case.structure.initial_state,
        "in the backward pass": lambda r: r.direction == "gradient",
        "for inputs that are not contiguous": lambda r: r.case.structure.layout != "contiguous",
        **{f"for {d}": (lambda r, d=d: r.case.dtype == d) for d in dict.fromkeys(r.case.dtype for r in bad)},
    }
    for words, has in marks.items():
        if all(has(r) for r in bad) and not any(has(r) for r in fine):
            return f" {words}"
    return ""


def inputs_modified(e: Evidence) -> Diagnosis | None:
    """What it is given is not what it was afterwards."""
    batch = e.batch(initial_state=e.supports("state"))
    given = batch.tensors | {f"initial {name}": x for name, x in (batch.state or {}).items()}
    before = {name: x.clone() for name, x in given.items()}
    run(e.operator, e.variant, batch)
    changed = [name for name, x in given.items() if not bool(((x == before[name]) | x.isnan()).all())]
    if not changed:
        return None
    much = {name: int((given[name] != before[name]).sum()) for name in changed}
    return Diagnosis(
        rule="inputs-modified", fault=f"it modifies its inputs: {', '.join(changed)}",
        evidence=", ".join(f"{n} of {given[name].numel()} entries of {name} changed" for name, n in much.items()),
        suggestion="work on a copy, or out of place (+= on a view of an argument writes into the caller's tensor)",
    )  # fmt: skip


def unrepeatable(e: Evidence) -> Diagnosis | None:
    """Two runs, two answers."""
    batch = e.batch(T=128)
    looks = [e.look(batch) for _ in range(4)]
    if any(look.error for look in looks):
        return None
    for name, first in looks[0].got.items():
        with np.errstate(invalid="ignore"):  # infinity less itself
            most = max(float(np.max(np.abs(look.got[name] - first), initial=0.0)) for look in looks[1:])
        if any(not np.array_equal(look.got[name], first, equal_nan=True) for look in looks[1:]):
            return Diagnosis(
                rule="unrepeatable", fault="it is not deterministic: the same inputs give other bits",
                evidence=f"over 4 runs, {name} moves by up to {most:.3g}",
                suggestion="look for memory that is read before it is written, a race, or atomic additions",
            )  # fmt: skip
    return None


def no_graph(e: Evidence) -> Diagnosis | None:
    """Nothing to differentiate."""
    if not e.fails("gradient"):
        return None
    look = e.look(backward=True)
    grads = [x for name, x in look.got.items() if name.startswith("d ")]
    if look.error or not grads or any(x.any() for x in grads):
        return None
    return Diagnosis(
        rule="no-gradient", fault="there is no gradient: every input's is exactly 0",
        evidence=f"all {len(grads)} gradients are 0, the output is detached from its inputs",
        suggestion="if it has no backward, say --only-forward; else look for no_grad, detach, .data, or a kernel "
        "that is called without an autograd.Function",
    )  # fmt: skip


def where(e: Evidence) -> Diagnosis | None:
    """Right as such, wrong on some kinds of input."""
    if e.base.off:
        return None
    off = {name: look for name, look in e.axes.items() if look.off}
    if not off:
        return None
    fine = [name for name, look in e.axes.items() if not look.off]
    return Diagnosis(
        rule="where", fault=f"wrong only for {'; '.join(off)}",
        evidence="; ".join(f"{name}: {look.error or _worst(look.bad, look)}" for name, look in off.items())
        + f". Right for the plain case and for {', '.join(fine) or 'nothing else'}",
        suggestion=_advice(next(iter(off))),
    )  # fmt: skip


def _worst(bad: list[str], look: object) -> str:
    relative = {name: look.relative(name) for name in bad}  # type: ignore[attr-defined]
    return ", ".join(f"{name} off by {x:.2g} of the largest" for name, x in relative.items())


def _advice(name: str) -> str:
    if "power of two" in name or name.startswith("K ="):
        return "mask the loads of a block that is wider than K or V (other=0), and reduce over the true width"
    if "memory" in name or "buffer" in name:
        return "use the tensors' strides and offset, or call contiguous() on every input"
    if "rows" in name or "head" in name:
        return "check the index from program to (batch, head)"
    return "this feature is where to look"


def promise(e: Evidence) -> Diagnosis | None:
    """The values are right, but something that must hold does not."""
    broken = [r for r in e.failed if r.direction == "property"]
    if not broken or len(broken) < len(e.failed):
        return None
    said = {p.name: p.statement for p in registry.properties(e.operator)}
    names = list(dict.fromkeys(r.what for r in broken))
    return Diagnosis(
        rule="promise", fault=f"every value is right, but what must hold besides does not: {', '.join(names)}",
        evidence="; ".join(f"{name} ({said[name]}): {_first(broken, name)}" for name in names),
        suggestion="; ".join([*(HINTS[x] for x in names if x in HINTS), "the command below runs the first case again"]),
    )  # fmt: skip


def _first(records: list[Record], name: str) -> str:
    return next(r.message for r in records if r.what == name)
