"""The rule about the rows of a batch: each must be what it is alone."""

from __future__ import annotations

import numpy as np

from linattest.verify.evidence import Diagnosis, Evidence, Look

TOGETHER = ("permutation", "batch-invariance")
"""Properties that say so too, where they are tried."""


def rows(e: Evidence) -> Diagnosis | None:
    """Right row by row, and wrong in a batch: rows have each other's answer, or move each other."""
    look = e.axes["several rows of a batch"]
    if e.base.off or look.error or "o" not in look.bad:
        return None
    if look.got["o"].shape != look.exact["o"].shape:
        return None
    said = [name for name in TOGETHER if name in e.broken or e.fails("property", name)]
    besides = f"; not kept either: {', '.join(said)}" if said else ""
    if found := _exchanged(look):
        words = ", ".join(f"row {i} of {len(look.got['o'])} has the output of row {j}" for i, j in found.items())
        return Diagnosis(
            rule="rows", fault=f"the rows of a batch are mixed up: {words}",
            evidence=f"one row alone is right; with B = {len(look.got['o'])} o is off by {look.worst()}, and is that "
            f"row's exact output within rounding{besides}",
            suggestion="check the index from program to (batch, head), and the stride of the first axis",
        )  # fmt: skip
    if not (moved := _moved(e, look)):
        return None
    return Diagnosis(
        rule="rows", fault="the rows of a batch depend on each other",
        evidence=f"one row alone is right; other values in row {moved[0]} move the outputs of row {moved[1]}, by "
        f"{moved[2]:.3g}{besides}",
        suggestion="nothing may be summed, cached or normalised over the first axis; check the index from program to "
        "(batch, head)",
    )  # fmt: skip


def _exchanged(look: Look) -> dict[int, int]:
    """By wrong row, the row whose answer it has; empty if one has none of them."""
    got, exact, slack = (x["o"] for x in (look.got, look.exact, look.slack))
    wrong = [i for i in range(len(got)) if look.wrong("o")[i].any()]
    found: dict[int, int] = {}
    for i in wrong:
        same = [j for j in range(len(got)) if j != i and (np.abs(got[i] - exact[j]) <= slack[i] + slack[j]).all()]
        if not same:
            return {}
        found[i] = same[0]
    return found


def _moved(e: Evidence, look: Look) -> tuple[int, int, float] | None:
    """(row that is changed, row that moves, how much), if one does."""
    other = e.sibling(look.batch)
    for i in range(look.batch.case.structure.B):
        tensors = {name: x.clone() for name, x in look.batch.tensors.items()}
        for name, x in other.tensors.items():
            tensors[name][i] = x[i]
        after = e.look(e.changed(look.batch, **tensors))
        if after.error:
            return None
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(np.abs(after.got["o"] - look.got["o"]))
        gap[i] = 0
        if gap.any():
            return i, int(np.nonzero(gap.any(axis=(1, 2, 3)))[0][0]), float(np.max(gap))
    return None
