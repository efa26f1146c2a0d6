"""The chunk-parallel form is worth having: a ratio of two times from one run, never a time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from linattest.verify import registry
from linattest.verify.environment import environment
from linattest.verify.executors import default_workers
from linattest.verify.grids import settings
from linattest.verify.inputs import Case, Scalar, Structure, build
from linattest.verify.spec import Operator
from linattest.verify.subjects import run

ROUNDS, PATIENCE = 3, 90.0
"""Rounds that are timed; on a busy machine more, for so many seconds, until both have once run undisturbed. (Neighbours
on the same processor take from the chunk form, which works all cores, more than from the loop, which waits for Python.)
"""

RECORD = Path(__file__).parents[1] / ".cache" / "speed.jsonl"
"""Where comparisons are written down, one a line."""

SHAPING = {"gate", "backbone", "delta"}
"""Options and axes that change how much a token costs."""

COMPARED = [
    pytest.param(o, options, id="-".join([o.name, *map(str, options.values())]))
    for o in registry.OPERATORS
    if o.states_of()
    for options in settings(o)
    if set(options) <= SHAPING
]


def least(options: dict[str, Scalar]) -> int:
    """How many times as fast as the token loop a chunk form has to be; a gate per channel costs it more."""
    return 4 if options.get("gate") == "channel" else 20


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.fixture
def all_cores() -> Iterator[int]:
    """The threads that a user has by default; the suite runs on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(default_workers())
    yield torch.get_num_threads()
    torch.set_num_threads(before)


@pytest.mark.serial
@pytest.mark.parametrize(("operator", "options"), COMPARED)
def test_the_chunk_form_is_many_times_as_fast_as_the_token_loop(
    operator: Operator, options: dict[str, Scalar], benchmark, all_cores: int
):
    """B = H = 1, T = 4096, K = V = 64, float32, no gradient; the two take turns, and their best times are compared,
    since whatever else runs on the machine only adds time. A chunk form that is too slow is so in every round."""
    case = Case(operator=operator.name, structure=Structure(T=4096, K=64, V=64), options=options)
    batch = build(operator, case)
    chunk, loop = (operator.variant(name) for name in ("chunk", operator.reference))
    run(operator, chunk, batch)
    times: dict[str, list[float]] = {chunk.name: [], loop.name: []}
    ratio = 0.0
    begun, done = time.perf_counter(), 0
    while done < ROUNDS or (ratio < least(options) and time.perf_counter() - begun < PATIENCE):
        done += 1
        for variant, repeats in ((chunk, 5), (loop, 1)):
            times[variant.name] += [seconds(lambda v=variant: run(operator, v, batch)) for _ in range(repeats)]
        ratio = min(times[loop.name]) / min(times[chunk.name])
    benchmark.pedantic(run, args=(operator, chunk, batch), rounds=ROUNDS)
    found = {"ratio": ratio, "case": f"{operator.name} {case.describe()}", "threads": all_cores, "seconds": times}
    benchmark.extra_info |= found
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.open("a") as file:
        file.write(json.dumps(found | {"environment": msgspec.to_builtins(environment())}) + "\n")
    slowed = f" (MKL_CBWR={x}: time it alone, -m serial)" if (x := os.environ.get("MKL_CBWR")) else ""
    assert ratio >= least(options), f"{loop.name} takes {ratio:.1f} times as long as {chunk.name}{slowed}"
