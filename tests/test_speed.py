"""The chunk-parallel form is worth having: a ratio of two times from one run, never a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch

from linattest.verify import registry
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.spec import Operator
from linattest.verify.subjects import run

LEAST = 20
"""How many times faster than the token loop the chunk form of a penalised memory has to be."""

ROUNDS = 3
PENALISED = [o for o in registry.OPERATORS if {"S", "M"} <= {x.name for x in o.states}]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.parametrize("operator", PENALISED, ids=lambda operator: operator.name)
def test_the_chunk_form_is_twenty_times_as_fast_as_the_token_loop(operator: Operator, benchmark):
    """B = H = 1, T = 4096, K = V = 64, float32, no gradient, one thread; the two take turns, medians are compared.

    The times are taken here, because pytest-benchmark measures nothing under xdist.
    """
    case = Case(operator=operator.name, structure=Structure(T=4096, K=64, V=64))
    batch = build(operator, case)
    chunk, loop = (operator.variant(name) for name in ("chunk", operator.reference))
    assert torch.get_num_threads() == 1
    run(operator, chunk, batch)
    times: dict[str, list[float]] = {chunk.name: [], loop.name: []}
    for _ in range(ROUNDS):
        for variant, repeats in ((chunk, 5), (loop, 1)):
            times[variant.name] += [seconds(lambda v=variant: run(operator, v, batch)) for _ in range(repeats)]
    benchmark.pedantic(run, args=(operator, chunk, batch), rounds=1)
    ratio = statistics.median(times[loop.name]) / statistics.median(times[chunk.name])
    benchmark.extra_info |= {"ratio": ratio, "rounds": ROUNDS, "case": case.describe(), "threads": 1}
    assert ratio >= LEAST, f"{loop.name} takes {ratio:.1f} times as long as {chunk.name}, expected at least {LEAST}"
