"""Rules about one part of an output: a head, a channel of the values or of the keys, that alone is wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.examination import head_axis

HEADS = 4
"""Heads of the runs that tell them apart."""


def one_head(e: Evidence) -> Diagnosis | None:
    """Some heads are wrong, and always the same ones."""
    first, second = e.look(H=HEADS), e.look(H=HEADS, seed=102)
    name = next((x for x in first.bad if not x.startswith("d ")), "")
    if first.error or second.error or not name:
        return None
    wrong = _wrong_along(first, name, head_axis(e.operator, name))
    if not 0 < len(wrong) < HEADS or wrong != _wrong_along(second, name, head_axis(e.operator, name)):
        return None
    last = wrong == [HEADS - 1] and _also_last(e, name)
    which = f"head {wrong[0]} of {HEADS} is" if len(wrong) == 1 else f"heads {_listed(wrong)} of {HEADS} are"
    how = _how(first, name, head_axis(e.operator, name), wrong[0]) if len(wrong) == 1 else ""
    return Diagnosis(
        rule="one-head", fault=f"only {which} wrong{' (the last one, of 2 and 3 heads too)' if last else ''}{how}",
        evidence=f"two inputs of {HEADS} heads: {name} is wrong in {'it' if len(wrong) == 1 else 'them'} by "
        f"{first.worst(name)}, and right in every other head",
        suggestion="look for an index or a loop over heads that misses one, a mask on the last block of heads, or a "
        "table of one value a head",
    )  # fmt: skip


def _wrong_along(look: Look, name: str, axis: int) -> list[int]:
    """The indices along an axis at which something of an output is wrong."""
    wrong = look.wrong(name)
    if wrong.shape != look.exact[name].shape:
        return []
    return [int(i) for i in np.nonzero(wrong.any(axis=tuple(x for x in range(wrong.ndim) if x != axis)))[0]]


def _also_last(e: Evidence, name: str) -> bool:
    looks = {H: e.look(H=H) for H in (2, 3)}
    return all(
        not look.error and _wrong_along(look, name, head_axis(e.operator, name)) == [H - 1] for H, look in looks.items()
    )


def _how(look: Look, name: str, axis: int, head: int) -> str:
    """What a head has instead: a factor of its answer, or another head's; empty if neither."""
    got, exact, slack = (np.moveaxis(x[name], axis, 0) for x in (look.got, look.exact, look.slack))
    if not np.isfinite(got[head]).all():
        return ": it is not finite"
    if not got[head].any():
        return ": it is 0 throughout"
    factor = float(np.sum(got[head] * exact[head]) / np.sum(exact[head] ** 2))
    if _fits(got[head], factor * exact[head], (1 + abs(factor)) * slack[head]):
        return f", by a factor {factor:.6g}"
    others = (i for i in range(len(exact)) if i != head)
    same = next((i for i in others if _fits(got[head], exact[i], slack[head] + slack[i])), None)
    return "" if same is None else f": it has the answer of head {same}"


def _fits(got: NDArray[np.float64], answer: NDArray[np.float64], slack: NDArray[np.float64]) -> bool:
    return bool((np.abs(got - answer) <= slack).all())


def one_channel(e: Evidence) -> Diagnosis | None:
    """Some channels of the values are wrong, or one of the queries or keys is left out."""
    if e.base.error or "o" not in e.base.bad:
        return None
    return _value_channels(e) or _dropped_channel(e)


def _value_channels(e: Evidence) -> Diagnosis | None:
    width = e.base.exact["o"].shape[-1]
    wrong, again = (_wrong_along(look, "o", 3) for look in (e.base, e.look(seed=102)))
    if not 0 < len(wrong) < width or wrong != again:
        return None
    which = f"channel {wrong[0]} of {width} is" if len(wrong) == 1 else f"channels {_listed(wrong)} of {width} are"
    how = _how(e.base, "o", 3, wrong[0]) if len(wrong) == 1 else ""
    return Diagnosis(
        rule="one-channel", fault=f"only {which} wrong in the output{how.replace('head', 'channel')}",
        evidence=f"two inputs: o is wrong there by {e.base.worst()}, and right in every other "
        "channel",
        suggestion="look at the mask and the stride of the last axis of the values and of the output",
    )  # fmt: skip


def _dropped_channel(e: Evidence) -> Diagnosis | None:
    """One channel of q or k does not enter: o is the exact output for a 0 there."""
    tensors = e.base.batch.tensors
    for name in (x for x in ("q", "k") if x in tensors):
        width = tensors[name].shape[-1]
        for c in (width - 1, *range(width - 1)):  # the last one is the likeliest
            x = tensors[name].clone()
            x[..., c] = 0
            if e.explains(e.base, e.exact(e.changed(e.base.batch, **{name: x}))):
                return Diagnosis(
                    rule="one-channel", fault=f"channel {c} of {width} of {name} is left out",
                    evidence=f"o is the exact output for {name} with a 0 in channel {c} within its rounding, and off "
                    f"by {e.base.worst()} for {name}",
                    suggestion="look at the mask of the last axis of the keys, and at a sum that stops one too early",
                )  # fmt: skip
    return None


def _listed(numbers: list[int]) -> str:
    few = ", ".join(map(str, numbers[:6]))
    return few + (", ..." if len(numbers) > 6 else "")
