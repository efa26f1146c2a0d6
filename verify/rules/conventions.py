"""Rules about another function of the same name: what some libraries do besides, on request or always."""

from __future__ import annotations

import msgspec
import torch

from linattest.verify.evidence import Array, Diagnosis, Evidence
from linattest.verify.inputs import Batch

EPSILONS = {"": 0.0, ", 1e-6 under the root": 1e-6}
"""What is added to the sum of squares before its root is taken."""


def normalised(e: Evidence) -> Diagnosis | None:
    """The function is right for queries and keys of length 1."""
    batch, look = e.base.batch, e.base
    if look.error or not {"q", "k"} <= set(batch.tensors) or "o" not in look.bad:
        return None
    for names in (("q", "k"), ("k",), ("q",)):
        for words, epsilon in EPSILONS.items():
            unit = {name: _unit(batch.tensors[name].double(), epsilon) for name in names}
            if e.explains(look, e.exact(e.changed(batch, **unit))):
                which = " and ".join(names)
                return Diagnosis(
                    rule="normalised", fault=f"{which} are L2-normalised first" if len(names) > 1
                    else f"{which} is L2-normalised first",
                    evidence=f"o is the exact output for {which} divided by their length{words} within its rounding, "
                    f"and off by {look.worst()} for {which}",
                    suggestion="leave it to the caller, or turn it off: --set use_qk_l2norm_in_kernel=false, if it is "
                    "called so",
                )  # fmt: skip
    return None


def _unit(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    square = (x * x).sum(-1, keepdim=True) + epsilon
    return torch.where(square > 0, x * square.clamp(min=1e-300).rsqrt(), x)


def plus_one(e: Evidence) -> Diagnosis | None:
    """A softmax with 1 added to its denominator: what a first token of zeros does, whose score is exp(0)."""
    look = e.base
    if e.operator.name != "softmax" or look.error or "o" not in look.bad:
        return None
    if not e.explains(look, {"o": _after_zeros(e, look.batch)}):
        return None
    return Diagnosis(
        rule="plus-one", fault="1 is added to the denominator of the softmax",
        evidence=f"o is the exact output after one more token, of zeros, within its rounding; it is off by "
        f"{look.worst()}",
        suggestion="divide by the sum of the weights alone: no sink, no row of zero keys, no initial sum of 1 (or of "
        "exp(-m))",
    )  # fmt: skip


def _after_zeros(e: Evidence, batch: Batch) -> Array:
    structure = msgspec.structs.replace(batch.case.structure, T=batch.case.structure.T + 1)
    longer = batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={name: torch.cat([torch.zeros_like(x[:, :1]), x], 1) for name, x in batch.tensors.items()},
        cotangents={name: torch.cat([x[:, :1], x], 1) for name, x in batch.cotangents.items()},
    )
    return e.exact(longer)["o"][:, 1:]
