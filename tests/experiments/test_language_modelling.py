"""Perplexity: of a text, computed right, judged by rules an untrained model cannot meet, told by the command."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.claims import ledger
from linattest.verify.experiments import models, recipe, results, settings
from linattest.verify.experiments.judging import best, judge
from linattest.verify.experiments.recipe import Model, RecipeError, Rule, Shape, Trained, Training
from linattest.verify.experiments.running import Outcome, runs_of, train_all
from linattest.verify.experiments.tasks import TEST, Text, generator
from linattest.verify.experiments.text import find
from linattest.verify.experiments.training import Point, Progress, Score

UNIFORM = math.log(256)
READS = [n for n in recipe.names() if isinstance(r := recipe.read(n), Trained) and r.reads_text]


@pytest.fixture
def alphabet(tmp_path: Path) -> Path:
    """A text of which every byte gives the next."""
    (tmp_path / "alphabet.txt").write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 200)
    return tmp_path / "alphabet.txt"


@pytest.fixture(scope="module")
def readable() -> Trained:
    """Softmax attention learns the alphabet in a hundred steps."""
    return Trained(
        claim="planted", about="the alphabet",
        shape=Shape(hidden_size=16, num_heads=1, num_layers=1, positions=False),
        tasks={"x1": Text(length=8)}, tests={"x5": Text(length=8, times=5)},
        models=(Model(name="softmax", layer="softmax"), Model(name="linear", layer="linear")),
        training=Training(
            steps=100, batch=16, learning_rates=(0.03,), warmup=10, evaluate_every=50, validation_rows=16, test_rows=16
        ),
        rules=(
            Rule(model="softmax", measure="perplexity", over="mean", at_most=2.0),
            Rule(model="softmax", measure="nats", test="x5", over="mean", at_most=1.0),
        ),
    )  # fmt: skip


def untrained(made: Trained) -> Trained:
    return msgspec.structs.replace(made, training=msgspec.structs.replace(made.training, steps=0))


# --- what is computed --------------------------------------------------------------------------------------------


def test_nats_are_the_mean_negative_log_likelihood_of_what_is_asked(readable: Trained, alphabet: Path, tmp_path: Path):
    run = runs_of(untrained(readable), 1, text=find(alphabet))[0]
    (found,) = (o.progress for o in train_all([run], tmp_path, 1))
    assert found is not None
    model = models.build(run.model, run.shape, 256, run.longest, seed=0)
    for name, task in run.tests.items():
        drawn = task.draw(generator(0, TEST), 16)
        logits = model(torch.from_numpy(drawn.tokens)).logits.detach().double().numpy()
        chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        asked = np.take_along_axis(chances, np.maximum(drawn.targets, 0)[..., None], -1)[..., 0][drawn.mask]
        assert asked.size == found.scores[name].asked == 16 * 8
        assert found.scores[name].nats == pytest.approx(-np.log(asked).mean(), rel=1e-5)
        assert found.scores[name].nats == pytest.approx(UNIFORM, rel=0.02)  # it knows nothing
    assert found.curve[0].nats == pytest.approx(UNIFORM, rel=0.02)


def test_an_older_score_has_no_nats():
    assert math.isnan(msgspec.convert({"right": 1, "asked": 2, "exact": 0, "rows": 1}, Score).nats)


def test_a_run_is_of_its_text_wherever_it_lies(readable: Trained, alphabet: Path, tmp_path: Path):
    def key(path: Path) -> str:
        return runs_of(readable, 1, text=find(path))[0].key

    there = tmp_path / "there.txt"
    there.write_bytes(alphabet.read_bytes())
    (tmp_path / "elsewhere").mkdir()
    same = tmp_path / "elsewhere" / alphabet.name
    same.write_bytes(alphabet.read_bytes())
    other = tmp_path / "elsewhere" / "other.txt"
    other.write_bytes(alphabet.read_bytes() + b"!")
    assert key(same) == key(alphabet) and key(other) not in (key(alphabet), key(there))


# --- rules -------------------------------------------------------------------------------------------------------


def test_a_model_that_learns_a_text_is_supported_an_untrained_one_is_not(
    readable: Trained, alphabet: Path, tmp_path: Path
):
    only = msgspec.structs.replace(readable, models=readable.models[:1])
    words = [
        judge(only, train_all(runs_of(made, 3, text=find(alphabet)), tmp_path, 1)).word
        for made in (only, untrained(only))
    ]
    assert words == ["supported", "not reproduced"]


def ran(model: str, seed: int, nats: float, *, rate: float = 0.1, accuracy: float = 0.5, last: float = 2.0) -> Outcome:
    score = Score(right=50, asked=100, exact=0, rows=10, loss=100 * nats)
    progress = Progress(
        step=1, done=True, seconds=1.0, curve=(Point(step=1, loss=1.0, accuracy=accuracy, nats=last),),
        scores={"x1": score, "x5": score},
    )  # fmt: skip
    return Outcome(model=model, task="x1", learning_rate=rate, seed=seed, progress=progress)


LESS: dict[str, Any] = {"model": "softmax", "minus": "linear", "over": "mean"}
RULES = [
    (Rule(model="softmax", over="mean", measure="perplexity", at_most=3.0), "supported"),
    (Rule(model="softmax", over="mean", measure="perplexity", at_most=2.5), "not reproduced"),
    (Rule(model="softmax", over="mean", measure="nats", at_most=1.1), "supported"),
    (Rule(**LESS, measure="nats", at_most=-0.15), "supported"),
    (Rule(**LESS, measure="nats", at_most=-0.25), "not reproduced"),
    (Rule(**LESS, measure="perplexity", at_most=-0.5), "supported"),
    (Rule(**LESS, measure="perplexity", at_most=-0.7), "not reproduced"),
]


@pytest.mark.parametrize(("rule", "word"), RULES, ids=[f"{r.measure}-{r.minus}-{r.at_most}" for r, _ in RULES])
def test_rules_are_on_nats_or_on_perplexity_by_seed(readable: Trained, rule: Rule, word: str):
    """Perplexity 2.72 and 3.32: nats 1.0 and 1.2."""
    runs = [ran(m, seed, nats + 0.001 * seed) for m, nats in (("softmax", 1.0), ("linear", 1.2)) for seed in range(3)]
    assert judge(msgspec.structs.replace(readable, rules=(rule,)), runs).word == word


def test_the_rate_is_the_one_with_the_fewest_nats(readable: Trained):
    runs = [ran("softmax", 0, 1.0, rate=r, accuracy=a, last=x) for r, a, x in ((0.1, 0.9, 2.5), (0.3, 0.8, 2.0))]
    assert [o.learning_rate for o in best(runs, "softmax", "x1")] == [0.3]


UNREACHED = [
    {"model": "softmax", "measure": "perplexity", "over": "mean", "at_most": 129.0},
    {"model": "softmax", "measure": "perplexity", "over": "mean", "at_least": 1.0},
    {"model": "softmax", "measure": "nats", "over": "mean", "at_most": 4.9},
    {"model": "softmax", "measure": "nats", "over": "mean", "at_least": 1.0},
    LESS | {"measure": "nats", "at_most": 0.0},
    LESS | {"measure": "nats", "at_least": -0.1},
]


@pytest.mark.parametrize("rule", UNREACHED, ids=[json.dumps(rule) for rule in UNREACHED])
def test_a_rule_that_an_untrained_model_meets_is_refused(readable: Trained, rule: dict[str, Any]):
    table = msgspec.to_builtins(readable)
    assert msgspec.convert(table | {"rules": [rule, *table["rules"]]}, Trained)
    with pytest.raises(msgspec.ValidationError, match="a model that learned nothing would meet the others"):
        msgspec.convert(table | {"rules": [rule]}, Trained)


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    return lambda *arguments: CliRunner().invoke(cli.app, ["experiment", *arguments])


def test_the_table_has_perplexity_and_the_result_says_which_text(command: Callable[..., Any], alphabet: Path):
    done = command("ccq.lm-small", "--quick", "--text", str(alphabet), "--output", "x.json")
    found = results.read(Path("x.json"))
    assert done.exit_code == 0 and "perplexity" in done.stdout and "alphabet.txt, 5400 bytes, sha256" in done.stdout
    assert found.text == find(alphabet).anywhere and str(alphabet.parent) not in Path("x.json").read_text()
    assert all(o.progress and 200 < math.exp(o.progress.scores["x5"].nats) < 300 for o in found.runs)


BAD = [
    (["ccq.lm-small", "--text", "gone"], ["--text", "no file or folder", "gone"]),
    (["ccq.lm-small", "--text", "alphabet.txt"], ["--text", "alphabet.txt has 5400 bytes, expected at least 25620"]),
    (["vla.copy", "--text", "."], ["--text", "vla.copy reads no text, expected one of ccq.lm-small, lam.lm-small"]),
    (["vla.copy", "--set", "rules=[]"], ["--set", "sets 'rules', expected one of shape, tasks, tests, training"]),
    (["vla.copy", "--set", "training.steps"], ["--set", "training.steps: "]),
    (["vla.copy", "--set", "training.steps=-1"], ["--set", "training.steps=-1: steps is -1"]),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=[" ".join(a) for a, _ in BAD])
@pytest.mark.usefixtures("alphabet")
def test_wrong_usage_exits_2(command: Callable[..., Any], arguments: list[str], named: list[str]):
    done = command(*arguments)
    assert done.exit_code == 2 and [word for word in named if word not in done.stderr] == []


def test_settings_make_another_recipe_and_are_told(command: Callable[..., Any], alphabet: Path):
    done = command("ccq.lm-small", "--quick", "--text", str(alphabet), "--set", "training.steps=1", "--seeds", "1")
    assert done.exit_code == 0 and "set: training.steps=1; the claim's verdict is that of the recipe" in done.stdout
    made = recipe.read("ccq.lm-small")
    assert settings.changed(made, []) is made and settings.changed(made, ["shape.hidden_size=256"]) != made


def test_commands_in_the_ledger_are_of_recipes_that_there_are():
    """A row that is untested says what would run it: an experiment, with settings that it has."""
    said = [
        shlex.split(x) for row in ledger.read() for x in re.findall(r"`(linattest experiment .*?)`", row.reason or "")
    ]
    assert len(said) >= 6
    for words in said:
        made = recipe.read(words[2])
        lines = [value for option, value in zip(words, words[1:], strict=False) if option == "--set"]
        changed = settings.changed(made, lines)
        assert lines and changed != made and ("--text" in words) == (words[2] in READS)
        assert isinstance(changed, Trained)
        assert isinstance(made, Trained) and list(changed.tests) == list(made.tests)


def test_an_unknown_setting_is_no_recipe():
    with pytest.raises(RecipeError, match="shape.width=3: sets shape.width, expected one of hidden_size, num_layers"):
        settings.changed(recipe.read("ccq.lm-small"), ["shape.width=3"])
