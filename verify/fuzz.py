"""Random cases for as long as a budget of time lasts, and small ones for what they find.

Cases are drawn by Hypothesis (strategies.py), a handful at a time, and the one whose pairs of values were tried least
is run (coverage.py). Their sequence depends on the seed and the sources, not on how fast they are done: a campaign with
a larger budget begins like one with a smaller. What fails is made smaller afterwards, while it fails.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.configuration import set_hypothesis_home_dir, storage_directory

from linattest.verify.campaign import Campaign, interruptions, run_campaign
from linattest.verify.coverage import Coverage, Space
from linattest.verify.examine import planned
from linattest.verify.executors import abandon
from linattest.verify.grids import Job
from linattest.verify.inputs import Case
from linattest.verify.records import LOST, Record
from linattest.verify.shrink import same_kind, shrink
from linattest.verify.spec import DTYPES, Operator
from linattest.verify.strategies import cases

BATCH = 60
"""Cases drawn at once."""

CHOICE = 6
"""Cases of which the least tried one is run."""

MOST_WORK = 4e6
"""Largest ``Job.work`` of a random case: several seconds, so that many cases fit in a budget and its end is kept."""

MOST_SHRUNK = 5
"""Different failures that are made smaller; the others are reported as they came."""

SHRINK_SECONDS = 60.0
"""Time for making failures smaller, all of them together."""


def draw(operator: Operator, dtypes: tuple[str, ...], seed: int) -> list[Case]:
    """Some cases of an operator, the same ones for the same seed."""
    found: list[Case] = []

    @seeded(int.from_bytes(hashlib.sha256(f"{operator.name} {seed}".encode()).digest()[:8], "little"))
    @settings(
        max_examples=BATCH, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(cases(operator, dtypes=dtypes))
    def collect(case: Case) -> None:
        found.append(case)

    with _no_folder_left():
        collect()
    return found


@contextmanager
def _no_folder_left() -> Iterator[None]:
    """Hypothesis keeps what it reads of sources in a folder where one works; a campaign leaves none behind."""
    before = storage_directory(intent_to_write=False).home_directory
    with TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(before)


def endless(operator: Operator, dtypes: tuple[str, ...], seed: int) -> Iterator[Case]:
    """Cases of an operator without end; none twice."""
    seen: set[str] = set()
    batch = 0
    while True:
        for case in draw(operator, dtypes, seed + (batch << 32)):
            if case.key not in seen:
                seen.add(case.key)
                yield case
        batch += 1


def sample(spaces: Mapping[str, Space], seed: int, variants: tuple[str, ...] = ()) -> Iterator[Job]:
    """Jobs without end, the operators in turn: of a handful of cases the one that adds most to what was tried."""
    chosen = Coverage(spaces)
    streams = {name: endless(space.operator, space.dtypes, seed) for name, space in spaces.items()}
    while True:
        for name, stream in streams.items():
            drawn = [next(stream) for _ in range(CHOICE)]
            small = (case for case in drawn if Job(case).work <= MOST_WORK)
            handful = [case for case in small if any(planned(spaces[name].operator, case, variants))]
            if handful:
                case = max(handful, key=chosen.novelty)
                chosen.add(case)
                yield Job(case)


@dataclass
class Fuzzed:
    """What a time budget brought: the campaign, what it covered, and the failures made smaller."""

    campaign: Campaign
    coverage: Coverage
    shrunk: list[tuple[Record, Record]] = field(default_factory=list[tuple[Record, Record]])
    """(as it came, made smaller)"""


def fuzz(
    operators: Sequence[Operator],
    executor: Executor,
    budget: float,
    *,
    seed: int = 0,
    dtypes: tuple[str, ...] = DTYPES,
    variants: tuple[str, ...] = (),
    bundles: Path | None = None,
    output: Path | None = None,
    resume: bool = False,
    progress: Callable[[list[Record]], None] = lambda _: None,
) -> Fuzzed:
    """Run random cases until ``budget`` seconds have passed; what runs then is waited for.

    With ``resume`` the cases that ``output`` has are not run again: the sequence goes on where it ended.

    Raises:
        As ``run_campaign``.
    """
    campaign = Campaign()
    spaces = {operator.name: Space(operator, dtypes) for operator in operators}

    def until_spent() -> Iterator[Job]:
        for job in sample(spaces, seed, variants):
            if time.perf_counter() - campaign.started > budget:
                return
            yield job

    run_campaign(
        until_spent(), executor, variants=variants, bundles=bundles, output=output, resume=resume,
        progress=progress, campaign=campaign,
    )  # fmt: skip
    found = Fuzzed(campaign, Coverage(spaces))
    for case in {r.case.key: r.case for r in campaign.records if r.variant != LOST}.values():
        found.coverage.add(case)
    if not (campaign.interrupted or campaign.stopped):
        _make_smaller(found, executor, bundles, output)
    return found


def distinct(failed: Sequence[Record]) -> list[Record]:
    """One failure of each kind (operator, variant, direction, property), of each the one with the smallest case."""
    kinds: dict[tuple[str, ...], Record] = {}
    for record in sorted((r for r in failed if r.variant != LOST), key=lambda r: Job(r.case).work):
        kinds.setdefault((record.case.operator, *record.key[1:], record.status), record)
    return list(kinds.values())


def _make_smaller(found: Fuzzed, executor: Executor, bundles: Path | None, output: Path | None) -> None:
    """Shrink the first failures, and run each small case as part of the campaign: it has a record and a bundle."""
    failures, campaign = distinct(found.campaign.failed)[:MOST_SHRUNK], found.campaign
    end = time.perf_counter() + SHRINK_SECONDS
    for left, failure in zip(range(len(failures), 0, -1), failures, strict=True):
        now = time.perf_counter()
        until = now + (end - now) / left
        with interruptions() as asked:
            small = shrink(failure, executor, lambda asked=asked, until=until: asked() or time.perf_counter() > until)
        if asked():
            campaign.interrupted = True
            abandon(executor)
        elif small != failure.case:
            before, job = len(campaign.records), Job(small, properties=failure.direction == "property")
            run_campaign(
                [job], executor, variants=(failure.variant,), bundles=bundles, output=output, campaign=campaign
            )
            again = [r for r in campaign.records[before:] if same_kind(r, failure)]
            found.shrunk += [(failure, record) for record in again]
        if campaign.interrupted or campaign.stopped:
            return
