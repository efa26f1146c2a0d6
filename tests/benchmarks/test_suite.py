"""The suite: parameters from the registry, every kind of record looked up, and what `linattest bench run` measures."""

import copy
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks import base, harness, latency
from benchmarks.workloads import WORKLOADS
from linattest.verify import compiled, registry
from linattest.verify.bench import commits, filing, kinds
from linattest.verify.bench.paths import CHECKOUT
from linattest.verify.claims.verdicts import WORDS
from linattest.verify.commands import bench_record
from linattest.verify.commands.bench import bench
from linattest.verify.environment import environment

Record = dict[str, Any]

TRACKED = {
    "track_latency", "track_crossover", "track_crossover_low", "track_crossover_high", "track_floor_ratio",
    "track_peak_memory", "track_error_ratio", "track_detection", "track_registers", "track_spills",
    "track_compile_seconds", "track_claims",
}  # fmt: skip


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return filing.discover(filing.configuration(CHECKOUT, tmp_path_factory.mktemp("results")))


def asked(suite: list[Any], name: str, content: Any) -> dict[tuple[Any, ...], float | None]:
    """What a benchmark says of a record, by its parameters."""
    benchmark = next(b for b in suite if b.name == name)
    answer = filing.ask(benchmark, benchmark.func.__self__.read(content))
    places = list(itertools.product(*benchmark._params))
    return {places[i]: x for i, x in answer.values.items()}


def test_every_number_is_tracked_with_parameters_of_the_registry(suite: list[Any]):
    assert {b.name.rpartition(".")[2] for b in suite} == TRACKED
    assert [w.name for w in WORKLOADS] == base.OPERATORS
    assert set(harness.Ratios.params[0]) == {o.name for o in registry.OPERATORS}
    kernels = {o.name for o in registry.OPERATORS if any(v.kernel for v in o.variants)}
    assert set(harness.Builds.params[0]) == kernels
    assert all(b.func.__self__.kind in kinds.KINDS for b in suite)


def test_a_version_says_the_sampling(suite: list[Any]):
    versions = {b.name: b.version for b in suite}
    assert "21 rounds, about 0.4 s" in versions["latency.Latency.track_latency"]
    assert "about 0.02 s" in versions["latency.CPU.track_latency"]
    assert not any(re.fullmatch("[0-9a-f]{64}", version) for version in versions.values()), "a hash of its source alone"


def test_a_crossover_beyond_what_was_measured_is_no_failure(gpu_record: Record, suite: list[Any]):
    record = copy.deepcopy(gpu_record)
    for row in record["timings"]:
        if row["implementation"] == "linattest":
            row["samples"] = [1e4 * x for x in row["samples"]]
    found = next(b for b in suite if b.name == "latency.Crossover.track_crossover")
    answer = filing.ask(found, latency.Crossover.read(record))
    assert set(answer.values.values()) == {None} and not answer.failures


def test_a_selftest_claims_and_a_snapshot_are_looked_up(suite: list[Any]):
    tried = {"planted": 8, "caught": 6, "interrupted": False}
    assert asked(suite, "harness.Detection.track_detection", tried) == {(): 75.0}
    assert asked(suite, "harness.Detection.track_detection", tried | {"interrupted": True}) == {(): None}
    counts = dict.fromkeys(WORDS, 2) | {"different": 1, "errors": 0}
    assert asked(suite, "harness.Claims.track_claims", {"counts": counts})[("different",)] == 1
    rows = [
        {"operator": "gla", "variant": "chunk", "dtype": "float32", "direction": "forward", "measured": x}
        for x in (2.5, 7.5)
    ]
    found = asked(suite, "harness.Ratios.track_error_ratio", {"entries": rows})
    assert found == {("gla", "chunk", "float32", "forward"): 7.5}


def test_a_compile_record_is_looked_up_and_filed(suite: list[Any], repository: Any, monkeypatch: pytest.MonkeyPatch):
    content = json.loads(compiled.PATH.read_text())
    found = asked(suite, "harness.Builds.track_registers", content)
    builds = msgspec.json.decode(compiled.PATH.read_bytes(), type=compiled.Compiled).kernels
    (operator, function, arch), value = next(iter(found.items()))
    calls = (f"{operator}.{function} bfloat16 128x128", f"{operator}.{function} bfloat16 128x128 ")
    here = [b.registers for b in builds if b.arch == arch and (b.call == calls[0] or b.call.startswith(calls[1]))]
    assert value == max(here)
    broken = {"kernels": [content["kernels"][0] | {"error": "ptxas"}]}
    assert set(asked(suite, "harness.Builds.track_spills", broken).values()) == {None}
    monkeypatch.setattr(bench_record, "CHECKOUT", repository.root)
    path = repository.root / "results"
    given = ["record", str(compiled.PATH), "--commit", "main", "--results", str(path)]
    assert CliRunner().invoke(bench, given).exit_code == 0
    assert list(path.glob("compiler/*-triton*.json"))


def test_each_kind_is_told_apart(tmp_path: Path):
    here = msgspec.to_builtins(environment())
    contents = {
        "selftest": {"planted": 1, "caught": 1, "environment": here}, "compiled": {"triton": "3", "kernels": []},
        "claims": {"claims": [], "counts": {}, "environment": here},
        "snapshot": {"entries": [], "made": {}, "fingerprint": {"device": "cpu", "arch": "x", "cpu": "y", "torch": "1",
                                                                "triton": None}},
    }  # fmt: skip
    for kind, content in contents.items():
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps(content | {"schema": 1}))
        assert kinds.read(path).kind == kind


