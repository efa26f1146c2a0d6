"""The rule about parts in another order: heads, channels of the values, channels of the queries or keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from linattest.verify.evidence import Diagnosis, Evidence, Look

HEADS = 4
"""Heads of the run that tells them apart."""

ORDERS: dict[str, Callable[[int], list[int]]] = {
    "reversed": lambda n: list(range(n))[::-1],
    "rolled by one": lambda n: [(i - 1) % n for i in range(n)],
    "rolled back by one": lambda n: [(i + 1) % n for i in range(n)],
    "in halves that are exchanged": lambda n: [(i + n // 2) % n for i in range(n)],
    "in pairs that are exchanged": lambda n: [i ^ 1 if i ^ 1 < n else i for i in range(n)],
    "even ones first, then odd ones": lambda n: [*range(0, n, 2), *range(1, n, 2)],
    "one of each half in turn": lambda n: [x for i in range((n + 1) // 2) for x in (i, i + (n + 1) // 2) if x < n],
}
"""Orders that parts are taken in by mistake: the part that comes at each place."""


def permuted(e: Evidence) -> Diagnosis | None:
    """Every head, or every channel, has the right answer of another one."""
    return _outputs(e) or _inputs(e)


def _outputs(e: Evidence) -> Diagnosis | None:
    for axis, what, look in ((2, "heads", e.look(H=HEADS)), (3, "channels", e.base)):
        if look.error or "o" not in look.bad or look.got["o"].shape != look.exact["o"].shape:
            continue
        places = _places(look, axis)
        if not places or places == sorted(places):
            continue
        n = len(places)
        moved = [i for i in range(n) if places[i] != i]
        words = next((x for x, make in ORDERS.items() if make(n) == places), "")
        each = ", ".join(f"{i} has the answer of {places[i]}" for i in moved[:4]) + ", ..." * (len(moved) > 4)
        return Diagnosis(
            rule="permuted", fault=f"the {what} of the output are {words or 'in another order'}: {what[:-1]} {each}",
            evidence=f"for {look.batch.case.describe()} every {what[:-1]} of o is the exact one of its own or another "
            f"{what[:-1]} within rounding; o is off by {look.worst()}",
            suggestion=f"look at the index of the {what} where o is stored, and at a flip, roll or reshape of that "
            "axis",
        )  # fmt: skip
    return None


def _places(look: Look, axis: int) -> list[int]:
    """Whose answer each part along an axis has; empty if one has nobody's, or two have the same one's."""
    got, exact, slack = (np.moveaxis(x["o"], axis, 0) for x in (look.got, look.exact, look.slack))
    found: list[int] = []
    for i in range(len(got)):
        near = [j for j in range(len(got)) if (np.abs(got[i] - exact[j]) <= slack[i] + slack[j]).all()]
        if not near:
            return []
        found.append(i if i in near else near[0])
    return found if len(set(found)) == len(found) else []


def _inputs(e: Evidence) -> Diagnosis | None:
    """One of q and k has its channels in another order than the other."""
    look, tensors = e.base, e.base.batch.tensors
    if look.error or "o" not in look.bad or not {"q", "k"} <= set(tensors):
        return None
    width = tensors["k"].shape[-1]
    for words, make in ORDERS.items():
        for name in ("k", "q"):
            if e.explains(look, e.exact(e.changed(look.batch, **{name: tensors[name][..., make(width)]}))):
                return Diagnosis(
                    rule="permuted", fault=f"the channels of {name} are taken in another order: {words}",
                    evidence=f"o is the exact output for that order within its rounding, and off by {look.worst()} "
                    f"for {name} as given",
                    suggestion="channel i of q meets channel i of k: look at the last axis of both, and at a flip, "
                    "roll or rotation that only one of them gets",
                )  # fmt: skip
    return None
