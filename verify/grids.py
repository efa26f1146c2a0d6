"""Which cases ``verify`` runs: a seeded sample per operator, in which every listed T, K and V occurs, or all of them.

``sample`` takes, in an order that the seed shuffles, every structure that brings a length, a width, a memory layout or
a feature not seen yet, each in one dtype; every family and every option setting has a case of its own, and the
properties are tried on three structures. ``full`` crosses everything with every dtype (the nightly target). ``quick``
is for a first impression.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from linattest.verify.inputs import Case, Scalar, Structure, resolve_options
from linattest.verify.spec import DTYPES, Operator
from linattest.verify.subject import Subject

STRUCTURES = (
    Structure(T=0, K=16, V=7, B=2, initial_state=True),
    Structure(T=1, K=1, V=1),
    Structure(T=1, K=16, V=16, H=2, initial_state=True),
    Structure(T=2, K=7, V=16, B=2, H=2, group=2),
    Structure(T=2, K=128, V=1),
    Structure(T=2, K=100, V=60),
    Structure(T=63, K=16, V=60, initial_state=True),
    Structure(T=64, K=60, V=7, layout="guarded"),
    Structure(T=65, K=16, V=16, H=2, group=2, initial_state=True, layout="transposed"),
    Structure(T=65, K=7, V=1, B=2, layout="guarded"),
    Structure(T=127, K=7, V=64, initial_state=True),
    Structure(T=130, K=1, V=16),
    Structure(T=130, K=64, V=16, initial_state=True),
    Structure(T=130, K=16, V=7, H=2, cu_seqlens=(0, 0, 63, 63, 64, 130), initial_state=True),
    Structure(T=80, K=16, V=16, H=2, group=2, cu_seqlens=(0, 30, 70)),
    Structure(T=257, K=7, V=16, initial_state=True),
    Structure(T=64, K=128, V=100),
    Structure(T=65, K=100, V=128, initial_state=True),
)
"""T in {0, 1, 2, 63, 64, 65, 127, 130, 257}; K and V in {1, 7, 16, 60, 64, 100, 128}; packs, groups, states."""

FAMILY = Structure(T=70, K=12, V=9)
OPTION = Structure(T=66, K=8, V=5, H=2, initial_state=True)
PROPERTY = (
    Structure(T=70, K=8, V=6, B=2, H=2, initial_state=True),
    Structure(T=75, K=8, V=6, H=2, cu_seqlens=(0, 5, 5, 70), initial_state=True),
    Structure(T=12, K=5, V=5, H=2, group=2),
)
"""Small structures on which every property of every variant is tried."""

DEVICE = (
    Structure(T=1, K=1, V=1),
    Structure(T=1, K=64, V=64, B=2, H=2, initial_state=True),
    Structure(T=63, K=64, V=64, initial_state=True),
    Structure(T=64, K=128, V=128),
    Structure(T=65, K=128, V=64, H=2, group=2, initial_state=True, layout="transposed"),
    Structure(T=127, K=16, V=100, B=2, H=2, layout="guarded"),
    Structure(T=127, K=7, V=5, initial_state=True),
    Structure(T=200, K=100, V=60, H=2, cu_seqlens=(0, 0, 64, 65, 65, 200), initial_state=True),
    Structure(T=200, K=64, V=24, group=2, cu_seqlens=(0, 100, 190)),
    Structure(T=200, K=1, V=1, B=2, initial_state=True),
)
"""On a GPU, in every dtype: edges of chunks, every width class, packs with empty sequences, strides."""

LONG = (
    Structure(T=1000, K=64, V=64, H=2, group=2, initial_state=True),
    Structure(T=1000, K=256, V=256),
    Structure(T=1000, K=128, V=128, cu_seqlens=(0, 0, 1, 300, 300, 937), initial_state=True),
    Structure(T=4096, K=64, V=64, H=2, initial_state=True),
    Structure(T=4096, K=128, V=128, layout="transposed"),
    Structure(T=4096, K=128, V=64, group=2, cu_seqlens=(0, 1000, 1000, 4000), initial_state=True),
    Structure(T=4096, K=16, V=16, B=2, H=2, layout="guarded"),
    Structure(T=4096, K=100, V=60, initial_state=True),
    Structure(T=4096, K=7, V=5, initial_state=True),
)
"""On a GPU, in bfloat16 and another dtype in turn; float64 stands in for the oracle (examination.py)."""

SMALL = (8, 6)
"""Widths of every small structure on a GPU."""

DEVICE_DTYPES = ("bfloat16", "float32", "float16")

PROPERTY_DTYPES = (1, 2, 0)
"""The place in ``DTYPES`` with which each of them starts: float32, bfloat16, float64."""

CERTIFIED = Structure(T=9, K=3, V=2, H=2, group=2, initial_state=True)
"""Small enough for the gradient oracle: one a setting, since an error of the reference itself shows there alone."""

QUICK = (
    Structure(T=0, K=16, V=7, B=2, initial_state=True),
    Structure(T=1, K=1, V=1),
    Structure(T=65, K=16, V=16, H=2, group=2, initial_state=True),
    Structure(T=70, K=16, V=7, cu_seqlens=(0, 0, 5, 66), initial_state=True),
)

GRADIENT_WORK = 1 << 20
"""Largest T * K * (K + V) * heads for which gradients are judged elementwise."""


LONG_WORK = 1 << 28
"""The same on a GPU, where long gradients are judged too."""


@dataclass(frozen=True)
class Job:
    """A case, and whether its properties are tried too; ``subject``: with this function instead of our variants.

    ``device``: where the variants run ("cpu", "cuda", "cuda:1").
    """

    case: Case
    properties: bool = False
    subject: Subject | None = None
    device: str = "cpu"

    @property
    def work(self) -> float:
        """Rough cost, to start the longest first."""
        s = self.case.structure
        heads = s.B * s.H * s.group
        passes = (4 if self.case.gradient else 1) * (4 if self.properties else 1)
        return heads * s.T * (s.K * (s.K + s.V) + 1000) * passes


@dataclass
class _Turns:
    """Jobs of one operator being listed; each job takes the next dtype, and what it does not fix in turn."""

    operator: Operator
    seed: int
    dtypes: tuple[str, ...]
    every: bool
    jobs: list[Job]

    def add(
        self, structure: Structure, turn: int, *, family: str = "", properties: bool = False, at: int = 0,
        gradient_work: int = GRADIENT_WORK,
    ) -> None:  # fmt: skip
        """One case, or one a dtype if ``every``; ``at`` is the place of the dtype in the rotation."""
        options = self.operator.grid[turn % len(self.operator.grid)]
        s = structure if groups(self.operator, options) else ungroup(structure)
        fitting = [f for f in self.operator.families if fits(f, s)]
        gradient = s.T * s.K * (s.K + s.V) * s.H * s.group * s.B <= gradient_work
        some = self.dtypes if self.every else (self.dtypes[at % len(self.dtypes)],)
        for j, dtype in enumerate(some):
            case = Case(
                operator=self.operator.name, structure=s, dtype=dtype, seed=self.seed + turn, options=options,
                family=family or fitting[(turn + 3 * j) % len(fitting)], gradient=gradient,
            )  # fmt: skip
            self.jobs.append(Job(case, properties))


def grid(operator: Operator, *, quick: bool = False, full: bool = False, seed: int = 0) -> list[Job]:
    """The jobs of one operator, longest first: a seeded sample, all of them, or a first impression."""
    dtypes = ("float32", "bfloat16") if quick else DTYPES
    turns = _Turns(operator, seed, dtypes, every=quick or full, jobs=[])
    rng = random.Random(f"{operator.name} {seed}")
    start = rng.randrange(len(dtypes))

    def place(i: int) -> int:
        """Which dtype has turn i: another one each lap, or options of the same period would meet one dtype only."""
        return start + i + i // len(dtypes)

    chosen = QUICK if quick else STRUCTURES if full else cover(STRUCTURES, rng)
    for i, structure in enumerate(chosen):
        turns.add(structure, i, at=place(i))
    turns.every = full
    for i, structure in enumerate(PROPERTY[:1] if quick else PROPERTY):
        turns.add(structure, i, family="random", properties=True, at=0 if quick else PROPERTY_DTYPES[i])
    for i, options in enumerate(settings(operator)):
        turns.add(CERTIFIED, operator.grid.index(_of(operator, options)), family="random", at=place(i))
    if quick:
        turns.add(FAMILY, 0, family=operator.families[-1])
        return sorted(turns.jobs, key=lambda job: -job.work)
    for i, family in enumerate(operator.families):
        turns.add(FAMILY, i, family=family, at=place(i))
    for turn in range(1, len(operator.grid)):
        turns.add(OPTION, turn, family="random", properties=full and turn == 1, at=place(turn))
    return sorted(turns.jobs, key=lambda job: -job.work)


def device_grid(operator: Operator, *, seed: int = 0) -> list[Job]:
    """The jobs of one operator on a GPU, longest first; the caller says which GPU (``Job.device``).

    Small structures have one pair of widths there: for each, every kernel is compiled anew.
    """

    def small(structure: Structure) -> Structure:
        return msgspec.structs.replace(structure, K=SMALL[0], V=SMALL[1])

    turns = _Turns(operator, seed, DEVICE_DTYPES, every=True, jobs=[])
    for i, structure in enumerate(DEVICE):
        turns.add(structure, i, gradient_work=LONG_WORK)
    for structure in PROPERTY:
        turns.add(small(structure), 0, family="random", properties=True)
    for i, options in enumerate(settings(operator)):
        turns.add(small(CERTIFIED), operator.grid.index(_of(operator, options)), family="random", at=i)
    turns.every = False
    for i, structure in enumerate(LONG):
        for at in (0, 1 + i % 2):
            turns.add(structure, i, family="random", at=at, gradient_work=LONG_WORK)
    for i, family in enumerate(operator.families):
        for at in (0, 1 + i % 2):
            turns.add(small(FAMILY), i, family=family, at=at)
    for turn in range(1, len(operator.grid)):
        turns.add(small(OPTION), turn, family="random", at=turn)
    return sorted(turns.jobs, key=lambda job: -job.work)


def cover(structures: Sequence[Structure], rng: random.Random) -> list[Structure]:
    """Enough of the structures that every length, width, layout and feature of theirs occurs, in a random order."""
    seen: set[tuple[str, object]] = set()
    chosen: list[Structure] = []
    for s in rng.sample(structures, len(structures)):
        marks: set[tuple[str, object]] = {("T", s.T), ("K", s.K), ("V", s.V), ("layout", s.layout)}
        marks |= {("packed", s.cu_seqlens is not None), ("grouped", s.group > 1), ("state", s.initial_state)}
        if not marks <= seen:
            chosen.append(s)
            seen |= marks
    return chosen


def fits(family: str, structure: Structure) -> bool:
    """Whether a family has values of this size (captured ones are 257 tokens of width 32)."""
    return family != "captured" or (structure.T <= 257 and max(structure.K, structure.V) <= 32)


def groups(operator: Operator, options: Mapping[str, Scalar]) -> bool:
    """Whether several value heads may share a key head under these options."""
    if operator.ungrouped is not None and operator.ungrouped(resolve_options(operator, options)):
        return False
    return any("grouped" in variant.supports for variant in operator.variants)


def _of(operator: Operator, options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """The first options of the grid that have this setting."""
    return next(
        given for given in operator.grid if options.items() <= given.items() and _switches(operator, given) == options
    )


def _switches(operator: Operator, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    names = {option.name for option in operator.options if isinstance(option.default, bool | str)}
    return {name: value for name, value in options.items() if name in names}


def settings(operator: Operator) -> list[dict[str, Scalar]]:
    """The option settings of the grid that choose what is computed, numbers left at their defaults."""
    found: list[dict[str, Scalar]] = []
    for options in operator.grid:
        kept = _switches(operator, options)
        if kept not in found:
            found.append(kept)
    return found


def ungroup(structure: Structure) -> Structure:
    """The same with one value head a key head."""
    return msgspec.structs.replace(structure, group=1)
