"""Machine-checked statements: a tool that says yes to everything is no pass, nor is one that is missing or raises.

`make prove` checks every statement, which takes a minute; CI runs it beside the tests. Here is one of each module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sympy as sp
import z3
from typer.testing import CliRunner

from linattest.proofs_checks import catalogue
from linattest.proofs_checks.enclosures import balls
from linattest.proofs_checks.pins import Pin
from linattest.proofs_checks.proof import Answer, Proof, Statement, prove
from linattest.proofs_checks.smt import solver
from linattest.proofs_checks.symbolic import algebra
from linattest.verify import cli
from linattest.verify.commands.prove import status_of

ROOM = Path(__file__).parents[1] / "proofs_checks"
MACHINERY = {
    "proof", "pins", "catalogue", "smt.solver", "symbolic.algebra", "enclosures.balls", "enclosures.formulas",
    "coq.compiler", "coq.sentences", "exhaustive.kernel_run",
}  # fmt: skip
EVERY = [statement for module in catalogue.MODULES for statement in catalogue.statements(module)]
FAST = {
    "vla.jacobian.exceeds-one", "vla.kantorovich.attained", "lam.fenwick.levels", "gates.segment-sum",
    "ccq.bounds.sign", "vla.singular-values", "ccq.taylor.gradient", "lam.softplus-independent.budget",
    "lam.init.enclosure", "vla.witness.state-norm", "functions.softplus.monotone",
    "functions.exp.triton-range",
}  # fmt: skip
HERE = [statement for statement in EVERY if statement.id in FAST]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["prove", *arguments])


@pytest.mark.parametrize("statement", HERE, ids=[statement.id for statement in HERE])
def test_a_statement_is_proved_and_its_falsified_twin_refuted(statement: Statement):
    proof = prove(statement)
    assert (proof.status, proof.twin_status) == ("proved", "refuted"), proof.evidence
    assert proof.evidence and proof.tool


def test_every_module_has_a_statement_here():
    tried = [m.name for m in catalogue.MODULES if FAST & {s.id for s in catalogue.statements(m)}]
    assert tried == [m.name for m in catalogue.MODULES if m.method != "coq"]  # those are in test_coq.py


def test_every_module_is_in_the_catalogue_and_every_id_is_its_own():
    files = {".".join(f.relative_to(ROOM).with_suffix("").parts) for f in ROOM.rglob("*.py")}
    assert files - MACHINERY == {module.name for module in catalogue.MODULES}
    assert len({statement.id for statement in EVERY}) == len(EVERY) >= 25


def _proof(answer: Answer, twin: Answer) -> Proof:
    """A planted statement's, pinned as it is."""
    pinned = {"planted": Pin(method="smt", statement="s", assumptions="a", asked="it", twin="t", twin_asked="not it")}
    return prove(_statement(lambda x: x, answer, twin), pinned)


def _statement(ask: Callable[[Answer], Answer], answer: Answer, twin: Answer) -> Statement:
    right, wrong = (msgspec.structs.replace(x, asked=text) for x, text in ((answer, "it"), (twin, "not it")))
    return Statement(
        id="planted", statement="s", assumptions="a", method="smt", ask=ask, right=(right,), twin="t", wrong=(wrong,)
    )


def test_a_check_that_cannot_fail_is_unknown():
    yes = Answer(status="proved", tool="a tool that says yes")
    proof = _proof(yes, yes)
    assert proof.status == "unknown" and "cannot fail" in proof.evidence["twin"]
    assert status_of([proof]) == 1


@pytest.mark.parametrize(("status", "code"), [("refuted", 1), ("unknown", 1), ("skipped", 3), ("proved", 0)])
def test_only_what_is_proved_passes(status: Any, code: int):
    assert status_of([_proof(Answer(status=status), Answer(status="refuted"))]) == code
    assert status_of([]) == 3


def test_a_tool_that_raises_is_unknown():
    def broken(_: Answer) -> Answer:
        raise RuntimeError("no licence")

    statement = _statement(broken, Answer(status="proved"), Answer(status="refuted"))
    assert prove(statement).status == "unknown" and "no licence" in prove(statement).evidence["error"]


def test_a_missing_package_is_skipped_and_no_pass(monkeypatch: pytest.MonkeyPatch):
    module = catalogue.Module("smt.jacobian", "smt", "no_such_package")
    monkeypatch.setattr(catalogue, "MODULES", (module,))
    monkeypatch.setattr(catalogue.pins, "read", lambda: {})
    result = run("--json")
    (proof,) = json.loads(result.stdout)["proofs"]
    assert result.exit_code == 3 and proof["status"] == "skipped" and "no_such_package" in proof["assumptions"]


def test_a_module_that_is_gone_fails_whatever_was_asked(monkeypatch: pytest.MonkeyPatch):
    gone = catalogue.Module("smt.gone", "smt", "z3")
    monkeypatch.setattr(catalogue, "MODULES", (*catalogue.MODULES[:1], gone))
    result = run("vla.jacobian.exceeds-one", "--json", "--workers", "1")
    found = {proof["id"]: proof for proof in json.loads(result.stdout)["proofs"]}
    assert result.exit_code == 1 and found["vla.jacobian.exceeds-one"]["status"] == "proved"
    assert found["smt.gone"]["status"] == "unknown" and "No module named" in found["smt.gone"]["evidence"]["error"]
    assert run("vla.was-in-it", "--workers", "1").exit_code == 1, "an id that it may have had is no mistake of the user"


# --- the tools' own answers --------------------------------------------------------------------------------------


def test_z3_is_not_believed_from_assumptions_that_contradict_themselves():
    x: Any = z3.Real("x")
    assert solver.always(x > 1, x < 0, then=x > 5).status == "unknown"
    assert solver.always(x > 1, then=x > 0).status == "proved"
    refuted = solver.always(x > 0, then=x > 1)
    assert refuted.status == "refuted" and "x" in refuted.evidence
    assert solver.exists(x * x >= 2, x * x <= 2).status == "proved" and solver.exists(x * x < 0).status == "refuted"


def test_sympy_refutes_with_numbers():
    x = sp.Symbol("x", real=True)
    assert algebra.equal(((x + 1) ** 2, x**2 + 2 * x + 1)).status == "proved"
    refuted = algebra.equal((sp.sin(x) ** 2 + sp.cos(x) ** 2, sp.Integer(1)), (x, sp.Integer(1)))
    assert refuted.status == "refuted" and "x" in refuted.evidence


def test_boxes_that_do_not_decide_are_unknown():
    assert balls.nonnegative("x*x + 1", "x", "-1", "1").status == "proved"
    assert balls.nonnegative("x", "x", "-1", "1").status == "refuted"
    assert balls.nonnegative("(x - x) / 3", "x", "-1", "1").status == "unknown"  # 0, which no ball shows
    assert balls.lies(lambda: balls.flint.arb("1 +/- 1"), "it", "0.5", "3").status == "unknown"


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_the_contract():
    result = run("vla.kantorovich", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["schema"] == 1 and len(printed["proofs"]) == 4
    assert {"id", "statement", "method", "status", "seconds"} <= set(printed["proofs"][0])


def test_an_unknown_id_or_method_says_what_is_known():
    for arguments, said in ((["lam.fenwick.carri"], "lam.fenwick.carry"), (["--method", "oracle"], "symbolic")):
        result = run(*arguments)
        assert result.exit_code == 2 and said in result.output
