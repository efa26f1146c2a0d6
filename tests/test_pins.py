"""What each tool was asked is pinned beside its words: a formula turned round is `changed`, however it is proved."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import z3
from typer.testing import CliRunner

from linattest.proofs_checks import catalogue, pins
from linattest.proofs_checks.enclosures import formulas, witnesses
from linattest.proofs_checks.exhaustive import functions
from linattest.proofs_checks.proof import Answer, Statement, prove
from linattest.proofs_checks.smt import jacobian
from linattest.proofs_checks.smt.solver import always, exists
from linattest.proofs_checks.symbolic import covariance
from linattest.verify import cli
from linattest.verify.claims import gather, ledger

EVERY = {s.id: s for module in catalogue.MODULES for s in catalogue.statements(module)}
PINNED = pins.read()
PLANE: Any = jacobian  # z3 and sympy have no types to speak of
KEYS: Any = covariance


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, [*arguments, "--workers", "1"])


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pins that a test may write to."""
    path = tmp_path / "pins.toml"
    path.write_text(pins.FILE.read_text())
    monkeypatch.setattr(pins, "FILE", path)
    monkeypatch.setattr(pins.read, "__defaults__", (path,))
    monkeypatch.setattr(pins.write, "__defaults__", (path,))
    return path


def planted(monkeypatch: pytest.MonkeyPatch, module: str, identity: str, ask: Callable[..., Answer]) -> None:
    """The statement of that id asks another question, in the catalogue and hence in the ledger."""
    found = __import__(f"linattest.proofs_checks.{module}", fromlist=["_"])
    changed = tuple(dataclasses.replace(s, ask=ask) if s.id == identity else s for s in found.STATEMENTS)
    monkeypatch.setattr(found, "STATEMENTS", changed)
    gather._checked.cache_clear()


# --- the file ----------------------------------------------------------------------------------------------------


def test_every_statement_is_pinned_with_its_words_and_nothing_else_is():
    assert list(PINNED) == list(EVERY)
    for identity, pin in PINNED.items():
        s = EVERY[identity]
        assert (pin.method, pin.statement, pin.assumptions) == (s.method, s.statement, s.assumptions)
        assert pin.twin == s.twin
        assert pin.asked != pin.twin_asked, f"{identity}: the twin asks the same"


def test_what_is_pinned_can_be_read():
    asked = PINNED["vla.jacobian.exceeds-one"].asked.splitlines()
    assert asked[0] == "for some c : Real, s : Real, x : Real, y : Real" and asked[2].strip() == "with (> c 0.0)"
    assert PINNED["vla.sigma.golden"].asked.startswith("for every c in [0, 1]\n  0 <= (((1 + sqrt(5)) / 2) + 1e-12) -")
    assert "  2*c" not in PINNED["vla.singular-values"].asked and " = 3 - 2*c" in PINNED["vla.singular-values"].asked


def test_a_pin_comes_back_as_it_was_written(tmp_path: Path):
    odd = pins.Pin(
        method="smt", statement='a "b" \\ é', assumptions="'''", asked="'''\n  x", twin="t", twin_asked="0 <= x\n  \\"
    )
    pins.write({"a.b": odd}, tmp_path / "p.toml")
    assert pins.read(tmp_path / "p.toml") == {"a.b": odd}


def test_a_long_question_is_pinned_by_its_hash_too():
    long, other = ("x" * 5000 + end for end in ("1", "2"))
    assert pins.shortened(long) != pins.shortened(other) and len(pins.shortened(long)) < pins.LONGEST
    assert pins.shortened("short") == "short"


# --- a question that is another ----------------------------------------------------------------------------------


def turned(*cosine: z3.BoolRef) -> Answer:
    return exists(PLANE.UNIT, *cosine, PLANE.IMAGE < PLANE.SIZE)


