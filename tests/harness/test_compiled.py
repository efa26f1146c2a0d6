"""The compile record: what is compared, what fails, and that a spill of a real kernel is seen without a GPU."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from linattest.verify import compiled, registry
from linattest.verify.commands import compile as command
from linattest.verify.compiled import Build, Compiled, compare, encode, numbered, read, update
from linattest.verify.compiled_builds import SHARED_LIMIT, build_all
from linattest.verify.compiled_calls import calls, plans_of
from linattest.verify.executors import local_executor


def build(**changes: Any) -> Build:
    plain: dict[str, Any] = {"name": "gla._f", "call": "gla.chunk", "arch": 90, "config": "BV=64", "registers": 100}
    return Build(**(plain | changes))


def record(*builds: Build, triton: str = "3.9.0") -> Compiled:
    return Compiled(triton=triton, kernels=list(builds))


def verdicts(old: Compiled | None, new: Compiled, *, whole: bool = False) -> list[tuple[bool, str]]:
    return [(f.fails, f.message) for f in compare(old, new, SHARED_LIMIT, whole)]


EXCUSED = build(spills=100, reason="a lane of zeros")


@pytest.mark.parametrize(
    ("old", "new", "fails", "said"),
    [
        (build(), build(spills=8), True, "spills 8 bytes, and did not"),
        (build(spills=8), build(spills=8), True, "gives no reason"),
        (EXCUSED, build(spills=121), True, "spills grew from 100 to 121"),
        (EXCUSED, build(), False, "spills no more"),
        (build(), build(registers=121), True, "registers grew from 100 to 121"),
        (build(shared=1000), build(shared=1201, config="BV=128"), True, "(BV=64 -> BV=128)"),
        (build(), build(error="CompilationError: no"), True, "does not compile"),
        (build(), build(shared=232_449), True, "232449 bytes of shared memory, at most 232448"),
        (build(arch=80), build(arch=80, shared=166_913), True, "at most 166912"),
        (None, build(), False, "not in the record"),
    ],
)
def test_is_found(old: Build | None, new: Build, fails: bool, said: str):
    (verdict,) = verdicts(record(old) if old else None, record(new))
    assert verdict[0] == fails and said in verdict[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [(build(), build(registers=120)), (EXCUSED, EXCUSED), (build(shared=8), build()), (build(), build(stack=64))],
)
def test_is_as_it_was(old: Build, new: Build):
    assert verdicts(record(old), record(new)) == []


def test_new_spill_fails_without_a_record():
    assert [fails for fails, _ in verdicts(None, record(build(spills=8)))] == [True, False]


def test_another_triton_is_told_and_does_not_fail():
    found = verdicts(record(build(), triton="3.8.0"), record(build(registers=200, spills=8)))
    assert len(found) == 2 and not any(fails for fails, _ in found)


def test_what_is_compiled_no_more_is_told_by_a_whole_run_alone():
    assert verdicts(record(build(), build(arch=80)), record(build())) == []
    assert verdicts(record(build(), build(arch=80)), record(build()), whole=True) == [
        (False, "in the record, and compiled by no call")
    ]


def test_update_keeps_reasons_and_what_was_not_made():
    old = record(EXCUSED, build(arch=80), build(arch=100, spills=4, reason="rare"))
    new = record(build(spills=90), build(arch=100), build(name="x", error="no"))
    after = update(old, new, whole=False)
    assert [(b.arch, b.spills, b.reason) for b in after.kernels] == [
        (80, 0, ""),
        (90, 90, EXCUSED.reason),
        (100, 0, ""),
    ]
    assert [b.arch for b in update(old, new, whole=True).kernels] == [90, 100]
    with pytest.raises(ValueError, match="compile everything"):
        update(record(build(), triton="3.8.0"), new, whole=False)


def test_record_is_strict_json_and_comes_back(tmp_path: Path):
    old = record(build(seconds=1.5, instructions={"HGMMA": 4}), EXCUSED)
    (tmp_path / "r.json").write_text(encode(old))
    assert read(tmp_path / "r.json") == old and read(tmp_path / "none.json") is None
    (tmp_path / "r.json").write_text(encode(old).replace('"schema": 1', '"schema": 9'))
    with pytest.raises(ValueError, match="not a compile record of schema 1"):
        read(tmp_path / "r.json")


def test_builds_of_one_call_with_other_constants_have_keys_of_their_own():
    names = [b.name for b in numbered([build(config="b"), build(config="a"), build(arch=80)])]
    assert names == ["gla._f", "gla._f", "gla._f#2"]


def test_the_committed_record_is_one():
    assert compiled.PATH.parent.is_dir()
    read()


PLANTED = """
import torch, triton
import triton.language as tl
from linattest.kernels import launch
from linattest.verify.compiled_calls import collect

