"""Pins see what is gone, loosened or said in other words, and the command says what to do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.proofs_checks import catalogue, pins
from linattest.proofs_checks.coq import theorems
from linattest.proofs_checks.enclosures import balls, constants
from linattest.proofs_checks.enclosures import formulas as texts
from linattest.proofs_checks.exhaustive import functions
from linattest.proofs_checks.proof import Answer, Status, prove
from linattest.proofs_checks.smt import kantorovich, solver
from linattest.verify import cli

EVERY = {s.id: s for module in catalogue.MODULES for s in catalogue.statements(module)}
CHORD = "vla.kantorovich.chord"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["prove", *arguments, "--workers", "1"], env={"COLUMNS": "1000"})


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pins that a test may write to."""
    path = tmp_path / "pins.toml"
    path.write_text(pins.FILE.read_text())
    monkeypatch.setattr(pins, "FILE", path)
    monkeypatch.setattr(pins.read, "__defaults__", (path,))
    monkeypatch.setattr(pins.write, "__defaults__", (path,))
    return path


# --- gone --------------------------------------------------------------------------------------------------------


def test_a_statement_that_is_deleted_is_reported_until_its_pin_is_renewed(
    pinned: Path, monkeypatch: pytest.MonkeyPatch
):
    left = tuple(s for s in kantorovich.STATEMENTS if s.id != CHORD)
    monkeypatch.setattr(kantorovich, "STATEMENTS", left)
    result = run(CHORD, "--json")
    (proof,) = json.loads(result.stdout)["proofs"]
    assert result.exit_code == 1 and proof["status"] == "changed" and proof["evidence"]["changed"].startswith("gone: ")
    assert CHORD in {p["id"] for p in json.loads(run("vla.kantorovich", "--json").stdout)["proofs"]}
    before = pins.read()
    result = run("vla.kantorovich", "--update-pins")
    assert result.exit_code == 0 and "1 gone" in result.stderr and CHORD in result.stderr
    assert pins.read() == {x: pin for x, pin in before.items() if x != CHORD}


def test_a_module_taken_from_the_catalogue_is_reported(monkeypatch: pytest.MonkeyPatch):
    left = tuple(m for m in catalogue.MODULES if m.name != "smt.kantorovich")
    monkeypatch.setattr(catalogue, "MODULES", left)
    result = run("vla.kantorovich", "--json")
    found = json.loads(result.stdout)["proofs"]
    assert result.exit_code == 1 and {p["id"] for p in found} == {s.id for s in kantorovich.STATEMENTS}
    assert all("no module of catalogue.py has it" in p["evidence"]["changed"] for p in found)


def test_without_a_tool_its_statements_are_skipped_and_not_gone(monkeypatch: pytest.MonkeyPatch):
    modules = (dataclasses.replace(m, needs="no_such_package") if m.method == "smt" else m for m in catalogue.MODULES)
    monkeypatch.setattr(catalogue, "MODULES", tuple(modules))
    assert catalogue.gone() == []


# --- loosened ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identity", "tool", "line", "loose"),
    [
        ("vla.sigma.golden", balls, "if function(box(a, b)) >= 0:", "if function(box(a, b)) >= -0.001:"),
        ("vla.sigma.golden", texts, "lambda x: x.sqrt(),", "lambda x: x.sqrt() + 1e-3,"),
        (CHORD, solver, "solver.add(*conditions)", "solver.add(conditions[0])"),
        ("functions.exp.triton-range", functions, "return x[x > 0] if", "return x[x > 1] if"),
    ],
)
def test_a_tool_of_other_code_is_changed(
    identity: str, tool: Any, line: str, loose: str, monkeypatch: pytest.MonkeyPatch
):
    read = pins._text
    assert line in read(tool.__name__)
    pins.tools.cache_clear()
    before = pins.tools(EVERY[identity].ask)

    def edited(by: str) -> str:
        monkeypatch.setattr(
            pins, "_text", lambda name: read(name).replace(line, by) if name == tool.__name__ else read(name)
        )
        pins.tools.cache_clear()
        return pins.tools(EVERY[identity].ask)

    assert edited(f"{line}  ") == before
    assert edited(loose) != before
    proof = prove(EVERY[identity])
    assert proof.status == "changed" and "(code " in proof.evidence["changed"]
    pins.tools.cache_clear()


