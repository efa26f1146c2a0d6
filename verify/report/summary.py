"""Records as every report needs them: each case once, stale ones marked, counted, the worst of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from linattest.verify import registry
from linattest.verify.current import current
from linattest.verify.environment import Environment, source_hash
from linattest.verify.grids import grid
from linattest.verify.inputs import Case
from linattest.verify.records import LOST, SCHEMA, Record, read
from linattest.verify.spec import DTYPES, Limitation

Key = TypeVar("Key")

Subject = tuple[str, str]
"""(operator, variant)."""

MOST_TURNS = 64
"""A case's seed is that of its grid and the place in a list, which is shorter than this."""


@dataclass(frozen=True)
class Summary:
    """The records of a report, one a case, and the hash of the sources they should be of, where they do not say which
    made them."""

    records: list[Record]
    replaced: int = 0
    source_hash: str = ""

    def count(self, status: str) -> int:
        """How many records have a status."""
        return sum(record.status == status for record in self.records)

    @cached_property
    def failed(self) -> list[Record]:
        """What makes the campaign fail, worst first."""
        return sorted((r for r in self.records if r.failed), key=badness, reverse=True)

    @cached_property
    def known(self) -> list[Record]:
        """Known failures, worst first."""
        return sorted((r for r in self.records if r.status == "known"), key=badness, reverse=True)

    @cached_property
    def stale(self) -> list[Record]:
        """Records made from other sources than the present ones."""
        return [record for record in self.records if self.is_stale(record)]

    @property
    def mixed(self) -> bool:
        """Whether some records are stale and some are not, so that it must be said of each."""
        return 0 < len(self.stale) < len(self.records)

    def is_stale(self, record: Record) -> bool:
        """Whether a record was made from other sources than the present ones."""
        if record.sources:
            return not current(record)
        return record.environment is None or record.environment.source_hash != self.source_hash

    @property
    def oracle_radius(self) -> float | None:
        """The oracle's worst proved radius as a fraction of the budget."""
        return max((r.oracle_radius for r in self.records if r.oracle_radius is not None), default=None)

    @property
    def gradients(self) -> int:
        """Gradients that were judged."""
        return sum(record.direction == "gradient" for record in self.records)

    @property
    def certified(self) -> int:
        """Gradients that the gradient oracle itself judged."""
        return sum(record.certified for record in self.records)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.failed:
            return f"{plural(len(self.failed), 'case')} of {len(self.records)} failed."
        if self.known:
            return f"All {plural(len(self.records), 'case')} are as expected, {len(self.known)} of them known failures."
        return f"All {plural(len(self.records), 'case')} passed." if len(self.records) > 1 else "The one case passed."

    @cached_property
    def subjects(self) -> list[Subject]:
        """(operator, variant) of the records, in the registry's order, unknown ones last."""
        seen = {subject(r) for r in self.records}
        ordered = [(o.name, v.name) for o in registry.OPERATORS for v in o.variants]
        return [pair for pair in ordered if pair in seen] + sorted(seen - set(ordered))

    @cached_property
    def not_run(self) -> dict[str, list[str]]:
        """By operator of whose own variants there are records: its variants that have none."""
        seen = {subject(r) for r in self.records if not r.source}
        names = {operator for operator, _ in seen}
        left = {o.name: [v.name for v in o.variants if (o.name, v.name) not in seen] for o in registry.OPERATORS}
        return {name: variants for name, variants in left.items() if name in names and variants}

    @cached_property
    def dtypes(self) -> list[str]:
        """The dtypes of the records, widest first, unknown ones last."""
        seen = {r.case.dtype for r in self.records}
        return [d for d in DTYPES if d in seen] + sorted(seen - set(DTYPES))

    @cached_property
    def environments(self) -> list[tuple[Environment, int]]:
        """Each environment that records were made in, and how many were; the commonest first."""
        found: dict[Environment, int] = Counter(r.environment for r in self.records if r.environment is not None)
        return sorted(found.items(), key=lambda pair: -pair[1])

    def limitations(self) -> list[tuple[str, Limitation, int]]:
        """(operator, known failure, cases here that it explains) of the operators that have records."""
        names = {record.case.operator for record in self.records}
        return [
            (operator.name, limitation, sum(explains(limitation, operator.name, r) for r in self.known))
            for operator in registry.OPERATORS if operator.name in names
            for limitation in operator.limitations
        ]  # fmt: skip

    def worst_by(self, key: Callable[[Record], Key]) -> dict[Key, Record]:
        """The worst record of each group."""
        found: dict[Key, Record] = {}
        for record in self.records:
            group = key(record)
            if group not in found or badness(record) > badness(found[group]):
                found[group] = record
        return found