def weaker(*cosine: z3.BoolRef) -> Answer:
    """Less than the statement where c < 1: it is proved, and its twin refuted."""
    excess = PLANE.IMAGE - PLANE.SIZE
    return exists(PLANE.UNIT, *cosine, excess > PLANE.c - 1)


@pytest.mark.parametrize(("ask", "status"), [(turned, "unknown"), (weaker, "changed")])
def test_a_formula_turned_round_turns_the_exit_code(
    ask: Callable[..., Answer], status: str, monkeypatch: pytest.MonkeyPatch
):
    identity = "vla.jacobian.exceeds-one"
    assert run("prove", identity).exit_code == 0
    planted(monkeypatch, "smt.jacobian", identity, ask)
    result = run("prove", identity, "--json")
    (proof,) = json.loads(result.stdout)["proofs"]
    assert result.exit_code == 1 and proof["status"] == status and "but pins.toml has" in proof["evidence"]["changed"]
    assert f"1 {status}" in run("prove", identity).output


@pytest.mark.parametrize(("ask", "status"), [(turned, "unknown"), (weaker, "changed")])
def test_a_formula_turned_round_turns_the_verdict(
    ask: Callable[..., Answer], status: str, monkeypatch: pytest.MonkeyPatch
):
    planted(monkeypatch, "smt.jacobian", "vla.jacobian.exceeds-one", ask)
    (row,) = (row for row in ledger.read() if row.id == "vla.jacobian-norm")
    found = ledger.compute(msgspec.structs.replace(row, figure=None))  # which takes long
    assert found.verdict == "refuted" and found.differs, "as stated it is refuted; the correction is not proved"
    fallen = [e for e in found.evidence if not e.stands]
    assert [e.text.partition(":")[0] for e in fallen] == ["vla.jacobian.exceeds-one"]
    assert fallen[0].values["status"] == status and "but pins.toml has" in found.difference
    gather._checked.cache_clear()


@pytest.mark.parametrize(
    ("identity", "owner", "name", "wrong"),
    [
        ("ccq.taylor.gradient", covariance, "_log_partition", lambda: KEYS.sp.log(3) + sum(
            (KEYS.KEYS[:, j].T * KEYS.q)[0] for j in range(3)) / 3),
        ("functions.exp.monotone", functions, "domain", lambda f, kind: functions.inputs(kind)[::2]),
        ("vla.witness.state-norm.in-bounds", witnesses, "phi", lambda x: witnesses.arb(x).exp() + 1),
    ],
)  # fmt: skip
def test_another_computation_is_changed_though_it_is_proved(
    identity: str, owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
):
    witnesses.replay.cache_clear()
    wrong.__name__ = wrong.__qualname__ = name
    wrong.__module__ = owner.__name__
    monkeypatch.setattr(owner, name, wrong)
    pins.code.cache_clear()
    proof = prove(EVERY[identity])
    assert proof.status in ("changed", "refuted") and "changed" in proof.evidence
    pins.code.cache_clear()
    witnesses.replay.cache_clear()


@pytest.mark.parametrize("field", ["statement", "assumptions", "twin"])
def test_words_that_are_others_are_changed(field: str):
    s = dataclasses.replace(EVERY["vla.kantorovich.chord"], **{field: "something else"})
    proof = prove(s)
    assert proof.status == "changed" and proof.evidence["changed"].startswith(f"{field} is '")


def test_what_is_not_pinned_is_changed():
    proof = prove(EVERY["vla.kantorovich.chord"], {})
    assert (proof.status, proof.stands) == ("changed", False) and "has no" in proof.evidence["changed"]


def test_an_answer_that_does_not_say_what_was_asked_is_unknown():
    s = dataclasses.replace(EVERY["vla.kantorovich.chord"], ask=lambda x: Answer(status="proved"))
    assert prove(s).status == "unknown" and "what was asked" in prove(s).evidence["error"]


def test_a_twin_with_the_arguments_of_its_statement_is_refused():
    s = EVERY["vla.kantorovich.chord"]
    with pytest.raises(ValueError, match="right and wrong are both"):
        dataclasses.replace(s, wrong=s.right)


