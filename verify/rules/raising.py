"""The rule about a function that raises, or returns what is not due: for which inputs, tried before it is said."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import msgspec
import torch

from linattest.verify.evidence import Diagnosis, Evidence
from linattest.verify.given import batch_of
from linattest.verify.inputs import Batch, Case
from linattest.verify.records import Record
from linattest.verify.rules.conditions import needed, size, smallest
from linattest.verify.subjects import run

DIGITS = r"\d+"

STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Lengths that tell apart what T must be a multiple of: each power of two, and once and a half of it."""

VALUES: dict[str, tuple[float, ...]] = {
    "log_gate": (0.0, -0.5, -8.0, float("-inf")), "beta": (0.0, 0.5, 1.5), "weight": (0.0, 1.0), "rate": (0.0, 0.5),
    "level": (0.5, 2.0),
}  # fmt: skip
"""By domain: values that an input is filled with, to see which of them it raises for."""

MISMATCH = re.compile(r"size of tensor|shape|dimension|einsum|broadcast|stack expects|size mismatch", re.IGNORECASE)
"""What PyTorch says where sizes do not fit each other."""


class Raised(NamedTuple):
    """What was raised most: one kind of error, digits aside, of which records, and beside how many others."""

    kind: str
    records: list[Record]
    others: int


def kind_of(message: str) -> str:
    """A message without its numbers."""
    return re.sub(DIGITS, "#", message)


def raises(e: Evidence) -> Diagnosis | None:
    """It raised, or came back with something else than what is due."""
    errors = [r for r in e.failed if r.status == "error"]
    if not errors:
        return None
    kind, count = Counter(kind_of(r.message) for r in errors).most_common(1)[0]
    most = Raised(kind, [r for r in errors if kind_of(r.message) == kind], len(errors) - count)
    aside = ", broken promises aside," if e.broken else ""
    evidence = f"{count} of the {len(e.failed)} checks that fail{aside} ended in {most.records[0].message!r}"
    evidence += f"; {most.others} in something else" if most.others else ""
    if kind.partition(": ")[2].startswith(f"{kind_of(e.subject.name)} returned"):
        return Diagnosis(
            rule="raises", fault=f"it returns what is not due{_where(e, most)[0]}", evidence=evidence,
            suggestion="return o in the inputs' layout and dtype, or (o, final state)",
        )  # fmt: skip
    worst = min(most.records, key=lambda r: size(r.case))
    case = smallest(e, worst.case, lambda x: raised(e, x, worst.direction == "gradient") == kind)
    example = f"the smallest such case: {case.describe()}"
    example += _shapes(e, case) if MISMATCH.search(most.records[0].message) else ""
    if values := _values(e, worst, kind):
        return Diagnosis(
            rule="raises", fault=f"it raises for some values of {values[0]}, at any length",
            evidence=f"{evidence}; {values[1]}",
            suggestion=f"every value of its domain is legal (linattest show {e.operator.name}). {example}",
        )  # fmt: skip
    ran, refused = _lengths(e)
    if step := _multiple(ran, refused):
        return Diagnosis(
            rule="raises", fault=f"it raises unless T is a multiple of {step}",
            evidence=f"{evidence}; it ran for T = {_listed(ran)} and raised for T = {_listed(refused)}",
            suggestion=f"if it is meant to: --multiple-of {step}; else pad, and mask the last chunk. {example}",
        )  # fmt: skip
    words, more = _where(e, most)
    return Diagnosis(
        rule="raises", fault=f"it raises{words or _limit(ran, refused)}", evidence=evidence + more, suggestion=example
    )


def raised(e: Evidence, case: Case | Batch, backward: bool = False) -> str:
    """The kind of error that a case ends in; empty if in none."""
    batch = batch_of(e.subject, case) if isinstance(case, Case) else case
    try:
        run(e.operator, e.variant, batch.copy(), backward=backward)
    except Exception as error:
        return kind_of(f"{type(error).__name__}: {error}")
    return ""


def _shapes(e: Evidence, case: Case) -> str:
    """What the function was given, by shape: what a mismatch of sizes is about."""
    batch = batch_of(e.subject, case)
    turned = e.subject.layout == "head-first"
    said: list[str] = []
    for x in e.operator.inputs_of(batch.options):
        axes, shape = x.shape.split(), list(batch.tensors[x.name].shape)
        if turned:
            axes[1:3], shape[1:3] = axes[2:0:-1], shape[2:0:-1]
        said.append(f"{x.name} {shape} = [{', '.join(axes)}]")
    return f". There it is given {'; '.join(said)}: does it take them in this order of axes?"


