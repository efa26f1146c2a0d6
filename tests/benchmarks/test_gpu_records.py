"""Records of gpu_run are read whole or not at all: what is wrong with one is said before anything is made of it."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.verify.bench import gpu_records
from linattest.verify.commands.bench import bench

Record = dict[str, Any]


def _without(name: str) -> Callable[[Record], None]:
    return lambda record: record.pop(name)


def _at(table: str, **values: Any) -> Callable[[Record], None]:
    return lambda record: record[table][0].update(values)


def _ours(record: Record) -> None:
    next(row for row in record["gates"] if row["ok"])["worst"] = None


WRONG: dict[str, tuple[Callable[[Record], Any], str]] = {
    "no commit": (_without("commit"), "commit"),
    "timings as an object": (lambda record: record.update(timings={"a": 1}), "Expected `array`"),
    "text for a time": (_at("timings", samples=["fast"]), "Expected `float`"),
    "a negative time": (_at("timings", samples=[-1.0]), "> 0.0"),
    "an error that passed is null": (_ours, "worst is null"),
    "a negative error": (_at("gates", worst=-0.5), ">= 0.0"),
    "no GPU": (lambda record: record["environment"].pop("gpu"), "environment lacks gpu"),
    "no sizes": (lambda record: record["settings"].pop("D"), "settings lacks D"),
    "an unknown direction": (_at("timings", direction="sideways"), "sideways"),
}


def spoiled(gpu_record: Record, how: str) -> Record:
    record = copy.deepcopy(gpu_record)
    WRONG[how][0](record)
    return record


@pytest.mark.parametrize("how", WRONG)
def test_what_no_record_has_is_refused_with_its_place(gpu_record: Record, tmp_path: Path, how: str):
    path = tmp_path / "record.json"
    with pytest.raises(ValueError, match=WRONG[how][1].replace("[", r"\[")) as error:
        gpu_records.checked(spoiled(gpu_record, how), path)
    assert str(path) in str(error.value)
    gpu_records.checked(gpu_record, path)


@pytest.mark.parametrize("command", ["record", "compare", "crossover"])
@pytest.mark.parametrize(
    "how", ["no commit", "timings as an object", "a negative time", "an error that passed is null"]
)
def test_commands_say_so_and_end_as_wrong_usage(gpu_record: Record, tmp_path: Path, command: str, how: str):
    path, whole = tmp_path / "bad.json", tmp_path / "good" / "whole.json"
    whole.parent.mkdir()
    path.write_text(json.dumps(spoiled(gpu_record, how)))
    whole.write_text(json.dumps(gpu_record))
    given = {
        "record": ["record", str(whole), str(path)], "compare": ["compare", str(whole), str(path)],
        "crossover": ["crossover"],
    }[command]  # fmt: skip
    folder = tmp_path / "results" if command == "record" else tmp_path
    done = CliRunner().invoke(bench, [*given, "--results", str(folder)])
    assert done.exit_code == 2 and "bad.json" in "".join(done.output.split()).replace("│", ""), done.output
    assert isinstance(done.exception, SystemExit) and not (tmp_path / "results").exists()


@pytest.mark.parametrize("text", ["NaN", "Infinity", "{", '{"kind": "gpu_run", "schema": 1, "x": NaN}'])
def test_json_is_strict(tmp_path: Path, text: str):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is no JSON"):
        gpu_records.read_json(path)
