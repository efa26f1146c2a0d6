"""``linattest check``: wrong functions are diagnosed (exit code 1), right ones pass (0), misfits are refused (2)."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import check as checking
from linattest.verify.check import check
from linattest.verify.cli import app
from linattest.verify.commands import judging as command
from linattest.verify.commands.places import misplaced
from linattest.verify.executors import InProcess
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.preparation import prepare
from linattest.verify.subject import Subject

FILE = str(Path(__file__).with_name("user_kernels.py"))

WRONG = {
    "tail": "the tail of a short last chunk is not masked (chunks of 32)",
    "unscaled": "the factor K**-0.5 (scale) is missing",
    "state_ignored": "the initial state is ignored in o",
    "leaky": "it is not causal",
    "gate_gradient": "d g is 1.442695 = 1/ln 2 times the exact one",
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three inputs, judged in this process."""

    def grid(operator: Any, **_: Any) -> list[Job]:
        sizes: tuple[dict[str, Any], ...] = ({"T": 40, "H": 2, "initial_state": True}, {"T": 9, "B": 2}, {"T": 21})
        dtypes = ("float32", "bfloat16", "float64")
        return [
            Job(
                Case(
                    operator=operator.name, structure=Structure(K=8, V=8, **s), dtype=d, seed=1,
                    options=operator.grid[0],
                )
            )
            for s, d in zip(sizes, dtypes, strict=True)
        ]  # fmt: skip

    monkeypatch.setattr(checking, "grid", grid)
    monkeypatch.setattr(checking, "besides", lambda *_: [])
    monkeypatch.setattr(command, "local_executor", lambda _: nullcontext(InProcess()))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["check", *arguments])


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.usefixtures("few")
def test_wrong_function_fails_with_a_diagnosis_and_a_replay_that_fails_too(name: str, tmp_path: Path):
    result = run(f"{FILE}:{name}", "--as", "gla", "--failures", str(tmp_path))
    first, second = result.stdout.splitlines()[:2]
    assert result.exit_code == 1
    assert first.startswith("This runs the given code") and second.startswith("WRONG: ")
    assert WRONG[name] in re.sub(r"\s+", " ", result.stdout)
    (path, *_) = re.findall(r"linattest check --replay (\S+)", result.stdout)
    again = run("--replay", path)
    assert again.exit_code == 1 and "WRONG" in again.stdout


@pytest.mark.usefixtures("few")
def test_right_functions_pass(tmp_path: Path):
    result = run(f"{FILE}:right", "--as", "gla", "--failures", str(tmp_path))
    assert result.exit_code == 0, result.stdout
    assert "RIGHT on all 6 checks" in result.stdout and "not tried: packed sequences" in result.stdout
    names = [
        "--map",
        "query=q",
        "--map",
        "key=k",
        "--map",
        "value=v",
        "--map",
        "log_decay=g",
        "--map",
        "h0=initial_state",
    ]
    result = run(f"{FILE}:right_elsewhere", "--as", "gla", "--head-first", "--transpose-state", *names)
    assert result.exit_code == 0, result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few")
def test_a_function_that_ends_the_process_is_wrong(tmp_path: Path):
    result = run(f"{FILE}:leaves", "--as", "gla", "--failures", str(tmp_path))
    assert result.exit_code == 1 and "ended the process: sys.exit(0)" in re.sub(r"\s+", " ", result.stdout)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("promise", ["autocast", "empty sequences"])
def test_a_broken_promise_is_no_wrong_value_unless_strict(promise: str, tmp_path: Path):
    result = check(f"{FILE}:right", "gla")
    (first, *rest) = result.records
    structure = msgspec.structs.replace(first.case.structure, T=0 if promise == "empty sequences" else 5)
    case = msgspec.structs.replace(first.case, structure=structure)
    failing: dict[str, Any] = {"status": "fail", "message": "planted", "case": case}
    if promise == "autocast":
        failing |= {"direction": "property", "what": promise}
    result.records = [msgspec.structs.replace(first, **failing), *rest]
    assert result.passed and command.status([result]) == 0
    assert str(result).startswith("RIGHT in every value") and f"not kept: {promise}" in str(result)
    result.strict = True
    assert not result.passed and command.status([result]) == 1 and str(result).startswith("WRONG")


