"""What is said of level weights: nothing where the input does not matter, much where the role is all that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from linattest.verify.experiments.advancing import advance
from linattest.verify.experiments.probes import role_information
from linattest.verify.experiments.recipe import Model
from linattest.verify.experiments.tasks import ROLES, TEST, Mqar, generator, roles
from linattest.verify.experiments.training import Run

TASK = Mqar(pairs=4, length=32)
KINDS = roles(TASK, TASK.draw(generator(0, TEST), 64).tokens)


def test_weights_that_are_the_role_tell_all_of_it_and_random_ones_nothing():
    by_role = np.linspace(0, 1, len(ROLES))[KINDS][None, :, :, None, None]
    noise = np.random.default_rng(0).random((1, 64, 32, 1, 1))
    assert role_information(by_role, KINDS) == pytest.approx(1.0)
    assert role_information(noise, KINDS) < 0.05  # what counting 2048 tokens into 64 cells finds of nothing
    assert 0.1 < role_information(by_role + noise, KINDS) < 0.9
    assert role_information(np.ones_like(noise), KINDS) == pytest.approx(0)


FIXED = ("*.operands.weights.w1", "*.operands.weights.w2")


@pytest.mark.parametrize(("freeze", "depends"), [((), True), (FIXED, False)])
def test_trained_weights_depend_on_the_input_unless_what_reads_it_is_frozen(
    small_run: Callable[..., Run], tmp_path: Path, freeze: tuple[str, ...], depends: bool
):
    task = Mqar(pairs=2, vocab_size=16, separator=False)
    run = small_run("log_linear", steps=3, probe=True, tests={"n2": task})
    model = Model(name="planted", layer="log_linear", options={"level_weights": "mlp_softplus"}, freeze=freeze)
    found = advance(msgspec.structs.replace(run, model=model), tmp_path, 1e9).probes
    assert (found["input_spread"] > 1e-6) == depends and (found["role_information"] > 1e-6) == depends
    assert found["roles"] == list(ROLES) and found["heat_map"][ROLES.index("filler")] is None  # no filler here
    assert len(found["heat_map"][0]) == 4  # levels of 7 tokens
    learned = {round(x, 6) for row in found["heat_map"] if row for x in row}
    assert len(learned) > 1, "b2 has not moved"


def test_a_model_without_level_weights_has_none(small_run: Callable[..., Run], tmp_path: Path):
    assert advance(small_run("linear", steps=1, probe=True), tmp_path, 1e9).probes == {}
