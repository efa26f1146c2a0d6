"""``verify`` and ``drift`` on a device: what is not run is said and counted, and a missing GPU is no pass."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from linattest.verify import cli, devices, drift, registry
from linattest.verify.campaign import Earlier, run_campaign
from linattest.verify.commands import verify as command
from linattest.verify.examine import examine
from linattest.verify.executors import InProcess
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.spec import Operator

REGISTERED = registry.operator("gla")
GLA = dataclasses.replace(REGISTERED, variants=tuple(v for v in REGISTERED.variants if not v.kernel))
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def with_kernel(**changes: Any) -> Operator:
    """Gated linear attention whose chunk form passes for a kernel too."""
    kernel = dataclasses.replace(
        GLA.variant("chunk"), name="triton", places=frozenset({"interpreter", "cuda"}), **changes
    )
    return dataclasses.replace(GLA, variants=(*GLA.variants, kernel))


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small operator with a kernel, judged in this process; the interpreter off."""
    operator = with_kernel()
    monkeypatch.setitem(registry.BY_NAME, "gla", operator)
    monkeypatch.setattr(registry, "OPERATORS", (operator,))
    monkeypatch.setenv(devices.SWITCH, "0")

    def a_few(*_: Any, **__: Any) -> list[Job]:
        structures = Structure(T=5, K=3, V=2), Structure(T=600, K=16, V=16)
        return [Job(Case(operator="gla", structure=s, dtype="float32", gradient=False)) for s in structures]

    @contextmanager
    def here(*_: Any) -> Iterator[InProcess]:
        yield InProcess()

    monkeypatch.setattr(command, "grid", a_few)
    monkeypatch.setattr(command, "open_executor", here)


def run(*arguments: str, tmp_path: Path) -> Result:
    return CliRunner().invoke(cli.app, [*arguments, "--failures", str(tmp_path)], env={"COLUMNS": "200"})


@NO_GPU
def test_kernels_are_not_passed_over_in_silence(tmp_path: Path):
    result = run("verify", "gla", tmp_path=tmp_path)
    assert result.exit_code == 0, result.output
    assert "not run: 1 variants (gla triton): needs a GPU (--device cuda), or TRITON_INTERPRET=1" in result.stdout
    found = json.loads(run("verify", "gla", "--json", tmp_path=tmp_path).stdout)
    assert [(x["operator"], x["variant"]) for x in found["left_out"]] == [("gla", "triton")]
    assert {row["variant"] for row in found["worst"]} == {"recurrent", "chunk", "step"} and found["device"] == "cpu"


@NO_GPU
def test_a_named_kernel_runs_in_the_interpreter_on_small_inputs(tmp_path: Path):
    output = tmp_path / "verify.json"
    result = run("verify", "gla", "--variant", "triton", "--output", str(output), tmp_path=tmp_path)
    assert result.exit_code == 0, result.output
    assert devices.interpreting(), "and so it is in the processes that start from here"
    assert f"not run in the interpreter: 1 inputs of T (K + V) heads rows above {devices.INTERPRETED_WORK}" in (
        result.stdout
    )
    found = json.loads(output.read_text())
    assert found["cases"] == 1 and found["too_large"] == 1 and found["left_out"] == []
    assert found["environment"]["interpreted"] and found["environment"]["device"] == "cpu"


def test_where_there_is_a_gpu_a_kernel_is_not_interpreted_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "missing", lambda _: "")
    result = run("verify", "gla", "--variant", "triton", tmp_path=tmp_path)
    assert result.exit_code == 3 and "nothing to run\n" in result.stdout
    assert "--device cuda" in result.stdout and not devices.interpreting()


@pytest.mark.parametrize("name", ["verify", "drift"])
def test_a_device_that_is_not_there_is_exit_code_3_and_a_word_that_is_none_2(name: str):
    invoke = CliRunner().invoke
    missing = invoke(cli.app, [name, "gla", "--device", "cuda:99"])
    assert missing.exit_code == 3 and "cannot run" in missing.output
    for word in ("meta", "gpu", "cuda:x"):
        wrong = invoke(cli.app, [name, "gla", "--device", word], env={"COLUMNS": "200"})
        assert wrong.exit_code == 2 and repr(word) in wrong.output and "--device" in wrong.output


def test_random_cases_on_a_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "missing", lambda _: "")
    result = run("verify", "gla", "--device", "cuda", "--budget", "5", tmp_path=tmp_path)
    assert result.exit_code == 2 and "random cases run on the CPU" in result.output


def test_records_of_another_device_are_made_anew(monkeypatch: pytest.MonkeyPatch):
    job = Job(Case(operator="gla", structure=Structure(T=4, K=2, V=2), dtype="float32", gradient=False))
    records = run_campaign([job], InProcess(), variants=("chunk",)).records
    earlier = Earlier({r.key: r for r in records}, ("chunk",))
    assert earlier.of(job) == records
    monkeypatch.setattr(devices, "name", lambda device: "cpu" if device == "cpu" else "a GPU")
    assert earlier.of(dataclasses.replace(job, device="cuda")) is None
    devices.surroundings.cache_clear()


def test_a_bundle_of_a_gpu_says_so_in_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A failure on "cuda" (here: the CPU under that name) is replayed there."""
    monkeypatch.setitem(registry.BY_NAME, "gla", with_kernel(function="linattest.impls.gla:nothing"))
    monkeypatch.setattr(devices, "name", lambda _: "a GPU")
    job = Job(Case(operator="gla", structure=Structure(T=4, K=2, V=2), gradient=False), device="cuda")
    (record,) = examine(job, ("triton",), tmp_path)
    devices.surroundings.cache_clear()
    assert record.status == "error" and record.replay.startswith("linattest verify --device cuda --replay ")
    assert record.environment is not None and record.environment.device == "a GPU"


def test_kernels_drift_is_measured_against_the_certified_chunk_form(monkeypatch: pytest.MonkeyPatch):
    operator = with_kernel(dtypes=("float32", "bfloat16"))
    assert list(drift.measure_kernels(operator, "cpu", (100,))) == [], "there is no kernel that runs here"
    monkeypatch.setenv(devices.SWITCH, "1")
    found = [row for rows in drift.measure_kernels(operator, "cpu", (100, 300), width=4) for row in rows]
    assert [(r.variant, r.dtype, r.tokens) for r in found] == [
        ("triton", dtype, tokens) for tokens in (100, 300) for dtype in ("bfloat16", "float32")
    ]
    assert all(r.error is not None and r.error < 0.6 and r.truth == "float64" for r in found)
