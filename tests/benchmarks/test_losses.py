"""A comparison says what B lost beside time: checks, gates, measurements; and when it can tell nothing at all."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.verify.bench.compare import Comparison, compare
from linattest.verify.bench.showing import notes, to_markdown
from linattest.verify.bench.sides import common, sides
from linattest.verify.commands.bench import bench

Record = dict[str, Any]


def compared(a: Record, b: Record) -> Comparison:
    [(left, right)] = common(sides("A", [a]), sides("B", [b]))
    return compare(left, right)


def _red(what: str) -> Callable[[Record], None]:
    def spoil(record: Record) -> None:
        rows = [row for row in record["checks"] if row["what"] == what]
        assert rows
        for row in rows:
            row["ok"] = False

    return spoil


def _without_gates(record: Record) -> None:
    record["gates"] = []


def _raised(record: Record) -> None:
    """All checks at a length, as gpu_run has it where they raise."""
    gone = [row for row in record["checks"] if row["tokens"] == 4096 and row["what"] != "first call"]
    record["checks"] = [row for row in record["checks"] if row not in gone]
    place = {name: gone[0][name] for name in ("operator", "variant")}
    failure = place | {"what": "checks", "tokens": 4096, "error": "RuntimeError: CUDA error"}
    record["failures"] = [*record["failures"], failure]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(_red("no synchronisation"), "no synchronisation"), (_red("equal bits in 20 runs"), "equal bits in 20 runs"),
     (_red("equal bits in a graph"), "equal bits in a graph"), (_red("first call"), "first call"),
     (_without_gates, "timed without a gate"), (_raised, "RuntimeError: CUDA error")],
    ids=["sync", "bits", "graph", "first call", "no gates", "raised"],
)  # fmt: skip
def test_what_passed_and_does_not_any_more_fails(gpu_record: Record, spoil: Callable[[Record], None], said: str):
    record = copy.deepcopy(gpu_record)
    spoil(record)
    found = compared(gpu_record, record)
    assert found.failed and found.broken and all(said in text for text in found.broken)
    assert said in to_markdown([found]) and not compared(gpu_record, gpu_record).failed


def test_what_was_not_tried_is_named_and_fails_nothing(gpu_record: Record):
    record = copy.deepcopy(gpu_record)
    record["checks"] = [row for row in record["checks"] if not row["what"].startswith("peak memory")]
    found = compared(gpu_record, record)
    assert not found.failed and any("peak memory, forward" in text for text in found.gone)
    assert any("not tried in B" in line and "peak memory" in line for line in notes(found))


def test_a_first_call_that_takes_longer_is_told(gpu_record: Record):
    record = copy.deepcopy(gpu_record)
    row = next(row for row in record["checks"] if row["what"] == "first call")
    row["value"] = {direction: 2 * seconds for direction, seconds in row["value"].items()}
    found = compared(gpu_record, record)
    assert len(found.slow_starts) == len(row["value"]) and not found.failed
    assert any("longer to the first result" in line for line in notes(found))
    assert compared(gpu_record, gpu_record).slow_starts == []


def _keep(prefix: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: str(row["implementation"]).startswith(prefix)


@pytest.mark.parametrize("prefix", ["linattest", "softmax:"], ids=["no rivals", "none of ours"])
def test_where_nothing_can_be_told_the_exit_code_is_no_pass(gpu_record: Record, tmp_path: Path, prefix: str):
    record = copy.deepcopy(gpu_record)
    record["timings"] = [row for row in record["timings"] if _keep(prefix)(row)]
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, content in zip(paths, (gpu_record, record), strict=True):
        path.write_text(json.dumps(content))
    done = CliRunner().invoke(bench, ["compare", *map(str, paths)])
    assert done.exit_code == 3 and "nothing could be told" in done.output
    assert CliRunner().invoke(bench, ["compare", str(paths[0]), str(paths[0])]).exit_code == 0


def test_it_is_said_how_large_a_slowdown_must_be_to_be_told(gpu_record: Record):
    found = compared(gpu_record, gpu_record)
    least, most = found.seen[0][0], found.seen[-1][0]
    assert found.factor < least < most
    [line] = [line for line in notes(found) if "a slowdown is told" in line]
    assert f"{most:.2f} for all" in line
