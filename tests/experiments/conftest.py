"""A run of a few steps, and a recipe that a right model learns in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