@pytest.mark.usefixtures("few")
def test_json_says_what_the_page_says(tmp_path: Path):
    found = json.loads(run(f"{FILE}:unscaled", "--as", "gla", "--json", "--failures", str(tmp_path)).stdout)
    assert (found["schema"], found["passed"], found["checks"]) == (1, False, 6)
    assert found["diagnoses"][0]["rule"] == "scale" and found["failed"] == len(found["failures"]) > 0
    assert all(Path(failure["replay"].split()[-1]).is_file() for failure in found["failures"])


@pytest.mark.usefixtures("few")
def test_the_page_of_a_wrong_function_says_what_is_wrong_before_what_else_is_not_kept(tmp_path: Path):
    result = check(f"{FILE}:unscaled", "gla")
    result.records = [*result.records, msgspec.structs.replace(result.records[0], direction="property", what="modes",
                                                               status="fail", message="planted")]  # fmt: skip
    lines = str(result).splitlines()
    assert lines[0].startswith("WRONG") and any(line.startswith("not kept either: modes") for line in lines)
    assert "planted" not in str(result) and any(line.startswith("1. wrong scale") for line in lines)
    result.died = True
    assert "tried:" not in str(result)


@pytest.mark.parametrize("name", ["gla", "ccq", "log_linear", "covariance_contract"])
def test_an_axis_that_has_no_meaning_under_the_defaults_is_not_tried(name: str):
    """Operators with an axis of the harness, such as a gate's shape, which may exist under one option only."""
    subject, _, _ = prepare(Subject(function=f"linattest.impls.{name}:chunk", operator=name, dtypes=("float32",)))
    assert subject.dtypes == ("float32",) and "rectangular" in subject.supports


