"""The memory checker: what it is run on, what is read from it, and that one which sees nothing judges nothing."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import devices, registry, sanitizer, small_calls
from linattest.verify.cli import app
from linattest.verify.inputs import Structure
from linattest.verify.sanitizer import Finding, Sanitized

KERNELS = [o for o in registry.OPERATORS if any(v.kernel for v in o.variants)]


def stand_in(folder: Path, body: str) -> Path:
    """A compute-sanitizer that is a script: what follows its options is in ``sys.argv``."""
    path = folder / sanitizer.NAME
    given = "planted, race = '--planted' in sys.argv, 'racecheck' in sys.argv"
    path.write_text(f"#!{sys.executable}\nimport sys\n{given}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


CLEAN = """
if planted:
    print("========= Invalid __global__ write of size 4 bytes\\n========= ERROR SUMMARY: 1 error")
    sys.exit(86)
hazards = "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
print("12 calls\\n========= " + (hazards if race else "ERROR SUMMARY: 0 errors"))
"""
FOUND = CLEAN.replace("ERROR SUMMARY: 0 errors", "ERROR SUMMARY: 3 errors") + "sys.exit(86)"
BLIND = 'print("12 calls\\n========= ERROR SUMMARY: 0 errors")'
DIES = CLEAN.replace("hazards =", 'sys.exit("Traceback: no room")\nhazards =')


def sanitize(monkeypatch: pytest.MonkeyPatch, tool: Path | None, *args: str) -> tuple[int, str]:
    monkeypatch.setattr(devices, "missing", lambda device: "")
    monkeypatch.setattr(sanitizer, "find", lambda: tool)
    result = CliRunner().invoke(app, ["sanitize", "gla", *args])
    return result.exit_code, result.output


@pytest.mark.parametrize(("body", "code", "said"), [
    (CLEAN, 0, "memcheck"), (FOUND, 1, "3 errors"), (BLIND, 3, "it has judged nothing"), (DIES, 1, "no room"),
])  # fmt: skip
def test_what_the_tool_finds_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, code: int, said: str
):
    output = tmp_path / "found.json"
    got, text = sanitize(monkeypatch, stand_in(tmp_path, body), "--quick", "--output", str(output))
    assert (got, said in text) == (code, True), text
    told = msgspec.json.decode(output.read_bytes(), type=Sanitized)
    assert told.sees_planted == (body != BLIND) and len(told.findings) == (0 if body == BLIND else 2)
    assert all(x.clean for x in told.findings) == (code != 1)


def test_without_the_tool_nothing_is_judged(monkeypatch: pytest.MonkeyPatch):
    code, said = sanitize(monkeypatch, None)
    assert code == 3 and "`pip install nvidia-cuda-sanitizer-api`" in said


WRONG = [
    (("--device", "cpu"), "--device is 'cpu', expected cuda or cuda:N"),
    (("--device", "tpu"), "--device is 'tpu', expected cuda or cuda:N"),
    (("--tool", "racecheck", "--tool", "synccheck"), "no tool synccheck; known: memcheck, racecheck"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(x) for x, _ in WRONG])
def test_what_the_tool_cannot_look_at_is_refused_before_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
):
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    monkeypatch.setattr(sanitizer, "find", lambda: pytest.fail("looked for the tool"))
    result = CliRunner().invoke(app, ["sanitize", *arguments])
    assert result.exit_code == 2 and said in result.output, result.output


def test_it_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tool = stand_in(tmp_path, CLEAN)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizer.find() == tool
    assert Finding(tool="memcheck", operator="gla", calls=0, errors=0, seconds=1.0).clean is False  # nothing was run


def test_every_kernel_has_small_calls_in_every_setting():
    for operator in KERNELS:
        made = list(small_calls.calls(operator))
        assert {v.name for v, _ in made} == {v.name for v in operator.variants if v.kernel}
        assert {c.dtype for _, c in made} == set(small_calls.DTYPES)
        assert any(c.structure.cu_seqlens for _, c in made)
        assert 0 < len(list(small_calls.calls(operator, quick=True))) < len(made)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy, of lanes that are masked away
def test_small_calls_run(monkeypatch: pytest.MonkeyPatch):
    """Of one operator, in the interpreter where there is no GPU."""
    monkeypatch.setattr(small_calls, "STRUCTURES", (Structure(T=20, K=7, V=5, H=1),))
    operator = registry.operator("delta_net")
    assert small_calls.make([operator], "cpu", quick=True) == len(list(small_calls.calls(operator, quick=True))) > 1
