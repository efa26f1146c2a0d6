"""The ledger: every claim of the papers is a row, verdicts are computed, and whatever is wrong is said and counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.proofs_checks import catalogue
from linattest.verify import cli
from linattest.verify.claims import dependence, gather, ledger, verdicts, vla_penalty
from linattest.verify.claims.ledger import Row, compute
from linattest.verify.claims.record import Outcome, collect
from linattest.verify.claims.verdicts import Verdict, corrected, counted, exact, measured, proved, refuted, supported
from linattest.verify.commands.claims import status_of
from linattest.verify.environment import ROOT

IDS = """
vla.sherman-morrison vla.shrinking vla.minimiser vla.bounded-state vla.jacobian-norm vla.gradient-flow
vla.unnormalised-growth vla.linear-growth vla.state-norm-table vla.mqar-capacity vla.mqar-deltanet-fair
vla.mqar-budget vla.mqar-length vla.mqar-overload vla.capacity vla.cost vla.scan vla.linear-time vla.speedup
vla.crossover vla.recency vla.plateau vla.routing vla.copy vla.constant-memory vla.single-launch
ccq.taylor ccq.recurrent ccq.contraction ccq.write-untouched ccq.identity ccq.dense-directions ccq.cost
ccq.sniah-small ccq.lm-scale ccq.lm-small ccq.softmax-competition ccq.memory-aware ccq.sniah-scale
ccq.length-extrapolation ccq.transformer-8k-zero ccq.longbench
lam.levels lam.complexity lam.init lam.baseline-static lam.softplus-independent lam.params lam.mqar
lam.selective-copy lam.wikitext lam.lm-small lam.heatmap lam.reduction lam.variance lam.mqar-length lam.width-256
"""
"""Every statement of the three papers that has a row in the design's table of claims; two also in a small form."""

ROWS = {row.id: row for row in ledger.read()}
QUICK = "ccq.contraction"
pytestmark = pytest.mark.usefixtures("claims_here")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["claims", "--workers", "1", *arguments])


def test_every_statement_of_the_papers_is_a_row():
    assert sorted(ROWS) == sorted(IDS.split())
    assert ROWS["vla.bounded-state"].expected == ROWS["vla.jacobian-norm"].expected == "corrected"


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_row_names_what_exists(row: Row):
    assert row.where and row.statement.endswith(".") and not list(dependence.stale(row))
    if row.check is not None:
        module, name = row.function
        assert callable(getattr(__import__(module, fromlist=["_"]), name))
        assert all((ROOT / source).is_file() for source in dependence.sources(row))
    else:
        assert row.expected == "untested" and row.reason


# --- computing ---------------------------------------------------------------------------------------------------


def test_command_prints_the_contract():
    result = run(QUICK, "ccq.memory-aware", "vla.speedup", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert set(printed) == {"schema", "claims", "counts", "seconds", "environment"}
    found = {c["id"]: c for c in printed["claims"]}
    assert found[QUICK]["verdict"] == "corrected" and found["vla.speedup"]["verdict"] == "untested"
    assert {"verdict", "expected", "evidence", "differs", "hash", "sources", "stale"} <= set(found[QUICK])
    kinds = {e["kind"] for e in found[QUICK]["evidence"]}
    assert {"witness", "proof"} <= kinds and "not yet run" in found["vla.speedup"]["evidence"][0]["text"]
    assert printed["counts"]["corrected"] == 1 and printed["counts"]["different"] == 0


def test_counts_stand_above_the_evidence():
    result = run(QUICK)
    assert result.exit_code == 0 and result.output.index("1 corrected") < result.output.index("ccq.bounds.sign")


@pytest.mark.parametrize("removed", ["smt.bounds", "smt"])
def test_proof_that_is_gone_turns_the_verdict_and_the_exit_code(monkeypatch: pytest.MonkeyPatch, removed: str):
    kept = tuple(m for m in catalogue.MODULES if not m.name.startswith(removed))
    monkeypatch.setattr(catalogue, "MODULES", kept)
    result = run(QUICK)
    assert result.exit_code == 1 and "differs" in result.output and "no such statement" in result.output
    assert "'refuted', the ledger says 'corrected'" in result.output


def test_proof_file_that_is_gone_makes_its_claims_stale(monkeypatch: pytest.MonkeyPatch):
    read = dependence.content
    monkeypatch.setattr(dependence, "content", lambda name: None if name.endswith("bounds.py") else read(name))
    result = run(QUICK)
    assert result.exit_code == 1 and "stale: proofs_checks/smt/bounds.py is gone" in result.output


def test_evidence_that_is_another_is_stale():
    row = ROWS["vla.jacobian-norm"]
    (name,) = row.files
    (why,) = dependence.stale(Row(id="x", statement="s", expected="untested", reason="r", files={name: "0" * 16}))
    assert name in why and row.files[name] in why


def test_check_that_breaks_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch):
    def broken() -> Verdict:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("linattest.verify.claims.ccq.contraction", broken)
    result = run(QUICK, "--json")
    (found,) = json.loads(result.stdout)["claims"]
    assert result.exit_code == 1 and found["verdict"] is None and "planted" in found["error"]