@triton.jit
def square(x, o, C: tl.constexpr):
    i = tl.arange(0, C)
    tile = tl.load(x + i[:, None] * C + i[None, :])
    tl.store(o + i[:, None] * C + i[None, :], tl.dot(tile, tile))

@triton.jit
def wide(x, o, C: tl.constexpr):
    i = tl.arange(0, C)
    tile = tl.load(x + i[:, None] * C + i[None, :]).to(tl.float32)
    tl.store(o + i[:, None] * C + i[None, :], tile - tl.sum(tl.sum(tile, 0), 0))

@triton.jit
def broken(x, o, C: tl.constexpr):
    tl.store(o, tl.load(x) + missing)

def plans():
    x, o = torch.empty(64, 64, device="meta", dtype=torch.float16), torch.empty(64, 64, device="meta")
    def call():
        config = launch.Config(0, 4, 1)
        launch.run(square, 1, x, o, config=config, C=64)
        launch.run(square, 1, x, o, config=config, C=64)
        launch.run(wide, 1, x, o, config=config, C=128, maxnreg=32)
        launch.run(broken, 1, x, o, config=config, C=64)
    return collect(call, "planted", 90)
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Build], list[Any]]:
    """Plans and builds of a kernel as it is, of one with too few registers, and of one that has a mistake; plans of
    the first call of our own kernels."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted_kernels.py").write_text(PLANTED)
    with pytest.MonkeyPatch.context() as patch, local_executor(1) as executor:
        patch.syspath_prepend(folder)
        patch.setenv("TRITON_INTERPRET", "0")
        plans = executor.submit(importlib.import_module("planted_kernels").plans).result()
        del sys.modules["planted_kernels"]
        ours = executor.submit(plans_of, calls(quick=True)[0], 90).result() if calls() else []
        return plans, list(build_all(executor, plans)), ours


def test_registers_spills_and_instructions_are_read_without_a_gpu(planted):
    plans, builds, _ = planted
    assert len(plans) == 3, "equal launches are one build"
    made = {b.name.partition(".")[2]: b for b in builds}
    good, tight, broken = made["square"], made["wide"], made["broken"]
    assert not good.error and not good.spills and 32 < good.registers <= 255 and good.shared and good.seconds
    assert good.instructions["HGMMA"] and "STL" not in good.instructions
    assert tight.registers <= 32 and tight.spills > 0 and tight.instructions["STL"]
    assert "missing" in broken.error


def test_our_kernels_are_planned_as_they_would_be_launched(planted):
    for plan in planted[2]:
        assert plan.arch == 90 and plan.options["num_warps"] in (1, 2, 4, 8) and plan.call.endswith("bfloat16 128x128")
        assert plan.kernel.startswith("linattest.kernels.")


def test_calls_cover_every_kernel_variant_and_are_told_apart():
    kernels = {v.function for o in registry.OPERATORS for v in o.variants if "linattest.kernels." in v.function}
    known = [(call.function, call.label, call.structure.T) for call in calls()]
    assert kernels <= {function for function, *_ in known} and len(known) == len(set(known))
    assert {call.function for call in calls(quick=True)} == {call.function for call in calls()}


def test_command_fails_on_a_planted_spill_until_the_record_says_why(planted, tmp_path: Path, monkeypatch):
    plans = [plan for plan in planted[0] if plan.options["maxnreg"]]
    (spilling,) = numbered(b for b in planted[1] if b.spills)
    monkeypatch.setattr(command, "plan_all", lambda *_: (plans, []))
    monkeypatch.setattr(command, "build_all", lambda *_: [spilling])
    app, path = typer.Typer(), tmp_path / "record.json"
    app.command()(command.compile)

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        answer = CliRunner().invoke(app, ["--json", "--workers", "1", "--record", str(path), *options])
        return answer.exit_code, json.loads(answer.stdout)

    status, said = run()
    assert status == 1 and said["kernels"][0]["spills"] > 0 and said["findings"][0]["fails"]
    assert run("--update")[0] == 1, "a record without a reason is no excuse"
    old = read(path)
    assert old is not None
    why = [msgspec.structs.replace(b, reason="planted") for b in old.kernels]
    path.write_text(encode(Compiled(triton=old.triton, kernels=why)))
    assert run()[0] == 0
    assert CliRunner().invoke(app, ["nonsense", "--record", str(path)]).exit_code == 2
