"""The compile record: what every kernel needs of a GPU, kept in the repository and compared with what it needs now.

A build is known by its kernel, the call it was compiled for and the architecture, not by its tile sizes: a better
configuration takes the place of the old one, and a worse one shows. How builds are made is in ``compiled_builds``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from linattest.verify.environment import ROOT

SCHEMA = 1

PATH = (ROOT / "verify" / "data" / "compiled.json").resolve()
"""The committed record."""

GROWTH = 1.2
"""Registers, shared memory or spills that became more than so many times as many are a regression."""

Count = Annotated[int, msgspec.Meta(ge=0)]

NEW = "not in the record: --update adds it"

Key = tuple[str, str, int]
"""Kernel, call, architecture."""


class Build(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel, compiled once. ``registers`` a thread, ``spills`` and ``stack`` in bytes a thread, ``shared`` in
    bytes a block; ``seconds`` from nothing to a binary; ``instructions`` by mnemonic.

    ``reason`` says why a build may spill: only who reads the record can write it, and an update keeps it. ``error`` is
    what the compiler raised instead.
    """

    name: str
    call: str
    arch: int
    config: str
    registers: Count = 0
    spills: Count = 0
    stack: Count = 0
    shared: Count = 0
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    instructions: dict[str, Count] = {}
    reason: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds):
            raise ValueError(f"seconds={self.seconds}, expected a finite number")

    @property
    def key(self) -> Key:
        """What it is compared by."""
        return (self.name, self.call, self.arch)

    @property
    def counts(self) -> dict[str, int]:
        """What must not grow."""
        return {"registers": self.registers, "shared": self.shared, "spills": self.spills}


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """All builds of one Triton version, sorted."""

    schema: Literal[1] = SCHEMA
    triton: str
    kernels: list[Build] = []


@dataclass(frozen=True)
class Finding:
    """What is to be said of one build; ``fails`` where it is a regression, or no build at all."""

    key: Key
    message: str
    fails: bool


def numbered(builds: Iterable[Build]) -> list[Build]:
    """Sorted, with "#2", .. behind the kernel of builds that one call makes of it with other constants."""
    seen: dict[Key, int] = {}
    found: list[Build] = []
    for build in sorted(builds, key=lambda b: (*b.key, b.config)):
        seen[build.key] = n = seen.get(build.key, 0) + 1
        found.append(build if n == 1 else msgspec.structs.replace(build, name=f"{build.name}#{n}"))
    return found


def compare(record: Compiled | None, now: Compiled, limits: dict[int, int], whole: bool) -> list[Finding]:
    """What is wrong with builds, by itself and beside the record.

    Args:
        record: what they were; ``None`` if there is none.
        limits: bytes of shared memory a block may have, by architecture.
        whole: every build that there is was made: what else the record has is of no kernel any more.

    Growth is told but does not fail where the record is of another Triton: then the compiler changed, not the kernel.
    """
    old = {} if record is None else {build.key: build for build in record.kernels}
    same = record is not None and record.triton == now.triton
    findings = [finding for build in now.kernels for finding in _findings(old.get(build.key), build, limits, same)]
    made = {build.key for build in now.kernels}
    if whole:
        findings += [Finding(key, "in the record, and compiled by no call", False) for key in old.keys() - made]
    return sorted(findings, key=lambda f: (not f.fails, f.key, f.message))


def _findings(old: Build | None, now: Build, limits: dict[int, int], same: bool) -> Iterable[Finding]:
    """The findings of one build; ``same`` if the record is of the same Triton."""

    def found(message: str, *, fails: bool) -> Finding:
        return Finding(now.key, message, fails)

    if now.error:
        yield found(f"does not compile: {now.error}", fails=True)
        return
    if now.shared > limits.get(now.arch, now.shared):
        yield found(f"{now.shared} bytes of shared memory, at most {limits[now.arch]} on sm_{now.arch}", fails=True)
    if now.spills and not (old and old.spills and old.reason):
        why = "and the record gives no reason" if old and old.spills else "and did not" if old else "and is new"
        yield found(f"spills {now.spills} bytes, {why}", fails=same or old is None)
    elif old and old.reason and not now.spills:
        yield found(f"spills no more, for all that the record says: {old.reason}", fails=False)
    if old is None:
        yield found(NEW, fails=False)
        return
    for name, count in now.counts.items():
        before = old.counts[name]
        if count > GROWTH * before and before:
            yield found(f"{name} grew from {before} to {count} ({old.config} -> {now.config})", fails=same)


def update(record: Compiled | None, now: Compiled, whole: bool) -> Compiled:
    """The record with the builds that were made in the place of the old ones, whose reasons stay.

    Errors are no builds. Without ``whole``, builds that were not made stay as they were.

    Raises:
        ValueError: not ``whole``, and the record is of another Triton.
    """
    old = {} if record is None else {build.key: build for build in record.kernels}
    if record is not None and record.triton != now.triton and not whole:
        raise ValueError(f"the record is of Triton {record.triton}, this is {now.triton}: compile everything")
    fresh = {build.key: _with_reason(build, old.get(build.key)) for build in now.kernels if not build.error}
    kept = {key: build for key, build in old.items() if not whole} | fresh
    return Compiled(triton=now.triton, kernels=[kept[key] for key in sorted(kept)])


def _with_reason(build: Build, old: Build | None) -> Build:
    return msgspec.structs.replace(build, reason=old.reason) if old and build.spills else build


def encode(compiled: Compiled) -> str:
    """Strict JSON with one build a line, so that a change of one is a change of one line."""
    lines = ",\n".join(f"    {msgspec.json.encode(build).decode()}" for build in compiled.kernels)
    head = f'{{\n  "schema": {compiled.schema},\n  "triton": {msgspec.json.encode(compiled.triton).decode()},\n'
    return head + f'  "kernels": [\n{lines}\n  ]\n}}\n'


def read(path: Path = PATH) -> Compiled | None:
    """The record in a file; ``None`` if there is none.

    Raises:
        ValueError: not a record of this schema.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Compiled)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a compile record of schema {SCHEMA}: {error}") from error
