"""Witnesses: a found input with what it shows, in one safetensors file that can be checked again for ever.

Metadata ``linattest-witness`` holds the ``Witness``; tensors are ``input.<name>``, ``free.<name>`` (what the bounds are
stated in), and ``probe.direction`` for a Jacobian. A find of the error search is a replay bundle of ``verify`` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from linattest.verify import registry
from linattest.verify.environment import Environment, environment
from linattest.verify.inputs import Case
from linattest.verify.search.ascent import Found
from linattest.verify.search.confirm import DIGITS, Confirmed, RefusedError, apart, confirm, tolerance
from linattest.verify.search.domain import InfeasibleError, Space, Tensors, Tie
from linattest.verify.search.objectives import OBJECTIVES, Objective, Probe

SCHEMA = 1
KEY = "linattest-witness"


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """What a witness says. ``exact`` is the value at ``digits`` decimal digits, ``value`` the reference's in float64.

    ``radius`` is the proved relative radius of the exact value; ``bits``: free numbers are multiples of 2**-bits
    (``None``: any float64). ``token``: whose Jacobian it is. ``variant``, for measured objectives: what was run.
    """

    schema: int = SCHEMA
    objective: str
    case: Case
    value: float
    at_least: float | None = None
    engine: Literal["ascent", "explore"]
    bounds: tuple[str, ...]
    tie: Tie | None = None
    token: int | None = None
    bits: int | None = None
    exact: str | None = None
    digits: int | None = None
    radius: float | None = None
    shrunk: bool = False
    variant: str | None = None
    environment: Environment

    @property
    def stem(self) -> str:
        """File name without its ending."""
        s = self.case.structure
        parts = [self.case.operator, self.objective, f"d{s.K}", f"T{s.T}", *([self.tie] if self.tie == "free" else [])]
        parts += [f"{name}-{value}" for name, value in self.case.options.items()]
        return "-".join([*parts, f"seed{self.case.seed}", *(["shrunk"] if self.shrunk else [])])


@dataclass(frozen=True)
class Kept:
    """A witness and its tensors by group (``input``, ``free``, ``probe``; ``initial`` and ``cotangent`` of a case)."""

    witness: Witness
    tensors: dict[str, Tensors]


def certify(
    found: Found, objective: Objective, *, at_least: float | None, seed: int = 0, digits: int = DIGITS,
    shrunk: bool = False,
) -> Kept:  # fmt: skip
    """A find of ascent as a witness, after the oracle has confirmed it.

    Raises:
        InfeasibleError: it is out of its bounds.
        RefusedError: the oracle disagrees, or its value is below ``at_least``.
    """
    tensors = {name: x.detach() for name, x in found.tensors.items()}
    with torch.no_grad():
        probe = objective.probe(found.space, tensors)
    exact = confirm(objective, found.space, found.free, tensors, probe, digits)
    if at_least is not None:
        _refuse_below(exact.text, at_least, digits)
    tied = found.space.tie if found.space.directions else None
    witness = Witness(
        objective=objective.name, case=found.space.case(seed), value=found.value, at_least=at_least, engine="ascent",
        bounds=tuple(found.space.bounds), tie=tied, token=probe.token, bits=found.bits, exact=exact.text,
        digits=digits, radius=exact.radius, shrunk=shrunk, environment=environment(),
    )  # fmt: skip
    direction = {} if probe.direction is None else {"direction": probe.direction}
    return Kept(witness, {"input": tensors, "free": found.free, "probe": direction})


def _refuse_below(text: str, at_least: float, digits: int) -> None:
    if Decimal(text) < Decimal(at_least):
        raise RefusedError(f"the value at {digits} digits is {text[:20]}, expected at least {at_least!r}")


def save(folder: Path, kept: Kept, extra: dict[str, str] | None = None) -> Path:
    """Write a witness; one of the same name is replaced. ``extra`` is more metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kept.witness.stem}.safetensors"
    dense = {f"{g}.{n}": x.detach().contiguous().clone() for g, group in kept.tensors.items() for n, x in group.items()}
    save_file(dense, path, metadata={KEY: msgspec.json.encode(kept.witness).decode(), **(extra or {})})
    return path


def load(path: Path) -> Kept:
    """Read a witness.

    Raises:
        ValueError: not a witness of this schema.
    """
    groups: dict[str, Tensors] = {}
    try:
        with safe_open(path, "pt") as file:
            header: dict[str, Any] = file.metadata() or {}
            witness = msgspec.json.decode(header[KEY], type=Witness)
            for key in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                group, _, name = key.partition(".")
                groups.setdefault(group, {})[name] = file.get_tensor(key)
    except Exception as error:
        raise ValueError(f"{path} is not a witness of schema {SCHEMA}: {error}") from error
    if witness.schema != SCHEMA:
        raise ValueError(f"{path} is a witness of schema {witness.schema}, expected {SCHEMA}")
    return Kept(witness, groups)


@dataclass(frozen=True)
class Replayed:
    """What a replay found: whether the witness stands, its value now, and why it does not."""

    stands: bool
    value: float | None
    exact: Confirmed | None = None
    why: str = ""


def space_of(witness: Witness) -> Space:
    """The bounded inputs that an ascent's witness is one of. Raises ``ValueError``: an operator unknown here."""
    s = witness.case.structure
    try:
        operator = registry.operator(witness.case.operator)
    except KeyError as error:
        raise ValueError(error.args[0]) from error
    return Space(operator, s.T, s.K, s.V, witness.case.options, witness.tie or "tied")


def replay(kept: Kept, digits: int = DIGITS) -> Replayed:
    """Compute an ascent's witness again from its tensors and compare with what it says.

    Raises:
        ValueError: an unknown operator or objective, or too few digits.
    """
    witness, tensors = kept.witness, kept.tensors
    if witness.objective not in OBJECTIVES or witness.exact is None or witness.digits is None:
        raise ValueError(f"objective {witness.objective!r} has no exact value, expected one of {sorted(OBJECTIVES)}")
    space, probe = space_of(witness), Probe(witness.token, tensors.get("probe", {}).get("direction"))
    if (witness.objective != "state-norm") != (probe.direction is not None):
        return Replayed(False, None, None, "it has no direction of memory, or one too many")
    if tuple(space.bounds) != witness.bounds:
        return Replayed(False, None, None, f"its bounds are {witness.bounds}, those of this version {space.bounds}")
    try:
        inputs, free = tensors.get("input", {}), tensors.get("free", {})
        exact = confirm(OBJECTIVES[witness.objective], space, free, inputs, probe, digits)
        if witness.at_least is not None:
            _refuse_below(exact.text, witness.at_least, digits)
    except (InfeasibleError, RefusedError) as error:
        return Replayed(False, None, None, str(error))
    shared = min(digits, witness.digits)
    gap = apart(exact.text, witness.exact, shared)
    if not gap <= tolerance(shared):
        why = f"it says {witness.exact}, the oracle {exact.text}: apart by {float(gap):.3g}"
        return Replayed(False, exact.value, exact, why)
    return Replayed(True, exact.value, exact)
