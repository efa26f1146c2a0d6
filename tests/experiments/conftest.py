"""A run of a few steps, a recipe that a right model learns in seconds, and the command on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.experiments import recipe
from linattest.verify.experiments.recipe import Model, Rule, Shape, Trained, Training
from linattest.verify.experiments.tasks import Copy, Mqar
from linattest.verify.experiments.training import Run


@pytest.fixture(scope="session")
def small_run() -> Callable[..., Run]:
    """``small_run(layer, steps=..., options=..., training=..., **fields)``: MQAR with two pairs, width 16."""

    def of(
        layer: str = "vla", *, steps: int = 6, options: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None, **fields: Any,
    ) -> Run:  # fmt: skip
        task = Mqar(pairs=2, vocab_size=16)
        budget: dict[str, Any] = {
            "steps": steps,
            "batch": 4,
            "evaluate_every": 2,
            "validation_rows": 8,
            "test_rows": 8,
            "warmup": 2,
        }
        given: dict[str, Any] = {
            "model": Model(name=layer, layer=layer, options=options or {}), "task": "n2", "tests": {"n2": task},
            "shape": Shape(hidden_size=16, num_heads=2, num_layers=1, options={"output_norm": "layer"}),
            "training": Training(**(budget | (training or {}))),
            "longest": task.tokens, "learning_rate": 1e-2, "seed": 0,
        }  # fmt: skip
        return Run(**(given | fields))

    return of


@pytest.fixture(scope="session")
def learnable() -> Trained:
    """Say again what came before the separator: softmax attention learns it in a hundred steps."""
    return Trained(
        claim="planted", about="one token, said again",
        shape=Shape(hidden_size=16, num_heads=1, num_layers=1),
        tasks={"one": Copy(length=2, vocab_size=6)},
        models=(Model(name="softmax", layer="softmax"),),
        training=Training(
            steps=100, batch=16, learning_rates=(0.02,), warmup=10, evaluate_every=50, validation_rows=16, test_rows=200
        ),
        rules=(Rule(model="softmax", at_least=0.9),),
    )  # fmt: skip


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Checkpoints of full forms go into the test's own folder; lines are not broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")


@pytest.fixture
def experiment(elsewhere: None) -> Callable[..., Any]:
    """``experiment(*arguments)``: the command, as it ended."""
    return lambda *arguments: CliRunner().invoke(cli.app, ["experiment", *map(str, arguments)])


PLANTED = "vla.mqar-capacity"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, learnable: Trained) -> Callable[..., str]:
    """``planted(**training)``: the small recipe with another budget, under a claim's name, which it returns."""

    def plant(**training: Any) -> str:
        budget = msgspec.structs.replace(learnable.training, **training)
        made = msgspec.structs.replace(learnable, claim=PLANTED, training=budget)
        monkeypatch.setattr(recipe, "read", lambda name, quick=False: made)
        return PLANTED

    return plant
