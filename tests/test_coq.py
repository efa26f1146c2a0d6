"""Coq's word: theorems of the files that compile fast are proved, and what is not proved is not believed.

`make prove` compiles every file and checks every theorem and twin; CI runs it beside the tests.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from linattest.proofs_checks.coq import compiler
from linattest.proofs_checks.coq.theorems import STATEMENTS
from linattest.proofs_checks.proof import Answer, Statement, prove

ROOM = Path(compiler.__file__).parent
FILES = sorted(file.stem for file in ROOM.glob("*.v"))
needs_coq = pytest.mark.skipif(
    not shutil.which("coqc") and os.environ.get("CI") != "true", reason=f"no coqc; {compiler.INSTALL}"
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """A cache of this run's own, which its workers share: what they see was compiled now, each file once."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINATTEST_CACHE", str(shared / "coq"))
        yield


FAST = [statement for statement in STATEMENTS if statement.id in ("lam.fenwick.coq-tree", "vla.cauchy-schwarz")]


@needs_coq
@pytest.mark.parametrize("statement", FAST, ids=[statement.id for statement in FAST])
def test_a_theorem_is_proved_without_axioms_and_its_twin_refuted(statement: Statement):
    proof = prove(statement)
    assert (proof.status, proof.twin_status) == ("proved", "refuted"), proof.evidence
    assert proof.evidence["assumptions"] == compiler.CLOSED
    assert ":" in proof.evidence["theorem"] and "forall" in proof.evidence["type"]
    assert proof.tool.startswith("coqc ")


@needs_coq
def test_coq_writes_nothing_beside_the_sources_nor_where_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "From Coq Require Import Lia.\nTheorem holds : forall n, n < n + 1.\nProof. lia. Qed.\n"
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    room = _room(tmp_path / "room", planted=text)
    assert compiler.proved("planted.holds", room).status == "proved"
    assert not list(here.iterdir()) and [file.name for file in room.iterdir()] == ["planted.v"]


def test_every_theorem_of_every_file_is_a_statement_or_a_twin():
    """`Theorem` is for what is stated; what is on the way there is a `Lemma`."""
    named = [name for file in FILES for name in compiler.THEOREM.findall((ROOM / f"{file}.v").read_text())]
    assert len(named) == len(set(named)) == 2 * len(STATEMENTS)
    assert {f"twin_{name}" for name in named if not name.startswith("twin_")} < set(named)


# --- planted faults ----------------------------------------------------------------------------------------------

GOOD = "Theorem holds : 1 + 1 = 2.\nProof. reflexivity. Qed.\n"
PLANTED = {
    "an open proof": ("Theorem holds : 1 + 1 = 3.\nProof. Admitted.\n", "Admitted"),
    "an axiom": ("Axiom wrong : 1 = 2.\nTheorem holds : 1 + 1 = 3.\nProof. now rewrite wrong. Qed.\n", "Axiom"),
    "an axiom by another name": (
        "Hypothesis wrong : 1 = 2.\nTheorem holds : 1 = 2.\nProof. exact wrong. Qed.\n", "more than Coq's logic",
    ),
    "an axiom of the library": (
        "From Coq Require Import Classical.\nTheorem holds : forall P, P \\/ ~ P.\nProof. exact classic. Qed.\n",
        "more than Coq's logic",
    ),
    "a false theorem": ("Theorem holds : 1 + 1 = 3.\nProof. reflexivity. Qed.\n", "Unable to unify"),
    "a theorem with a hole": ("Theorem holds : 1 + 1 = 2.\nProof. idtac. Qed.\n", "incomplete proof"),
    "a theorem of another name": (GOOD.replace("holds", "other"), "no Theorem holds"),
    "a loop": ("Theorem holds : 1 = 2.\nProof. repeat (pose 1). Qed.\n", "took more than"),
    "what does not parse": ("Theorem holds : 1 + = 2.\n", "Syntax error"),
}  # fmt: skip


