"""``linattest search``: what it prints and saves, its exit codes, and the words for wrong usage."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from linattest.verify.cli import app
from linattest.verify.commands import search as command
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK
from linattest.verify.search.witness import KEY, Witness, load

USAGE = 2
SMALL = ("--d", "2", "--tokens", "6", "--steps", "5", "--starts", "2")
CASES = ("--d", "4", "--tokens", "8", "--steps", "2")


def linattest(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["search", *map(str, arguments)])


def maximise(name: str, folder: Path, *more: str) -> tuple[Result, dict[str, Any]]:
    result = linattest(name, *more, "--save", folder, "--json")
    return result, json.loads(result.stdout)


def test_a_find_is_saved_and_replays(tmp_path: Path):
    asked = ("--maximise", "state-norm", "--at-least", "1", "--maximise", "jacobian", "--at-least", "1.1")
    result, said = maximise("vla", tmp_path, *asked, *SMALL)
    assert result.exit_code == OK and said["schema"] == 1 and [x["found"] for x in said["results"]] == [True, True]
    saved = [witness for x in said["results"] for witness in x["witnesses"]]
    assert {(w["objective"], w["shrunk"]) for w in saved} == {
        (objective, shrunk) for objective in ("state-norm", "jacobian") for shrunk in (False, True)
    }
    for witness in saved:
        again = linattest("--replay", witness["file"])
        assert again.exit_code == OK and "stands" in again.stdout and witness["exact"][:40] in again.stdout


def test_a_value_that_the_oracle_does_not_confirm_fails_the_replay(tmp_path: Path):
    maximise("delta_net", tmp_path, "--maximise", "product", *SMALL)
    (path,) = tmp_path.iterdir()
    said = path.read_bytes()
    exact = load(path).witness.exact
    assert exact
    path.write_bytes(said.replace(exact.encode(), exact[::-1].replace(".", "1").encode()))
    result = linattest("--replay", path, "--json")
    assert result.exit_code == FAILED and json.loads(result.stdout)["stands"] is False


def test_what_is_not_reached_is_a_failure_and_leaves_no_file(tmp_path: Path):
    result, said = maximise("delta_net", tmp_path, "--maximise", "jacobian", "--at-least", "1.01", *SMALL)
    assert result.exit_code == FAILED and not said["results"][0]["found"] and not list(tmp_path.iterdir())
    assert said["results"][0]["best"] == pytest.approx(1)


def test_no_time_is_nothing_measured(tmp_path: Path):
    assert maximise("vla", tmp_path, "--maximise", "state-norm", "--seconds", "0", *SMALL)[0].exit_code == NOTHING


@pytest.mark.parametrize("objective", ["error", "kappa"])
def test_a_measured_find_replays_on_the_tensors_it_was_measured_on(objective: str, tmp_path: Path):
    result, said = maximise("gla", tmp_path, "--maximise", objective, "--at-least", "0.01", *CASES)
    assert result.exit_code == OK
    path = Path(said["results"][0]["witnesses"][0]["file"])
    again = linattest("--replay", path, "--json")
    assert again.exit_code == OK
    assert json.loads(again.stdout)["value"] == pytest.approx(load(path).witness.value, rel=1e-12)
    witness = msgspec.structs.replace(load(path).witness, at_least=1e9)
    rewrite(path, witness)
    again = linattest("--replay", path)
    assert again.exit_code == FAILED and "expected at least 1e+09" in again.stdout
    if objective == "error":
        assert CliRunner().invoke(app, ["verify", "--replay", str(path)]).exit_code == OK


def rewrite(path: Path, witness: Witness) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(path, "pt") as file:
        header = {**file.metadata(), KEY: msgspec.json.encode(witness).decode()}
    save_file(load_file(path), path, metadata=header)


def test_an_interruption_before_anything_was_found_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "pursue", interrupted)
    result = linattest("vla", "--maximise", "state-norm", "--save", tmp_path)
    assert result.exit_code == INTERRUPTED and "interrupted" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name an operator"),
        (("nothing",), "no operator 'nothing'"),
        (("vla",), "expected one of ['state-norm'"),
        (("vla", "--maximise", "beauty"), "['beauty']"),
        (("vla", "--maximise", "product", "--at-least", "1", "--at-least", "2"), "2 for 1 objectives"),
        (("vla", "--maximise", "product", "--u", "loose"), "'loose'"),
        (("delta_net", "--maximise", "product", "--u", "free"), "has no penalty direction"),
        (("vla", "--maximise", "product", "--option", "lam1=2"), "'lam1=2'"),
        (("vla", "--maximise", "product", "--option", "lam0=much"), "expected a number"),
        (("vla", "--maximise", "product", "--digits", "20"), "50"),
        (("vla", "--maximise", "kappa", "--option", "lam0=2"), "draw options and inputs themselves"),
        (("vla", "--maximise", "error", "--variant", "none"), "no variant 'none'"),
        (("vla", "--maximise", "error", "--dtype", "float8"), "'float8'"),
        (("softmax", "--maximise", "state-norm"), "keeps no memory"),
        (("--replay", "no-such-file"), "no file no-such-file"),
        (("--replay", __file__), "is not a witness"),
    ],
)
def test_wrong_usage_is_named(arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "1000")
    result = linattest(*arguments)
    assert result.exit_code == USAGE and said in result.output, result.output