def test_a_run_without_a_gpu_measures_the_part_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a checkout with changes, as this one may be: kept, and filed under no commit."""
    monkeypatch.setattr(bench_record, "SCRATCH", tmp_path)
    monkeypatch.setattr(bench_record.torch.cuda, "is_available", lambda: False)
    given = ["run", "--operator", "linear", "--stage", "forward", "--commit", "abc-dirty"]
    done = CliRunner().invoke(bench, given, env={"COLUMNS": "1000"})
    assert done.exit_code == 0 and "filed under no commit" in done.output, done.output
    [path] = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["settings"]["quick"] and {r["operator"] for r in record["timings"]} == {"linear"}
    values = latency.CPU.read(record).timings
    assert {key[-1] for key in values} == {"linattest", "softmax"}


@pytest.mark.parametrize("status", [0, 1, 3, 130])
def test_a_run_on_a_gpu_is_filed_under_its_commit(
    status: int, gpu_record: Record, repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also with a red gate (1); not where nothing was measured (3), nor what was interrupted (130)."""
    head = commits.resolve(repository.root, "HEAD", ["main"])
    measured = commits.source_hash(repository.root, head, ("impls", "kernels", "benchmarks"))
    seen: list[str] = []

    def measure(arguments: list[str]) -> int:
        seen.extend(arguments)
        record = gpu_record | {"commit": head.hash, "source_hash": measured}
        Path(arguments[arguments.index("--output") + 1]).write_text(json.dumps(record))
        return status

    monkeypatch.setattr(bench_record, "_measure", measure)
    monkeypatch.setattr(bench_record, "CHECKOUT", repository.root)
    (repository.root / "benchmarks" / "gpu_run.py").touch()
    given = ["run", "--device", "cuda", "--length", "4096", "--budget", "60", "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(bench, given)
    assert done.exit_code == status, done.output
    assert seen[:4] == ["--lengths", "4096", "--budget", "60.0"] and "--quick" not in seen
    assert bool(list(tmp_path.glob("results/*/*-torch*.json"))) == (status < 2)


def test_without_asv_the_commands_say_what_is_missing(gpu_record: Record, tmp_path: Path, monkeypatch):
    (tmp_path / "record.json").write_text(json.dumps(gpu_record))
    for module in ("filing", "site"):
        monkeypatch.setitem(sys.modules, f"linattest.verify.bench.{module}", None)
    for given in (["record", str(tmp_path / "record.json")], ["publish", "--results", str(tmp_path)]):
        done = CliRunner().invoke(bench, given)
        assert done.exit_code == 3 and "pip install" in done.output


def test_a_run_that_no_commit_has_is_kept(gpu_record: Record, tmp_path: Path, repository: Any, monkeypatch):
    """Of a branch that is not published, say: what was measured is not lost."""

    def measure(arguments: list[str]) -> int:
        Path(arguments[arguments.index("--output") + 1]).write_text(
            json.dumps(gpu_record | {"commit": repository.side})
        )
        return 0

    monkeypatch.setattr(bench_record, "_measure", measure)
    monkeypatch.setattr(bench_record, "CHECKOUT", repository.root)
    monkeypatch.setattr(bench_record, "SCRATCH", tmp_path / "kept")
    (repository.root / "benchmarks" / "gpu_run.py").touch()
    given = ["run", "--device", "cuda", "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(bench, given, env={"COLUMNS": "1000"})
    assert done.exit_code == 0 and "filed under no commit: commit" in done.output, done.output
    [path] = (tmp_path / "kept").glob("*.json")
    assert json.loads(path.read_text())["timings"] == gpu_record["timings"]


@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("LINATTEST_PROFILE") != "nightly", reason="starts dozens of processes: nightly")
def test_asv_itself_runs_the_suite(tmp_path: Path, gpu_record: Record, repository: Any):
    """With an existing environment and a hash, asv writes a result that has the numbers of ``bench record``."""
    record = tmp_path / "record.json"
    record.write_text(json.dumps(gpu_record))
    conf = vars(filing.configuration(CHECKOUT, tmp_path / "results")) | {"version": 1, "repo": str(repository.root)}
    (tmp_path / "asv.conf.json").write_text(json.dumps({k: v for k, v in conf.items() if v is not None}))
    workload = "-".join(filter(None, (gpu_record["timings"][0][n] for n in ("operator", "variant"))))
    asv = [sys.executable, "-m", "asv", "--config", str(tmp_path / "asv.conf.json")]
    here = os.environ | {"HOME": str(tmp_path), base.RECORD: str(record)}
    subprocess.run([*asv, "machine", "--yes", "--machine", "m"], env=here, check=True, capture_output=True)
    which = rf"Memory.*\({workload!r}, 'forward', .*bfloat16"
    run = ["run", "--python=same", "--machine", "m", "--set-commit-hash", "main", "--bench", which]
    subprocess.run([*asv, *run], env=here, check=True, capture_output=True)
    [path] = tmp_path.glob("results/m/*-existing*.json")
    values = json.loads(path.read_text())["results"]["checked.Memory.track_peak_memory"][0]
    peaks = {c["value"]["peak"] for c in gpu_record["checks"] if c["what"] == "peak memory, forward"}
    assert peaks == {x for x in values if x is not None and x == x}
