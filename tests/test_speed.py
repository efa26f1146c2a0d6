"""The chunk-parallel form is worth having: a ratio of two times from one run, never a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from linattest.verify import registry
from linattest.verify.campaign import default_workers
from linattest.verify.environment import environment
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.spec import Operator
from linattest.verify.subjects import run

LEAST = 20
"""How many times faster than the token loop the chunk form of a penalised memory has to be."""

ROUNDS = 5
RECORD = Path(__file__).parents[1] / ".cache" / "speed.json"
"""Where the last comparison is written down."""

PENALISED = [o for o in registry.OPERATORS if {"S", "M"} <= {x.name for x in o.states}]


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
@pytest.mark.parametrize("operator", PENALISED, ids=lambda operator: operator.name)
def test_the_chunk_form_is_twenty_times_as_fast_as_the_token_loop(operator: Operator, benchmark, all_cores: int):
    """B = H = 1, T = 4096, K = V = 64, float32, no gradient; the two take turns, and their best times are compared,
    since whatever else runs on the machine only adds time."""
    case = Case(operator=operator.name, structure=Structure(T=4096, K=64, V=64))
    batch = build(operator, case)
    chunk, loop = (operator.variant(name) for name in ("chunk", operator.reference))
    run(operator, chunk, batch)
    times: dict[str, list[float]] = {chunk.name: [], loop.name: []}
    for _ in range(ROUNDS):
        for variant, repeats in ((chunk, 5), (loop, 1)):
            times[variant.name] += [seconds(lambda v=variant: run(operator, v, batch)) for _ in range(repeats)]
    benchmark.pedantic(run, args=(operator, chunk, batch), rounds=ROUNDS)
    ratio = min(times[loop.name]) / min(times[chunk.name])
    found = {"ratio": ratio, "case": case.describe(), "threads": all_cores, "seconds": times}
    benchmark.extra_info |= found
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(found | {"environment": msgspec.to_builtins(environment())}, indent=2))
    assert ratio >= LEAST, f"{loop.name} takes {ratio:.1f} times as long as {chunk.name}, expected at least {LEAST}"
