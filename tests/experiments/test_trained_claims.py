"""Claims that need training have the verdict of a committed result, judged anew by the rules there are now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from linattest.verify.claims import ledger, trained
from linattest.verify.claims.verdicts import Verdict, supported
from linattest.verify.experiments import recipe, results
from linattest.verify.experiments.recipe import Simulated, Trained
from linattest.verify.experiments.results import Result

NAME = "vla.capacity"
GOOD = {f"{kind}, n 16": [1.0] * 8 for kind in ("orthogonal keys, u = k", "random keys", "coherent keys")}


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., Path]:
    """``kept(series=..., **fields)``: a folder with a result of the recipe, whose word is always "supported"."""

    def keep(series: dict[str, list[float]], **fields: object) -> Path:
        made = recipe.read(NAME)
        word = Verdict(word="supported", evidence=())
        found = results.result(made, word, quick=False, seeds=8, device="cpu", seconds=1.0, series=series)
        (tmp_path / f"{NAME}.json").write_text(results.text_of(msgspec.structs.replace(found, **fields)))
        return tmp_path

    return keep


def test_the_word_of_a_record_is_not_taken(kept: Callable[..., Path]):
    good = trained.judged(NAME, kept(GOOD))
    assert good.word == "supported" and good.evidence[1].where == f"verify/data/experiments/{NAME}.json"
    assert "on cpu, 8 seeds: commit " in good.evidence[0].text
    assert trained.judged(NAME, kept(GOOD | {"random keys, n 16": [0.5] * 8})).word == "not reproduced"


def test_what_does_not_hold_stands_for_the_word_that_it_gives(kept: Callable[..., Path]):
    """Else a row would differ from a ledger that says what its rules say."""
    verdict = trained.judged(NAME, kept(GOOD | {"random keys, n 16": [0.5] * 8}))
    said = [e.text.partition(":")[0] for e in verdict.evidence[1:]]
    assert verdict.word == "not reproduced" and "does not hold" in said and "holds" in said
    assert all(e.stands for e in verdict.evidence)
    few = trained.judged(NAME, kept({name: x[:2] for name, x in GOOD.items()}))
    assert few.word == "untested" and all(e.stands for e in few.evidence)


def test_a_record_of_another_recipe_or_form_is_none(kept: Callable[..., Path]):
    other = recipe.read(NAME)
    assert isinstance(other, Simulated)
    lenient = msgspec.structs.replace(other, rules=(msgspec.structs.replace(other.rules[0], at_least=0.1),))
    for folder in (kept(GOOD, recipe=lenient), kept(GOOD, form="quick")):
        verdict = trained.judged(NAME, folder)
        assert verdict.word == "untested" and "another recipe" in verdict.evidence[0].text


def test_without_a_record_the_command_is_said(tmp_path: Path):
    verdict = trained.judged(NAME, tmp_path)
    assert verdict.word == "untested" and f"linattest experiment {NAME}" in verdict.evidence[0].text


def test_every_recipe_that_trains_and_has_no_other_check_has_one(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def judged(name: str) -> Verdict:
        asked.append(name)
        return supported()

    monkeypatch.setattr(trained, "judged", judged)
    own = [x for n, x in vars(trained).items() if getattr(x, "__module__", "") == trained.__name__ and n[0] != "_"]
    for check in own:
        if check is not trained.judged and callable(check) and check is not judged:
            check()
    rows = {row.id: row for row in ledger.read()}
    alone = {n for n in recipe.names() if isinstance(recipe.read(n), Trained)} - {"lam.baseline-static"}
    assert sorted(asked) == sorted(alone)
    checks = [row.check for row in rows.values() if row.id in alone and row.check is not None]
    assert all(check.startswith("trained:") for check in checks)


def test_committed_results_are_of_the_recipes_there_are():
    for path in trained.FOLDER.glob("*.json"):
        found: Result = results.read(path)
        assert found.recipe == recipe.read(path.stem) and found.form == "full", path


@pytest.mark.parametrize("name", recipe.names())
def test_a_recipe_is_the_same_when_it_comes_back_from_json(name: str):
    made = recipe.read(name)
    assert msgspec.json.decode(msgspec.json.encode(made), type=recipe.Recipe) == made