# --- J, from which everything in the plane is derived ------------------------------------------------------------


@pytest.mark.parametrize("identity", ["exceeds-one", "bound", "attained", "radius"])
def test_another_jacobian_is_another_question(identity: str, monkeypatch: pytest.MonkeyPatch):
    s: Statement = EVERY[f"vla.jacobian.{identity}"]
    c, s_, one = PLANE.c, PLANE.s, PLANE.ONE
    J: Any = ((one - c, PLANE.NIL), (-s_, one + one))
    monkeypatch.setattr(jacobian, "J", J)
    first, second = (a * PLANE.x + b * PLANE.y for a, b in J)
    monkeypatch.setattr(jacobian, "IMAGE", first * first + second * second)
    assert "changed" in prove(s).evidence


def test_an_eigenvalue_of_one_is_asked_for():
    """A Jacobian of half the size has no eigenvalue beyond 1, and not 1 either."""
    (a, b), (d, e) = PLANE.J
    one: Any = PLANE.characteristic(((a / 2, b / 2), (d / 2, e / 2)), PLANE.ONE)[0] == 0
    assert always(PLANE.UNIT, PLANE.c > 0, then=one).status == "refuted"
    assert "(- (- 1.0 (* s 0.0)) 1.0)" in PINNED["vla.jacobian.radius"].asked


def test_complex_eigenvalues_are_eigenvalues_too():
    turn: Any = ((PLANE.NIL, -PLANE.ONE), (PLANE.ONE, PLANE.NIL))
    real, imaginary = PLANE.characteristic(turn, PLANE.NIL, PLANE.ONE)  # i, of a quarter turn
    both: Any = z3.And(real == 0, imaginary == 0)
    assert always(then=both).status == "proved"


# --- formulas as text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["__import__('os')", "x.exp()", "y + 1", "x if x else 'a'", "[x]", "lambda: x"])
def test_a_formula_has_arithmetic_only(wrong: str):
    with pytest.raises(ValueError, match="expected"):
        formulas.compiled(wrong, "x")


def test_a_decimal_is_what_is_written():
    third = formulas.compiled("0.1 + x**2 - 2 / 20", "x")(functions.flint.arb(3))
    assert third.contains(9) and third.rad() > 0, "0.1 is no double"
    assert formulas.compiled("x + 1 if x >= 0 else exp(x)", "x")(functions.flint.arb(0)) == 1


# --- renewing ----------------------------------------------------------------------------------------------------


def test_renewing_writes_what_is_asked_now_and_leaves_the_rest(pinned: Path, monkeypatch: pytest.MonkeyPatch):
    before = pins.read()
    identity = "vla.jacobian.exceeds-one"
    planted(monkeypatch, "smt.jacobian", identity, weaker)
    assert run("prove", identity).exit_code == 1
    result = run("prove", identity, "--update-pins")
    assert result.exit_code == 0 and "1 renewed" in result.stderr and identity in result.stderr
    after = pins.read()
    assert list(after) == list(before) and {x for x in after if after[x] != before[x]} == {identity}
    assert run("prove", identity).exit_code == 0
    assert "as it was" in run("prove", identity, "--update-pins").stderr


def test_what_does_not_stand_is_not_pinned(pinned: Path, monkeypatch: pytest.MonkeyPatch):
    before = pinned.read_text()
    planted(monkeypatch, "smt.jacobian", "vla.jacobian.exceeds-one", lambda *_: exists(PLANE.c > 9, PLANE.c < 8))
    result = run("prove", "vla.jacobian.exceeds-one", "--update-pins")
    assert result.exit_code == 1 and pinned.read_text() == before


def test_pins_that_are_no_toml_are_a_failure_that_is_named(pinned: Path):
    pinned.write_text("[x\n")
    result = run("prove", "vla.kantorovich.chord")
    assert result.exit_code == 1 and "pins.toml" in result.stderr
