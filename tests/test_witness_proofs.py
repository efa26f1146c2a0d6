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
from linattest.proofs_checks.enclosures.witnesses import DIGITS, NORMS, STATEMENTS, WIDE, kept, named, replay
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
    whole = kept(objective).witness.exact or ""
    assert len(Decimal(named(objective)).as_tuple().digits) == DIGITS and whole.startswith(named(objective))
    assert prove(BY_ID[f"vla.witness.{objective}"]).stands


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_digit_that_is_wrong_is_refuted(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = kept(objective)
    digits = Decimal(named(objective))
    wrong = WIDE.add(digits, Decimal((0, (1,), digits.adjusted() - DIGITS + 1)))
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


@pytest.mark.parametrize("objective", NORMS)
def test_the_norm_itself_has_fifty_digits_that_its_lower_bound_shares_to_29(objective: str):
    proof = prove(BY_ID[f"vla.witness.{objective}.norm"])
    assert proof.stands and NORMS[objective] in proof.statement and len(NORMS[objective]) == DIGITS + 1
    low, norm = named(objective), NORMS[objective]
    shared = next(n for n in range(DIGITS) if low[n] != norm[n]) - 1  # one place is the point
    assert shared >= 29 and Decimal(low) < Decimal(norm)


@pytest.mark.parametrize("objective", NORMS)
def test_minors_tell_the_norm_from_what_is_next_to_it(objective: str):
    found, before = replay(objective, witnesses.as_kept, 0.1), flint.ctx.prec
    flint.ctx.prec = witnesses.BITS
    try:
        norm = found.spectral()
        little = flint.arb("1e-80")
        assert found.below(norm + little) and not found.below(norm - little)
        assert found.above(norm - little) and not found.above(norm + little)
    finally:
        flint.ctx.prec = before


def test_a_largest_singular_value_that_is_another_is_not_vouched_for(monkeypatch: pytest.MonkeyPatch):
    found = replay("jacobian", witnesses.as_kept, 0.1)
    monkeypatch.setattr(witnesses.Replay, "above", lambda *_: False)
    with pytest.raises(ArithmeticError, match="do not vouch"):
        found.spectral()


@pytest.mark.parametrize("made", [witnesses.as_kept, witnesses.within_bounds])
def test_inputs_are_within_the_bounds_that_are_stated(made):
    for k, v, u in made(kept("state-norm")):
        assert abs(witnesses.norm(k) - 1) < 1e-12 and abs(witnesses.norm(u) - flint.arb("0.5")) < 1e-12
        assert witnesses.norm(v) < 1 + 2.0**-40 and all(x > 0 for x in k.entries())
