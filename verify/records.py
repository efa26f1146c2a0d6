"""What a campaign writes: one versioned record a case, JSON lines, and replay bundles.

JSON is strict: an infinite ratio is written as ``null`` with the status telling why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from linattest.verify.environment import Environment, environment
from linattest.verify.inputs import Batch, Case

SCHEMA = 1

Status = Literal["pass", "fail", "error", "known"]
Direction = Literal["forward", "gradient", "property"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one case: an input, a variant, a dtype and a direction.

    ``ratio`` is the worst error ratio over ``ratios`` (by output, gradient or finding), ``None`` when it
    is infinite or the run raised. ``oracle_radius`` is the oracle's proved radius as a fraction of the
    budget, at most 2**-20.
    """

    schema: int = SCHEMA
    case: Case
    variant: str
    direction: Direction
    what: str
    status: Status
    ratio: float | None
    ratios: dict[str, float | None] = {}
    message: str = ""
    replay: str = ""
    oracle_radius: float | None = None
    oracle_bits: int | None = None
    crosschecked: bool = False
    seconds: float = 0.0
    environment: Environment | None = None

    @property
    def certified(self) -> bool:
        """Whether the gradient oracle itself judged this gradient, and the reference that it is compared with."""
        return any(name.startswith("reference ") for name in self.ratios)

    @property
    def failed(self) -> bool:
        """Whether this record makes the campaign fail."""
        return self.status in ("fail", "error")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a resumed campaign recognises it by."""
        return (self.case.key, self.variant, self.direction, self.what if self.direction == "property" else "")


def finite(x: float) -> float | None:
    """The number, or ``None`` where JSON has no word for it."""
    return x if math.isfinite(x) else None


def append(path: Path, records: list[Record]) -> None:
    """Add records to a JSON-lines file, whole lines at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        whole, _, _ = path.read_bytes().rpartition(b"\n")  # an interruption cut the last line short
        path.write_bytes(whole + b"\n" if whole else b"")
    with path.open("ab") as file:
        file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read(path: Path) -> Iterator[Record]:
    """The records of a JSON-lines file; a last line cut short by an interruption is passed over.

    Raises:
        ValueError: a complete line that is no record of this schema.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield msgspec.json.decode(line, type=Record)
        except msgspec.DecodeError as error:
            if number == len(lines):
                return
            raise ValueError(f"{path}, line {number}: {error}") from error


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay bundle says beside its tensors."""

    schema: int = SCHEMA
    case: Case
    variant: str
    direction: Direction
    what: str
    message: str
    environment: Environment


def save_bundle(folder: Path, record: Record, batch: Batch) -> Path:
    """Write inputs, state, cotangents and the record's identity to one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"input.{name}": x for name, x in batch.tensors.items()}
    tensors |= {f"initial.{name}": x for name, x in (batch.state or {}).items()}
    tensors |= {f"cotangent.{name}": x for name, x in batch.cotangents.items()}
    dense = {name: x.detach().contiguous().clone() for name, x in tensors.items()}
    bundle = Bundle(
        case=record.case, variant=record.variant, direction=record.direction, what=record.what,
        message=record.message, environment=environment(),
    )  # fmt: skip
    what = record.what.replace(":", "-").replace(" ", "-").replace("/", "-")
    name = f"{record.case.operator}-{record.variant}-{record.case.dtype}-{record.direction}-{what}-{record.case.key}"
    path = folder / f"{name}.safetensors"
    save_file(dense, path, metadata={"linattest": msgspec.json.encode(bundle).decode()})
    return path


def load_bundle(path: Path) -> tuple[Bundle, dict[str, dict[str, torch.Tensor]]]:
    """A bundle and its tensors by group (``input``, ``initial``, ``cotangent``).

    Raises:
        ValueError: not a bundle of this schema.
    """
    groups: dict[str, dict[str, torch.Tensor]] = {"input": {}, "initial": {}, "cotangent": {}}
    try:
        with safe_open(path, "pt") as file:
            header: dict[str, Any] = file.metadata() or {}
            bundle = msgspec.json.decode(header["linattest"], type=Bundle)
            for key in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                group, _, name = key.partition(".")
                groups[group][name] = file.get_tensor(key)
    except Exception as error:
        raise ValueError(f"{path} is not a replay bundle of schema {SCHEMA}: {error}") from error
    return bundle, groups
