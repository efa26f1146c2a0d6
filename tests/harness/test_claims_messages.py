"""What `claims` and `prove` say where something is missing, broken or empty: named, counted and short."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.claims import gather, ledger
from linattest.verify.claims import vla_stability as stability
from linattest.verify.claims.record import Claims, Outcome
from linattest.verify.report.claims import print_claims
from linattest.verify.report.ledger import ledger as page_of

pytestmark = pytest.mark.usefixtures("claims_here")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})


def broken_row(*_: Any) -> Any:
    raise ZeroDivisionError("planted")


def printed(found: Claims) -> str:
    console = Console(width=300, record=True, force_terminal=False)
    with console.capture() as capture:
        print_claims(console, found, full=False)
    return capture.get()


def raised(o: Outcome) -> Outcome:
    return msgspec.structs.replace(o, verdict=None, error="ZeroDivisionError: planted", evidence=())


# --- counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kept", "words"), [(1, "1 claim: 1 error"), (2, "2 claims: 2 errors")])
def test_errors_are_counted(claims_record: Claims, kept: int, words: str):
    found = msgspec.structs.replace(claims_record, claims=[raised(o) for o in claims_record.claims[:kept]])
    text = printed(found)
    assert text.splitlines()[0].strip() == words
    assert page_of(found).verdict.startswith(f"{words}; {kept} not as the ledger says")


def test_errors_stand_beside_verdicts(claims_record: Claims):
    first, second, third, *_ = claims_record.claims
    text = printed(msgspec.structs.replace(claims_record, claims=[raised(first), second, third]))
    assert text.startswith("3 claims: ") and text.splitlines()[0].endswith("1 error") and " proved" in text


def test_a_check_that_raised_has_no_verdict_in_words(claims_record: Claims):
    outcome = raised(claims_record.claims[0])
    assert outcome.difference == "the check raised ZeroDivisionError: planted; no verdict, the ledger says 'proved'"
    assert "None" not in printed(msgspec.structs.replace(claims_record, claims=[outcome]))


# --- witnesses ---------------------------------------------------------------------------------------------------


def test_a_missing_witness_is_named_in_a_short_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in gather.folder().iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / f"{stability.JACOBIAN}.safetensors").unlink()
    (tmp_path / f"{stability.STATE}.safetensors").write_bytes(b"nothing")
    monkeypatch.setattr(gather, "WITNESSES", str(tmp_path))
    missing, spoilt = gather.witness(stability.JACOBIAN), gather.witness(stability.STATE)
    assert missing.text == f"the witness file {stability.JACOBIAN}.safetensors is missing"
    assert not missing.stands and not spoilt.stands
    assert "is not a witness" in spoilt.text and str(tmp_path) not in spoilt.text and len(spoilt.text) < 200


def test_a_norm_that_cannot_be_computed_contradicts_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stability, "replay", lambda *_: broken_row())
    found = stability.spectral("jacobian")
    assert not found.stands and "not computed (planted)" in found.text


@pytest.mark.parametrize("objective", ["jacobian", "product"])
def test_a_witness_says_what_is_replayed_to_how_many_digits(objective: str):
    shown = gather.witness(f"vla-{objective}-d4-T64-seed0")
    for words in ("a lower bound of the norm", "lam0 = the double nearest 0.1", "keys divided by their length again"):
        assert words in shown.text
    norm = stability.spectral(objective)
    assert "largest singular value" in norm.text and norm.digits is not None and norm.digits >= 50
    low, high = shown.values["value"], norm.values["norm"]
    assert low[:30] == high[:30] and low[:40] != high[:40] and len(high) > 51


# --- prove -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_method_that_no_such_statement_has_is_said(more: tuple[str, ...]):
    result = run("prove", "--method", "coq", "vla.jacobian", "--workers", "1", *more)
    assert result.exit_code == 3
    assert "no statement of method coq begins with vla.jacobian" in result.stderr and "statement" not in result.stdout


def test_the_help_of_prove_names_every_method():
    text = run("prove", "--help").output
    assert all(word in text for word in ("z3", "sympy", "Arb", "16-bit input", "Coq", "--update-pins"))


# --- ledgers -----------------------------------------------------------------------------------------------------

ROW = '[[claim]]\nid = "mine.a"\nstatement = "S."\nexpected = "untested"\nreason = "r"\n'
BROKEN = {
    "another word": (ROW.replace("untested", "certain"), "claim 1 (mine.a): key `expected`: Invalid enum value"),
    "a number": (ROW.replace('"S."', "3"), "claim 1 (mine.a): key `statement`: Expected `str`, got `int`"),
    "no verdict": (ROW.replace('expected = "untested"\n', ""), "claim 1 (mine.a): Object missing required field `expe"),
    "one too many": (ROW + ROW.replace("mine.a", "mine.b") + "colour = 1\n", "claim 2 (mine.b): Object contains unkn"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_is_named_by_file_row_and_key(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a user: wrong usage of --ledger. Of the package: a failure, and no option is blamed."""
    text, words = BROKEN[case]
    (path := tmp_path / "mine.toml").write_text(text)
    result = run("claims", "--ledger", path)
    said = "".join(result.stderr.split())
    assert result.exit_code == 2 and "--ledger" in result.stderr
    assert "".join(f"{path}, {words}".split()) in said.replace("│", "")
    monkeypatch.setattr(ledger, "FOLDER", tmp_path)
    result = run("claims")
    assert result.exit_code == 1 and "--ledger" not in result.stderr
    assert f"the ledger is broken: {path}, {words}" in result.stderr


def test_a_word_that_is_no_verdict_is_refused_with_the_words_there_are(tmp_path: Path):
    (path := tmp_path / "mine.toml").write_text(BROKEN["another word"][0])
    with pytest.raises(ledger.LedgerError, match="'certain', expected one of proved, supported, refuted"):
        ledger.read([path])
