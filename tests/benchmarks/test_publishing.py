"""The dashboard: commits on it, what is refused, the landing page in a browser, README's figure."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.verify.bench import filing, picture
from linattest.verify.bench import site as pages
from linattest.verify.bench.gpu_records import read_records
from linattest.verify.bench.paths import CHECKOUT, RESULTS
from linattest.verify.commands import bench_publish, bench_record
from linattest.verify.commands.bench import _newest, bench
from linattest.verify.crossover import crossovers

Record = dict[str, Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def filed(filled: Any, rerun: Callable[..., Record], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Five commits, each twice as fast as the one before, filed; the folder of results."""
    folder = tmp_path_factory.mktemp("filed")
    with pytest.MonkeyPatch.context() as patch:
        for module in (bench_record, bench_publish):
            patch.setattr(module, "CHECKOUT", filled.root)
        for i, commit in enumerate(filled.commits[:5]):
            record = rerun(i, slower=2.0 ** (4 - i)) | {"commit": commit, "started": f"2026-01-0{9 - i}T00:00:00"}
            (folder / f"{i}.json").write_text(json.dumps(record))
        given = ["record", *(str(folder / f"{i}.json") for i in range(5)), "--unverified"]
        done = CliRunner().invoke(bench, [*given, "--results", str(folder / "results")])
        assert done.exit_code == 0, done.output
        yield folder / "results"


