"""A budget of time goes into random cases: always the same ones, all over their space, and small where they fail."""

import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.configuration import storage_directory
from typer.testing import CliRunner

from linattest.impls import linear
from linattest.verify import campaign as campaigns
from linattest.verify import cli, fuzz, registry, shrink
from linattest.verify.coverage import Coverage, Space, coverage_of, traits
from linattest.verify.environment import environment
from linattest.verify.examine import examine, planned, replay
from linattest.verify.executors import InProcess
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record, canonical, read
from linattest.verify.report.coverage import coverage_json

LINEAR = registry.operator("linear")
SPACES = {name: Space(registry.operator(name)) for name in ("linear", "vla", "ccq")}


def instant(job: Job, variants: tuple[str, ...], bundles: Path | None = None) -> list[Record]:
    """As ``examine``, without looking: everything passes."""
    operator = registry.operator(job.case.operator)
    return [
        Record(case=job.case, variant=v.name, direction=d, what=d, status="pass", ratio=0.0, environment=environment())
        for v, d, _ in planned(operator, job.case, variants)
    ]


# --- which cases ------------------------------------------------------------------------------------------------


def test_sequence_of_cases_depends_on_the_seed_alone():
    first, again, other = ([*itertools.islice(fuzz.sample(SPACES, seed), 30)] for seed in (5, 5, 6))
    assert first == again != other
    assert len({job.case.key for job in first}) == 30
    assert [job.case.operator for job in first] == [*SPACES] * 10
    assert max(job.work for job in first) <= fuzz.MOST_WORK


def test_drawing_leaves_nothing_where_one_works(monkeypatch: pytest.MonkeyPatch):
    def look(*_: Any, **__: Any) -> st.SearchStrategy[None]:
        return st.builds(lambda: seen.append(storage_directory(intent_to_write=False).path))

    seen: list[Path] = []
    before = storage_directory(intent_to_write=False).path
    monkeypatch.setattr(fuzz, "cases", look)
    fuzz.draw(LINEAR, ("float32",), 0)
    assert seen and before not in seen and not any(path.exists() for path in seen)
    assert storage_directory(intent_to_write=False).path == before


@pytest.mark.parametrize("name", SPACES)
def test_space_has_what_is_drawn_and_little_else(name: str):
    """A pair that is drawn is possible; of those that are possible, random cases bring nearly all."""
    space = SPACES[name]
    drawn = [*itertools.islice(fuzz.endless(space.operator, space.dtypes, 0), 500)]
    found, possible = coverage_of({name: space}, drawn), set(space.pairs())
    assert [pair for pair in found.pairs[name] if pair not in possible] == []
    assert list(traits(drawn[0])) == list(space.axes)
    assert len(found.untried(name)) < 0.08 * len(possible)
    assert not any(n == 0 for times in found.times(name).values() for n in times.values())


def test_choice_among_a_handful_covers_more_than_chance():
    space, many = SPACES["linear"], 60
    chance = coverage_of({"linear": space}, itertools.islice(fuzz.endless(LINEAR, space.dtypes, 0), many))
    guided = coverage_of({"linear": space}, (j.case for j in itertools.islice(fuzz.sample({"linear": space}, 0), many)))
    by_chance, by_choice = (len(x.untried("linear")) for x in (chance, guided))
    assert by_choice < 0.75 * by_chance, (by_choice, by_chance)


def test_coverage_counts_pairs_once_and_names_what_is_missing():
    case = Case(operator="linear", structure=Structure(T=64, K=16, V=16), gradient=False)
    found = coverage_json(coverage_of({"linear": SPACES["linear"]}, [case, case]))
    axes = len(SPACES["linear"].axes)
    row = found["operators"]["linear"]
    assert (row["inputs"], row["pairs_tried"]) == (1, axes * (axes - 1) // 2)
    assert row["pairs"] == len(set(SPACES["linear"].pairs())) and 0 < row["percent"] < 20
    assert row["values"]["T"]["64"] == 1 and row["values"]["T"]["65"] == 0 and row["values"]["dtype"]["float16"] == 0
    assert coverage_json(Coverage(SPACES))["percent"] == 0


# --- the budget -------------------------------------------------------------------------------------------------


class Clock:
    """A second passes with each look at it."""

    def __init__(self) -> None:
        self.now = time.perf_counter()

    def perf_counter(self) -> float:
        self.now += 1
        return self.now


def test_budget_is_kept_and_a_resumed_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaigns, "examine", instant)
    path, operators = tmp_path / "records.jsonl", [space.operator for space in SPACES.values()]
    runs: list[fuzz.Fuzzed] = []
    for budget in (10, 20):
        monkeypatch.setattr(fuzz, "time", Clock())
        runs.append(fuzz.fuzz(operators, InProcess(width=1), budget, output=path, resume=True))
    before, after = ([*dict.fromkeys(r.case.key for r in x.campaign.records)] for x in runs)
    assert (len(before), len(after)) == (10, 20) and after[:10] == before
    assert runs[1].coverage.cases.total() == 20
    assert canonical(read(path)) == canonical(runs[1].campaign.records)


