"""Rules about how a function behaves: what it modifies or promises, and on which inputs alone it is wrong."""

from __future__ import annotations

import numpy as np

from linattest.verify import registry
from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.records import Record
from linattest.verify.subjects import run

HINTS = {
    "nan-contained": "0 * NaN is NaN: leave later tokens out by a slice or where(), not by a product with 0",
}  # fmt: skip
"""By property: what often breaks it."""


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
        evidence="; ".join(f"{name}: {look.error or _worst(look)}" for name, look in off.items())
        + f". Right for the plain case and for {', '.join(fine) or 'nothing else'}",
        suggestion=_advice(next(iter(off))),
    )  # fmt: skip


def _worst(look: Look) -> str:
    return ", ".join(f"{name} off by {look.worst(name)}" for name in look.bad)


def _advice(name: str) -> str:
    if "power of two" in name or name.startswith("K ="):
        return "mask the loads of a block that is wider than K or V (other=0), and reduce over the true width"
    if "memory" in name or "buffer" in name:
        return "use the tensors' strides and offset, or call contiguous() on every input"
    if "rows" in name or "head" in name:
        return "check the index from program to (batch, head)"
    if "=" in name:
        return f"what is computed under {name} alone"
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
