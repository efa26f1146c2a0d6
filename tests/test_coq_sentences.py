"""What Coq's files say outside proofs, in coq/sentences.toml: another definition is seen, a proof may change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from linattest.proofs_checks.coq import compiler, sentences
from linattest.proofs_checks.coq.theorems import STATEMENTS
from linattest.proofs_checks.proof import prove

ROOM = Path(sentences.__file__).parent
FILES = sorted(file.stem for file in ROOM.glob("*.v"))
needs_coq = pytest.mark.skipif(
    not shutil.which("coqc") and os.environ.get("CI") != "true", reason=f"no coqc; {compiler.INSTALL}"
)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A copy of Coq's files with what is pinned of them."""
    for file in [*ROOM.glob("*.v"), ROOM / sentences.PINS]:
        shutil.copy(file, tmp_path)
    return tmp_path


def edit(room: Path, file: str, *pairs: tuple[str, str]) -> None:
    text = (path := room / f"{file}.v").read_text()
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after, 1)
    path.write_text(text)


def test_every_file_is_pinned_as_it_is():
    assert sorted(sentences.read(ROOM / sentences.PINS)) == FILES
    assert [sentences.difference(file, ROOM) for file in FILES] == [""] * len(FILES)


STEP = "Num.sqrt (dot (a t') (k t') / n t')\n"
WEAKER = {
    "Fixpoint certificate": ("certificate", (STEP, f"{STEP} + 1000%:R\n")),
    "Definition norm": ("certificate", (":= Num.sqrt (energy N S)", ":= 0 * Num.sqrt (energy N S)")),
    "Definition length": ("certificate", (":= Num.sqrt (dot x x)", ":= 2%:R * Num.sqrt (dot x x)")),
    "Definition psd": ("forms", ("forall x, 0 <= form M x x", "forall x, 0 < form M x x")),
    "Definition pd": ("forms", ("x != 0 -> 0 < form M x x", "0 < form M x x")),
    "Definition gain": ("energy", ("n^-1 *: (invmx M *m k)", "0 *: (invmx M *m k)")),
    "Definition penalty": ("sequence", ("lam0%:M", "(lam0 + 1)%:M")),
    "Notation a": ("certificate", ("(gains lam0 u k n)", "(gains lam0 k k n)")),
    "Hypothesis positive": ("certificate", ("positive : 0 < lam0", "positive : 1 < lam0")),
}


@pytest.mark.parametrize("what", WEAKER)
def test_another_definition_is_named_by_what_imports_it(what: str, room: Path):
    file, pair = WEAKER[what]
    edit(room, file, pair)
    assert f"{file}.v: {what} is " in sentences.difference("products", room)
    assert sentences.difference("fenwick", room) == ""


def test_fenwicks_definitions_too(room: Path):
    edit(room, "fenwick", ("level t s := bit_length (Nat.lxor t s)", "level t s := 0 * bit_length (Nat.lxor t s)"))
    edit(room, "fenwick", ("in_block t s j := ", "in_block t s j := True \\/ "))
    said = sentences.difference("fenwick", room)
    assert "Definition level" in said and "Definition in_block" in said and "but sentences.toml has" in said


def test_a_definition_by_the_old_name_of_another_is_seen(room: Path):
    edit(
        room, "certificate", ("Fixpoint certificate", "Fixpoint tight"), ("* certificate t'", "* tight t'"),
        ("Theorem certificate_holds", "Definition certificate t : R := tight t + 1000%:R.\nTheorem certificate_holds"),
    )  # fmt: skip
    said = sentences.difference("certificate", room)
    assert "Fixpoint tight is" in said and "Definition certificate is not in sentences.toml" in said


def test_proofs_comments_and_layout_may_change(room: Path):
    edit(room, "certificate", ("Proof.\n", "Proof. (* Definition x := 1. *)\nidtac.\n- { move=> *. }\n"))
    edit(room, "certificate", ("Definition norm (N", "Definition  norm\n  (* the norm *) (N"))
    assert sentences.difference("products", room) == ""


HIDDEN = {
    "a command in a proof": ("Lemma a : True.\nProof. idtac. Definition b := 1. exact I. Qed.", "Definition b := 1."),
    "behind a comment in a string": (
        'Lemma a : True. idtac "(*". Definition b := 1. idtac "*)".',
        "Definition b := 1.",
    ),
    "a proof that defines": ("Lemma a : nat.\nProof. exact 7. Defined.", "exact 7."),
    "after a bullet": ("Lemma a : True.\nProof. - Notation b := 1.", "Notation b := 1."),
    "with an attribute": ("#[local] Definition b := 1.", "#[local] Definition b := 1."),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_nothing_that_defines_is_taken_for_a_proof(how: str):
    text, sentence = HIDDEN[how]
    assert sentence in sentences.outside_proofs(text)


def test_comments_are_nested_and_a_full_stop_in_a_string_ends_nothing():
    text = '(* a (* b *) Definition c := 1. *) Definition d := "x. y". Definition e := 1.+1.\n'
    assert sentences.outside_proofs(text) == ('Definition d := "x. y".', "Definition e := 1.+1.")


@pytest.mark.parametrize(("text", "words"), [("[", "restore it"), ("a = 1\n", "a is no text; restore it")])
def test_a_broken_file_is_named_with_what_to_do(text: str, words: str, room: Path):
    (room / sentences.PINS).write_text(text)
    with pytest.raises(ValueError, match=rf"coq/sentences.toml: .*{words}"):
        sentences.difference("fenwick", room)


def test_files_are_renewed_with_what_they_import(room: Path):
    edit(room, "forms", WEAKER["Definition psd"][1])
    edit(room, "fenwick", ("level t s := ", "level t s := 1 + "))
    (room / "plane.v").unlink()
    assert sentences.write(["certificate"], room) == ["forms", "plane"]
    assert sentences.difference("certificate", room) == "" and "level" in sentences.difference("fenwick", room)
    assert sentences.write(["certificate"], room) == []


# --- through Coq -------------------------------------------------------------------------------------------------


@needs_coq
def test_a_theorem_of_another_definition_is_changed_though_it_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LINATTEST_CACHE", str(tmp_path / "cache"))
    (room := tmp_path / "room").mkdir()
    use = "From Linattest Require Import base.\nTheorem holds : 1 <= bound.\nProof. repeat constructor. Qed.\n"
    (room / "use.v").write_text(use)
    for bound, changed in ((1, False), (1000, True)):
        (room / "base.v").write_text(f"Definition bound := {bound}.\n")
        if not changed:
            sentences.write(["use"], room)
        answer = compiler.proved("use.holds", room)
        assert answer.status == "proved" and bool(answer.changed) == changed
    assert answer.changed == "base.v: Definition bound is 'Definition bound := 1[000].', but sentences.toml has " + (
        "'Definition bound := 1[].'"
    )


def test_without_coq_another_definition_is_changed_too(room: Path, monkeypatch: pytest.MonkeyPatch):
    def absent(_: str) -> None:
        return None

    edit(room, *WEAKER["Definition psd"])
    monkeypatch.setattr(compiler.proved, "__defaults__", (room,))
    monkeypatch.setattr(compiler.refuted, "__defaults__", (room,))
    monkeypatch.setattr(compiler.shutil, "which", absent)
    compiler.version.cache_clear()
    proof = prove(STATEMENTS[0])
    assert proof.status == "changed" and "forms.v: Definition psd" in proof.evidence["changed"]
