"""Proofs of the kept witnesses' digits: another input, another digit or a looser bound is not proved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import flint
import msgspec
import pytest

from linattest.proofs_checks.enclosures import witnesses
from linattest.proofs_checks.enclosures.witnesses import DIGITS, GAP, STATEMENTS, WIDE, kept, named, replay
from linattest.proofs_checks.proof import prove
from linattest.verify.search.witness import Kept, save

OBJECTIVES = ("state-norm", "jacobian", "product")
BY_ID = {statement.id: statement for statement in STATEMENTS}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """No replay of one test is another's."""
    replay.cache_clear()
    yield
    replay.cache_clear()


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, changed: Kept) -> None:
    """A folder of the witnesses with this one in it."""
    for path in witnesses.FOLDER.iterdir():
        shutil.copy(path, folder)
    save(folder, changed)
    monkeypatch.setattr(witnesses, "FOLDER", folder)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_fifty_digits_are_named(objective: str):
    low, high = named(objective)
    whole = Decimal(kept(objective).witness.exact or "")
    assert len(Decimal(low).as_tuple().digits) == DIGITS and Decimal(low) <= whole < Decimal(high)
    assert prove(BY_ID[f"vla.witness.{objective}"]).stands


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_digit_that_is_wrong_is_refuted(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = kept(objective)
    wrong = WIDE.next_plus(Decimal(named(objective)[1]))
    plant(tmp_path, monkeypatch, Kept(msgspec.structs.replace(found.witness, exact=str(wrong)), found.tensors))
    assert prove(BY_ID[f"vla.witness.{objective}"]).status != "proved"
    assert prove(BY_ID[f"vla.witness.{objective}.in-bounds"]).stands  # which reads no digits


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_input_that_is_another_is_refuted(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = kept(objective)
    found.tensors["input"]["u"][0, 3, 0, 1] += 2.0**-40
    plant(tmp_path, monkeypatch, found)
    assert prove(BY_ID[f"vla.witness.{objective}"]).status == "refuted"


def test_a_tame_input_refutes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = kept("state-norm")
    found.tensors["free"]["v"].mul_(0.25)
    plant(tmp_path, monkeypatch, found)
    assert prove(BY_ID["vla.witness.state-norm.in-bounds"]).status == "refuted"


def test_without_its_file_nothing_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(witnesses, "FOLDER", tmp_path)
    assert {prove(statement).status for statement in STATEMENTS} == {"unknown"}


@pytest.mark.parametrize("objective", ["jacobian", "product"])
def test_sylvester_s_bound_is_no_looser_than_the_norm(objective: str):
    found, before = replay(objective, witnesses.as_kept, 0.1), flint.ctx.prec
    flint.ctx.prec = witnesses.BITS
    try:
        low = Decimal(named(objective)[0])
        assert found.below(str(WIDE.add(low, GAP))) and not found.below(str(WIDE.subtract(low, GAP)))
    finally:
        flint.ctx.prec = before


@pytest.mark.parametrize("made", [witnesses.as_kept, witnesses.within_bounds])
def test_inputs_are_within_the_bounds_that_are_stated(made):
    for k, v, u in made(kept("state-norm")):
        assert abs(witnesses.norm(k) - 1) < 1e-12 and abs(witnesses.norm(u) - flint.arb("0.5")) < 1e-12
        assert witnesses.norm(v) < 1 + 2.0**-40 and all(x > 0 for x in k.entries())
