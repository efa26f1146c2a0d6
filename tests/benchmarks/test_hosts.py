"""Plain timings that are the host's: one length alone is no slowdown, all of them are; committed runs are quiet."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest

from linattest.verify.bench.compare import HOST, Comparison, compare
from linattest.verify.bench.gpu_records import checked, read_json
from linattest.verify.bench.sides import common, sides

Record = dict[str, Any]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
RUNS = (
    "2026-11-30-162945-31858a38", "2026-11-30-163040-363169ab", "2026-11-30-gla", "2026-11-30-163136-844944e7",
    "2026-11-30-162745-c8fee7d5",
)  # fmt: skip


def compared(a: Record, b: Record) -> Comparison:
    [(left, right)] = common(sides("A", [a]), sides("B", [b]))
    return compare(left, right)


def by_the_host(record: Record, direction: str) -> list[dict[str, Any]]:
    """Our plain timings that take much longer than their graphs."""
    ours = [r for r in record["timings"] if r["implementation"] == "linattest" and r["direction"] == direction]
    graphs = {(r["tokens"], r["l2"]): r["ms"] for r in ours if r["graphed"]}
    return [r for r in ours if not r["graphed"] and r["ms"] > HOST * graphs[r["tokens"], r["l2"]]]


def slowed(record: Record, direction: str, which: slice) -> Record:
    """With some of those 1.8 times as long."""
    record = copy.deepcopy(record)
    for row in by_the_host(record, direction)[which]:
        row["ms"] *= 1.8
        row["samples"] = [1.8 * x for x in row["samples"]]
    return record


def test_one_length_alone_is_the_host_and_all_of_them_are_a_slowdown(gpu_record: Record):
    direction = "forward+backward"
    assert len(by_the_host(gpu_record, direction)) >= 3
    one, every = (compared(gpu_record, slowed(gpu_record, direction, which)) for which in (slice(1), slice(None)))
    assert not one.slower and not one.failed
    assert every.failed and {(t.direction, t.graphed) for t in every.slower} == {(direction, False)}


@pytest.mark.parametrize(("before", "after"), list(itertools.combinations(RUNS, 2)))
def test_runs_between_which_nothing_became_slower_raise_no_alarm(before: str, after: str):
    """Five commits on one kind of machine, each on an instance of its own or after others: only graphs tell gains."""
    a, b = (checked(read_json(path), path) for path in (RESULTS / f"{name}.json" for name in (before, after)))
    found = compared(a, b)
    assert not found.slower and not found.grown and not found.broken and found.told