def _values(e: Evidence, record: Record, kind: str) -> tuple[str, str] | None:
    """(input, what it raised and ran for), if it is values of an input that it raises for."""
    batch, backward = batch_of(e.subject, record.case), record.direction == "gradient"
    for x in e.operator.inputs_of(batch.options):
        if not batch.tensors[x.name].numel() or x.domain not in VALUES:
            continue
        filled = {y: torch.full_like(batch.tensors[x.name], y) for y in VALUES[x.domain]}
        found = {y: raised(e, e.changed(batch, **{x.name: z}), backward) for y, z in filled.items()}
        bad, fine = ([y for y, said in found.items() if bool(said) == wrong] for wrong in (True, False))
        if fine and all(said in ("", kind) for said in found.values()):
            low, high = float(batch.tensors[x.name].min()), float(batch.tensors[x.name].max())
            words = f"with every {x.name} = {' or '.join(f'{y:g}' for y in fine)} in their place it ran"
            also = f", with {' or '.join(f'{y:g}' for y in bad)} it raised" if bad else ""
            return x.name, f"{record.case.describe()} has {x.name} from {low:.3g} to {high:.3g}; {words}{also}"
    return None


def _lengths(e: Evidence) -> tuple[list[int], list[int]]:
    """The lengths that ran and those that raised; none of either where T is not what it raises for.

    The same values must say so: those of the longest that ran, repeated, raise, and a part of what raised runs.
    """
    if e.subject.multiple > 1 or not any(r.status == "error" and r.case.structure.T for r in e.failed):
        return [], []
    errors = {T: bool(raised(e, e.batch(T=T).case)) for T in STEPS}
    ran, refused = [T for T in STEPS if not errors[T]], [T for T in STEPS if errors[T]]
    if not ran or not refused:
        return ran, refused
    short, T = next((x for x in reversed(ran) if x < max(refused)), 0), max(refused)
    if not short:
        return [], []
    longer = next(x for x in refused if x > short)
    same = raised(e, _resized(e.batch(T=short), longer)) and not raised(e, _resized(e.batch(T=T), short))
    again = raised(e, e.batch(T=longer, seed=102)) and not raised(e, e.batch(T=short, seed=102))
    return (ran, refused) if same and again else ([], [])


def _resized(batch: Batch, T: int) -> Batch:
    """The same tokens, cut off or repeated, as a batch of another length."""
    index = torch.arange(T) % batch.case.structure.T
    case = msgspec.structs.replace(batch.case, structure=msgspec.structs.replace(batch.case.structure, T=T))
    cotangents: dict[str, Any] = {**batch.cotangents, "o": batch.cotangents["o"][:, index]}
    return batch.with_(
        case=case, tensors={name: x[:, index] for name, x in batch.tensors.items()}, cotangents=cotangents
    )


def _multiple(ran: list[int], refused: list[int]) -> int:
    """The N > 1 of which T must be a multiple; 0 if none fits."""
    step = min(ran, default=1)
    return step if step > 1 and all(T % step for T in refused) and not any(T % step for T in ran) else 0


def _limit(ran: list[int], refused: list[int]) -> str:
    """In words, up to which length it ran, if longer ones alone raised."""
    if not ran or not refused or max(ran) > min(refused):
        return ""
    return f" for long sequences: it ran up to T = {max(ran)} and raised from T = {min(refused)} on"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _where(e: Evidence, most: Raised) -> tuple[str, str]:
    """What all bad cases have and no other, as tried on the smallest of them: in words, or nothing; what says so."""
    fine = [r for r in e.records if r.status != "error"]
    if all(r.direction == "property" for r in fine):  # some run nothing where something cannot be run
        return " on every input", ""
    cases = {r.case.structure.T for r in most.records}
    if cases == {0} and not raised(e, e.batch(T=1)):
        return " for an empty sequence (T = 0)", ""
    if cases == {1} and raised(e, e.batch(T=1)) == most.kind and not raised(e, e.batch(T=2)):
        return " for one token (T = 1)", ""
    backward = all(r.direction == "gradient" for r in most.records)
    record = min((r for r in most.records if r.direction != "property"), key=lambda r: size(r.case), default=None)
    if record is None or raised(e, record.case, backward) != most.kind:
        return "", ""
    words = " in the backward pass" if backward and not raised(e, record.case) else ""
    takes, idle = needed(e, record.case, lambda x: raised(e, x, backward) == most.kind)
    words += f" for {' with '.join(takes)}" if takes else ""
    return words, f"; {record.case.describe()} raises without {', '.join(idle)} too" if takes and idle else ""
