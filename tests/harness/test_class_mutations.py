"""Taking a class's fix out of the code turns its tests red: one edit a class, in mutations.toml.

Each edit is made in a scratch copy of the package, and the tests it names run against that. Two run every time; all of
them, each with its tests green before the edit, under ``LINATTEST_PROFILE=nightly``.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from linattest.verify.faults.bank import BankError, Fault
from linattest.verify.faults.scratch import planted, surroundings

TESTS = Path(__file__).parents[1]
SECONDS = 240
QUICK = ("K07", "K23")
"""Classes whose mutation runs every time."""


class Mutation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """An edit of one line, the tests that must notice, and pytest's ``-k`` expression for a few of their cases."""

    kind: str
    file: str
    find: str
    replace: str
    why: str
    tests: tuple[str, ...]
    select: str = ""

    @property
    def fault(self) -> Fault:
        """The edit as an entry of the bank of faults."""
        return Fault(id=f"class-{self.kind}", file=self.file, find=self.find, replace=self.replace, why=self.why)


MUTATIONS = msgspec.convert(
    tomllib.loads((TESTS / "mutations.toml").read_text(encoding="utf-8")), dict[str, list[Mutation]]
)["mutation"]
NIGHTLY = os.environ.get("LINATTEST_PROFILE") == "nightly"
EACH = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.kind)


def outcome(mutation: Mutation, fault: Fault | None, under: Path) -> subprocess.CompletedProcess[str]:
    """The named tests, in a process of their own that imports the package with (or without) the edit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [str(TESTS / name) for name in mutation.tests]
    command += ["-k", mutation.select] if mutation.select else []
    with planted(fault, under) as tree:
        given = {k: x for k, x in surroundings(tree).items() if not k.startswith("PYTEST_")}
        return subprocess.run(
            command, cwd=TESTS.parent, env=given, capture_output=True, text=True, timeout=SECONDS, check=False
        )


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if NIGHTLY or m.kind in QUICK], ids=lambda m: m.kind)
def test_a_class_without_its_fix_turns_its_tests_red(mutation: Mutation, tmp_path: Path):
    """(That they are green with the fix is what the rest of this run says of the two; nightly, of each by itself.)"""
    if NIGHTLY:
        before = outcome(mutation, None, tmp_path)
        assert before.returncode == 0, f"not green before the edit:\n{before.stdout[-2000:]}{before.stderr[-500:]}"
    after = outcome(mutation, mutation.fault, tmp_path)
    words = f"{mutation.why}:\n{after.stdout[-2000:]}{after.stderr[-500:]}"
    assert after.returncode == 1 and " failed" in after.stdout, f"exit code {after.returncode}, expected red; {words}"


@EACH
def test_every_mutation_still_applies_and_its_tests_are_of_its_class(mutation: Mutation):
    assert mutation.fault.applied()
    table = runpy.run_path(str(TESTS / "cases" / "test_class_table.py"))["CLASSES"]
    assert mutation.tests and set(mutation.tests) <= set(table[mutation.kind].split())


def test_mutations_are_of_twelve_classes_at_least_one_each():
    kinds = [mutation.kind for mutation in MUTATIONS]
    assert len(kinds) == len(set(kinds)) >= 12 and set(QUICK) <= set(kinds)


def test_an_edit_whose_line_is_gone_is_an_error():
    gone = msgspec.structs.replace(MUTATIONS[0], find="x = a line that nobody wrote")
    with pytest.raises(BankError, match="class-K01.*occurs 0 times"):
        gone.fault.applied()