def load(paths: Iterable[Path]) -> Summary:
    """The records of some files; of those with one key the last one read stands.

    Raises:
        ValueError: a line that is no record of this schema; the message names file and line.
        OSError: a file that cannot be read.
    """
    found: dict[tuple[str, str, str, str], Record] = {}
    total = 0
    for path in paths:
        for number, record in enumerate(read(path), start=1):
            if record.schema != SCHEMA:
                raise ValueError(
                    f"{path}, record {number}: schema={record.schema}, expected {SCHEMA}: another version wrote it; "
                    "make the file anew with `linattest verify --records FILE`"
                )
            found.pop(record.key, None)
            found[record.key] = record
            total += 1
    return Summary(list(found.values()), total - len(found), source_hash())


def subject(record: Record) -> Subject:
    """What a record judges."""
    return record.case.operator, record.variant


def explains(limitation: Limitation, operator: str, record: Record) -> bool:
    """Whether a known failure of an operator speaks of a record."""
    return record.case.operator == operator and limitation.covers(
        record.variant, record.case.dtype, record.case.family, record.direction, record.what
    )


def badness(record: Record) -> tuple[bool, bool, float]:
    """Failures first, then what must pass, known failures last; within each by ratio, infinite above all."""
    infinite = record.ratio is None
    return record.failed, record.status != "known", float("inf") if infinite else record.ratio or 0.0


def ratio_text(record: Record) -> str:
    """The ratio for people: two digits, ``error`` where the run raised, ``inf`` where it is infinite."""
    if record.status == "error":
        return "error"
    if record.ratio is None:
        return "inf"
    if record.ratio >= 1000:
        return f"{record.ratio:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{record.ratio:.1f}" if record.ratio else "0"


def title(record: Record) -> str:
    """What a record is about: "vla chunk float32 forward" or "vla chunk float32 property causality"."""
    what = f" {record.what}" if record.direction == "property" else ""
    return f"{record.case.operator} {record.variant} {record.case.dtype} {record.direction}{what}"


def command(record: Record) -> str:
    """What to type: the saved case where there is one, else the grid it is from; a comment if none has it."""
    if record.replay.startswith("linattest "):
        return record.replay
    if record.source:
        return f"# {record.source}: run `linattest check` of it again"
    chosen = "" if record.variant == LOST else f" --variant {record.variant}"
    which = f"linattest verify {record.case.operator}{chosen} --dtype {record.case.dtype}"
    listed = grid_of(record.case)
    return f"# in no grid of these sources: drawn by {which} --budget SECONDS" if listed is None else which + listed


def grid_of(case: Case) -> str | None:
    """The options of ``verify`` whose grid has a case, the smallest such grid: ``""``, ``" --quick --seed 3"``, ..."""
    first = max(0, case.seed - MOST_TURNS)
    for seed in dict.fromkeys((*((0,) if first == 0 else ()), *range(case.seed, first - 1, -1))):
        for option in ("--quick", "", "--full"):
            if case.key in _listed(case.operator, option, seed):
                return "".join(f" {word}" for word in (option, f"--seed {seed}" if seed else "") if word)
    return None


@lru_cache(maxsize=1024)
def _listed(operator: str, option: str, seed: int) -> frozenset[str]:
    try:
        jobs = grid(registry.operator(operator), quick=option == "--quick", full=option == "--full", seed=seed)
    except KeyError:  # records of other sources may know an operator more
        return frozenset()
    return frozenset(job.case.key for job in jobs)


def plural(count: int, noun: str) -> str:
    """ "1 case", "2 cases"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
