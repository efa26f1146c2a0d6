"""The bank of planted faults fits today's sources, and a scratch tree holds exactly the edit that it was made for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from linattest.verify import registry
from linattest.verify.environment import ROOT
from linattest.verify.faults import bank as shelf
from linattest.verify.faults.aim import jobs_of, operators_of, quick_jobs, reached
from linattest.verify.faults.bank import BankError, Fault, bank, chosen, read
from linattest.verify.faults.scratch import planted, surroundings
from linattest.verify.spec import DTYPES

FAULTS = [entry for entry in bank() if entry.kind == "fault"]
NEUTRAL = [entry for entry in bank() if entry.kind == "neutral"]
WITHOUT_FAULTS = {"lm.py"}
"""A model made of the layers: it computes nothing of its own that is not a layer's."""

STRICT = Fault(
    id="strict",
    file="impls/linear.py",
    find="(Q @ keys.mT).tril() @ values",
    replace="(Q @ keys.mT).tril(-1) @ values",
    why="a token does not see itself",
)


def changed(entry: Fault, **changes: object) -> Fault:
    return msgspec.structs.replace(entry, **changes)


def test_the_bank_is_as_large_as_promised():
    assert len(FAULTS) >= 80 and len(NEUTRAL) >= 20


@pytest.mark.parametrize("entry", bank(), ids=lambda entry: entry.id)
def test_entry_applies_once_and_changes_the_program(entry: Fault):
    edited = entry.applied()
    assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(entry.source()))
    before, after = entry.source().splitlines(), edited.splitlines()
    assert [i for i, (x, y) in enumerate(zip(before, after, strict=True), 1) if x != y] == [entry.line]


@pytest.mark.parametrize("entry", bank(), ids=lambda entry: entry.id)
def test_entry_names_what_can_show_it(entry: Fault):
    assert operators_of(entry) or entry.checks, "no operator imports the file, and no test is named"
    assert set(operators_of(entry)) <= set(registry.BY_NAME)
    for check in entry.checks:
        assert (Path(shelf.__file__).resolve().parents[2] / check.split()[0].partition("::")[0]).is_file(), check
    assert entry.why and entry.why[0] != " "


def test_every_module_that_computes_has_faults():
    modules = {path.name for path in (ROOT / "impls").resolve().glob("*.py")} - WITHOUT_FAULTS
    counts = {name: sum(entry.file == f"impls/{name}" for entry in FAULTS) for name in modules}
    assert {name for name, count in counts.items() if count < 2} == set(), counts


def test_text_that_is_gone_is_named():
    with pytest.raises(BankError, match="'strict'.*occurs 0 times in impls/linear.py.*mend the entry"):
        changed(STRICT, find="no such text").applied()
    with pytest.raises(BankError, match="'strict'.*occurs [0-9]+ times"):
        changed(STRICT, find="Tensor").applied()


def test_an_edit_that_changes_nothing_or_does_not_parse_is_named():
    with pytest.raises(BankError, match="'strict'.*the same program"):
        changed(STRICT, replace="(Q @ keys.mT).tril()  @ values").applied()
    with pytest.raises(BankError, match="'strict'.*no longer parses"):
        changed(STRICT, replace="(Q @ ").applied()
    with pytest.raises(BankError, match="'strict'.*cannot be read"):
        changed(STRICT, file="impls/nothing.py").applied()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('file = "impls/linear.py"\n[[fault]]\nid = "a"\n', "find"),
        ('file = "impls/linear.py"\n[[fault]]\nid = "a"\nfind = "a"\nreplace = "b"\nwhy = "c"\nwhere = 1\n', "where"),
        ("file = ", "linear.toml"),
        ("[[fault]]\n", "file"),
    ],
)
def test_a_wrong_file_of_the_bank_is_named(tmp_path: Path, text: str, words: str):
    (tmp_path / "linear.toml").write_text(text)
    with pytest.raises(BankError, match=f"linear.toml.*{words}" if words != "linear.toml" else words):
        read(tmp_path / "linear.toml")


def test_two_entries_of_one_id_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entry = '[[fault]]\nid = "a"\nfind = "x"\nreplace = "y"\nwhy = "z"\n'
    (tmp_path / "linear.toml").write_text('file = "impls/linear.py"\n' + entry + entry)
    monkeypatch.setattr(shelf, "FOLDER", tmp_path)
    with pytest.raises(BankError, match="'a': there are two"):
        bank.__wrapped__()


def test_entries_are_chosen_by_id_and_file():
    assert [entry.id for entry in chosen(bank(), ["linear-triangle-strict"])] == ["linear-triangle-strict"]
    assert {entry.file for entry in chosen(bank(), file="vla")} == {"impls/vla.py"}
    assert chosen(bank(), file="impls/vla.py") == chosen(bank(), file="vla")
    with pytest.raises(KeyError, match=r"no fault \['x'\]"):
        chosen(bank(), ["x"])
    with pytest.raises(KeyError, match="no fault in 'x'.*impls/vla.py"):
        chosen(bank(), file="x")


def test_an_operator_is_aimed_at_by_what_it_imports():
    steps = reached(registry.operator("vla"))
    assert steps["linattest.impls.vla"] == 0 and steps["linattest.impls.ridge_chunk"] == 1
    assert "linattest.impls.softmax" not in steps and not any(".verify" in name for name in steps)
    unlisted = changed(STRICT, file="impls/associative_scan.py")
    assert operators_of(unlisted) == ("vla", "ccq"), "the nearest first"
    assert operators_of(changed(unlisted, checks=("tests/test_errors.py",))) == ()


def test_cheap_cases_come_first_and_named_dtypes_before_them():
    jobs = list(jobs_of(STRICT))
    assert {job.case.operator for job in jobs[:3]} >= {"linear"} and not jobs[0].properties
    wide = list(jobs_of(changed(STRICT, operators=("linear",), dtypes=("float64",))))
    quick = quick_jobs(["linear"])
    assert [job.case.dtype for job in wide[:4]] == ["float64"] * 4
    assert {job.case.dtype for job in wide} == set(DTYPES) and len(wide) > 2 * len(quick)


def test_a_scratch_tree_is_links_but_for_the_edited_file():
    with planted(STRICT) as tree:
        package = tree / "linattest"
        edited = package / "impls" / "linear.py"
        assert not edited.is_symlink() and STRICT.replace in edited.read_text()
        for path in (package / "impls" / "vla.py", package / "verify", package / "kernels"):
            assert path.is_symlink() and path.exists()
        assert STRICT.find in STRICT.source(), "the checkout is untouched"
    assert not tree.exists()


def test_a_process_in_the_tree_has_the_edit_and_one_in_the_plain_tree_has_not():
    ask = "import inspect as i, linattest as p, linattest.impls.bound as b; print(p.__file__, '1.01' in i.getsource(b))"
    edit = next(entry for entry in FAULTS if entry.id == "bound-scale-up-a-hundredth")
    for fault, seen in ((edit, "True"), (None, "False")):
        with planted(fault) as tree:
            done = subprocess.run(
                [sys.executable, "-c", ask], env=surroundings(tree), capture_output=True, text=True, timeout=120
            )
            place, answer = done.stdout.split()
            assert answer == seen and Path(place).parent == tree / "linattest", done.stderr