MISFITS = {
    "no-module": (["nowhere.at_all:f", "--as", "gla"], "no module 'nowhere'"),
    "no-file": (["missing.py:f", "--as", "gla"], "no file"),
    "no-colon": (["user_kernels.py", "--as", "gla"], "expected 'module:function'"),
    "no-operator-either": ([f"{FILE}:right", "--as", "gls", "--map", "x=g"], "no operator 'gls'"),
    "no-dtype": ([f"{FILE}:right", "--as", "gla", "--dtype", "float31"], "no dtype ['float31']"),
    "no-bundle": (["--replay", "missing.safetensors"], "no file missing.safetensors"),
    "no-attribute": ([f"{FILE}:wrong_name", "--as", "gla"], "has no 'wrong_name'; it has"),
    "not-callable": ([f"{FILE}:not_a_function", "--as", "gla"], "has type int, expected a function"),
    "other-names": ([f"{FILE}:right_elsewhere", "--as", "gla"], "Perhaps --map query=q --map key=k --map value=v"),
    "too-few": ([f"{FILE}:right", "--as", "gated_delta_net"], "it has no argument for beta"),
    "unknown-map": ([f"{FILE}:right", "--as", "gla", "--map", "x=g"], "has no argument x"),
    "no-operator": ([f"{FILE}:right", "--as", "gls"], "known: ccq"),
    "nothing": (["--as", "gla"], "0 functions given"),
    "no-as": ([f"{FILE}:right"], "needs --as OPERATOR"),
    "bad-map": ([f"{FILE}:right", "--as", "gla", "--map", "gk"], "expected name=value"),
    "bad-peer": (["--peer", "fls"], "known: fla"),
    "bad-preset": (["--peer", "fla", "glas"], "known: gla-recurrent"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_a_usage_error_that_names_it(case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "local_executor", lambda _: nullcontext(InProcess()))
    monkeypatch.setenv("COLUMNS", "400")
    arguments, words = MISFITS[case]
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in re.sub(r"\s+", " ", result.output), result.output


@pytest.mark.usefixtures("few")
def test_local_function_is_judged_in_process_and_its_arguments_renamed():
    import torch

    def mine(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gk: torch.Tensor, factor: float) -> torch.Tensor:
        past = torch.ones(q.shape[1], q.shape[1], dtype=q.dtype).tril()
        return factor * torch.einsum("bthk,bshk,ts,bshv->bthv", q, k, past, v) + 0 * gk.sum()

    result = check(mine, "gla", rename={"gk": "g"}, fixed={"factor": 1.0}, dtypes=("float32",))
    assert not result.passed and result.records and result.diagnoses
    assert str(result).startswith("WRONG: <given>:mine as gla")


@pytest.mark.usefixtures("few")
def test_idle_gate_of_a_scan_may_be_left_out():
    """The delta scan without a gate is judged against its definition with log-gates 0."""
    from linattest.impls import delta_scan

    def ungated(
        q: Any, alpha: Any, beta: Any, v: Any, initial_state: Any = None, output_final_state: bool = False
    ) -> Any:
        return delta_scan.chunk(q, -alpha, beta, v, initial_state=initial_state, output_final_state=output_final_state)

    result = check(ungated, "delta_scan", rename={"alpha": "-erase", "beta": "write"}, drop=("g",))
    assert result.passed, result
    assert "g is 0 and not passed" in result.notes


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("unscaled", 1)])
def test_command_judges_in_worker_processes(name: str, code: int, tmp_path: Path):
    """The whole of it: another folder, a module on its path, processes that import the function themselves."""
    (tmp_path / "mine.py").write_text(Path(FILE).read_text() + 'print("hello from the module")\n')
    command = [sys.executable, "-m", "linattest", "check", f"mine:{name}", "--as", "gla", "--quick", "--workers", "1"]
    narrowed = ["--dtype", "float32", "--only-forward", "--no-state", "--only", "gate=head"]
    done = subprocess.run([*command, *narrowed], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert "not tried: gradients, as said" in done.stdout
    assert "hello from the module" in done.stderr and "hello" not in done.stdout  # stdout is the page, or the JSON
    assert any((tmp_path / "linattest-failures").glob("*.safetensors")) == bool(code)


LIGHT = ("no-module", "no-file", "no-colon", "no-attribute", "no-operator", "nothing", "no-as", "bad-map", "no-dtype",
         "bad-peer", "bad-preset", "no-bundle")  # fmt: skip


def test_misfits_are_refused_before_anything_heavy_is_imported():
    """All in one process: what one of them imported would be there for the next."""
    code = (
        "import json, sys\nfrom typer.testing import CliRunner\nfrom linattest.verify.cli import app\n"
        "for given in json.loads(sys.argv[1]):\n"
        "    code = CliRunner().invoke(app, ['check', *given]).exit_code\n"
        "    print(code, sorted({'torch', 'numpy', 'mpmath'} & set(sys.modules)))"
    )
    given = json.dumps([MISFITS[case][0] for case in LIGHT])
    done = subprocess.run([sys.executable, "-c", code, given], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["2 []"] * len(LIGHT), done.stdout + done.stderr


@pytest.mark.parametrize("text", ["from os.path import *", "globals()['made'] = print", "def __getattr__(name): ..."])
def test_a_name_that_the_text_does_not_show_is_left_to_the_import(text: str, tmp_path: Path):
    path = tmp_path / "dynamic.py"
    path.write_text(text)
    assert misplaced(f"{path}:made") == ""
    path.write_text("def other(q, k, v): ...\n")
    assert misplaced(f"{path}:made").endswith("has no 'made'; it has other")


def test_help_says_that_it_runs_the_code():
    assert "This runs the given code" in re.sub(r"\s+", " ", run("--help").stdout)
