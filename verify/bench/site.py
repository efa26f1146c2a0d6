"""The dashboard: asv's pages of every number over the commits, and a landing page of what they come to.

asv shows what is on a published branch and of the suite's present version, and passes over the rest; so both are
checked first. The landing page is made of the records themselves and needs no network; asv's pages load their scripts
from public addresses.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from linattest.verify import compiled
from linattest.verify.bench import commits, drawings, filing, history
from linattest.verify.bench.charts import name_of
from linattest.verify.bench.commits import Misfit
from linattest.verify.bench.gpu_records import read_json, read_records
from linattest.verify.bench.history import Setting
from linattest.verify.bench.sides import Side
from linattest.verify.crossover import DIRECTIONS, OURS
from linattest.verify.report.page import render

PAGES = "asv"
"""The folder of asv's pages beside the landing page."""


@dataclass(frozen=True)
class Published:
    """What a dashboard shows: commits and numbers of asv's pages, records on the landing page, and what is left out."""

    page: Path
    commits: list[str]
    records: int
    outdated: list[str]


def results_of(folder: Path) -> dict[Path, dict[str, Any]]:
    """asv's results below a folder: not the records beside them."""
    found: dict[Path, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/*.json")):
        content = read_json(path)
        if isinstance(content, dict) and "result_columns" in content:
            if not isinstance(content.get("commit_hash"), str):
                raise Misfit(f"{path} has results of no commit: file its record again (linattest bench record)")
            found[path] = content
    return found


def check(root: Path, found: dict[Path, dict[str, Any]], branches: Sequence[str]) -> None:
    """That every result is of a commit which is published.

    Raises:
        Misfit: one is not; the message names all.
    """
    wrong = [text for path, content in found.items() for text in _unreadable(path, content)]
    if wrong:
        raise Misfit("asv cannot show these: " + "; ".join(wrong))
    for path, content in found.items():
        try:
            commits.resolve(root, content["commit_hash"], branches)
        except Misfit as error:
            wrong.append(f"{path}: {error}")
    if wrong:
        raise Misfit("asv would leave these out: " + "; ".join(wrong))


def _unreadable(path: Path, content: dict[str, Any]) -> list[str]:
    """What asv stumbles over: parameters that are no text, a machine without a record of its own."""
    beside = path.parent / "machine.json"
    said = [] if beside.is_file() else [f"{path}: there is no machine.json beside it"]
    if beside.is_file():
        machine = read_json(beside)
        if not isinstance(machine, dict) or not isinstance(machine.get("machine"), str):
            said.append(f"{beside}: it names no machine, expected what `linattest bench record` writes")
    if not all(isinstance(x, str | None) for x in content.get("params", {}).values()):
        said.append(f"{path}: params that are no text: file its record again (linattest bench record)")
    numbers = content["result_columns"].index("result") if "result" in content["result_columns"] else None
    column = content["result_columns"].index("params") if "params" in content["result_columns"] else None
    for name, row in content["results"].items():
        values = row[column] if column is not None and len(row) > column else None
        if not all(isinstance(x, str) for some in values or () for x in some or ()):
            said.append(f"{path}: a parameter of {name} is no text: file its record again (linattest bench record)")
        found = row[numbers] if numbers is not None and len(row) > numbers else None
        if not all(isinstance(x, int | float | str | None) for x in found or ()):
            said.append(f"{path}: a result of {name} is no number: file its record again (linattest bench record)")
    return said


def outdated(found: dict[Path, dict[str, Any]], suite: Sequence[Any]) -> list[str]:
    """What was filed under another version of a benchmark, or one that is gone: asv does not show it."""
    versions, said = {b.name: b.version for b in suite}, list[str]()
    for path, content in found.items():
        column = content["result_columns"].index("version")
        for name, row in content["results"].items():
            if len(row) <= column or row[column] != versions.get(name):
                said.append(f"{name} in {path.name}: file its record again (linattest bench record)")
    return said


def publish(root: Path, results: Path, output: Path) -> Published:
    """Write the dashboard into a folder; what asv's pages had there before is replaced.

    Raises:
        Misfit: nothing to show, a result of a commit that is not published, or asv failed.
    """
    conf = filing.configuration(root, results)
    found = results_of(results)
    records = read_records(results)
    if not found and not records:
        raise Misfit(f"nothing measured in {results}")
    check(root, found, conf.branches)
    suite = filing.discover(conf)
    output.mkdir(parents=True, exist_ok=True)
    if found:
        branches = [commits.known(root, branch) for branch in conf.branches]
        _asv(conf, suite, list(found), output / PAGES, branches)
    page = output / "index.html"
    settings = history.settings(root, records)
    page.write_text(landing(settings, records, results, pages=bool(found)), encoding="utf-8")
    return Published(page, sorted({c["commit_hash"] for c in found.values()}), len(records), outdated(found, suite))


def _asv(conf: Any, suite: Sequence[Any], results: Sequence[Path], output: Path, branches: list[str]) -> None:
    """asv publish, of a copy of its own files alone: beside records of others it would warn of each."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        for path in results:
            (stage / "results" / path.parent.name).mkdir(parents=True, exist_ok=True)
            for file in (path, path.parent / "machine.json"):
                shutil.copy(file, stage / "results" / path.parent.name)
        known = {name: value for name, value in vars(conf).items() if value is not None}
        known |= {"branches": branches, "results_dir": str(stage / "results"), "html_dir": str(output), "version": 1}
        (stage / filing.CONFIGURATION).write_text(json.dumps(known), encoding="utf-8")
        conf.results_dir = str(stage / "results")
        filing.save_suite(conf, suite)
        command = [sys.executable, "-m", "asv", "--config", str(stage / filing.CONFIGURATION), "publish", "--no-pull"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (output / "index.json").is_file():
            raise Misfit(f"asv publish ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}")


def landing(settings: Sequence[Setting], records: Sequence[Any], results: Path, *, pages: bool) -> str:
    """The landing page."""
    builds = (
        msgspec.json.decode(compiled.PATH.read_bytes(), type=compiled.Compiled) if compiled.PATH.is_file() else None
    )
    registers = [drawings.register_chart(builds.kernels)] if builds else []
    more = drawings.register_history(history.compiled(results))
    red = sum(not row["ok"] for record in records for row in record["gates"] if row["implementation"] == OURS)
    content = {
        "settings": [_section(i, setting) for i, setting in enumerate(settings)],
        "pages": f"{PAGES}/index.html" if pages else "", "triton": builds.triton if builds else "",
        "registers": [*registers, *([more] if more else [])],
        "counts": {
            "records": len(records), "commits": len({record["commit"] for record in records}),
            "operators": len({k for s in settings for k in s.newest}), "red": red,
        },
    }  # fmt: skip
    return render("dashboard.html.j2", content)


def _section(number: int, setting: Setting) -> dict[str, Any]:
    """One GPU and setting: charts, and what failed in the newest records."""
    crossover = [drawings.crossover_chart(setting, d, graph) for graph in (True, False) for d in DIRECTIONS]
    latency = [drawings.latency_chart(side, workload) for workload, side in sorted(setting.newest.items())]
    errors = [drawings.error_chart(setting, direction) for direction in DIRECTIONS[:2]]
    sides = {side.commit: side for side in setting.newest.values()}.values()
    failures = {what: side.commit for side in sides for what in _failed(side)}
    return {
        "number": number, "title": setting.title, "sampling": setting.key[-1], "commits": setting.places,
        "changed": any(place.label.endswith("+") for place in setting.places), "groups": [
            (title, text, [_numbered(number, c) for c in charts if c])
            for title, text, charts in (
                ("Crossover over commits", CROSSOVER, crossover), ("Latency against tokens", LATENCY, latency),
                ("Error against latency", ERROR, errors),
            )
        ],
        "failures": [(*what, commit) for what, commit in failures.items()],
        "environments": {side.commit: side.environment for side in setting.sides.values()},
    }  # fmt: skip


def _failed(side: Side) -> list[tuple[str, str, str]]:
    """What raised, and what is red, of one commit: operator, what, why."""
    found = [(name_of((f["operator"], f["variant"])), str(f["what"]), str(f["error"])) for f in side.failures]
    for (operator, variant, direction, tokens), gate in side.gates.items():
        if not gate["ok"]:
            found.append((name_of((operator, variant)), f"gate, {direction}, {tokens} tokens", str(gate["message"])))
    for (operator, variant, what, tokens), row in side.checks.items():
        if not row["ok"]:
            found.append((name_of((operator, variant)), f"{what}, {tokens} tokens", f"red: {row.get('value')}"))
    return found


CROSSOVER = (
    "Tokens from which on an operator is faster than the fastest softmax attention, with the 95 % interval as a bar; a "
    "cross is slower still at the longest length, and stands there."
)
LATENCY = "The newest record of each operator: medians, inputs in the L2 cache where they fit, CUDA graphs on a GPU."
ERROR = (
    "Root mean square error on the very inputs that were timed, in parts of what the gate allows (three roundings of "
    "the inputs), against the time at the length nearest to 16K."
)


def _numbered(number: int, chart: dict[str, Any]) -> dict[str, Any]:
    """A chart whose ids differ from those of another setting's."""
    return chart | {"svg": type(chart["svg"])(chart["svg"].replace("chart-", f"chart-{number}-"))}
