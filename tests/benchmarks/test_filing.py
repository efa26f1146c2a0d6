"""Records filed as asv's results: under the right commit, strict, with nulls where something failed."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from asv.results import Results
from typer.testing import CliRunner

from benchmarks import common
from linattest.verify import environment
from linattest.verify.bench import commits, filing, kinds
from linattest.verify.bench.commits import Misfit
from linattest.verify.bench.gpu_records import read_records
from linattest.verify.commands import bench_record
from linattest.verify.commands.bench import bench

Record = dict[str, Any]
MEASURED = ("impls", "kernels", "benchmarks")


@pytest.fixture
def here(repository: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The repository in the place of the checkout."""
    monkeypatch.setattr(bench_record, "CHECKOUT", repository.root)
    return repository


def written(repository: Any, record: Record, name: str = "record.json") -> Path:
    path = repository.root.parent / name
    path.write_text(json.dumps(record))
    return path


def of(repository: Any, record: Record, commit: str) -> Record:
    """The record as if it had been made of that commit."""
    found = commits.resolve(repository.root, commit, ["main", "side"])
    return record | {"commit": commit, "source_hash": commits.source_hash(repository.root, found, MEASURED)}


def invoke(repository: Any, *arguments: str) -> Any:
    results = str(repository.root / "benchmarks" / "results")
    return CliRunner().invoke(bench, ["record", *arguments, "--results", results], env={"COLUMNS": "1000"})


def test_a_record_becomes_a_result_of_asv_beside_its_machine(here: Any, gpu_record: Record):
    commit = here.commits[2]
    done = invoke(here, str(written(here, of(here, gpu_record, commit))), "--json")
    assert done.exit_code == 0, done.output
    [filed] = json.loads(done.stdout)["filed"]
    folder = here.root / "benchmarks" / "results" / filed["machine"]
    assert Path(filed["path"]).parent == folder and Path(filed["path"]).name.startswith(commit[:8])
    result = Results.load(filed["path"], machine_name=filed["machine"])
    assert result.commit_hash == commit and result.params["gpu"] == gpu_record["environment"]["gpu"]
    machine = json.loads((folder / "machine.json").read_text())
    facts = gpu_record["environment"]
    assert {n: machine[n] for n in ("gpu", "driver", "torch", "triton")} == {
        n: str(facts[n]) for n in ("gpu", "driver", "torch", "triton")
    }
    row = next(r for r in gpu_record["timings"] if r["implementation"] == "linattest" and r["graphed"])
    params = result.get_result_params("latency.Latency.track_latency")
    values = result.get_result_value("latency.Latency.track_latency", params)
    asked = [repr(row["direction"]), str(row["tokens"]), "'linattest'"]
    found = [v for place, v in zip(itertools.product(*params), values, strict=True) if all(a in place for a in asked)]
    assert row["ms"] in found
    [kept] = read_records(folder)
    assert kept["commit"] == commit and kept["timings"] == gpu_record["timings"] and kept["verified"]


def test_results_are_strict_json_without_addresses(here: Any, gpu_record: Record):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in a result")

    invoke(here, str(written(here, of(here, gpu_record, here.commits[0]))))
    for path in (here.root / "benchmarks" / "results").rglob("*.json"):
        text = path.read_text()
        json.loads(text, parse_constant=refuse)
        assert "0x" not in text or path.name.startswith("2"), "the record itself has throttle reasons in hexadecimal"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("side", "is not on the first-parent line of main"), ("f" * 40, "no commit"), ("--upload-pack=x", "no commit"),
        ("", "name the one whose sources were measured"),
    ],
)  # fmt: skip
def test_a_commit_that_is_off_the_branch_or_missing_is_refused(here: Any, gpu_record: Record, name: str, said: str):
    commit = here.side if name == "side" else name
    given = [f"--commit={commit}"] if commit else []
    done = invoke(here, str(written(here, of(here, gpu_record, here.side) | {"commit": "abc-dirty"})), *given)
    assert done.exit_code == 2 and said in done.output, done.output
    assert not (here.root / "benchmarks" / "results").exists()


def test_a_record_of_other_sources_is_refused_unless_that_is_wanted(here: Any, gpu_record: Record):
    path = written(here, of(here, gpu_record, here.commits[1]))
    done = invoke(here, str(path), "--commit", here.commits[2])
    assert done.exit_code == 2 and "made of other sources" in done.output
    assert invoke(here, str(path), "--commit", here.commits[2], "--unverified").exit_code == 0
    assert invoke(here, str(path), "--commit", "main~4").exit_code == 0, "the commit whose sources they are"


def test_hashes_are_those_of_the_commands_that_measure(repository: Any, monkeypatch: pytest.MonkeyPatch):
    head = commits.resolve(repository.root, "HEAD", ["main"])
    monkeypatch.setattr(common, "ROOT", repository.root)
    assert commits.source_hash(repository.root, head, MEASURED) == common.source_hash()
    monkeypatch.setattr(environment, "ROOT", repository.root)
    judged = ("impls", "kernels", "verify")
    assert commits.source_hash(repository.root, head, judged) == environment.source_hash.__wrapped__()


