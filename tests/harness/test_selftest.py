"""The self-test tells caught from missed, missed from broken, and keeps what it found when it is interrupted."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from linattest.verify import devices
from linattest.verify.cli import app
from linattest.verify.commands import selftest as command
from linattest.verify.faults import judge
from linattest.verify.faults.bank import Fault, bank, chosen
from linattest.verify.faults.judge import Evidence, Judgement
from linattest.verify.faults.selftest import Control, Selftest, Trial, _note, _Pool, run_selftest
from linattest.verify.report.selftest import to_json

CAUGHT = ["linear-triangle-strict", "linear-key-sum-gradient-cut", "linear-final-state-early"]

EQUIVALENT = Fault(
    id="equivalent", file="impls/level_weights.py", find="weight.to(WIDE) * d.to(WIDE)",
    replace="d.to(WIDE) * weight.to(WIDE)", checks=("tests/test_levels.py -k start",),
    why="a commuted product is no fault",
)  # fmt: skip
BREAKING = Fault(
    id="breaking", file="impls/linear.py", find="import arguments, bound, features", operators=("linear",),
    replace="import arguments, bound, futures", why="does not import",
)  # fmt: skip
GONE = Fault(id="gone", file="impls/linear.py", find="no such text", replace="x", why="its line was rewritten")
HANGING = Fault(
    id="hanging", file="impls/linear.py", find='floor = arguments.check_number("eps", eps, positive=True)',
    replace='floor = next(x for x in iter(int, 1) if x)', operators=("linear",), why="never ends",
)  # fmt: skip


def by_id(found: Selftest) -> dict[str, Trial]:
    return {trial.id: trial for trial in found.trials}


@pytest.fixture(scope="module")
def found() -> Selftest:
    """A run over faults that are caught, a neutral edit, and what can go wrong with an entry."""
    neutral = chosen(bank(), ["linear-normaliser-blocks-of-16"])
    return run_selftest([*chosen(bank(), CAUGHT), *neutral, EQUIVALENT, BREAKING, GONE], workers=2)


def test_faults_are_caught_and_the_check_is_named(found: Selftest):
    for name in CAUGHT:
        trial = by_id(found)[name]
        assert trial.status == "caught" and trial.by is not None, trial
        assert trial.by.operator == "linear" and trial.by.case is not None and trial.message and trial.line > 0
    gradient = by_id(found)["linear-key-sum-gradient-cut"].by
    assert gradient is not None and gradient.direction == "gradient"


def test_a_neutral_edit_is_green_and_its_growth_is_told(found: Selftest):
    trial = by_id(found)["linear-normaliser-blocks-of-16"]
    assert trial.status == "green" and trial.by is None
    assert trial.growth is not None and 0 < trial.growth < 10


def test_an_equivalent_edit_is_missed(found: Selftest):
    trial = by_id(found)["equivalent"]
    assert trial.status == "missed" and trial.checks == 1
    assert found.failed


def test_an_edit_that_cannot_be_imported_is_an_error_and_no_catch(found: Selftest):
    trial = by_id(found)["breaking"]
    assert trial.status == "error" and "ImportError" in trial.message and "futures" in trial.message


def test_an_entry_whose_text_is_gone_is_an_error_that_names_it(found: Selftest):
    trial = by_id(found)["gone"]
    assert trial.status == "error" and "'gone'" in trial.message and "occurs 0 times" in trial.message


def test_every_check_that_caught_something_is_green_without_the_fault(found: Selftest):
    assert found.control.red == [] and found.control.checks > len(CAUGHT)
    assert list(found.control.worst) == ["linear"]


def test_json_has_the_promised_keys_and_is_strict(found: Selftest):
    said = json.loads(json.dumps(to_json(found, []), allow_nan=False))
    promised = {"schema", "planted", "caught", "missed", "power", "neutral", "seconds", "environment"}
    assert promised <= said.keys() and (said["planted"], said["caught"]) == (6, 3)
    assert {trial["id"] for trial in said["missed"]} == {"equivalent", "breaking", "gone"}
    assert [trial["status"] for trial in said["neutral"]] == ["green"]
    assert all(trial["by"]["name"] for trial in said["faults"] if trial["status"] == "caught")


def test_an_edit_that_never_ends_is_given_up():
    (trial,) = run_selftest([HANGING], workers=1, limit=1.0).trials
    assert trial.status == "error" and "no answer within 1 s" in trial.message


def test_a_check_that_is_red_without_the_fault_makes_the_selftest_fail():
    done = Selftest(trials=[Trial(id="a", file="f", line=1, kind="fault", edit="", why="", status="caught")])
    assert not done.failed
    red = Evidence(operator="linear", variant="chunk", dtype="float32", direction="forward", what="o", message="off")
    _note(done.control, "linear", Judgement(by=red, checks=1))
    assert done.failed and done.control.red == ["linear chunk float32 forward o: off"]
    _note(done.control, "gla", "its process died")
    _note(done.control, "vla", Judgement(raised="KeyError"))
    assert done.control.red[1:] == ["gla: its process died", "vla: KeyError"]


def test_an_output_that_raises_is_remembered_and_the_search_goes_on(monkeypatch: pytest.MonkeyPatch):
    """A record of status ``error`` is no catch: only a number that is wrong is."""

    def records(job: Any) -> Any:
        record = msgspec.structs.replace(SAMPLE, status="error", message="boom")
        yield from (record, SAMPLE)

    from linattest.verify.examine import examine
    from linattest.verify.faults.aim import quick_jobs

    job = quick_jobs(["linear"])[0]
    SAMPLE = examine(job)[0]
    monkeypatch.setattr(judge, "judged", records)
    seen = Judgement()
    judge._run_jobs(seen, [job])
    assert seen.by is None and "boom" in seen.raised and seen.checks == 2


def test_an_interruption_keeps_what_is_done():
    def stop(what: str, trial: Trial | None) -> None:
        raise KeyboardInterrupt

    kept = run_selftest(chosen(bank(), CAUGHT[:2]), 1, stop)
    assert kept.interrupted and [trial.id for trial in kept.trials] == CAUGHT[:1]


def run(monkeypatch: pytest.MonkeyPatch, result: Selftest, *arguments: str) -> Any:
    """The command line on a result that is there already."""
    monkeypatch.setattr(command, "run_selftest", lambda *_: result)
    return CliRunner().invoke(app, ["selftest", *arguments])


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, found: Selftest):
    good = Selftest(trials=[trial for trial in found.trials if trial.status in ("caught", "green")])
    assert run(monkeypatch, good, "--no-power").exit_code == 0
    done = run(monkeypatch, found, "--no-power")
    assert done.exit_code == 1 and "missed" in done.output and "3 of 6 faults caught" in done.output
    assert run(monkeypatch, msgspec.structs.replace(good, interrupted=True)).exit_code == 130
    red = msgspec.structs.replace(good, control=Control(red=["linear chunk: off"]))
    assert run(monkeypatch, red, "--no-power").exit_code == 1
    typo = run(monkeypatch, good, "no-such-fault")
    assert typo.exit_code == 2 and "no-such-fault" in typo.output
    assert run(monkeypatch, good, "--only", "nothing").exit_code == 2
    monkeypatch.setattr(command, "bank", lambda: ())
    assert run(monkeypatch, good).exit_code == 3


def test_list_prints_every_entry(monkeypatch: pytest.MonkeyPatch):
    done = CliRunner().invoke(app, ["selftest", "--list", "--only", "softmax"], env={"COLUMNS": "200"})
    assert done.exit_code == 0 and all(entry.id in done.output for entry in chosen(bank(), file="softmax"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU kernels are not interpreted")
def test_kernels_are_interpreted_by_what_is_loaded_ahead(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(devices.SWITCH)
    _Pool(workers=1, limit=1.0)
    assert devices.interpreting(), "Triton, loaded without, would refuse every test of the suite"