@pytest.fixture(scope="module")
def site(filed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dashboard of the five."""
    folder = tmp_path_factory.mktemp("site") / "html"
    done = publish(filed, folder)
    assert done.exit_code == 0 and "5 commits" in done.output, done.output
    return folder


def publish(results: Path, folder: Path) -> Any:
    return CliRunner().invoke(bench, ["publish", "--results", str(results), "--output", str(folder)])


def changed(results: Path, folder: Path, change: Callable[[Record], None]) -> tuple[Path, Path]:
    """A copy of the results in which one is changed: the copy, and that one."""
    copy = shutil.copytree(results, folder / "copy")
    path = next(copy.glob("*/*-torch*.json"))
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return copy, path


def test_every_commit_is_on_the_pages_in_order(site: Path, filled: Any):
    index = json.loads((site / "asv" / "index.json").read_text())
    shown = [index["revision_to_hash"][r] for r in sorted(index["revision_to_hash"], key=int)]
    assert shown == filled.commits[:5]
    assert index["machines"]["h200"]["driver"] and "latency.Latency.track_latency" in index["benchmarks"]
    page = (site / "index.html").read_text()
    labels = re.findall(r"<code>([0-9a-f]{8})</code>", page)
    assert labels[:5] == [commit[:8] for commit in filled.commits[:5]], "in the order of commits, not of runs"
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page) and "https://" not in page, "no network"


def test_a_result_off_the_branch_is_an_error_by_name(filed: Path, filled: Any, tmp_path: Path):
    results, path = changed(filed, tmp_path, lambda content: content.update(commit_hash=filled.side))
    done = publish(results, tmp_path / "site")
    assert done.exit_code == 1 and path.name in done.output.replace("\n", "") and "first-parent" in done.output
    assert not (tmp_path / "site").exists()


def test_a_result_of_another_version_is_told(filed: Path, filled: Any, tmp_path: Path):
    def change(content: Record) -> None:
        content["results"]["latency.Floor.track_floor_ratio"][2] = "0"

    results, path = changed(filed, tmp_path, change)
    suite = filing.discover(filing.configuration(filled.root, results))
    [said] = pages.outdated(pages.results_of(results), suite)
    assert path.name in said and "track_floor_ratio" in said
    assert not pages.outdated(pages.results_of(filed), suite)


def _no_text(content: Record) -> None:
    row = next(row for row in content["results"].values() if row[1])
    row[1][0][0] = {"a": 1}


def test_what_asv_would_stumble_over_is_named(filed: Path, tmp_path: Path):
    results, path = changed(filed, tmp_path, _no_text)
    done = publish(results, tmp_path / "site")
    said = "".join(done.output.split())
    assert done.exit_code == 1 and path.name in said and "isnotext" in said and "Traceback" not in said
    path.write_text("{")
    done = publish(results, tmp_path / "site")
    assert done.exit_code == 1 and path.name in "".join(done.output.split())


def test_a_machine_without_its_record_is_named(filed: Path, tmp_path: Path):
    results, path = changed(filed, tmp_path, lambda _: None)
    (path.parent / "machine.json").unlink()
    done = publish(results, tmp_path / "site")
    assert done.exit_code == 1 and "nomachine.jsonbesideit" in "".join(done.output.split())


def test_nothing_measured_is_no_dashboard(tmp_path: Path):
    assert publish(tmp_path, tmp_path / "site").exit_code == 3


MEASURE = """
addEventListener("load", () => {
  const box = e => e.getBoundingClientRect();
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg")
    && box(e).width && box(e).right > innerWidth + 0.5).map(e => e.tagName + " " + e.textContent.slice(0, 40));
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  parent.postMessage({width: innerWidth, page: document.documentElement.scrollWidth, wide,
    twice: ids.filter((id, i) => ids.indexOf(id) < i), charts: [...document.querySelectorAll("figure > svg")].map(
      e => [Math.round(box(e).width), e.querySelectorAll("path").length])}, "*");
});
"""


@pytest.mark.timeout(200)
def test_the_landing_page_in_a_browser(site: Path, tmp_path: Path):
    """At the width of a telephone and of a screen: nothing beyond an edge, no id twice, every chart drawn."""
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no browser: none of {BROWSERS}")
    page = (site / "index.html").read_text().replace("</body>", f"<script>{MEASURE}</script></body>")
    (tmp_path / "page.html").write_text(page)
    frames = "".join(f'<iframe src="page.html" style="width:{w}px;height:900px"></iframe>' for w in (400, 1280))
    listen = 'addEventListener("message", e => {const p = document.createElement("pre"); p.textContent = '
    listen += "JSON.stringify(e.data); document.body.append(p)})"
    (tmp_path / "around.html").write_text(f"<!DOCTYPE html><body><script>{listen}</script>{frames}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--allow-file-access-from-files"]
    done = subprocess.run([*command, f"file://{tmp_path / 'around.html'}"], capture_output=True, text=True, timeout=150)
    seen = [json.loads(text) for text in re.findall(r"<pre>(\{.*?\})</pre>", done.stdout)]
    assert len(seen) == 2, done.stderr[-500:]
    for one in seen:
        assert not one["wide"] and not one["twice"] and one["page"] <= one["width"], one
        assert len(one["charts"]) >= 9 and all(width > 200 and paths > 10 for width, paths in one["charts"])


def test_readmes_figure_is_that_of_the_committed_records():
    rows: tuple[list[Any], list[Any]] = ([], [])
    for record in read_records(RESULTS):
        for kept, found in zip(rows, crossovers(record), strict=True):
            kept += found
    want = json.loads(json.dumps(picture.shown(*_newest(*rows))))
    have = picture.rows_in((CHECKOUT / "benchmarks" / "crossover.svg").read_text())
    assert have == want, "records have changed: linattest bench crossover --svg benchmarks/crossover.svg"


def test_a_figure_holds_its_rows(gpu_record: Record):
    crossed, uncrossed = crossovers(gpu_record)
    slower = {**{k: v for k, v in crossed[0].items() if k != "tokens"}, "longest": 4096, "ratio": 2.0, "l2": "warm"}
    rows = picture.shown(crossed, [*uncrossed, slower])
    assert picture.rows_in(picture.picture(rows)) == rows and any("longest" in row for row in rows)
    with pytest.raises(ValueError, match="no <desc>"):
        picture.rows_in("<svg/>")
