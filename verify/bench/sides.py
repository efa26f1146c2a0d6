"""The two sides of a comparison: a record's file, or all records of a commit, one for each kind of measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linattest.verify.bench import numerics
from linattest.verify.bench.commits import HASH
from linattest.verify.bench.gpu_records import checked, read_json, read_records
from linattest.verify.crossover import OURS

Row = Mapping[str, Any]
Key = tuple[Any, ...]

SETTING = ("dtype", "B", "H", "D")

SAMPLING = "blocks of 2 ms, at most 50 calls; 5 to 21 rounds, about {} s"
"""What the first records had, which do not say it."""


@dataclass
class Side:
    """All that was measured of one commit in one setting; later records take the place of earlier ones.

    ``gates`` are of ours, ``peers`` those of flash-linear-attention's functions.
    """

    name: str
    commit: str
    setting: Key
    environment: dict[str, Any] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    timings: dict[Key, Row] = field(default_factory=dict)
    gates: dict[Key, Row] = field(default_factory=dict)
    peers: dict[Key, Row] = field(default_factory=dict)
    memory: dict[Key, Row] = field(default_factory=dict)
    checks: dict[Key, Row] = field(default_factory=dict)
    failures: list[Row] = field(default_factory=list)

    def add(self, record: Row) -> None:
        """Take a record in."""
        given = record["settings"].get("functions")
        self.environment = record["environment"] | ({"functions": given} if given else {})
        self.started.append(record["started"])
        for row in record["timings"]:
            if row.get("samples"):
                place = (row["operator"], row["variant"], row["implementation"], row["direction"], row["tokens"])
                self.timings[(*place, row["graphed"], row["l2"])] = row
        for row in record["gates"]:
            kept = self.gates if row["implementation"] == OURS else self.peers
            kept[row["operator"], row["variant"], row["direction"], row["tokens"]] = row
        for row in record["checks"]:
            self.checks[row["operator"], row["variant"], row["what"], row["tokens"]] = row
            if row["what"].startswith("peak memory, ") and row.get("value"):
                direction = row["what"].removeprefix("peak memory, ")
                self.memory[row["operator"], row["variant"], direction, row["tokens"]] = row
        self.failures += record["failures"]


def find(given: str, results: Path) -> list[dict[str, Any]]:
    """The records that a name stands for: a file (JSON of gpu_run, or JSON lines of `check` and `verify`), or a commit
    by the beginning of its hash.

    Raises:
        ValueError: no such file, and no record of a commit that begins so, or of several.
    """
    path = Path(given)
    if path.is_file() and path.suffix == ".jsonl":
        return [numerics.read(path)]
    if path.is_file():
        return [checked(read_json(path), path)]
    records = read_records(results) if results.is_dir() else []
    commits = sorted({str(record["commit"]) for record in records})
    if not HASH.fullmatch(given):
        raise ValueError(f"{given!r} is neither a file nor a commit (7 to 40 hexadecimal digits)")
    fitting = [commit for commit in commits if commit.startswith(given) and HASH.fullmatch(commit)]
    if len(fitting) != 1:
        few = ", ".join(commit[:12] for commit in commits if HASH.fullmatch(commit)) or "none"
        beside = sum(not HASH.fullmatch(commit) for commit in commits)
        more = f"; {beside} more of sources that no commit has: name their files" if beside else ""
        raise ValueError(
            f"{len(fitting)} commits with records begin with {given!r}, expected one; there are: {few}{more}"
        )
    return [record for record in records if record["commit"] == fitting[0]]


def sides(name: str, records: Sequence[Row]) -> dict[Key, Side]:
    """By GPU, sizes, dtype and repetitions, what of these records can be compared."""
    found: dict[Key, Side] = {}
    for record in sorted(records, key=lambda r: str(r["started"])):
        key = setting(record)
        found.setdefault(key, Side(name, str(record["commit"]), key)).add(record)
    return found


def setting(record: Row) -> Key:
    """What two records must have in common."""
    return (record["environment"]["gpu"], *(record["settings"][name] for name in SETTING), sampling(record))


def sampling(record: Row) -> str:
    """How often a record's timings were repeated, in words."""
    settings = record["settings"]
    return str(settings.get("sampling") or SAMPLING.format(0.02 if settings.get("quick") else 0.4))


def common(a: Mapping[Key, Side], b: Mapping[Key, Side]) -> list[tuple[Side, Side]]:
    """The pairs that can be compared.

    Raises:
        ValueError: none.
    """
    pairs = [(a[key], b[key]) for key in a if key in b]
    if not pairs:
        raise ValueError(f"nothing in common: {_words(a)} against {_words(b)}")
    return pairs


def _words(found: Iterable[Key]) -> str:
    return "; ".join(", ".join(map(str, key)) for key in found)
