"""Which cases can show a fault, cheapest first: those of the operators that reach the edited file by imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

import msgspec

from linattest.verify import registry
from linattest.verify.environment import ROOT
from linattest.verify.faults.bank import Fault
from linattest.verify.grids import Job, grid
from linattest.verify.spec import Operator

PACKAGE = "linattest"


def operators_of(fault: Fault) -> tuple[str, ...]:
    """The operators whose cases are tried: the fault's own list, or all that import its file, the nearest first.

    A fault with test files of its own and no operators has none.
    """
    if fault.operators or fault.checks:
        return fault.operators
    module = f"{PACKAGE}." + fault.file.removesuffix(".py").replace("/", ".")
    near = {operator.name: reached(operator).get(module) for operator in registry.OPERATORS}
    return tuple(sorted((name for name, steps in near.items() if steps is not None), key=lambda name: near[name] or 0))


def reached(operator: Operator) -> dict[str, int]:
    """The modules of ours that an operator's variants import, and by how many imports from the variant's own."""
    steps: dict[str, int] = {}
    frontier = {variant.function.partition(":")[0] for variant in operator.variants}
    frontier = {name for name in frontier if not name.startswith(f"{PACKAGE}.verify")}
    for distance in range(len(registry.OPERATORS) + 10):
        frontier = {name for name in frontier if name not in steps and imports(name) is not None}
        steps |= dict.fromkeys(frontier, distance)
        frontier = {name for module in frontier for name in imports(module) or ()}
    return steps


@cache
def imports(module: str) -> frozenset[str] | None:
    """The modules of this package that a module imports by statement; ``None`` where there is no such module."""
    path = ROOT / Path(*module.split(".")[1:]).with_suffix(".py")
    if not path.is_file():
        return None
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith(PACKAGE)}
    return frozenset(found)


def quick_jobs(operators: Iterable[str]) -> list[Job]:
    """The quick grids of some operators: what a neutral edit, and the code as it is, must leave green."""
    return [job for name in operators for job in _ordered(grid(registry.operator(name), quick=True))]


def jobs_of(fault: Fault) -> Iterator[Job]:
    """What is tried to show a fault: quick grid, then the default one, cheapest first; operators take turns.

    Cases without properties come before those with them. For a fault that names dtypes, the quick grid in those comes
    first: the sample that is the default grid need not have every setting in every dtype.
    """
    lists = [_targeted(registry.operator(name), fault.dtypes) for name in operators_of(fault)]
    for turn in zip_longest(*lists):
        yield from (job for job in turn if job is not None)


def _targeted(operator: Operator, dtypes: Sequence[str]) -> list[Job]:
    quick = _ordered(grid(operator, quick=True))
    named = [replace(job, case=msgspec.structs.replace(job.case, dtype=d)) for job in quick for d in dtypes]
    jobs = [*named, *quick, *_ordered(grid(operator))]
    return list({(job.case.key, job.properties): job for job in jobs}.values())


def _ordered(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (job.properties, job.work))
