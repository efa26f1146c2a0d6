"""What the harness itself costs, as ratios of CPU times inside one run; the chunk form over the token loop is in
test_speed.py."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linattest.verify import oracle, registry
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import ArbContext, Context, MpContext
from linattest.verify.spec import Operator

ROUNDS, PRECISION = 3, 256

LEAST, MOST = 2.0, 60.0
"""Arb's balls are why the oracle is affordable; a whole case, gradients and 32 runs with random rounding included,
costs so many oracles at most (8 to 25 were measured)."""

CASE = Structure(T=24, K=8, V=8)
SOME = [pytest.param(o, id=o.name) for o in registry.OPERATORS if o.states_of()]


def answer(operator: Operator, batch: Batch, context: Context) -> None:
    """The oracle in one context, all heads."""
    within = context.working() if isinstance(context, ArbContext) else contextlib.nullcontext()
    with within:
        for _, _, head in oracle.heads(operator, batch, context):
            operator.oracle(context, head)


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds: what else runs on the machine does not count."""
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.parametrize("operator", SOME)
def test_balls_are_faster_than_mpmath(operator: Operator, benchmark: Any):
    batch = build(operator, Case(operator=operator.name, structure=CASE, dtype="float32"))
    balls, digits = ArbContext(PRECISION), MpContext(PRECISION)
    pairs = [[seconds(lambda c=c: answer(operator, batch, c)) for c in (balls, digits)] for _ in range(ROUNDS)]
    ratio = min(b for _, b in pairs) / min(a for a, _ in pairs)
    benchmark.pedantic(answer, args=(operator, batch, balls), rounds=ROUNDS)
    benchmark.extra_info["mpmath over Arb"] = ratio
    assert ratio >= LEAST, f"mpmath takes {ratio:.1f} times as long as Arb"


@pytest.mark.parametrize("operator", SOME[:3])
def test_a_case_costs_a_bounded_number_of_oracles(
    operator: Operator, benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = Case(operator=operator.name, structure=CASE, dtype="float32")
    batch, job = build(operator, case), Job(case=case)
    examine(job)  # what is imported, and made once
    times: list[tuple[float, float]] = []
    for i in range(ROUNDS):
        monkeypatch.setenv("LINATTEST_CACHE", str(tmp_path / str(i)))  # an oracle that nobody has asked yet
        both = (ArbContext(PRECISION), MpContext(PRECISION))
        times.append((seconds(lambda b=both: [answer(operator, batch, c) for c in b]), seconds(lambda: examine(job))))
    ratio = min(whole for _, whole in times) / min(alone for alone, _ in times)
    benchmark.pedantic(examine, args=(job,), rounds=1)
    benchmark.extra_info["cases a second"] = 1 / min(whole for _, whole in times)
    benchmark.extra_info["case over oracle"] = ratio
    assert ratio <= MOST, f"a case takes {ratio:.0f} times as long as its oracle"
