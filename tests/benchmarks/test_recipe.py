"""The recipe for other projects' CI: its commands, run as they stand in the file on a small project."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from benchmarks import gpu_run
from linattest.verify.cli import app

CHECKOUT = Path(__file__).parents[2]
RECIPE = CHECKOUT / "benchmarks" / "recipes" / "github.yml"

RIGHT = """
import torch


def attend(q, k, v):
    T = q.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, k).float().tril() * q.shape[-1] ** -0.5
    return torch.einsum("bhts,bshv->bthv", scores, v.float()).to(v.dtype)
"""


def commands(name: str) -> str:
    """The commands of a step."""
    text = RECIPE.read_text().partition(f"- name: {name}\n")[2]
    body = re.split(r"\n +- (?:name|uses):", text)[0].partition("run: ")[2]
    return re.sub(r"^\|\n", "", body) if body.startswith("|") else body.splitlines()[0]


@pytest.fixture
def project(tmp_path: Path) -> Any:
    """Runs a step in a repository with a function, whose base is the first commit."""
    root, scratch = tmp_path / "project", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    (root / "mine.py").write_text(RIGHT)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "base"]):
        subprocess.run(["git", *who, *command], cwd=root, check=True)
    base = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()
    here = os.environ | {
        "FUNCTION": "mine:attend", "OPERATOR": "linear", "WORKLOAD": "linear", "RUNNER_TEMP": str(scratch),
        "GITHUB_STEP_SUMMARY": str(scratch / "summary.md"), "GITHUB_WORKSPACE": str(root), "GITHUB_SHA": "a" * 40,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip

    def step(name: str) -> subprocess.CompletedProcess[str]:
        text = commands(name).replace("${{ github.event.pull_request.base.sha }}", base)
        return subprocess.run(["bash", "-ec", text], cwd=root, env=here, capture_output=True, text=True, check=False)

    step.root, step.scratch = root, scratch  # pyright: ignore[reportFunctionMemberAccess]
    return step


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("LINATTEST_PROFILE") != "nightly", reason="judges a function twice: nightly")
def test_a_pull_request_that_loses_accuracy_is_red_and_says_where(project: Any):
    """The head keeps its scores in bfloat16: bad in float32, and each step of the recipe says so."""
    done = project("Judge the base")
    assert done.returncode == 0, done.stdout + done.stderr
    (project.root / "mine.py").write_text(RIGHT.replace("scores, v.float()", "scores.bfloat16().float(), v.float()"))
    assert project("Judge the head").returncode == 1
    grown = project("Which errors grew")
    assert grown.returncode == 1, grown.stdout + grown.stderr
    assert project("Summary").returncode == 0
    summary = (project.scratch / "summary.md").read_text()
    assert "the gate is red" in summary or "the error grew" in summary
    assert "float32" in summary


def test_a_function_of_another_project_is_measured_in_ours_place(project: Any, tmp_path: Path, monkeypatch):
    """The nightly step, on a CPU: right functions get times, wrong ones none, and both are told."""
    line = " ".join(commands("Measure").replace("\\\n", " ").split())
    assert "-m benchmarks.gpu_run --function" in line and "--commit" in line and "--output" in line
    monkeypatch.syspath_prepend(project.root)
    output = tmp_path / "record.json"
    given = ["--device", "cpu", "--quick", "--stages", "forward", "--lengths", "64", "--output", str(output)]
    (project.root / "wrong.py").write_text(RIGHT.replace("-0.5", "-0.51"))
    assert gpu_run.main([*given, "--function", "linear=mine:attend"]) == 0
    record = json.loads(output.read_text())
    assert record["settings"]["functions"] == {"linear": "mine:attend"}
    assert {r["operator"] for r in record["timings"]} == {"linear"} and "linattest" in {
        r["implementation"] for r in record["timings"]
    }
    assert gpu_run.main([*given, "--function", "linear=wrong:attend"]) == 1
    record = json.loads(output.read_text())
    assert not [r for r in record["timings"] if r["implementation"] == "linattest"]
    assert gpu_run.main([*given, "--function", "linear=nowhere:attend"]) == 3
    for bad in ("linear", "linear=mine", "line=mine:attend"):
        with pytest.raises(SystemExit, match="2"):
            gpu_run.main([*given, "--function", bad])


def test_the_recipe_is_yaml_and_its_commands_have_the_options_it_gives():
    recipe = pytest.importorskip("yaml").safe_load(RECIPE.read_text())
    assert set(recipe["jobs"]) == {"numerics", "speed"} and {"pull_request", "schedule"} <= set(recipe[True])
    assert recipe["permissions"]["pull-requests"] == "write"
    text = "\n".join(step.get("run", "") for job in recipe["jobs"].values() for step in job["steps"])
    asked = re.findall(r"^\s*linattest ((?:bench )?[a-z]+) (.*)$", text.replace("] ||", "\n"), re.MULTILINE)
    assert {command for command, _ in asked} == {"check", "bench compare", "report"}
    for command, given in asked:
        found: Any = get_command(app)
        for word in command.split():
            found = found.get_command(Context(found), word)
        known = {name for param in found.params for name in param.opts}
        assert set(re.findall(r"--[a-z-]+", given)) <= known, command