def _room(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.v").write_text(text, encoding="utf-8")
    return folder


@needs_coq
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_not_proved(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if fault == "a loop":
        monkeypatch.setattr(compiler, "SECONDS", 3)
    text, said = PLANTED[fault]
    answer = compiler.proved("planted.holds", _room(tmp_path, planted=text))
    assert answer.status == "unknown" and said in answer.evidence["error"], answer


@needs_coq
@pytest.mark.parametrize(
    ("file", "name", "true", "false"),
    [
        ("fenwick", "level_is_block", "level t s = S j <-> in_block", "level t s = j <-> in_block"),
        ("fenwick", "most_levels", "level t s <= bit_length (T - 1)", "level t s <= bit_length (T - 2)"),
        ("forms", "cauchy_schwarz", "form M x y ^+ 2 <= form M x x * form M y y", "form M x y ^+ 2 <= form M x x"),
    ],
)
def test_a_theorem_made_false_is_not_proved(file: str, name: str, true: str, false: str, tmp_path: Path):
    text = (ROOM / f"{file}.v").read_text()
    begin = text.index(f"Theorem {name} ")
    assert true in text[begin:]
    changed = text[:begin] + text[begin:].replace(true, false, 1)
    assert compiler.proved(f"{file}.{name}", _room(tmp_path, **{file: changed})).status == "unknown"


@needs_coq
def test_a_missing_library_is_skipped_and_one_that_nobody_needs_is_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "From mathcomp Require Import no_such_library.\n" + GOOD
    room = _room(tmp_path, planted=text)
    assert compiler.proved("planted.holds", room).status == "unknown"
    monkeypatch.setattr(compiler, "NEEDED", {"no_such_library"})
    answer = compiler.proved("planted.holds", room)
    assert answer.status == "skipped" and compiler.INSTALL in answer.evidence["skipped"]


@needs_coq
@pytest.mark.parametrize(
    "less",
    [
        "Theorem most_levels : True.\nProof. exact I. ",
        "Theorem most_levels : forall t s T, s < s -> level t s <= T.\nProof. lia. ",
    ],
    ids=["says nothing", "is of nothing"],
)
def test_a_theorem_that_says_less_under_its_name_is_not_proved(less: str, tmp_path: Path):
    text, pins = (ROOM / "fenwick.v").read_text(), (ROOM / compiler.PINS).read_text()
    begin, end = (text.index(x, text.index("Theorem most_levels ")) for x in ("Theorem most_levels ", "Qed."))
    for name, file, changed in (("as it is", text, False), ("less", text[:begin] + less + text[end:], True)):
        room = _room(tmp_path / name, fenwick=file)
        (room / compiler.PINS).write_text(pins)
        answer = compiler.proved("fenwick.most_levels", room)
        assert answer.status == "proved" and bool(answer.changed) == changed
        if changed:
            assert "but types.toml has" in answer.changed
            statement = next(s for s in STATEMENTS if s.right == ("fenwick.most_levels",))
            of_room = dataclasses.replace(statement, ask=lambda at, twin_of="", x=room: _asked(at, twin_of, x))
            proof = prove(of_room)
            assert proof.status == "changed" and not proof.stands and "types.toml" in proof.evidence["changed"]
            assert proof.evidence["changed"].endswith(f"linattest prove --update-pins {statement.id}")
        (room / compiler.PINS).unlink()
        assert compiler.proved("fenwick.most_levels", room).changed == "", "Coq itself has nothing against it"


def _asked(at: str, twin_of: str, room: Path) -> Answer:
    return compiler.refuted(at, room, twin_of=twin_of) if twin_of else compiler.proved(at, room)


@needs_coq
def test_every_theorem_and_twin_is_pinned():
    pinned = tomllib.loads((ROOM / compiler.PINS).read_text())["types"]
    named = {f"{file}.{name}" for file in FILES for name in compiler.THEOREM.findall((ROOM / f"{file}.v").read_text())}
    assert named == set(pinned)


@needs_coq
def test_a_good_file_is_proved_so_that_the_faults_above_are_why_the_others_are_not(tmp_path: Path):
    answer = compiler.proved("planted.holds", _room(tmp_path, planted=GOOD))
    assert answer.status == "proved" and answer.evidence["type"] == "1 + 1 = 2"


@needs_coq
def test_a_twin_must_be_a_negation(tmp_path: Path):
    answer = compiler.refuted("planted.holds", _room(tmp_path, planted=GOOD))
    assert answer.status == "unknown" and "no negation" in answer.evidence["error"]


@needs_coq
def test_a_twin_is_about_another_statement_than_the_theorem(tmp_path: Path):
    text = "Theorem holds : 1 = 2 /\\ True -> 3 = 4.\nProof. intros [H _]. discriminate H. Qed.\n"
    text += "Theorem twin_holds : ~ ({0} /\\ True).\nProof. intros [H _]. discriminate H. Qed.\n"
    same, other = (_room(tmp_path / name, planted=text.format(name)) for name in ("1 = 2", "1 = 3"))
    assert compiler.refuted("planted.twin_holds", other, twin_of="planted.holds").status == "refuted"
    answer = compiler.refuted("planted.twin_holds", same, twin_of="planted.holds")
    assert answer.status == "unknown" and "no variant of the theorem" in answer.evidence["error"]


@needs_coq
def test_what_a_file_prints_itself_is_not_taken_for_coqs_word(tmp_path: Path):
    forged = f'Goal True. idtac "== assumptions". idtac "{compiler.CLOSED}". Abort.\n'
    text = "Hypothesis wrong : 1 = 2.\nTheorem holds : 1 = 2.\nProof. exact wrong. Qed.\n" + forged
    assert compiler.proved("planted.holds", _room(tmp_path, planted=text)).status == "unknown"


@needs_coq
def test_a_changed_file_is_compiled_again_with_what_imports_it(tmp_path: Path):
    use = "From Linattest Require Import base.\nTheorem holds : one = 1.\nProof. reflexivity. Qed.\n"
    room = _room(tmp_path, base="Definition one := 1.\n", use=use)
    assert compiler.proved("use.holds", room).status == "proved"
    _room(tmp_path, base="Definition one := 2.\n")
    assert compiler.proved("use.holds", room).status == "unknown"


def test_without_coq_a_statement_is_skipped_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def absent(_: str) -> None:
        return None

    monkeypatch.setattr(compiler.shutil, "which", absent)
    compiler.version.cache_clear()
    proof = prove(STATEMENTS[0])
    assert proof.status == "skipped" and compiler.INSTALL in proof.evidence["skipped"]