def test_what_failed_is_null_and_is_told_once(here: Any, gpu_record: Record):
    record = copy.deepcopy(of(here, gpu_record, here.commits[0]))
    row = next(r for r in record["timings"] if r["implementation"] == "linattest" and r["direction"] == "forward")
    workload, tokens = (row["operator"], row["variant"]), row["tokens"]
    record["timings"] = [
        r
        for r in record["timings"]
        if (r["implementation"], r["direction"], r["tokens"]) != ("linattest", "forward", tokens)
    ]
    at = {"operator": workload[0], "variant": workload[1], "tokens": tokens}
    record["failures"] = [at | {"what": "forward", "error": "RuntimeError: out of memory"}]
    done = invoke(here, str(written(here, record)), "--json")
    [filed] = json.loads(done.stdout)["filed"]
    ours = [at for at, why in filed["failures"].items() if "linattest" in at and "out of memory" in why]
    assert done.exit_code == 0 and len(ours) == 3, filed["failures"]
    values = json.loads(Path(filed["path"]).read_text())["results"]["latency.Latency.track_latency"][0]
    assert None in values and any(values)
    plain = invoke(here, str(written(here, record)))
    assert plain.output.count("out of memory") == 2, "latency and floor, not one line a parameter"


def test_a_red_gate_has_no_time_and_its_error(here: Any, gpu_record: Record):
    record = copy.deepcopy(of(here, gpu_record, here.commits[0]))
    gate = next(g for g in record["gates"] if g["implementation"] == "linattest" and g["direction"] == "forward")
    gate |= {"ok": False, "worst": 7.5, "message": "o is off"}
    record["timings"] = [
        r for r in record["timings"] if r["tokens"] != gate["tokens"] or r["implementation"] != "linattest"
    ]
    [filed] = json.loads(invoke(here, str(written(here, record)), "--json").stdout)["filed"]
    assert any("the gate is red: o is off" in why for why in filed["failures"].values())
    errors = json.loads(Path(filed["path"]).read_text())["results"]["checked.Errors.track_error_ratio"][0]
    assert 7.5 in errors


def test_two_records_of_a_commit_are_one_result(here: Any, gpu_record: Record):
    record = of(here, gpu_record, here.commits[0])
    halves = [copy.deepcopy(record), copy.deepcopy(record)]
    lengths = sorted({row["tokens"] for row in record["timings"]})
    for half, kept in zip(halves, (lengths[:3], lengths[3:]), strict=True):
        for table in ("timings", "gates", "checks"):
            half[table] = [row for row in half[table] if row["tokens"] in kept]
    halves[1]["started"] = "2027-01-01T00:00:00+00:00"
    paths = [written(here, half, f"{i}.json") for i, half in enumerate(halves)]
    whole = written(here, record)
    results = here.root / "whole"
    both = json.loads(invoke(here, *map(str, paths), "--json").stdout)["filed"]
    CliRunner().invoke(bench, ["record", str(whole), "--results", str(results)])
    one = json.loads(next(results.glob("*/*-torch*.json")).read_text())["results"]
    two = json.loads(Path(both[1]["path"]).read_text())["results"]
    name = "latency.Latency.track_latency"
    assert both[0]["path"] == both[1]["path"] and one[name][:2] == two[name][:2]
    assert len(read_records(here.root / "benchmarks" / "results")) == 2


def test_an_object_as_a_parameter_is_refused(repository: Any, monkeypatch: pytest.MonkeyPatch):
    from benchmarks.latency import Floor

    monkeypatch.setattr(Floor, "params", [[object()], *Floor.params[1:]])
    conf = filing.configuration(repository.root, repository.root / "results")
    with pytest.raises(Misfit, match=r"Floor\.track_floor_ratio: parameter operator has a value of type object"):
        filing.discover(conf)


def test_other_repetitions_make_no_number_of_the_series(here: Any, gpu_record: Record):
    record = copy.deepcopy(of(here, gpu_record, here.commits[0]))
    record["settings"]["sampling"] = "one call"
    done = invoke(here, str(written(here, record)))
    assert done.exit_code == 2 and "one call" in done.output


def test_a_checkout_without_branches_of_its_own_goes_by_its_origin(repository: Any):
    commit = repository.commits[2]
    repository.git("update-ref", "refs/remotes/origin/main", "main")
    repository.git("checkout", "-q", "--detach", "main")
    repository.git("branch", "-q", "-D", "main")
    assert commits.resolve(repository.root, commit, ["main"]).hash == commit
    with pytest.raises(Misfit, match="neither a branch 'other' nor origin/other"):
        commits.resolve(repository.root, commit, ["other"])


def test_another_gpu_is_another_machine(here: Any, gpu_record: Record):
    record = of(here, gpu_record, here.commits[0])
    assert invoke(here, str(written(here, record))).exit_code == 0
    other = copy.deepcopy(record)
    other["environment"]["gpu"] = "NVIDIA A100"
    name = kinds.slug(record["environment"]["gpu"])
    done = invoke(here, str(written(here, other)), "--machine", name)
    assert done.exit_code == 2 and "another --machine" in done.output
    assert invoke(here, str(written(here, other))).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "no known command writes"),
        ('{"kind": "gpu_run", "timings": [], "schema": 9}', "schema=9"),
    ],
)
def test_what_is_no_record_is_named(here: Any, text: str, said: str):
    path = here.root / "file.json"
    path.write_text(text)
    done = invoke(here, str(path))
    assert done.exit_code == 2 and said in done.output
    assert invoke(here, str(here.root / "nowhere.json")).exit_code == 2
