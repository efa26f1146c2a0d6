"""Records as results of asv: every benchmark of the suite is asked of a record, and what it says is kept by commit.

The suite's classes are found by asv, as `asv run` finds them, and looked up in this process: so both ways give the
same names, parameters and versions. A combination that failed has a null, and so has one that the record does not
have; which of them failed, and why, is returned and is in the record.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import Results, get_filename
from asv.runner import BenchmarkResult
from asv.util import write_json
from asv_runner.discovery import disc_benchmarks

from linattest.verify.bench.commits import Commit, Misfit
from linattest.verify.bench.kinds import Source

CONFIGURATION = "asv.conf.json"

PLAIN = (str, int, float, bool)
"""What a parameter may be: another object's text may hold its address, and then no two runs have it in common."""


@dataclass
class Answer:
    """What one benchmark says of a record: by place in the product of its parameters; failures by name and values."""

    values: dict[int, float | None] = field(default_factory=dict)
    samples: dict[int, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Filed:
    """Where a record is now, how many numbers it gave, and what failed in it: benchmark and parameters, the reason."""

    path: Path
    numbers: int
    failures: dict[str, str]


def configuration(root: Path, results: Path) -> Any:
    """asv's configuration of a checkout, its paths made absolute, with another folder of results.

    Raises:
        Misfit: the checkout has no suite.
    """
    path = root / "benchmarks" / CONFIGURATION
    if not path.is_file():
        raise Misfit(f"no {path}: the suite is part of a checkout, not of an installed package")
    conf: Any = Config.load(str(path))  # asv types its attributes by their first values, which are None
    conf.repo, conf.benchmark_dir, conf.results_dir = str(root), str(path.parent), str(results)
    return conf


def discover(conf: Any) -> list[Any]:
    """The suite's benchmarks.

    Raises:
        Misfit: a parameter is neither text nor a number.
    """
    place = str(Path(conf.benchmark_dir).parent)
    sys.path.insert(0, place)
    try:
        found = list(disc_benchmarks(conf.benchmark_dir))
    finally:
        sys.path.remove(place)
    for benchmark in found:
        for name, values in zip(benchmark.param_names, benchmark._params, strict=True):
            for value in values:
                if not isinstance(value, PLAIN):
                    raise Misfit(
                        f"{benchmark.name}: parameter {name} has a value of type {type(value).__name__}, expected text "
                        "or a number: an object has no name that is the same in every run"
                    )
    return found


def ask(benchmark: Any, tables: Any) -> Answer:
    """One benchmark for every combination of its parameters.

    Args:
        tables: what its class reads of a record.
    """
    answer = Answer()
    for index, values in enumerate(itertools.product(*benchmark._params)):
        benchmark.set_param_idx(index) if values else None
        benchmark.set_cache(tables)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # asv prints what it skips
                skipped = benchmark.do_setup()
            if skipped:
                continue
            answer.values[index] = _finite(benchmark.do_run())
            samples = getattr(benchmark.func.__self__, "samples", None)
            if samples:
                answer.samples[index] = list(samples)
        except Exception as error:
            answer.values[index] = None
            if getattr(error, "expected", False):
                continue  # a number beyond what was measured
            where = f"{benchmark.name}({', '.join(map(str, values))})"
            answer.failures[where] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return answer


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r}, expected a finite number")
    return value


# --- files ---------------------------------------------------------------------------------------------------------


def file(conf: Any, source: Source, commit: Commit, suite: Sequence[Any], machine: str) -> Filed:
    """File one record: its numbers beside those that the commit has already, the machine, the list of benchmarks.

    Raises:
        Misfit: nothing in the suite takes this record, or the folder is another machine's.
    """
    asked = [b for b in suite if b.func.__self__.kind == source.kind]
    tables = {read: read(source.content) for read in {b.func.__self__.read for b in asked}}
    answers = {b.name: ask(b, tables[b.func.__self__.read]) for b in asked}
    numbers = sum(x is not None for answer in answers.values() for x in answer.values.values())
    if not numbers:
        raise Misfit(f"no benchmark of the suite has a number of this {source.kind}: {_why(source, answers)}")
    check_machine(Path(conf.results_dir) / machine, machine, source)
    facts = {"machine": machine, **source.facts}
    name = "-".join(f"{key}{_plain(value)}" for key, value in source.facts.items() if key != "gpu") or "any"
    results = Results(facts, {}, commit.hash, commit.date, source.details.get("python", ""), name, {})
    path = Path(conf.results_dir) / get_filename(machine, commit.hash, name)
    if path.is_file() and json.loads(path.read_text(encoding="utf-8"))["commit_hash"] != commit.hash:
        raise Misfit(f"{path} is of another commit whose hash begins alike")
    results.load_data(conf.results_dir)
    for benchmark in suite:
        if benchmark.name in answers and answers[benchmark.name].values:
            _add(results, benchmark, answers[benchmark.name], source.content.get("started"))
    results.save(conf.results_dir)
    save_machine(path.parent, machine, source)
    save_suite(conf, suite)
    return Filed(path, numbers, {at: why for answer in answers.values() for at, why in answer.failures.items()})


