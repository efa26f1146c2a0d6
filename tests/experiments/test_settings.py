"""``--set``: what can be set, what is said of what cannot, and that a result in another size is not the claim's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linattest.verify.experiments import recipe, results
from linattest.verify.experiments.recipe import Trained
from linattest.verify.experiments.settings import EXPECTED, changed
from linattest.verify.report.experiments import sections

COPY, TEXT = "vla.copy", "lam.lm-small"
BAD = [
    (COPY, "training.schedule=cosine", EXPECTED),
    (COPY, "training.steps", EXPECTED),
    (COPY, "", EXPECTED),
    (COPY, "[training]", EXPECTED),
    (COPY, "training.stepz=3", "sets training.stepz, expected one of steps, batch, learning_rates"),
    (COPY, "shape.width=3", "sets shape.width, expected one of hidden_size, num_layers, num_heads"),
    (COPY, "training=3", "Expected `object`, got `int`"),
    (TEXT, "tasks.x9.length=3", "sets tasks.x9, expected one of x1"),
    (TEXT, "tests.x2.pairs=3", "sets tests.x2.pairs, expected one of vocab_size, length, times, most, whole"),
    (TEXT, "tests.x2.source.path='x'", "sets tests.x2.source, expected one of vocab_size, length"),
    ("vla.capacity", "shape.hidden_size=64", "vla.capacity trains nothing, expected no --set"),
]


@pytest.mark.parametrize(("name", "line", "said"), BAD, ids=[line or "empty" for _, line, _ in BAD])
def test_what_cannot_be_set_is_named_with_what_can(experiment: Callable[..., Any], name: str, line: str, said: str):
    done = experiment(name, "--set", line)
    assert done.exit_code == 2 and [x for x in ("--set", f"{line}: ", said) if x not in done.stderr] == [], done.stderr


def test_every_kind_of_key_can_be_set_and_a_whole_test_added():
    made = recipe.read(TEXT)
    lines = [
        "shape.options.conv_size=2", "training.test_rows=8", "tasks.x1.length=32", "tests.x2.times=3",
        'tests.new={name="text", length=32}',
    ]  # fmt: skip
    found = changed(made, lines)
    assert isinstance(found, Trained) and isinstance(made, Trained) and found.rules == made.rules
    assert (found.training.test_rows, found.tasks["x1"].tokens, found.tests["x2"].tokens) == (8, 32, 768)
    assert list(found.tests) == [*made.tests, "new"] and found.scope == f"In another size: {', '.join(lines)}"


IMPOSSIBLE = [
    ("shape.hidden_size=63", "model softmax: hidden_size is 63, expected a multiple of num_heads = 2"),
    ("shape.hidden_size=0", "model softmax: hidden_size is 0, expected at least 1"),
    ('shape.options.conv_size="x"', "model softmax: layer_options of layer 'softmax': conv_size is 'x'"),
    ("shape.num_heads=0", "num_heads is 0, expected more than 0"),
]


@pytest.mark.parametrize(("line", "said"), IMPOSSIBLE, ids=[line for line, _ in IMPOSSIBLE])
def test_a_size_that_no_model_can_have_is_refused_before_any_run(
    experiment: Callable[..., Any], planted: Callable[..., str], line: str, said: str
):
    lines = ["--set", "shape.num_heads=2", "--set", line] if "63" in line else ["--set", line]
    done = experiment(planted(), *lines)
    assert done.exit_code == 2 and [x for x in ("--set", line, said) if x not in done.stderr] == [], done.stderr
    assert not Path(".cache").exists()


def test_a_recipe_whose_model_cannot_be_built_is_broken_and_no_mistake_of_who_asks(
    experiment: Callable[..., Any], learnable: Trained, monkeypatch: pytest.MonkeyPatch
):
    bad = msgspec.structs.replace(learnable, shape=msgspec.structs.replace(learnable.shape, num_heads=3))
    monkeypatch.setattr(recipe, "read", lambda name, quick=False: bad)
    done = experiment(COPY, "--quick")
    assert done.exit_code == 1 and "the recipe is broken: planted.toml: model softmax: hidden_size is 16" in done.stderr


def test_a_result_says_what_was_set_and_that_its_verdict_is_not_the_claims(
    experiment: Callable[..., Any], planted: Callable[..., str]
):
    name, line = planted(), "training.learning_rates=[0.0001]"
    done = experiment(name, "--set", line, "--set", "training.steps=1", "--workers", "1", "--output", "x.json")
    found = results.read(Path("x.json"))
    assert found.verdict == "not reproduced" and f"{name}: not reproduced" not in done.stdout
    assert f"{name} in another size: not reproduced (full form, 3 seeds); set: {line}, training.steps=1" in done.stdout
    assert found.settings == (line, "training.steps=1")
    assert (
        sections([found])[0].charts[0]["says"].endswith(f"in another size than the recipe's: {line}, training.steps=1")
    )
    older = msgspec.json.decode(msgspec.json.encode(found))
    del older["settings"]
    Path("older.json").write_bytes(msgspec.json.encode(older))
    assert results.read(Path("older.json")).settings == ()
