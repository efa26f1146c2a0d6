"""Snapshots: the worst error ratio of everything over 40 seeds, kept so that a later commit can be compared.

An entry is one operator, variant, dtype, value family and direction. Small ratios are luck: an entry's ratio is
floored at ``FLOOR``, and one *grew* when it is more than ``GROWTH`` times what it was. A worst over some of the seeds
is at most the worst over all, so a part of them can show growth; shrinkage only all of them can. Which inputs are
run is in ``histories``; where a baseline is found, in ``baselines``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, get_args

import msgspec

from linattest.verify.environment import Environment
from linattest.verify.records import LOST, Record

SCHEMA = 1

FLOOR, GROWTH = 2.0, 2.0
"""Ratios below the first are alike; an entry that became more than the second times as large is a regression."""

DIGITS = 6
"""Significant digits of a ratio that are kept."""

Key = tuple[str, str, str, str, str]
"""Operator, variant, dtype, family, direction."""

Measured = Literal["forward", "gradient"]


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the bits beside the source: machines of equal fingerprint are compared, others advised.

    ``cpu`` is the instruction set that torch uses; ``device`` is "cpu" or the name of a GPU.
    """

    arch: str
    cpu: str
    device: str
    torch: str
    triton: str | None

    @property
    def name(self) -> str:
        """The name of the class, which its file carries: lower case, for every file system."""
        machine = f"{self.arch}-{self.cpu}" if self.device == "cpu" else self.device
        text = f"{machine}-torch-{self.torch}-triton-{self.triton or 'none'}".lower()
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)

    def shared(self, other: Fingerprint) -> tuple[bool, ...]:
        """What two of them have in common, the most important first: for the nearest one."""
        names = ("device", "arch", "torch", "cpu", "triton")
        return tuple(getattr(self, name) == getattr(other, name) for name in names)


def fingerprint(of: Environment) -> Fingerprint:
    """The class of an environment."""
    return Fingerprint(arch=of.system.split()[-1], cpu=of.cpu, device=of.device, torch=of.torch, triton=of.triton)


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """When and from what the entries of one operator were made: commit, day (UTC), hash of all sources."""

    commit: str
    date: str
    source_hash: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The worst over ``seeds`` seeds: ``ratio`` is ``measured``, floored. ``seed`` and ``case`` name the worst input.

    ``known`` cases met a limitation of the record. ``infinite`` of them have a ratio without a number: these are
    counted, not measured, and the first of them is the worst input.
    """

    operator: str
    variant: str
    dtype: str
    family: str
    direction: Measured
    ratio: Annotated[float, msgspec.Meta(ge=FLOOR)]
    measured: Annotated[float, msgspec.Meta(ge=0)]
    seed: int
    case: str
    seeds: Annotated[int, msgspec.Meta(ge=1)]
    known: int = 0
    infinite: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.measured) or self.ratio != max(FLOOR, self.measured):
            raise ValueError(f"ratio={self.ratio}, expected measured={self.measured} floored at {FLOOR:g}")

    @property
    def key(self) -> Key:
        """What it is the worst of."""
        return (self.operator, self.variant, self.dtype, self.family, self.direction)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one fingerprint class, sorted, and where those of each operator come from."""

    schema: Literal[1] = SCHEMA
    fingerprint: Fingerprint
    made: dict[str, Made] = {}
    entries: list[Entry] = []

    @property
    def by_key(self) -> dict[Key, Entry]:
        """The entries by what they are of."""
        return {entry.key: entry for entry in self.entries}


def fold(records: Iterable[Record]) -> Snapshot:
    """The worst of each key. A key with a failing record has no entry: what fails is not kept as a standard.

    Raises:
        ValueError: no record with an environment, or records of several fingerprint classes.
    """
    groups: dict[Key, list[Record]] = {}
    failing: set[Key] = set()
    made: dict[str, Made] = {}
    classes: set[Fingerprint] = set()
    for record in records:
        key = key_of(record)
        if record.environment is None or key is None:
            continue
        classes.add(fingerprint(record.environment))
        groups.setdefault(key, []).append(record)
        if record.failed:
            failing.add(key)
        made[record.case.operator] = _made(record.environment)
    if len(classes) != 1:
        names = sorted(x.name for x in classes)
        raise ValueError(f"records of fingerprint classes {names}, expected exactly one")
    entries = [_entry(key, some) for key, some in sorted(groups.items()) if key not in failing]
    return Snapshot(fingerprint=classes.pop(), made=dict(sorted(made.items())), entries=entries)


def key_of(record: Record) -> Key | None:
    """The entry a record belongs to; ``None`` for a property, and for a job whose process was lost."""
    if record.direction == "property" or record.variant == LOST:
        return None
    return (record.case.operator, record.variant, record.case.dtype, record.case.family, record.direction)


def ratio_of(record: Record) -> float | None:
    """The variant's own ratio, without that of the float64 reference, which a certified gradient's record has too."""
    own = [ratio for name, ratio in record.ratios.items() if not name.startswith("reference ")]
    finite = [ratio for ratio in own if ratio is not None]
    return max(finite, default=record.ratio) if len(finite) == len(own) else None


