"""``linattest report --experiment``: a section of the page, one figure as a file, exit codes, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from markupsafe import Markup
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.environment import environment
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments import results
from linattest.verify.experiments.figures import QUICK
from linattest.verify.experiments.judging import judge
from linattest.verify.experiments.recipe import Trained
from linattest.verify.experiments.results import Result
from linattest.verify.experiments.running import Outcome
from linattest.verify.experiments.settings import changed
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record
from linattest.verify.report.experiments import sections

NAME = "vla.capacity"
GOOD = {
    f"{kind}, n {n}": [1.0] * 8 for kind in ("orthogonal keys, u = k", "random keys", "coherent keys") for n in (8, 16)
}


def simulated(series: dict[str, list[float]]) -> Result:
    """A full form of a recipe with these series, whose word is always "supported"."""
    recipe = recipes.read(NAME)
    verdict = msgspec.structs.replace(judge(recipe, (), series), word="supported")
    return results.result(recipe, verdict, quick=False, seeds=8, device="cpu", seconds=1.0, series=series)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Result], Path]:
    """``written(result)``: its file."""

    def write(found: Result) -> Path:
        (path := tmp_path / f"{found.experiment}.json").write_text(results.text_of(found))
        return path

    return write


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick form, as the command wrote it."""
    path = tmp_path_factory.mktemp("quick") / "overload.json"
    given = ["experiment", "vla.mqar-overload", "--quick", "--seeds", "2", "--output", str(path)]
    assert CliRunner().invoke(cli.app, given).exit_code == 0
    return path