def _slack(function: Any, by: float) -> Any:
    return lambda *x: function(*x) + by


def test_a_slack_of_a_thousandth_shows_by_what_the_twins_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(balls, "compiled", lambda f, *v: _slack(texts.compiled(f, *v), 1e-8))
    for identity in ("vla.sigma.at-least-one", "vla.sigma.golden"):
        proof = prove(EVERY[identity])
        assert proof.status == "unknown" and "cannot fail" in proof.evidence["twin"]
    assert prove(EVERY["lam.init.exact-constant"]).status == "refuted"


def test_an_ulp_too_generous_shows(monkeypatch: pytest.MonkeyPatch):
    ulps = functions.ulps
    monkeypatch.setattr(functions, "ulps", lambda *x: ulps(*x) - 1e-8)
    assert prove(EVERY["functions.elu-plus-1.wide"]).status == "unknown"


def test_the_largest_eigenvalue_is_asked_for_right_of_the_vertex():
    asked = EVERY["vla.sigma.largest"].ask("1.0005").asked
    assert asked.count("0 <= ") == 2 and "2*(" in asked.splitlines()[1]
    assert constants._norm("0.5").status == "refuted", "the polynomial is not negative left of both roots either"


# --- Coq's words -------------------------------------------------------------------------------------------------


def answering(status: Status) -> Any:
    return lambda at, twin_of="": Answer(status=status, asked=at)


def test_words_of_a_theorem_are_pinned_with_or_without_coq(monkeypatch: pytest.MonkeyPatch):
    s = EVERY["vla.sherman-morrison.shrinks"]
    other = dataclasses.replace(s, statement=s.statement.replace("<=", ">=").replace("only shrinks", "only grows"))
    answers: tuple[tuple[Status, Status], ...] = (("proved", "refuted"), ("skipped", "skipped"))
    for status, says in answers:
        monkeypatch.setattr(theorems, "proved", answering(status))
        monkeypatch.setattr(theorems, "refuted", answering(says))
        assert prove(s).status == status
        found = prove(other)
        assert found.status == "changed" and "grow]s" in found.evidence["changed"]


# --- what is said ------------------------------------------------------------------------------------------------


def test_a_difference_is_marked_and_the_way_out_named():
    long = "x" * 300
    said = pins.apart(f"{long} >= {long}", f"{long} <= {long}", "f")
    assert "[>]= xxx" in said and "[<]= xxx" in said and len(said) < 160
    s = dataclasses.replace(EVERY[CHORD], twin="something else")
    assert prove(s).evidence["changed"].endswith(f"if that is meant: linattest prove --update-pins {CHORD}")


def test_a_refuted_statement_is_not_pinned_and_it_is_said(pinned: Path, monkeypatch: pytest.MonkeyPatch):
    s = EVERY[CHORD]
    wrong = tuple(
        dataclasses.replace(x, right=s.wrong, wrong=(2,)) if x.id == CHORD else x for x in kantorovich.STATEMENTS
    )
    monkeypatch.setattr(kantorovich, "STATEMENTS", wrong)
    before = pinned.read_text()
    result = run(CHORD, "--update-pins")
    assert result.exit_code == 1 and f"{CHORD}: not pinned, refused: refuted" in result.stderr
    assert pinned.read_text() == before


def test_pins_that_are_a_folder_or_gone_are_named(pinned: Path):
    pinned.unlink()
    result = run(CHORD)
    assert result.exit_code == 1 and "there is no pins.toml (restore it" in result.stdout
    pinned.mkdir()
    result = run(CHORD)
    assert result.exit_code == 1 and f"{pinned}: Is a directory" in result.stderr and "restore it" in result.stderr
