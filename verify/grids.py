"""Which cases ``verify`` runs: a fixed grid in which every listed length, width, family and option occurs.

Structures are crossed with two dtypes each, not with everything: each (structure, dtype) takes the next
family and the next options of the operator in turn, and every family and every option gets cases of its
own. ``full`` crosses all of them with every dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from linattest.verify.inputs import Case, Structure
from linattest.verify.spec import DTYPES, Operator

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

QUICK = (
    Structure(T=0, K=16, V=7, B=2, initial_state=True),
    Structure(T=1, K=1, V=1),
    Structure(T=65, K=16, V=16, H=2, group=2, initial_state=True),
    Structure(T=70, K=16, V=7, cu_seqlens=(0, 0, 5, 66), initial_state=True),
)

GRADIENT_WORK = 1 << 20
"""Largest T * K * (K + V) * heads for which gradients are judged elementwise."""


@dataclass(frozen=True)
class Job:
    """A case, and whether its properties are tried too."""

    case: Case
    properties: bool = False

    @property
    def work(self) -> float:
        """Rough cost, to start the longest first."""
        s = self.case.structure
        heads = s.B * s.H * s.group
        passes = (4 if self.case.gradient else 1) * (4 if self.properties else 1)
        return heads * s.T * (s.K * (s.K + s.V) + 1000) * passes


def grid(operator: Operator, *, quick: bool = False, full: bool = False, seed: int = 0) -> list[Job]:
    """The jobs of one operator, longest first.

    ``quick`` is the subset for a first impression (float32 and bfloat16). ``full`` crosses every structure,
    family and option setting with every dtype; otherwise each takes two of the four in turn.
    """
    dtypes = ("float32", "bfloat16") if quick else DTYPES
    some = dtypes if quick or full else None
    jobs: list[Job] = []

    def add(structure: Structure, dtype: str, family: str, turn: int, properties: bool = False) -> None:
        s = structure if any("grouped" in v.supports for v in operator.variants) else _ungroup(structure)
        gradient = s.T * s.K * (s.K + s.V) * s.H * s.group * s.B <= GRADIENT_WORK
        options = operator.grid[turn % len(operator.grid)]
        case = Case(
            operator=operator.name, structure=s, dtype=dtype, family=family, seed=seed + turn,
            options=options, gradient=gradient,
        )  # fmt: skip
        jobs.append(Job(case, properties))

    for i, structure in enumerate(QUICK if quick else STRUCTURES):
        families = [f for f in operator.families if fits(f, structure)]
        for j, dtype in enumerate(some or _pair(i)):
            add(structure, dtype, families[(i + 3 * j) % len(families)], i + 2 * j)
    for dtype in dtypes:
        add(PROPERTY[0], dtype, "random", 0, properties=True)
    if quick:
        add(FAMILY, dtypes[0], operator.families[-1], 0)
        return sorted(jobs, key=lambda job: -job.work)
    for i, structure in enumerate(PROPERTY[1:]):
        for dtype in some or _pair(i):
            add(structure, dtype, "random", i, properties=True)
    for i, family in enumerate(operator.families):
        for dtype in some or _pair(i):
            add(FAMILY, dtype, family, i)
    for turn in range(1, len(operator.grid)):
        for dtype in some or _pair(turn):
            add(OPTION, dtype, "random", turn, properties=turn == 1)
    return sorted(jobs, key=lambda job: -job.work)


def _pair(turn: int) -> tuple[str, str]:
    """Two dtypes for the turn; four turns give each of them twice, and float32 with each of the others."""
    return (("float32", "bfloat16"), ("float64", "float16"), ("float16", "float32"), ("bfloat16", "float64"))[turn % 4]


def fits(family: str, structure: Structure) -> bool:
    """Whether a family has values of this size (captured ones are 257 tokens of width 32)."""
    return family != "captured" or (structure.T <= 257 and max(structure.K, structure.V) <= 32)


def _ungroup(structure: Structure) -> Structure:
    return msgspec.structs.replace(structure, group=1)