def _plain(fact: str) -> str:
    """A fact as part of a file's name, whatever a record says."""
    return "".join(c if c.isalnum() or c in "._+" else "-" for c in fact)


def _why(source: Source, answers: dict[str, Answer]) -> str:
    """What may be the reason: failures, or settings that no benchmark has."""
    failed = [f"{at}: {why}" for answer in answers.values() for at, why in answer.failures.items()]
    return failed[0] if failed else f"its settings are {source.content.get('settings', 'not said')}"


def _add(results: Results, benchmark: Any, answer: Answer, started: str | None) -> None:
    """The answer, and what the commit has already of other combinations; values of parameters without any are left
    out."""
    told = {values: i for i, values in enumerate(itertools.product(*benchmark.params)) if i in answer.values}
    params, kept = [list[str](p) for p in benchmark.params], set(told)
    if results.benchmark_version.get(benchmark.name) == benchmark.version:
        before = itertools.product(*results.get_result_params(benchmark.name))
        known = results.get_result_value(benchmark.name, results.get_result_params(benchmark.name))
        kept |= {values for values, x in zip(before, known, strict=True) if x is not None}
    params = [[x for x in p if x in {values[i] for values in kept}] for i, p in enumerate(params)]
    places = list(itertools.product(*params))
    rows = [told.get(place) for place in places]
    results.add_result(
        {"name": benchmark.name, "version": benchmark.version, "params": params},
        BenchmarkResult(
            result=[None if i is None else answer.values[i] for i in rows],
            samples=[None if i is None else answer.samples.get(i) for i in rows],
            number=[None if i is None or i not in answer.samples else 1 for i in rows],
            errcode=0, stderr="", profile=None,
        ),
        started_at=_time(started),
        selected_idx={j for j, i in enumerate(rows) if i is not None},
    )  # fmt: skip


def _time(started: str | None) -> datetime:
    """When it was measured: now, of a record that does not say."""
    found = datetime.fromisoformat(started) if started else datetime.now(UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def save_suite(conf: Any, suite: Sequence[Any]) -> None:
    """asv's list of benchmarks, which publishing reads."""
    plain = (str, int, float, list, dict, bool)
    known = [{k: v for k, v in vars(b).items() if isinstance(v, plain) and not k.startswith("_")} for b in suite]
    Benchmarks(conf, known).save()


def check_machine(folder: Path, machine: str, source: Source) -> None:
    """That a machine's folder is of the GPU that the record is of. Raises ``Misfit``."""
    path = folder / "machine.json"
    if path.is_file():
        known, here = json.loads(path.read_text(encoding="utf-8")).get("gpu"), source.facts.get("gpu")
        if known != here:
            raise Misfit(f"{path} is of GPU {known!r}, the record of {here!r}: name another --machine than {machine!r}")


def save_machine(folder: Path, machine: str, source: Source) -> None:
    """asv's machine record, with what it does not ask for: GPU, driver, CUDA, torch, Triton; as last filed."""
    known = {
        "machine": machine,
        "os": source.details.get("system", ""),
        "arch": "",
        "cpu": source.details.get("cpu", ""),
    }
    write_json(str(folder / "machine.json"), known | {"num_cpu": "", "ram": ""} | source.details, 1)


def keep(source: Source, path: Path, commit: Commit, results: Path, machine: str, *, verified: bool) -> Path:
    """Put a record of ``gpu_run`` among the committed ones, where `bench crossover` and `bench compare` find it, under
    the commit it is filed by, with its date, and whether the commit has its sources. One that lies there already is
    not moved."""
    made = datetime.fromtimestamp(commit.date / 1000, UTC).isoformat(timespec="seconds")
    record = source.content | {"commit": commit.hash, "committed": made, "verified": verified}
    if results.resolve() not in path.resolve().parents:
        day, _, time = str(record["started"])[:19].partition("T")
        path = results / machine / f"{day}-{time.replace(':', '')}-{commit.hash[:8]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(path)
    return path
