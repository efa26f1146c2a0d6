"""Comparisons of runs: a slowdown and a grown error are seen, what did not change is not called slower."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import records
from linattest.verify.bench.compare import Comparison, compare
from linattest.verify.bench.showing import to_json, to_markdown
from linattest.verify.bench.sides import common, find, sides
from linattest.verify.commands.bench import bench
from linattest.verify.environment import environment
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record as Judged

Record = dict[str, Any]
Rerun = Callable[..., Record]


def compared(a: Record, b: Record, **options: Any) -> Comparison:
    [(left, right)] = common(sides("A", [a]), sides("B", [b]))
    return compare(left, right, **options)


def test_five_repeated_runs_give_no_false_alarm(gpu_record: Record, rerun: Rerun):
    for seed in range(5):
        found = compared(gpu_record, rerun(seed))
        assert not found.failed and not any(t.verdict in ("slower", "faster") for t in found.timings), seed
        assert sum(t.verdict == "same" for t in found.timings) >= len(found.timings) / 2


def test_a_slowdown_of_three_tenths_is_seen(gpu_record: Record, rerun: Rerun):
    found = compared(gpu_record, rerun(1, slower=1.3))
    graphed = [t for t in found.timings if t.graphed]
    assert found.failed and all(t.verdict == "slower" for t in graphed)
    assert all(t.low is not None and t.high is not None and t.low < 1.3 < t.high for t in graphed)
    assert not any(t.verdict == "faster" for t in found.timings) and not found.grown


def test_one_slow_timing_among_many_is_seen(gpu_record: Record, rerun: Rerun):
    record = rerun(2)
    row = next(r for r in record["timings"] if r["implementation"] == "linattest" and r["graphed"])
    row["samples"] = [1.3 * x for x in row["samples"]]
    row["ms"] *= 1.3
    found = compared(gpu_record, record)
    assert [(t.direction, t.tokens, t.graphed, t.l2) for t in found.slower] == [
        (row["direction"], row["tokens"], True, row["l2"])
    ]


def test_a_speedup_is_seen_and_fails_nothing(gpu_record: Record, rerun: Rerun):
    found = compared(gpu_record, rerun(3, slower=1 / 1.3))
    assert any(t.verdict == "faster" for t in found.timings) and not found.failed


def test_slow_clocks_are_no_slow_kernels(gpu_record: Record, rerun: Rerun):
    found = compared(gpu_record, rerun(4, drift=1.3))
    assert not found.slower and all(abs(c.shift - 1.3) < 0.02 for c in found.controls)


def test_a_machine_that_is_uneven_widens_the_intervals(gpu_record: Record, rerun: Rerun):
    found = compared(gpu_record, rerun(5, noise=0.2))
    assert not found.slower and sum(t.verdict == "same" for t in found.timings) < 3


def test_without_rivals_nothing_is_known(gpu_record: Record, rerun: Rerun):
    alone = copy.deepcopy(gpu_record)
    alone["timings"] = [r for r in alone["timings"] if r["implementation"] == "linattest"]
    found = compared(alone, rerun(6, slower=1.3))
    assert {t.verdict for t in found.timings} == {"ambiguous"} and all(t.low is None for t in found.timings)
    json.dumps(to_json([found]), allow_nan=False)


def test_an_error_three_times_as_large_is_seen(gpu_record: Record, rerun: Rerun):
    found = compared(gpu_record, rerun(7, error=3))
    assert found.failed and len(found.grown) == len(found.errors) > 0 and not found.slower
    assert not compared(gpu_record, rerun(7, error=1.9)).failed


def test_errors_far_below_a_rounding_are_alike(gpu_record: Record, rerun: Rerun):
    tiny = copy.deepcopy(gpu_record)
    for row in tiny["gates"]:
        row["worst"] = row["worst"] and row["worst"] * 0.001
    grown = copy.deepcopy(tiny)
    for row in grown["gates"]:
        row["worst"] = row["worst"] and row["worst"] * 5
    assert not compared(tiny, grown).failed


def test_a_gate_that_turned_red_and_a_call_that_raises_fail(gpu_record: Record):
    record = copy.deepcopy(gpu_record)
    gate = next(g for g in record["gates"] if g["implementation"] == "linattest" and g["direction"] == "forward")
    gate |= {"ok": False, "message": "o is off"}
    tokens = gate["tokens"]
    record["timings"] = [r for r in record["timings"] if r["tokens"] != tokens or r["direction"] == "decode"]
    common_row = {"operator": gate["operator"], "variant": gate["variant"], "tokens": tokens}
    record["failures"].append(common_row | {"what": "forward+backward", "error": "RuntimeError: out of memory"})
    found = compared(gpu_record, record)
    assert [g.why for g in found.grown] == ["the gate is red: o is off"]
    assert [text.rpartition(": ")[2] for text in found.broken] == ["out of memory"]
    assert found.gone, "what the red gate kept from being timed"


def test_a_rivals_failure_breaks_nothing_of_ours(gpu_record: Record):
    record = copy.deepcopy(gpu_record)
    row = next(r for r in record["timings"] if r["implementation"] == "linattest")
    record["timings"] = [r for r in record["timings"] if r["implementation"] != "linattest"]
    record["failures"] = [
        {"operator": row["operator"], "variant": row["variant"], "what": what, "tokens": row["tokens"], "error": "x"}
        for what in ("softmax:flash", f"gate of fla:f, {row['direction']}", "graph of fla:f, forward")
    ]
    assert not compared(gpu_record, record).broken


def test_a_peak_of_memory_that_grew_is_seen(gpu_record: Record, rerun: Rerun):
    record = rerun(8)
    row = next(c for c in record["checks"] if c["what"] == "peak memory, forward")
    row["value"] = row["value"] | {"peak": 2 * row["value"]["peak"]}
    assert [g.why for g in compared(gpu_record, record).grown] == ["the peak of memory grew"]


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, gpu_record: Record, rerun: Rerun) -> dict[str, str]:
    made = {"a": gpu_record, "same": rerun(0), "slow": rerun(1, slower=1.3), "wrong": rerun(2, error=3)}
    other = copy.deepcopy(gpu_record)
    other["environment"]["gpu"] = "NVIDIA A100"
    more = copy.deepcopy(gpu_record)
    more["settings"]["sampling"] = "blocks of 200 ms"
    for name, record in (made | {"other": other, "more": more}).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    (tmp_path / "torn.json").write_text("{")
    return {name: str(tmp_path / f"{name}.json") for name in (*made, "other", "more", "torn", "none")}


@pytest.mark.parametrize(
    ("b", "status", "said"),
    [
        ("same", 0, "same"), ("slow", 1, "slower"), ("wrong", 1, "the error grew"), ("other", 2, "nothing in common"),
        ("more", 2, "nothing in common"), ("torn", 2, "no JSON"), ("none", 2, "neither a file nor a commit"),
    ],
)  # fmt: skip
def test_exit_codes_and_what_is_said(files: dict[str, str], b: str, status: int, said: str):
    done = CliRunner().invoke(bench, ["compare", files["a"], files[b]], env={"COLUMNS": "500"})
    assert done.exit_code == status and said in done.output, done.output


def test_one_json_object_and_a_comment(files: dict[str, str], tmp_path: Path):
    comment = tmp_path / "comment.md"
    done = CliRunner().invoke(bench, ["compare", files["a"], files["slow"], "--json", "--markdown", str(comment)])
    said = json.loads(done.stdout)
    assert done.exit_code == 1 and said["failed"] and set(said) == {"schema", "failed", "comparisons"}
    [one] = said["comparisons"]
    assert one["counts"]["slower"] > 20 and {"shift", "spread", "count"} <= set(one["controls"][0])
    rows = [line for line in comment.read_text().splitlines() if line.endswith("| slower |")]
    assert len(rows) == one["counts"]["slower"]


def test_a_table_fits_a_terminal(files: dict[str, str]):
    done = CliRunner().invoke(bench, ["compare", files["a"], files["slow"], "--all"], env={"COLUMNS": "80"})
    assert "…" not in done.output


def test_commits_are_found_by_the_beginning_of_a_hash(tmp_path: Path, gpu_record: Record, rerun: Rerun):
    for i, commit in enumerate(("a" * 40, "ab" * 20, "a" * 40)):
        record = rerun(i) | {"commit": commit, "started": f"2026-01-0{i + 1}"}
        (tmp_path / f"{i}.json").write_text(json.dumps(record))
    assert len(find("aaaaaaa", tmp_path)) == 2 and len(find("abababab", tmp_path)) == 1
    for wrong in ("abcdefa", "HEAD", "ab"):
        with pytest.raises(ValueError, match=wrong):
            find(wrong, tmp_path)
    [(_, right)] = common(sides("A", [gpu_record]), sides("B", find("aaaaaaa", tmp_path)))
    assert right.started == ["2026-01-01", "2026-01-03"]
    assert f"B is B, {'a' * 40}." in to_markdown([compare(right, right)])


def test_a_dirty_record_is_no_records_commit(tmp_path: Path, gpu_record: Record):
    (tmp_path / "a.json").write_text(json.dumps(gpu_record | {"commit": "a" * 40 + "-dirty"}))
    with pytest.raises(ValueError, match="1 more of sources that no commit has"):
        find("aaaaaaa", tmp_path)


# --- numerics without a GPU ----------------------------------------------------------------------------------------


def judged(path: Path, ratio: float = 3.0, **changed: Any) -> str:
    """Records as `check --records` writes them, of one function in two dtypes, one of them with another ratio."""
    case = Case(operator="gla", structure=Structure(T=5, K=2, V=2))
    made = [
        Judged(case=msgspec.structs.replace(case, dtype=dtype), variant="given-f", direction="forward", what="o",
                status="pass", ratio=r, environment=environment())
        for dtype, r in (("float32", 2.5), ("bfloat16", 9.0), ("bfloat16", ratio))
    ]  # fmt: skip
    made.append(msgspec.structs.replace(made[0], **({"direction": "property", "what": "causality"} | changed)))
    records.append(path, made)
    return str(path)


@pytest.mark.parametrize(
    ("ratio", "changed", "status", "said"),
    [
        (9.5, {}, 0, "errors compared"), (27.0, {}, 1, "the error grew (0.3 to 0.9)"),
        (9.0, {"status": "fail", "message": "the future is seen"}, 1, "the gate is red: the future is seen"),
    ],
)  # fmt: skip
def test_errors_of_a_function_are_compared_without_a_gpu(
    tmp_path: Path, ratio: float, changed: Any, status: int, said: str
):
    a, b = judged(tmp_path / "a.jsonl"), judged(tmp_path / "b.jsonl", ratio, **changed)
    done = CliRunner().invoke(bench, ["compare", a, b], env={"COLUMNS": "500"})
    assert done.exit_code == status and said in done.output, done.output
    (tmp_path / "none.jsonl").write_text("")
    assert CliRunner().invoke(bench, ["compare", a, str(tmp_path / "none.jsonl")]).exit_code == 2
