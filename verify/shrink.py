"""A smaller case that fails in the same way: one thing simpler at a time, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait

import msgspec

from linattest.verify import registry
from linattest.verify.environment import source_hash
from linattest.verify.examine import examine
from linattest.verify.executors import Cluster
from linattest.verify.grids import Job, fits, groups
from linattest.verify.inputs import Case, Structure, resolve_options
from linattest.verify.records import Record
from linattest.verify.strategies import NARROWEST
from linattest.verify.work import Answer, work

TICK_SECONDS = 0.25
"""How long the end of the time, or an interruption, may go unnoticed."""


def simpler(case: Case) -> Iterator[Case]:
    """Cases that are simpler in one respect, the boldest first."""
    s, change = case.structure, msgspec.structs.replace
    structures: list[Structure] = []
    if s.cu_seqlens is not None:
        structures.append(change(s, cu_seqlens=None))
        structures += [change(s, cu_seqlens=x) for x in _fewer_packs(s.cu_seqlens)]
    plain = {"B": 1, "H": 1, "group": 1, "initial_state": False, "layout": "contiguous"}
    structures += [change(s, **{name: x}) for name, x in plain.items() if getattr(s, name) != x]
    structures += [_shorter(s, T) for T in _less(s.T, 0)]
    if s.K == s.V:
        structures += [change(s, K=width, V=width) for width in _less(s.K, NARROWEST)]
    structures += [change(s, K=K) for K in _less(s.K, NARROWEST)]
    structures += [change(s, V=V) for V in _less(s.V, NARROWEST)]
    yield from (change(case, structure=structure) for structure in structures)
    if case.family != "random":
        yield change(case, family="random")
    for name in case.options:
        yield change(case, options={x: value for x, value in case.options.items() if x != name})
    if case.seed:
        yield change(case, seed=0)


def _less(x: int, least: int) -> list[int]:
    """Half of it, three quarters, seven eighths, one less."""
    return sorted({y for y in (x // 2, x - x // 4, x - x // 8, x - 1) if least <= y < x})


def _shorter(s: Structure, T: int) -> Structure:
    offsets = None if s.cu_seqlens is None else tuple(min(x, T) for x in s.cu_seqlens)
    return msgspec.structs.replace(s, T=T, cu_seqlens=offsets)


def _fewer_packs(offsets: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Each boundary but the first one left out."""
    return [offsets[:i] + offsets[i + 1 :] for i in range(1, len(offsets))] if len(offsets) > 2 else []


def allowed(case: Case) -> bool:
    """Whether the operator has such a case."""
    operator = registry.operator(case.operator)
    try:
        resolve_options(operator, case.options)
    except ValueError:
        return False
    grouped = case.structure.group == 1 or groups(operator, case.options)
    return grouped and fits(case.family, case.structure)


def shrink(failure: Record, executor: Executor, stop: Callable[[], bool]) -> Case:
    """The smallest case found that fails like a record (same variant, direction, property and status).

    Args:
        stop: asked again and again; once it is true, what is found so far is the answer.
    """
    case = failure.case
    plain = msgspec.structs.replace(case, gradient=False)
    if failure.direction == "forward" and case.gradient:
        case = _first_failing([plain], failure, executor, stop) or case
    while not stop():
        smaller = _first_failing([c for c in simpler(case) if allowed(c)], failure, executor, stop)
        if smaller is None:
            break
        case = smaller
    return case


def _first_failing(
    candidates: list[Case], failure: Record, executor: Executor, stop: Callable[[], bool]
) -> Case | None:
    """The first candidate that fails in the same way, ``None`` if none does; as many at once as there are workers."""
    sources = source_hash() if isinstance(executor, Cluster) else None
    abreast = getattr(executor, "width", 1)
    for start in range(0, len(candidates), abreast):
        some = candidates[start : start + abreast]
        jobs = [Job(case, properties=failure.direction == "property") for case in some]
        futures = [executor.submit(work, examine, job, (failure.variant,), False, sources) for job in jobs]
        while wait(futures, TICK_SECONDS).not_done:
            if stop():
                return None
        for case, future in zip(some, futures, strict=True):
            if any(same_kind(record, failure) for record in _records(future)):
                return case
    return None


def same_kind(record: Record, failure: Record) -> bool:
    """Whether two records fail in the same way."""
    return (*record.key[1:], record.status) == (*failure.key[1:], failure.status)


def _records(future: Future[Answer]) -> list[Record]:
    """What a job found; nothing, if it ended badly."""
    return [] if future.exception() is not None else future.result().records