def _entry(key: Key, records: list[Record]) -> Entry:
    """The worst of one key; of equal ones the lowest seed, so that the order of execution does not show."""
    ratios = {r.case.key: ratio_of(r) for r in records}
    finite = [ratio for ratio in ratios.values() if ratio is not None]

    def badness(record: Record) -> tuple[bool, float, int, str]:
        ratio = ratios[record.case.key]
        return ratio is not None, -(ratio or 0.0), record.case.seed, record.case.key

    worst = min(records, key=badness)
    measured = float(f"{max(finite, default=0.0):.{DIGITS}g}")
    operator, variant, dtype, family, _ = key
    return Entry(
        operator=operator, variant=variant, dtype=dtype, family=family,
        direction="gradient" if worst.direction == "gradient" else "forward",
        ratio=max(FLOOR, measured), measured=measured, seed=worst.case.seed, case=worst.case.key,
        seeds=len({r.case.seed for r in records}), known=sum(r.status == "known" for r in records),
        infinite=len(ratios) - len(finite),
    )  # fmt: skip


def _made(environment: Environment) -> Made:
    day = datetime.now(UTC).date().isoformat()
    return Made(commit=environment.commit, date=day, source_hash=environment.source_hash)


Verdict = Literal["grew", "shrank", "new", "gone"]


@dataclass(frozen=True)
class Change:
    """One entry that is not as it was; ``before`` or ``now`` is missing where it is new or gone."""

    verdict: Verdict
    key: Key
    before: Entry | None
    now: Entry | None

    @property
    def factor(self) -> float | None:
        """How many times as large it is as it was, both floored; ``None`` where there is no such number."""
        if self.before is None or self.now is None or bool(self.now.infinite) != bool(self.before.infinite):
            return None
        return self.now.ratio / self.before.ratio


def compare(before: Snapshot, now: Snapshot, registered: set[Key]) -> list[Change]:
    """What changed, by verdict and size. What was not run is no change.

    Args:
        before: the entries that the run could have made, and those of what is not registered any more.
        registered: the keys of all that is registered: what else ``before`` has is *gone*.
    """
    old, changes = before.by_key, list[Change]()
    for key, entry in now.by_key.items():
        verdict = _verdict(old.get(key), entry)
        if verdict is not None:
            changes.append(Change(verdict, key, old.get(key), entry))
    changes += [Change("gone", key, entry, None) for key, entry in old.items() if key not in registered]
    order = get_args(Verdict)
    return sorted(changes, key=lambda c: (order.index(c.verdict), -(c.factor or math.inf), c.key))


def _verdict(before: Entry | None, now: Entry) -> Verdict | None:
    if before is None:
        return "new"
    if now.ratio > GROWTH * before.ratio or (now.infinite and not before.infinite):
        return "grew"
    whole = now.seeds >= before.seeds
    if whole and (GROWTH * now.ratio < before.ratio or (before.infinite and not now.infinite)):
        return "shrank"
    return None


def merge(old: Snapshot | None, new: Snapshot, failing: set[Key], registered: Container[str]) -> Snapshot:
    """The old one with every operator of the new one replaced whole.

    Args:
        failing: entries of the old one that stay as they were.
        registered: names of operators; what the old one has of others goes.

    Raises:
        ValueError: they are of different fingerprint classes.
    """
    if old is None:
        return new
    if old.fingerprint != new.fingerprint:
        raise ValueError(f"cannot put entries of {new.fingerprint.name} into {old.fingerprint.name}")
    held = [entry for entry in old.entries if entry.operator in registered]
    kept = [entry for entry in held if entry.operator not in new.made or entry.key in failing]
    made = {name: x for name, x in old.made.items() if name in registered} | new.made
    entries = sorted([*kept, *new.entries], key=lambda entry: entry.key)
    return Snapshot(fingerprint=new.fingerprint, made=dict(sorted(made.items())), entries=entries)


def encode(snapshot: Snapshot) -> str:
    """Strict JSON with one operator's origin and one entry a line, so that a change of one is a change of one line."""

    def lines(items: Iterable[str]) -> str:
        return ",\n".join(f"    {item}" for item in items)

    made = lines(f"{_json(name)}: {_json(x)}" for name, x in sorted(snapshot.made.items()))
    entries = lines(_json(entry) for entry in snapshot.entries)
    return (
        f'{{\n  "schema": {snapshot.schema},\n  "fingerprint": {_json(snapshot.fingerprint)},\n'
        f'  "made": {{\n{made}\n  }},\n  "entries": [\n{entries}\n  ]\n}}\n'
    )


def _json(x: object) -> str:
    return msgspec.json.encode(x).decode()


def decode(text: str | bytes, source: str) -> Snapshot:
    """A snapshot from its file's text; ``source`` names it in messages.

    Raises:
        ValueError: not a snapshot of this schema.
    """
    try:
        snapshot = msgspec.json.decode(text, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not a snapshot of schema {SCHEMA}: {error}") from error
    repeated = len(snapshot.entries) - len(snapshot.by_key)
    if repeated:
        raise ValueError(f"{source}: {repeated} entries repeat a key")
    return snapshot