def report(*arguments: str | Path) -> Any:
    given = ["report", *map(str, arguments)]
    return CliRunner().invoke(cli.app, given, env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


def text_of(document: str) -> str:
    return Markup(document.partition("<body>")[2].replace("<", " <")).striptags()


def test_a_file_becomes_one_figure_the_same_each_time(quick: Path, tmp_path: Path):
    first, second, other = (tmp_path / f"{n}.svg" for n in "abc")
    done = report("--experiment", quick, "--svg", first)
    assert done.exit_code == 0 and "vla.mqar-overload: figure pairs; --figure has others: learning" in done.stderr
    assert report("--experiment", quick, "--svg", second, "--figure", "pairs").exit_code == 0
    assert report("--experiment", quick, "--svg", other, "--figure", "learning").exit_code == 0
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    assert ElementTree.parse(first).getroot().tag.endswith("svg") and QUICK in first.read_text()


def test_the_page_has_verdicts_rules_with_the_papers_figures_and_drawings(
    written: Callable[[Result], Path], quick: Path, tmp_path: Path
):
    page = tmp_path / "page.html"
    bad = written(simulated(GOOD | {"random keys, n 16": [0.5] * 8}))
    done = report("--experiment", bad, "--experiment", quick, "--html", page)
    document = page.read_text()
    text = text_of(document)
    assert done.exit_code == 0 and "2 experiments: 1 not reproduced, 1 quick" in text
    assert "random keys, n 16, mean over seeds 0.5 (0.5 to 0.5) at least 0.99 1 no" in text
    assert "orthogonal keys, u = k, n 16, mean over seeds 1 (1 to 1) at least 0.99 1 yes" in text
    assert "recall against n" in text and f"{QUICK}" in text and document.count("<figcaption>") == 3
    assert 'id="experiment-vla.capacity"' in document and document.count("</html>") == 1
    assert text.count("The rules, and the paper") == 1, "a quick form's rules are of other sizes"


def test_the_word_of_a_file_is_not_taken(written: Callable[[Result], Path], tmp_path: Path):
    path = written(simulated(GOOD | {"random keys, n 16": [0.5] * 8}))
    assert results.read(path).verdict == "supported"
    report("--experiment", path, "--html", tmp_path / "page.html")
    assert '<span class="tag not-reproduced">' in (tmp_path / "page.html").read_text()


def test_every_result_has_a_line_with_the_verdict_of_now(
    written: Callable[[Result], Path], quick: Path, tmp_path: Path
):
    right, page = written(simulated(GOOD)), ("--html", tmp_path / "page.html")
    assert report("--experiment", right, *page).stderr == "vla.capacity: supported (full form, 8 seeds)\n"
    bad = written(simulated(GOOD | {"random keys, n 16": [0.5] * 8}))
    said = report("--experiment", bad, "--experiment", quick, *page).stderr.splitlines()
    assert said == [
        "vla.capacity: not reproduced (full form, 8 seeds); the file says supported, its rules judge its runs anew",
        "vla.mqar-overload: untested (quick form, 2 seeds): quick form: it checks the machinery, not the claim",
    ]


def test_a_figure_that_cannot_be_written_is_not_said_to_be(written: Callable[[Result], Path], tmp_path: Path):
    done = report("--experiment", written(simulated(GOOD)), "--svg", tmp_path / "none" / "x.svg")
    assert done.exit_code == 2 and "cannot write" in done.stderr and "drawn" not in done.stderr


def test_a_result_in_another_size_is_on_the_page_with_what_was_set_and_not_the_recipes_scope(
    written: Callable[[Result], Path], learnable: Trained, tmp_path: Path
):
    line = "training.steps=7"
    made = changed(msgspec.structs.replace(learnable, scope="width 16, a hundred steps"), [line])
    runs = [Outcome(model="softmax", task="one", learning_rate=0.02, seed=n, error="planted") for n in range(3)]
    found = results.result(
        made, judge(made, runs), quick=False, seeds=3, device="cpu", seconds=1.0, runs=runs, settings=[line]
    )
    done = report("--experiment", written(found), "--html", tmp_path / "page.html")
    text = text_of((tmp_path / "page.html").read_text())
    assert "In another size: training.steps=7." in text and "a hundred steps" not in text
    assert "planted in another size: untested (full form, 3 seeds); set: training.steps=7" in done.stderr


def test_a_model_without_a_run_has_a_row_that_says_so_and_the_exit_code(
    written: Callable[[Result], Path], learnable: Trained, tmp_path: Path
):
    runs = [Outcome(model="softmax", task="one", learning_rate=0.02, seed=n, error="planted") for n in range(3)]
    found = results.result(
        learnable, judge(learnable, runs), quick=False, seeds=3, device="cpu", seconds=1.0, runs=runs
    )
    [section] = sections([found])
    assert section.rows == [["softmax", "one", "", "", "no whole run", "", "0"]] and section.charts == []
    done = report("--experiment", written(found), "--html", tmp_path / "page.html")
    assert done.exit_code == 1 and "3 runs without a result" in text_of((tmp_path / "page.html").read_text())
    assert '<p class="verdict bad">' in (tmp_path / "page.html").read_text()
    done = report("--experiment", written(found), "--svg", tmp_path / "x.svg")
    assert done.exit_code == 3 and "no run is whole" in done.stderr and not (tmp_path / "x.svg").exists()


def test_a_result_in_another_size_is_told_from_the_claims():
    found = simulated(GOOD)
    assert sections([found])[0].reasons == []
    other = msgspec.structs.replace(found, recipe=msgspec.structs.replace(found.recipe, seeds=9))
    [said] = sections([other])[0].reasons
    assert "made by another recipe than there is now" in said


def test_beside_records_it_is_a_section(quick: Path, tmp_path: Path):
    record = Record(
        case=Case(operator="linear", structure=Structure(T=2, K=2, V=2)), variant="chunk", direction="forward",
        what="o", status="pass", ratio=0.5, environment=environment(), message="",
    )  # fmt: skip
    (tmp_path / "records.jsonl").write_bytes(msgspec.json.encode(record) + b"\n")
    given = ("--records", tmp_path / "records.jsonl", "--experiment", quick)
    assert report(*given, "--html", tmp_path / "page.html").exit_code == 0
    document = (tmp_path / "page.html").read_text()
    assert 'href="#experiments"' in document and 'id="experiments"' in document and 'id="matrix"' in document


REFUSED = [
    ("not json", ("--svg", "x.svg"), ["--experiment", "vla.capacity.json is no result of an experiment"]),
    ("99", ("--svg", "x.svg"), ["vla.capacity.json: schema=99, expected 1"]),
    ("no series", ("--svg", "x.svg"), ["vla.capacity.json: its runs lack what a rule asks for"]),
    ("gone", ("--svg", "x.svg"), ["--experiment", "cannot read", "vla.capacity.json"]),
    ("other", ("--svg", "x.svg"), ["--experiment", "experiment is 'vla.copy', expected 'vla.capacity'"]),
    ("", ("--svg", "x.svg", "--figure", "pairs"), ["--figure", "'pairs', expected one of n"]),
    ("", ("--html", "x.html", "--figure", "n"), ["--figure", "without --svg FILE"]),
    ("", ("--html", "x.html", "--junit", "x.xml"), ["--experiment", "--html FILE and nothing else"]),
    ("", (), ["--experiment", "with --html FILE or --svg FILE"]),
    ("", ("--svg", "none/x.svg"), ["--svg", "cannot write none/x.svg"]),
]


@pytest.mark.parametrize(("fault", "extra", "named"), REFUSED, ids=[f"{f} {' '.join(e)}" for f, e, _ in REFUSED])
def test_a_wrong_use_is_named(
    fault: str, extra: tuple[str, ...], named: list[str], written: Callable[[Result], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    good = simulated(GOOD)
    path = written(good)
    if fault == "not json":
        path.write_text("{")
    elif fault == "gone":
        path.unlink()
    elif fault:
        faults: dict[str, dict[str, Any]] = {"no series": {"series": {}}, "other": {"experiment": "vla.copy"}}
        changes = faults.get(fault, {"schema": 99})
        path.write_text(results.text_of(msgspec.structs.replace(good, **changes)))
    done = report("--experiment", path, *extra)
    assert done.exit_code == 2 and [word for word in named if word not in done.stderr] == [], done.stderr
    assert [*tmp_path.glob("x.*")] == []


def test_a_file_is_one_figure(quick: Path, tmp_path: Path):
    done = report("--experiment", quick, "--experiment", quick, "--svg", tmp_path / "x.svg")
    assert done.exit_code == 2 and "2 of --experiment, expected one" in done.stderr
    assert "0 of --experiment" in report("--svg", tmp_path / "x.svg").stderr
