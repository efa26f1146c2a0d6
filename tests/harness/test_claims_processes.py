"""Checks run in processes of their own: one that ends its process is an error of that claim, and costs no other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.proofs_checks import pins
from linattest.proofs_checks.proof import Answer, Statement, prove
from linattest.verify import cli
from linattest.verify.claims.record import Claims
from linattest.verify.claims.verdicts import measured
from linattest.verify.report.claims import line

LEDGER = """
import ctypes, os
from linattest.verify.claims.ledger import claim
from linattest.verify.claims.verdicts import counted, supported

@claim("mine.exits", statement="S.", expected="supported")
def exits():
    os._exit(0)

@claim("mine.stands", statement="S.", expected="supported")
def stands():
    return supported(counted("n", True, where=str(os.getpid())))

@claim("mine.crashes", statement="S.", expected="supported")
def crashes():
    ctypes.string_at(0)

@claim("mine.unsendable", statement="S.", expected="supported")
def unsendable():
    return supported(counted("n", True, function=lambda: 1))

@claim("mine.last", statement="S.", expected="supported")
def last():
    return supported(counted("n", True))
"""


WANTED: dict[int, tuple[str, ...]] = {1: ("mine.exits", "mine.stands"), 2: ()}


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_check_that_ends_its_process_is_an_error_and_the_others_keep_their_verdicts(workers: int, tmp_path: Path):
    (path := tmp_path / "dies.py").write_text(LEDGER)
    output = tmp_path / "claims.json"
    result = run("claims", *WANTED[workers], "--ledger", path, "--workers", str(workers), "--output", output)
    assert result.exit_code == 1, result.output
    found = {c["id"].removeprefix("mine."): c for c in json.loads(output.read_text())["claims"]}
    verdicts = {"exits": None, "stands": "supported", "crashes": None, "unsendable": None, "last": "supported"}
    assert {x: c["verdict"] for x, c in found.items()} == {
        x: verdicts[x] for x in verdicts if workers > 1 or x in found
    }
    assert list(found) == [x for x in verdicts if x in found] and len(found) == (2 if workers == 1 else 5)
    for name in {"exits", "crashes"} & set(found):
        assert found[name]["error"].startswith("no answer: its process ended, alone too")
        assert f"mine.{name}: no answer: its process ended" in result.stdout
    if workers > 1:
        assert "pickle" in found["unsendable"]["error"] and found["unsendable"]["error"].startswith("no answer: ")


# --- what is said ------------------------------------------------------------------------------------------------


def test_a_report_says_which_claims_differ_and_which_are_errors(claims_record: Claims, tmp_path: Path):
    first, second, third, *_ = claims_record.claims
    broken = msgspec.structs.replace(first, verdict=None, error="ZeroDivisionError: planted")
    other = msgspec.structs.replace(second, verdict="untested", expected="proved")
    record = tmp_path / "claims.json"
    said = f"DIFFERS: 2 of 3 claims: {first.id} (error), {second.id}; "
    for outcomes, words in (([broken, other, third], said), ([third], "")):
        record.write_text(json.dumps(msgspec.structs.replace(claims_record, claims=outcomes).to_json()))
        result = run("report", "--claims", record, "--html", tmp_path / "page.html")
        assert ("DIFFERS" in result.stderr) == bool(words) and words in result.stderr
        assert (result.exit_code == 1) == bool(words)


@pytest.mark.parametrize(("command", "close"), [("claims", "vla.minimiser"), ("prove", "vla.certificate")])
def test_an_unknown_id_gets_the_close_ones_and_no_list_of_all(command: str, close: str):
    result = run(command, f"{close[:-2]}x")
    assert result.exit_code == 2 and len(result.stderr) < 2500 and "['" not in result.stderr
    assert f"begins with '{close[:-2]}x' (close: {close}" in result.stderr and "are known: " in result.stderr


@pytest.mark.parametrize("sample", [math.nan, math.inf])
def test_what_is_no_number_is_said_once(sample: float):
    fallen = measured("x", [sample, 1.0], at_most=3)
    assert not fallen.stands and fallen.broken_limit == "no number: a sample is NaN, or infinite"
    assert line(fallen) == "measurement: DOES NOT STAND: x; mean no number, seeds 2, at_most 3"
    assert measured("x", [sample], at_most=3).broken_limit == fallen.broken_limit


# --- pins are offered where they can be renewed ------------------------------------------------------------------


def _statement(right: str, wrong: str = "refuted", mend: str = "") -> Statement:
    def ask(status: Any) -> Answer:
        return Answer(status=status, asked="q", evidence={"error": "planted"})

    return Statement(
        id="planted", statement="s", assumptions="a", method="coq", ask=ask, right=(right,), twin="t",
        wrong=(wrong if wrong != right else "unknown",), mend=mend,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "status", "offered"),
    [
        ("proved", "refuted", "changed", True), ("skipped", "refuted", "changed", True),
        ("unknown", "refuted", "unknown", False), ("proved", "unknown", "unknown", False),
    ],
)  # fmt: skip
def test_update_pins_is_offered_where_it_applies(right: str, wrong: str, status: str, offered: bool):
    proof = prove(_statement(right, wrong), {})
    assert proof.status == status and f"{pins.FILE.name} has no 'planted'" in proof.evidence["changed"]
    assert ("--update-pins" in proof.evidence["changed"]) == offered
    assert ("never pinned: mend that first" in proof.evidence["changed"]) == (not offered)


def test_what_is_refuted_of_a_file_names_it_and_what_to_do():
    from linattest.proofs_checks.enclosures.witnesses import STATEMENTS

    assert all("verify/data/witnesses/vla-" in s.mend and "restore that file" in s.mend for s in STATEMENTS)
    assert prove(_statement("refuted", "proved", "restore F")).evidence["what to do"] == "restore F"
    assert "what to do" not in prove(_statement("proved", mend="restore F")).evidence
