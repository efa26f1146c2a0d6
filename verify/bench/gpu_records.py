"""Reading records of ``gpu_run``: whole, or not at all. Whoever takes one in may rely on what is checked here.

A number that is not finite, or a table of another form, would otherwise end as a comparison that finds nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from linattest.verify.crossover import SCHEMA

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(gt=0)]
Size = Annotated[float, msgspec.Meta(ge=0)]
Fact = str | float | None


class Timing(msgspec.Struct):
    """Repeated timings of one implementation."""

    operator: str
    variant: str
    implementation: str
    direction: Literal["forward", "forward+backward", "decode"]
    tokens: Count
    graphed: bool
    l2: str
    ms: Milliseconds | None = None
    floor_ms: Size | None = None
    samples: list[Milliseconds] = []


class Gate(msgspec.Struct):
    """Whether an implementation may be timed: its worst error, in what is allowed; None where that is no number."""

    operator: str
    variant: str
    implementation: str
    direction: str
    tokens: Count
    ok: bool
    message: str
    worst: Size | None

    def __post_init__(self) -> None:
        if self.ok and self.worst is None:
            raise ValueError("ok is true, worst is null: expected the error that passed")


class Check(msgspec.Struct):
    """Something beside times."""

    operator: str
    variant: str
    what: str
    tokens: Count
    ok: bool
    value: Any = None


class Failure(msgspec.Struct):
    """What raised, and said what."""

    operator: str
    variant: str
    what: str
    tokens: Count
    error: str


class GpuRecord(msgspec.Struct):
    """The parts of a record that are read."""

    kind: Literal["gpu_run"]
    commit: str
    source_hash: str
    started: str
    environment: dict[str, Fact]
    settings: dict[str, Any]
    timings: list[Timing]
    gates: list[Gate]
    checks: list[Check]
    failures: list[Failure]

    def __post_init__(self) -> None:
        for place, names in (("environment", ("gpu", "torch")), ("settings", ("B", "H", "D", "dtype"))):
            missing = [name for name in names if name not in getattr(self, place)]
            if missing:
                raise ValueError(f"{place} lacks {', '.join(missing)}")


def read_json(path: Path) -> Any:
    """What a file holds: strict JSON, without NaN.

    Raises:
        ValueError: it does not.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


def checked(content: Any, path: Path) -> dict[str, Any]:
    """A record of ``gpu_run``, as it is.

    Raises:
        ValueError: it is none, of another schema, or has something that no such record has; the message says where.
    """
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get("kind") != "gpu_run":
        raise ValueError(f"{path}: expected a record of gpu_run, schema {SCHEMA}")
    record = cast("dict[str, Any]", content)
    if record.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {record.get('schema')!r}, expected {SCHEMA}")
    try:
        msgspec.convert(record, GpuRecord)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from error
    return record


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Every record of ``gpu_run`` below a folder, in the order in which they were measured.

    Raises:
        ValueError: a JSON file with the mark of such a record that is none (see `checked`), or no JSON.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*.json")):
        content = read_json(path)
        if isinstance(content, dict) and cast("dict[str, Any]", content).get("kind") == "gpu_run":
            found.append(checked(content, path))  # asv keeps JSON of its own beside them
    return sorted(found, key=lambda record: str(record["started"]))
