"""Crossovers from synthetic records, whose answer is known: the place, the interval, and that none is made up."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from linattest.verify.bench.gpu_records import read_records
from linattest.verify.commands.bench import bench
from linattest.verify.crossover import Crossing, Uncrossed, crossing, crossovers

LENGTHS = (2048, 4096, 8192, 16384, 32768)


def times(at: dict[int, float], noise: float = 0.0, seed: int = 0, repeats: int = 9) -> dict[int, list[float]]:
    random = np.random.default_rng(seed)
    return {n: [float(t * math.exp(noise * random.standard_normal())) for _ in range(repeats)] for n, t in at.items()}


def ratios(*values: float, noise: float = 0.0) -> Crossing | Uncrossed:
    """The crossing of an operator that takes so many times as long as softmax, length by length."""
    softmax = {n: (n / 2048) ** 2 for n in LENGTHS}
    ours = {n: r * softmax[n] for n, r in zip(LENGTHS, values, strict=True)}
    return crossing(times(ours, noise, 1), {"flash": times(softmax, noise, 2)})


def test_a_known_crossover_is_found():
    linear, quadratic = {n: n / 6000 for n in LENGTHS}, {n: (n / 6000) ** 2 for n in LENGTHS}
    found = crossing(times(linear), {"flash": times(quadratic)})
    assert isinstance(found, Crossing)
    assert (found.tokens, found.low, found.high, found.crossings, found.at_most) == (6000, 6000, 6000, 1, False)


def test_interval_holds_the_truth_and_widens_with_noise():
    linear, quadratic = {n: n / 6000 for n in LENGTHS}, {n: (n / 6000) ** 2 for n in LENGTHS}
    widths = list[float]()
    for noise in (0.01, 0.1):
        found = [
            crossing(times(linear, noise, 2 * s), {"flash": times(quadratic, noise, 2 * s + 1)}, draws=200)
            for s in range(20)
        ]
        held = [f for f in found if isinstance(f, Crossing) and f.high and f.low <= 6000 <= f.high]
        assert len(held) >= 16, "a 95 % interval of a median of 9 holds the truth in most of 20 trials"
        widths.append(float(np.mean([math.log((f.high or 0) / f.low) for f in held])))
    assert widths[1] > 5 * widths[0]


def test_never_crosses():
    assert ratios(9, 8, 7, 6, 5) == Uncrossed(longest=32768, ratio=5.0, softmax="flash")


def test_faster_at_first_length_is_an_upper_bound():
    found = ratios(0.9, 0.5, 0.3, 0.2, 0.1)
    assert isinstance(found, Crossing) and found.at_most and (found.tokens, found.low) == (2048, 2048)


def test_of_two_crossings_the_last_counts():
    found = ratios(2, 0.5, 2, 0.5, 0.25)
    assert isinstance(found, Crossing) and found.crossings == 3 and not found.at_most
    assert found.tokens == round(math.sqrt(8192 * 16384))
    back = ratios(0.5, 2, 0.5, 2, 2)
    assert isinstance(back, Uncrossed), "slower again at the longest length: no crossover that holds"


def test_doubtful_crossover_has_no_upper_end():
    found = ratios(4, 3, 2, 1.5, 0.99, noise=0.1)
    found = found if isinstance(found, Crossing) else ratios(4, 3, 2, 1.5, 0.97, noise=0.1)
    assert isinstance(found, Crossing) and found.high is None


def test_fastest_backend_of_each_length_is_the_rival():
    ours = {n: 1.0 for n in LENGTHS}
    slow_later = {2048: 0.5, 4096: 0.9, 8192: 5.0, 16384: 9.0, 32768: 20.0}
    slow_first = {4096: 3.0, 8192: 2.0, 16384: 4.0, 32768: 9.0}
    found = crossing(times(ours), {"cudnn": times(slow_later), "flash": times(slow_first)})
    alone = crossing(times(ours), {"cudnn": times(slow_later)})
    assert isinstance(found, Crossing) and isinstance(alone, Crossing)
    assert found.softmax == "cudnn" and found.tokens > alone.tokens


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_impossible_times_are_refused(bad: float):
    with pytest.raises(ValueError, match="finite numbers > 0"):
        crossing({2048: [1.0]}, {"flash": {2048: [bad]}})
    with pytest.raises(ValueError, match="no length"):
        crossing({2048: [1.0]}, {"flash": {4096: [1.0]}})


# --- records and the command ---------------------------------------------------------------------------------------


def record(factor: float, commit: str, started: str) -> dict[str, Any]:
    def rows(implementation: str, at: dict[int, float]) -> list[dict[str, Any]]:
        common = {"operator": "gla", "variant": "head", "direction": "forward", "graphed": True}
        return [
            {**common, "implementation": implementation, "tokens": n, "samples": samples,
             "l2": "warm" if n < 8192 else "exceeded"}
            for n, samples in times(at).items()
        ]  # fmt: skip

    failed = {"operator": "gla", "variant": "head", "direction": "decode", "graphed": True, "l2": "warm",
              "implementation": "linattest", "tokens": 2048, "failure": "RuntimeError"}  # fmt: skip
    return {
        "schema": 1, "kind": "gpu_run", "commit": commit, "source_hash": "", "started": started,
        "environment": {"gpu": "H200", "torch": "2.11.0"}, "gates": [], "checks": [], "failures": [],
        "settings": {"B": 1, "H": 16, "D": 128, "dtype": "bfloat16"},
        "timings": [
            *rows("linattest", {n: factor * n / 6000 for n in LENGTHS}), failed,
            *rows("softmax:flash", {n: (n / 6000) ** 2 for n in LENGTHS}),
            *rows("fla:chunk", {n: 9.0 for n in LENGTHS}),
        ],
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "h200").mkdir()
    for name, factor, started in (("a", 1.0, "2026-01-01T00:00:00"), ("b", 100.0, "2026-01-02T00:00:00")):
        (tmp_path / "h200" / f"{name}.json").write_text(json.dumps(record(factor, name, started)))
    (tmp_path / "benchmarks.json").write_text('{"version": 2}')  # asv's own
    return tmp_path


def test_record_gives_crossovers_with_everything_they_are_known_by(results: Path):
    crossed, uncrossed = crossovers(read_records(results)[0])
    assert not uncrossed and [row["l2"] for row in crossed] == ["cold", "warm"], crossed
    keys = {
        "operator",
        "variant",
        "direction",
        "tokens",
        "low",
        "high",
        "softmax",
        "gpu",
        "dtype",
        "B",
        "H",
        "D",
        "graphed",
        "commit",
    }
    assert keys <= set(crossed[1]) and crossed[1]["tokens"] == 6000 and crossed[1]["softmax"] == "flash"
    assert crossed[0]["at_most"], "cold has the lengths alone that exceed the cache"


def test_command_prints_one_json_object(results: Path):
    answer = CliRunner().invoke(bench, ["crossover", "--json", "--results", str(results)])
    said = json.loads(answer.stdout)
    assert answer.exit_code == 0 and set(said) == {"schema", "crossovers", "uncrossed"}
    assert {row["commit"] for row in said["crossovers"]} == {"a"} and {row["commit"] for row in said["uncrossed"]} == {
        "b"
    }
    newest = CliRunner().invoke(bench, ["crossover", "--json", "--newest", "--results", str(results)])
    assert json.loads(newest.stdout)["crossovers"] == [] and json.loads(newest.stdout)["uncrossed"]
    path = results / "h200" / "a.json"  # the commit that was measured first was made last
    path.write_text(json.dumps(json.loads(path.read_text()) | {"committed": "2026-01-03T00:00:00"}))
    newest = CliRunner().invoke(bench, ["crossover", "--json", "--newest", "--results", str(results)])
    assert json.loads(newest.stdout)["crossovers"] and json.loads(newest.stdout)["uncrossed"] == []
    shown = CliRunner().invoke(bench, ["crossover", "--results", str(results)], env={"COLUMNS": "200"})
    assert "6000" in shown.stdout and "> 32768" in shown.stdout


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--operator", "glaa"], 2), (["--direction", "sideways"], 2), (["--results", "nowhere"], 2),
        (["--operator", "vla"], 3),
    ],
)  # fmt: skip
def test_exit_codes(results: Path, options: list[str], status: int):
    assert CliRunner().invoke(bench, ["crossover", "--results", str(results), *options]).exit_code == status


def test_records_that_are_none_are_named(results: Path):
    bad = results / "h200" / "c.json"
    bad.write_text('{"kind": "gpu_run", "schema": 7}')
    with pytest.raises(ValueError, match=r"c\.json has schema 7, expected 1"):
        read_records(results)
    bad.write_text("{")
    assert CliRunner().invoke(bench, ["crossover", "--results", str(results)]).exit_code == 2
