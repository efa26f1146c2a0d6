"""One file that cannot be written or read is named with its cause, and stops nothing else."""

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from linattest.verify import registry
from linattest.verify.commands.report import report
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record, append
from linattest.verify.report.markdown import markdown
from linattest.verify.report.summary import Summary

APP = typer.Typer()
APP.command()(report)

OUTPUTS = ("html", "junit", "sarif", "markdown")


def record(operator: str = "linear", variant: str = "chunk", **changes: Any) -> Record:
    case = Case(operator=operator, structure=Structure(T=2, K=2, V=2))
    return Record(case=case, variant=variant, direction="forward", what="o", status="pass", ratio=0.5, **changes)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    append(tmp_path / "records.jsonl", [record(), record(variant="step")])
    return tmp_path / "records.jsonl"


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(APP, list(map(str, arguments)), env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


@pytest.mark.parametrize("bad", [("html",), ("junit",), ("sarif", "markdown"), ("html", "junit", "sarif")])
def test_what_can_be_written_is_written_and_the_rest_is_named(bad: tuple[str, ...], records: Path, tmp_path: Path):
    paths = {name: tmp_path / ("missing" if name in bad else ".") / name for name in OUTPUTS}
    result = run("--records", records, *(x for name, path in paths.items() for x in (f"--{name}", path)))
    assert result.exit_code == 2
    for name, path in paths.items():
        assert path.is_file() == (name not in bad)
        refusal = f"Invalid value for --{name}: cannot write {path}: No such file or directory"
        assert (refusal in result.stderr) == (name in bad), result.stderr
    assert "All 2 cases passed." in result.stderr


def test_a_folder_in_the_place_of_a_file_is_no_reason_to_stop(records: Path, tmp_path: Path):
    result = run("--records", records, "--junit", tmp_path, "--sarif", tmp_path / "s", "--markdown", "-")
    assert result.exit_code == 2 and (tmp_path / "s").is_file() and "### linattest" in result.stdout
    assert f"cannot write {tmp_path}: Is a directory" in result.stderr


def test_a_page_that_lacks_its_packages_stops_no_other_output(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "linattest.verify.report.page", None)  # as if its imports failed
    result = run("--records", records, "--html", tmp_path / "h", "--junit", tmp_path / "j")
    assert result.exit_code == 3 and (tmp_path / "j").is_file() and "linattest[report]" in result.stderr
    result = run("--records", records, "--html", tmp_path / "h", "--junit", tmp_path / "missing" / "j")
    assert result.exit_code == 2 and "linattest[report]" in result.stderr and "cannot write" in result.stderr


def test_a_damaged_line_is_named_with_what_to_do_about_it(records: Path):
    lines = records.read_bytes().split(b"\n")
    records.write_bytes(b"\n".join([lines[0], b"{broken", *lines[1:]]))
    result = run("--records", records, "--markdown", "-")
    assert result.exit_code == 2 and f"{records}, line 2: no record" in result.stderr
    assert "delete that line" in result.stderr and "verify --records FILE --resume" in result.stderr


def test_records_of_another_version_are_to_be_made_anew(tmp_path: Path):
    append(tmp_path / "r", [record(schema=99)])
    result = run("--records", tmp_path / "r", "--markdown", "-")
    assert result.exit_code == 2 and "schema=99, expected 1" in result.stderr and "make the file anew" in result.stderr


def test_the_summary_names_the_variants_that_were_not_run():
    text = markdown(
        Summary(
            [
                record("gla", "chunk"),
                record("gla", "given-mine", source="mine.py:3"),
                record("vla", "given-mine", source="mine.py:3"),
            ]
        )
    )
    (line,) = [line for line in text.splitlines() if line.startswith("Not run")]
    assert "gla recurrent, step" in line and "chunk" not in line.split(":")[1] and "linear" not in line
    everything = [record("linear", variant.name) for variant in registry.operator("linear").variants]
    assert "Not run" not in markdown(Summary(everything))
