"""Recipes are read strictly: a name that is not there, or a rule that nothing could break, is said before a run."""

from __future__ import annotations

import pytest

from linattest.verify.claims import ledger
from linattest.verify.experiments import models, recipe
from linattest.verify.experiments.recipe import RecipeError, Simulated, Trained

EACH = pytest.mark.parametrize("name", recipe.names())

GOOD = """
kind = "training"
claim = "planted"
about = "planted"

[tasks.n2]
name = "mqar"
pairs = 2

[training]
steps = 10

[[models]]
name = "vla"
layer = "vla"

[[models]]
name = "linear"
layer = "linear"

[[rules]]
model = "vla"
at_least = 0.99

[quick]
training = { steps = 1 }
"""


@EACH
def test_every_recipe_is_of_a_claim_and_its_quick_form_is_smaller(name: str):
    full, quick = recipe.read(name), recipe.read(name, quick=True)
    assert name in {row.id for row in ledger.read()} and full.claim == name
    assert quick.rules == full.rules and quick.seeds <= full.seeds and full.seeds >= recipe.LEAST_SEEDS
    if isinstance(full, Trained) and isinstance(quick, Trained):
        assert [m.name for m in quick.models] == [m.name for m in full.models] and list(quick.tasks) == list(full.tasks)
        assert quick.training.steps <= 2 and quick.longest <= 64 and quick.shape.hidden_size <= 16


@EACH
def test_every_model_of_a_recipe_can_be_made(name: str):
    """As the full form has it, whose options a quick form might not show."""
    full = recipe.read(name)
    if isinstance(full, Simulated):
        return
    vocab_size = next(iter(full.tasks.values())).vocab_size
    sizes = {
        model.name: sum(
            p.numel() for p in models.build(model, full.shape, vocab_size, full.longest, seed=0).parameters()
        )
        for model in full.models
    }
    assert max(sizes.values()) < 1.5 * min(sizes.values()), sizes  # models that are compared are of a size


def test_the_models_that_the_claims_speak_of_are_there():
    layers = {
        (m.layer, m.variant) for n in recipe.names() if isinstance(r := recipe.read(n), Trained) for m in r.models
    }
    assert layers >= {
        ("vla", ""), ("linear", ""), ("softmax", ""), ("delta_net", ""), ("gated_delta_net", "channel_gate"),
        ("gla", ""), ("gated_delta_net", ""), ("ccq", ""), ("log_linear", ""), ("log_linear", "reinitialised_levels"),
    }  # fmt: skip


def test_a_good_recipe_is_read_and_quick_is_laid_over_it():
    full, quick = (recipe.parse(GOOD, "planted.toml", quick=x) for x in (False, True))
    assert isinstance(full, Trained) and isinstance(quick, Trained)
    assert (full.training.steps, quick.training.steps) == (10, 1) and quick.tasks == full.tasks


BAD = [
    ('claim = "planted"', 'claim = "other"', "claim is 'other', expected the file's name"),
    ("steps = 10", "steps = -1", "steps is -1"),
    ("steps = 10", "steps = 10\nlearning_rates = []", "learning_rates is \\[\\]"),
    ("steps = 10", "steps = 10\nepochs = 3", "unknown field `epochs`"),
    ("steps = 10", "steps = 10\nbatch = 8\nsequences = 4", "sequences is 4, expected at least batch = 8"),
    ("pairs = 2", "pairs = 0", "pairs is 0, expected 1 to 64"),
    ('name = "mqar"', 'name = "mqra"', "mqra"),
    ('model = "vla"', 'model = "vlaa"', "model is 'vlaa', expected one of vla, linear"),
    ('model = "vla"', 'model = "vla"\ntest = "n4"', "test is 'n4', expected one of n2"),
    ('model = "vla"', 'model = "vla"\nminus = "linear"', 'expected "mean"'),
    ('model = "vla"', 'model = "vla"\nover = "mean"\nmeasure = "input_spread"', "without probe = true"),
    ("at_least = 0.99", "", "a rule on 'vla' has no limit"),
    ("at_least = 0.99", 'over = "another"', 'has over = "another", expected paper and no limit'),
    ("at_least = 0.99", "at_most = 0.1", "a model that learned nothing would meet the others"),
    ("at_least = 0.99", "at_least = 0.0", "a model that learned nothing would meet the others"),
    ('name = "linear"', 'name = "vla"', "names once"),
    ("[quick]\ntraining = { steps = 1 }", "", "has no \\[quick\\]"),
    ("training = { steps = 1 }", "training = { steps = -1 }", "steps is -1"),
    ('kind = "training"', 'kind = "training"\nlike = "vla.nothing"', "like is 'vla.nothing', expected one of"),
    ('kind = "training"', "kind = ", "planted.toml: Invalid"),
]


@pytest.mark.parametrize(("old", "new", "said"), BAD, ids=[said for _, _, said in BAD])
def test_a_recipe_that_is_none_says_what_was_expected(old: str, new: str, said: str):
    assert old in GOOD
    with pytest.raises(RecipeError, match=f"planted.toml: .*{said}" if "Invalid" not in said else said):
        recipe.parse(GOOD.replace(old, new, 1), "planted.toml")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RecipeError, match="no recipe 'vla.mqar'; known: .*vla.mqar-capacity"):
        recipe.read("vla.mqar")