def test_verdict_that_differs_from_the_recorded_one_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linattest.verify.claims.ccq.contraction", lambda: supported(counted("n", True)))
    result = run(QUICK)
    assert result.exit_code == 1 and "'supported', the ledger says 'corrected'" in result.output


def test_source_that_changes_changes_the_hash(monkeypatch: pytest.MonkeyPatch):
    before = [compute(ROWS[name]) for name in ("vla.speedup", QUICK)]
    assert "proofs_checks/smt/bounds.py" in before[1].sources and not ledger.outdated(before)
    read = dependence.content
    monkeypatch.setattr(dependence, "content", lambda name: b"changed" if name.endswith("bounds.py") else read(name))
    assert ledger.outdated(before) == [QUICK]


def test_processes_give_the_same_verdicts_in_the_same_order():
    rows = [ROWS["vla.speedup"], ROWS[QUICK], ROWS["ccq.memory-aware"]]
    found = ledger.run(rows, workers=2)
    assert [o.id for o in found] == [row.id for row in rows] and not any(o.differs for o in found)


def test_unknown_id_lists_the_known():
    result = run("vla.no-such")
    assert result.exit_code == 2 and "close: vla." in result.output


# --- the words ---------------------------------------------------------------------------------------------------

PROOF = verdicts.Evidence(kind="proof", text="p")
FALLEN = verdicts.Evidence(kind="proof", text="p", stands=False)


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (proved(PROOF), "proved"),
        (proved(PROOF, FALLEN), "untested"),
        (proved(counted("n", True)), "supported"),
        (proved(PROOF, counted("n", True), verdicts.reason("no Coq", lacks="coq")), "supported"),
        (proved(PROOF, measured("x", [2.0], at_most=1)), "not reproduced"),
        (supported(measured("x", [1.0, 1.1, 0.9], at_least=0.5)), "supported"),
        (supported(measured("x", [1.0, 2.0], at_most=1.6)), "not reproduced"),
        (supported(verdicts.reason("words")), "untested"),
        (supported(measured("x", [float("nan")], at_most=1)), "not reproduced"),
        (refuted(exact("w", True, 60)), "refuted"),
        (refuted(exact("w", True, -1)), "refuted"),
        (refuted(exact("w", True, 16)), "untested"),
        (refuted(exact("w", False, 60)), "untested"),
        (refuted(exact("w", True, 60), FALLEN), "untested"),
        (corrected([exact("w", True, 60)], "s", [PROOF]), "corrected"),
        (corrected([exact("w", True, 60)], "s", [PROOF, FALLEN]), "refuted"),
        (corrected([exact("w", True, 60)], "s", [counted("n", True)]), "refuted"),
        (corrected([exact("w", False, 60)], "s", [PROOF]), "untested"),
    ],
)
def test_evidence_decides_the_word(verdict: Verdict, word: str):
    assert verdict.word == word


def _outcome(**changes: Any) -> Outcome:
    given: dict[str, Any] = {
        "id": "x",
        "paper": "",
        "statement": "s",
        "where": "",
        "scope": "",
        "sources": (),
        "hash": "",
    }
    given |= {"verdict": "proved", "expected": "proved", "evidence": (PROOF,)}
    return Outcome(**given | changes)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([_outcome()], 0),
        ([], 3),
        ([_outcome(verdict="supported")], 1),
        ([_outcome(verdict=None, error="E")], 1),
        ([_outcome(evidence=(FALLEN,))], 1),
        ([_outcome(stale=("f is gone",))], 1),
        ([_outcome(verdict="supported", lacks=("z3",), excused=True)], 3),
        ([_outcome(verdict="supported", lacks=("z3",), excused=True), _outcome(verdict=None)], 1),
    ],
)
def test_exit_code(outcomes: list[Outcome], code: int):
    assert status_of(collect(outcomes, 0.0)) == code


def test_a_missing_tool_excuses_only_what_needs_it(monkeypatch: pytest.MonkeyPatch):
    row = ROWS["vla.shrinking"]
    assert row.without == {"coq": "supported"}
    monkeypatch.setattr(vla_penalty, "in_coq", lambda *_: [verdicts.reason("no Coq", lacks="coq")])
    found = compute(row)
    assert (found.verdict, found.expected, found.excused) == ("supported", "supported", False)
    module = catalogue.Module("smt.bounds", "smt", "no_such_package")
    monkeypatch.setattr(catalogue, "MODULES", (module,))
    assert gather.proof("ccq.bounds.sign").lacks == "no_such_package" and run(QUICK).exit_code == 3
