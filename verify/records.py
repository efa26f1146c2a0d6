"""What a campaign writes: one versioned record a case, JSON lines, and replay bundles.

JSON is strict: an infinite ratio is written as ``null`` with the status telling why.
"""

from __future__ import annotations

import fcntl
import io
import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from linattest.verify.environment import Environment, environment
from linattest.verify.inputs import Batch, Case
from linattest.verify.subject import Subject

SCHEMA = 1

Status = Literal["pass", "fail", "error", "known"]
Direction = Literal["forward", "gradient", "property"]

Key = tuple[str, str, str, str]
"""Case, variant, direction and property."""

LOST = "*"
"""The variant of a record that says that a whole job came to nothing."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one case: an input, a variant, a dtype and a direction.

    ``ratio`` is the worst error ratio over ``ratios`` (by output, gradient or finding), ``None`` when it
    is infinite or the run raised. ``oracle_radius`` is the oracle's proved radius as a fraction of the
    budget, at most 2**-20. ``truth``: the oracle, or certified float64 forms in its place (examination.py).
    ``source`` is "path:line" of a user's function, from the folder where it was judged; empty for linattest's own,
    which has ``sources``: a hash of its module, of the float64 forms and of the judge, with all that these import.
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
    truth: Literal["oracle", "float64"] = "oracle"
    oracle_radius: float | None = None
    oracle_bits: int | None = None
    crosschecked: bool = False
    seconds: float = 0.0
    environment: Environment | None = None
    source: str = ""
    sources: str = ""

    @property
    def certified(self) -> bool:
        """Whether the gradient oracle itself judged this gradient, and the reference that it is compared with."""
        return any(name.startswith("reference ") for name in self.ratios)

    @property
    def failed(self) -> bool:
        """Whether this record makes the campaign fail."""
        return self.status in ("fail", "error")

    @property
    def key(self) -> Key:
        """What a resumed campaign recognises it by."""
        return (self.case.key, self.variant, self.direction, self.what if self.direction == "property" else "")


def canonical(records: Iterable[Record]) -> list[dict[str, Any]]:
    """What was found, in a fixed order and without what differs from run to run: times, environments, places."""
    found = sorted(records, key=lambda record: record.key)
    passing = ("seconds", "environment", "replay", "source", "sources")
    return [{k: v for k, v in msgspec.to_builtins(record).items() if k not in passing} for record in found]


def finite(x: float) -> float | None:
    """The number, or ``None`` where JSON has no word for it."""
    return x if math.isfinite(x) else None


class InUse(OSError):
    """Another campaign writes to the file."""


class Journal:
    """A JSON-lines file of records, written by one campaign at a time: every append is on disk when it returns.

    Opening it locks it, and drops a last line that an interruption cut short. A ``unique`` one reads what it
    holds (``held``, by key) and keeps one record a key, the last: superseded ones go when it is closed.

    Raises:
        InUse: another campaign has it open.
        OSError: it cannot be made or written.
        ValueError: ``unique``, and a line is no record of this schema.
    """

    def __init__(self, path: Path, *, unique: bool = False) -> None:
        self._path = path.resolve()
        self._file = _locked(self._path)
        self._superseded = False
        self.held: dict[Key, Record] = {}
        try:
            self._mend()
            for record in read(self._path) if unique else ():
                self._hold(record)
        except BaseException:
            self._file.close()
            raise
        self._unique = unique

    def append(self, records: list[Record]) -> None:
        """Add records, whole lines at a time: where the disk has no room for all of them, none is added."""
        end = os.fstat(self._file.fileno()).st_size
        left = memoryview(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(end)
            raise
        if self._unique:
            for record in records:
                self._hold(record)

    def close(self) -> None:
        """Let go of it; a unique one that holds superseded records is written anew without them."""
        try:
            if self._superseded:
                self._compact()
        finally:
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, record: Record) -> None:
        """The record takes the place of one of its key, and of the note that its case was lost."""
        lost = (record.case.key, LOST, "forward", "")
        for key in self.held.keys() & {record.key, lost}:
            del self.held[key]
            self._superseded = True
        self.held[record.key] = record

    def _mend(self) -> None:
        text = self._path.read_bytes()
        if text and not text.endswith(b"\n"):
            self._file.truncate(text.rfind(b"\n") + 1)

    def _compact(self) -> None:
        """In one step, under a lock all the time: whoever opens the file finds all of it, or is refused."""
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with fresh.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in self.held.values()))
            file.flush()
            os.fsync(file.fileno())
            fresh.replace(self._path)


def _locked(path: Path) -> io.FileIO:
    """The file, open for appending and locked; the lock ends with the process."""
    while True:
        file = io.FileIO(path, "a")
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path} is no regular file")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError as error:
            file.close()
            raise InUse(f"another campaign is writing to {path}: wait for it, or name another file") from error
        except OSError:
            file.close()
            raise
        file.close()  # it was replaced between opening and locking


def append(path: Path, records: list[Record]) -> None:
    """Add records to a JSON-lines file, which is made with its folder if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Journal(path) as journal:
        journal.append(records)


def read(path: Path) -> Iterator[Record]:
    """The records of a JSON-lines file; a last line cut short by an interruption is passed over.

    Raises:
        ValueError: a complete line that is no record of this schema; says what to do about it.
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
            raise ValueError(
                f"{path}, line {number}: no record ({error}): delete that line, and "
                "`linattest verify --records FILE --resume` measures again what it held"
            ) from error


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay bundle says beside its tensors."""

    schema: int = SCHEMA
    case: Case
    variant: str
    direction: Direction
    what: str
    message: str
    environment: Environment
    subject: Subject | None = None


def save_bundle(folder: Path, record: Record, batch: Batch, subject: Subject | None = None) -> Path:
    """Write inputs, state, cotangents, the record's identity and the function under test to one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"input.{name}": x for name, x in batch.tensors.items()}
    tensors |= {f"initial.{name}": x for name, x in (batch.state or {}).items()}
    tensors |= {f"cotangent.{name}": x for name, x in batch.cotangents.items()}
    dense = {name: x.detach().contiguous().clone() for name, x in tensors.items()}
    bundle = Bundle(
        case=record.case, variant=record.variant, direction=record.direction, what=record.what,
        message=record.message, environment=environment(), subject=subject,
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
