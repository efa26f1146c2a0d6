"""Which inputs a snapshot is made of: 40 seeds for each operator, dtype and value family, small and varied.

The seed chooses the structure and the option setting in rotation, so that 40 of them cover lengths around the edges
of a chunk, packs, groups, states and layouts. Where a variant does not take that structure, the seed has a plain
case beside it: every variant has all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from linattest.verify.examine import planned, runs
from linattest.verify.grids import Job, groups, ungroup
from linattest.verify.inputs import Case, Structure
from linattest.verify.snapshots import Key
from linattest.verify.spec import DTYPES, Operator

SEEDS = 40
"""Seeds of an entry: one cannot tell a regression from luck by the worst of fewer."""

STRUCTURES = (
    Structure(T=5, K=4, V=4),
    Structure(T=65, K=5, V=3, initial_state=True),
    Structure(T=17, K=6, V=3, H=2, group=2, initial_state=True),
    Structure(T=1, K=3, V=2, B=2, initial_state=True),
    Structure(T=9, K=8, V=5, H=2, cu_seqlens=(0, 0, 4, 9), initial_state=True),
    Structure(T=64, K=3, V=5, layout="guarded"),
    Structure(T=16, K=7, V=7),
    Structure(T=2, K=2, V=7, H=2, group=2, layout="transposed"),
    Structure(T=70, K=4, V=2, cu_seqlens=(0, 1, 65), initial_state=True),
    Structure(T=12, K=12, V=9, B=2, initial_state=True, layout="transposed"),
)
"""Small, since a gradient's cost grows with T: one seed in ``len(STRUCTURES)`` each."""

LONG = Structure(T=130, K=3, V=2, initial_state=True)
"""In place of the third at every fourth turn: more than two chunks."""


def jobs(
    operator: Operator,
    dtypes: Iterable[str] = DTYPES,
    families: Iterable[str] | None = None,
    seeds: Iterable[int] = range(SEEDS),
    *,
    quick: bool = False,
) -> list[Job]:
    """The jobs of one operator, family by family.

    Args:
        families: the ones to take, of those that the operator has; all if ``None``.
        quick: one seed for each family and dtype, another one for another, so that structures are still varied.
    """
    chosen, order = set(operator.families if families is None else families), list(seeds)
    found: list[Job] = []
    for i, family in enumerate(operator.families):
        for dtype in dtypes:
            turn = len(DTYPES) * i + DTYPES.index(dtype)
            some = [quick_seed(turn)] if quick else order
            if family in chosen:
                found += [job for seed in some for job in _of_seed(operator, dtype, family, seed)]
    return found


def quick_seed(turn: int) -> int:
    """The seed of a quick run: every structure in turn, none of them long."""
    return turn % len(STRUCTURES)


def _of_seed(operator: Operator, dtype: str, family: str, seed: int) -> list[Job]:
    turn, place = divmod(seed, len(STRUCTURES))
    structure = LONG if place == 2 and turn % 4 == 3 else STRUCTURES[place]
    options = operator.grid[(seed + turn) % len(operator.grid)]
    structure = structure if groups(operator, options) else ungroup(structure)
    case = Case(operator=operator.name, structure=structure, dtype=dtype, family=family, seed=seed, options=options)
    found = [Job(case)]
    if not all(runs(operator, variant, case) for variant in operator.variants if dtype in variant.dtypes):
        found.append(Job(msgspec.structs.replace(case, structure=_plain(structure))))
    return found


def _plain(structure: Structure) -> Structure:
    """What every variant takes: dense, square, ungrouped, from nothing."""
    width = max(structure.K, structure.V)
    return Structure(T=structure.T, K=width, V=width)


def keys(operator: Operator, some: Iterable[Job]) -> set[Key]:
    """The entries that these jobs of one operator make."""
    return {
        (operator.name, variant.name, job.case.dtype, job.case.family, direction)
        for job in some
        for variant, direction, _ in planned(operator, job.case)
    }
