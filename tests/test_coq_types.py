"""What Coq's theorems say, in coq/types.toml: compared where it can be; said where not, or where the file is broken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from linattest.proofs_checks.coq import compiler
from linattest.proofs_checks.proof import Answer, Proof
from linattest.verify.commands.prove import to_json, warnings

ROOM = Path(compiler.__file__).parent
GOOD = "Theorem holds : 1 + 1 = 2.\nProof. reflexivity. Qed.\n"
needs_coq = pytest.mark.skipif(
    not shutil.which("coqc") and os.environ.get("CI") != "true", reason=f"no coqc; {compiler.INSTALL}"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LINATTEST_CACHE", str(tmp_path / "cache"))


def _room(folder: Path, planted: str) -> Path:
    folder = folder / "room"
    folder.mkdir(exist_ok=True)
    (folder / "planted.v").write_text(planted, encoding="utf-8")
    return folder


def _proof(answer: Answer) -> Proof:
    """A statement's that this answer proves."""
    return Proof(
        id="planted", statement="s", assumptions="a", method="coq", status=answer.status, twin="t",
        twin_status="refuted", seconds=0.0, tool=answer.tool, evidence=answer.evidence,
    )  # fmt: skip


@needs_coq
def test_types_of_another_coq_are_compared_where_they_are_equal_and_else_it_is_said(tmp_path: Path):
    room = _room(tmp_path, planted=GOOD)
    for says, told in (("1 + 1 = 2", False), ("(1 + 1 = 2)", True)):
        (room / compiler.PINS).write_text(f"coqc = '8.0'\n[types]\n'planted.holds' = '{says}'\n")
        answer = compiler.proved("planted.holds", room)
        assert (answer.status, answer.changed) == ("proved", "")
        assert ("not compared" in answer.evidence) == told
        assert to_json([_proof(answer)], 0.0)["warnings"] == warnings([_proof(answer)])
    (warning,) = warnings([_proof(answer)])
    assert warning.startswith("NOT COMPARED: what 1 of Coq's statements say") and "install coqc 8.0" in warning


@needs_coq
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[types]\n", "types.toml has no key `coqc`"), ("coqc = '8'\n", "has no table `types`"), ("[", "types.toml: "),
    ],
)  # fmt: skip
def test_broken_types_are_named_with_what_to_do(text: str, words: str, tmp_path: Path):
    room = _room(tmp_path, planted=GOOD)
    (room / compiler.PINS).write_text(text)
    answer = compiler.proved("planted.holds", room)
    assert answer.status == "unknown" and words in answer.evidence["error"] and "restore it" in answer.evidence["error"]


@needs_coq
def test_a_missing_file_says_what_to_do(tmp_path: Path):
    answer = compiler.proved("gone.holds", _room(tmp_path, planted=GOOD))
    assert (
        answer.status == "unknown" and "coq/gone.v: No such file or directory; restore it" in answer.evidence["error"]
    )


@needs_coq
def test_types_are_renewed_one_at_a_time_and_those_of_another_coq_all_at_once(tmp_path: Path):
    (file := tmp_path / "types.toml").write_text((ROOM / compiler.PINS).read_text())
    _, before = compiler.read_types(file)
    assert compiler.write_types({}, set(), file) == 0 and compiler.read_types(file)[1] == before
    name, other, *_ = before
    assert compiler.write_types({name: "True"}, {other}, file) == 1
    after = {x: "True" if x == name else says for x, says in before.items() if x != other}
    assert compiler.read_types(file) == (compiler.version(), after)
    file.write_text(file.read_text().replace(compiler.version(), "8.0", 1))
    with pytest.raises(compiler.CoqError, match="only all of it"):
        compiler.write_types({name: "False"}, set(), file)
    compiler.write_types(after, set(), file)
    assert compiler.read_types(file) == (compiler.version(), after)
