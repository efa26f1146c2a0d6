"""Witnesses of what is measured rather than computed: error ratios and conditions.

An error's witness is a replay bundle of ``verify`` with a ``Witness`` beside it, so ``linattest verify --replay`` takes
it too. Its exact values are the oracle's (192 bits and more); the ratio is judged anew at every replay.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from linattest.verify import examine, registry
from linattest.verify.environment import environment
from linattest.verify.inputs import build
from linattest.verify.records import finite, save_bundle
from linattest.verify.search.explore import MEASURED, Reached, condition
from linattest.verify.search.witness import KEY, Kept, Replayed, Witness, save

BOUNDS = ("the value families of the harness",)
"""What the inputs of a measured find are bounded by: they are drawn by ``values``, not chosen number by number."""


def certify(
    reached: Reached, objective: str, *, variant: str, at_least: float | None, shrunk: bool = False
) -> Witness:  # fmt: skip
    """A measured find as a witness. An infinite value is written as the largest float64."""
    value = reached.value if finite(reached.value) is not None else math.nextafter(math.inf, 0)
    return Witness(
        objective=objective, case=reached.case, value=value, at_least=at_least, engine="explore", bounds=BOUNDS,
        variant=variant, shrunk=shrunk, environment=environment(),
    )  # fmt: skip


def keep(folder: Path, witness: Witness, reached: Reached) -> Path:
    """Save a measured find: its tensors, its ``Witness`` and, for an error, the replay bundle's header."""
    operator = registry.operator(witness.case.operator)
    batch = build(operator, witness.case)
    if reached.record is None:
        groups = {"input": batch.tensors, "initial": batch.state or {}, "cotangent": batch.cotangents}
        return save(folder, Kept(witness, groups))
    bundle = save_bundle(folder, reached.record, batch)
    with safe_open(bundle, "pt") as file:
        header: dict[str, Any] = file.metadata() or {}
    path = folder / f"{witness.stem}.safetensors"
    tensors = load_file(bundle)
    bundle.unlink()
    save_file(tensors, path, metadata={**header, KEY: msgspec.json.encode(witness).decode()})
    return path


def replay(path: Path, kept: Kept) -> Replayed:
    """Measure again; it stands if the value still reaches ``at_least`` (without one: if it is at least half).

    Raises:
        ValueError: an unknown operator or objective.
    """
    witness = kept.witness
    if witness.objective not in MEASURED:
        raise ValueError(f"objective {witness.objective!r} is not measured, expected one of {sorted(MEASURED)}")
    value = _error(path) if witness.objective == "error" else _condition(kept)
    wanted = witness.value / 2 if witness.at_least is None else witness.at_least
    why = "" if value >= wanted else f"it was {witness.value:.6g}, is {value:.6g} now, expected at least {wanted:.6g}"
    return Replayed(value >= wanted, value, None, why)


def _error(path: Path) -> float:
    return max((math.inf if record.ratio is None else record.ratio for record in examine.replay(path)), default=0.0)


def _condition(kept: Kept) -> float:
    case = kept.witness.case
    operator = registry.operator(case.operator)
    batch = build(operator, case)
    tensors = {name: kept.tensors["input"][name] for name in batch.tensors}  # in the order of the arguments
    batch = batch.with_(tensors=tensors, state=kept.tensors.get("initial"))
    return condition(operator, batch)