def test_budget_is_measured_in_seconds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaigns, "examine", instant)
    start = time.perf_counter()
    found = fuzz.fuzz([LINEAR], InProcess(width=1), 1.0)
    assert 1.0 < time.perf_counter() - start < 10 and found.campaign.seconds > 1.0


def test_contradictions_are_refused():
    for arguments in (["--budget", "0"], ["--budget", "5", "--full"], ["--budget", "5", "--quick"]):
        result = CliRunner().invoke(cli.app, ["verify", *arguments])
        assert result.exit_code == 2 and "--budget" in result.stderr


# --- failures made smaller --------------------------------------------------------------------------------------


def wrong_from_17(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, Any]:
    o, state = linear.chunk(*x, **given)
    return o * (1.01 if x[0].shape[1] >= 17 else 1.0), state


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk form is wrong from 17 tokens on; nothing else is tried."""
    wrong = dataclasses.replace(LINEAR.variant("chunk"), function=f"{__name__}:wrong_from_17")
    faulty = dataclasses.replace(LINEAR, variants=(LINEAR.variant("recurrent"), wrong))
    monkeypatch.setitem(registry.BY_NAME, "linear", faulty)


def test_failure_shrinks_to_what_it_needs(planted: None):
    big = Structure(
        T=40, K=9, V=7, H=2, group=2, cu_seqlens=(0, 10, 30, 38), initial_state=True, layout="transposed"
    )  # fmt: skip
    case = Case(operator="linear", structure=big, family="coherent", seed=7, options={"scale": -2.0})
    (failure,) = (r for r in examine(Job(case), ("chunk",)) if r.failed and r.direction == "forward")
    small = shrink.shrink(failure, InProcess(width=1), lambda: False)
    assert small == Case(operator="linear", structure=Structure(T=17, K=2, V=2), gradient=False)


def test_shrinking_ends_in_time_with_what_it_has(monkeypatch: pytest.MonkeyPatch, planted: None):
    def slow(job: Job, variants: tuple[str, ...], bundles: Path | None) -> list[Record]:
        time.sleep(0.1)
        return [failure(job.case)]

    def failure(case: Case) -> Record:
        return Record(case=case, variant="chunk", direction="forward", what="o", status="fail", ratio=99.0)

    monkeypatch.setattr(shrink, "examine", slow)
    case = Case(operator="linear", structure=Structure(T=100, K=60, V=50, H=2), gradient=False)
    start = time.perf_counter()
    small = shrink.shrink(failure(case), InProcess(width=1), lambda: time.perf_counter() > start + 0.5)
    assert time.perf_counter() - start < 3 and small.structure != case.structure


def test_budget_reports_the_smallest_failure_and_its_coverage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: None
):
    monkeypatch.setattr("linattest.verify.commands.verify.open_executor", lambda *_: InProcess(width=1))
    monkeypatch.setattr(fuzz, "MOST_SHRUNK", 1)
    monkeypatch.setenv("COLUMNS", "200")
    folder, path = tmp_path / "failures", tmp_path / "records.jsonl"
    arguments = ["verify", "linear", "--variant", "chunk", "--budget", "6", "--failures", str(folder)]
    result = CliRunner().invoke(cli.app, [*arguments, "--records", str(path), "--json"])
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    (small,) = found["shrunk"]
    assert " T=17 " in small["case"] and " K=2 V=2 " in small["case"] and small["first_seen"] != small["case"]
    bundle = Path(small["replay"].rpartition(" ")[2])
    assert bundle.parent == folder and [r.status for r in replay(bundle)] == ["fail"]
    assert small["case"] in {r.case.describe() for r in read(path) if r.failed}
    assert found["coverage"]["inputs"] > 5 and found["coverage"]["percent"] > 5
