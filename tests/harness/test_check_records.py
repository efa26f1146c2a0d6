"""What `linattest check` found of a user's function, in the reports: at that function's own file and line."""

import functools
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from linattest.verify import check as checking
from linattest.verify.check import check
from linattest.verify.cli import app
from linattest.verify.commands import judging
from linattest.verify.executors import InProcess
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import read
from linattest.verify.report.locations import location
from linattest.verify.subject import hand_over, source

FILE = Path(__file__).with_name("user_layouts.py")


@pytest.fixture(autouse=True)
def one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """One input, judged in this process."""

    def grid(operator: Any, **_: Any) -> list[Job]:
        options = {"gate": "channel"} if operator.name == "gla" else {}
        return [Job(Case(operator=operator.name, structure=Structure(T=9, K=4, V=4, H=2), seed=1, options=options))]

    monkeypatch.setattr(checking, "grid", grid)
    monkeypatch.setattr(judging, "local_executor", lambda _: nullcontext(InProcess()))
    monkeypatch.setenv("COLUMNS", "400")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def line_of(name: str) -> int:
    return next(i for i, x in enumerate(FILE.read_text().splitlines(), 1) if x.startswith(f"def {name}("))


def judged(tmp_path: Path, name: str, place: str) -> Path:
    path = tmp_path / "deep" / "records.jsonl"
    result = run("check", f"{place}:{name}", "--as", "gla", "--records", path, "--failures", tmp_path)
    assert result.exit_code == 1, result.output
    return path


def test_annotations_and_sarif_point_at_the_users_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my kernels.py").write_bytes(FILE.read_bytes())
    monkeypatch.chdir(tmp_path)
    path = judged(tmp_path, "last_head", "my kernels.py")
    result = run("report", "--records", path, "--github", "--sarif", tmp_path / "s", "--markdown", "-")
    assert result.exit_code == 1 and "Not run" not in result.stdout
    assert f"::error file=my kernels.py,line={line_of('last_head')},title=gla given-last-head forward" in result.stdout
    (place, *_) = json.loads((tmp_path / "s").read_text())["runs"][0]["results"][0]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20kernels.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": line_of("last_head")},
    }


def test_a_file_outside_of_the_folder_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = judged(tmp_path, "last_head", str(FILE))
    assert {record.source for record in read(path)} == {f"{FILE}:{line_of('last_head')}"}
    run("report", "--records", path, "--sarif", tmp_path / "s")
    result = json.loads((tmp_path / "s").read_text())["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": FILE.as_uri()}


def test_json_names_the_place_too(tmp_path: Path):
    found = json.loads(run("check", f"{FILE}:straight", "--as", "gla", "--json", "--failures", tmp_path).stdout)
    assert found["passed"] and found["source"].endswith(f"user_layouts.py:{line_of('straight')}")


def test_a_wrapped_function_is_found_where_it_is_written():
    def written() -> None: ...

    @functools.wraps(written)
    def wrapper() -> None: ...

    class Callable:
        def __call__(self) -> None: ...

    first = written.__code__.co_firstlineno
    assert source(hand_over(wrapper)).endswith(f"{Path(__file__).name}:{first}")
    decorated = torch.no_grad()(written)  # its wrapper is in a file of torch
    assert source(hand_over(decorated)).endswith(f"{Path(__file__).name}:{first}")
    assert source(hand_over(functools.partial(wrapper))).endswith(f":{first}")
    assert re.search(rf"{Path(__file__).name}:\d+$", source(hand_over(Callable())))
    assert source(hand_over(len)) == ""


def test_a_broken_promise_is_a_known_failure_in_the_file_unless_strict():
    result = check(f"{FILE}:straight", "gla", only={"gate": "channel"}, dtypes=("float32",))
    broken = msgspec.structs.replace(result.records[0], direction="property", what="autocast", status="fail")
    result.records.append(broken)
    assert [record.status for record in result.kept() if record.what == "autocast"] == ["known"]
    result.strict = True
    assert [record.status for record in result.kept() if record.what == "autocast"] == ["fail"]


def test_records_that_cannot_be_written_are_refused_before_the_function_runs(tmp_path: Path):
    (tmp_path / "file").touch()
    result = run("check", f"{FILE}:straight", "--as", "gla", "--records", tmp_path / "file" / "records.jsonl")
    assert result.exit_code == 2 and "Invalid value for --records: cannot write" in result.output
    assert "RIGHT" not in result.output


def test_linattests_own_functions_keep_their_places():
    (record, *_) = check("linattest.impls.gla:chunk", "gla", only={"gate": "channel"}, dtypes=("float32",)).records
    place = location(msgspec.structs.replace(record, variant="chunk", source=""))
    assert place is not None and place.path == "impls/gla.py"


def test_a_wrong_map_is_said_of_the_function_that_was_given():
    result = run("check", f"{FILE}:straight", "--as", "gla", "--map", "g=x")
    assert result.exit_code == 2 and "FUNCTION:" not in result.output
    assert f"Invalid value for {FILE}:straight: gla has no argument x" in re.sub(r"\s+", " ", result.output)
