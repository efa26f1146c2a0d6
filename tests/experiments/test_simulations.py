"""Simulations are of the implementations: pieces and the whole agree, and known values come out."""

from __future__ import annotations

import pytest
import torch

from linattest.impls.lm import CausalLM
from linattest.verify.claims import ccq_reads
from linattest.verify.experiments import recipe, simulations
from linattest.verify.experiments.models import build
from linattest.verify.experiments.recipe import Model, Shape, Simulated

IDS = torch.arange(24).reshape(2, 12) % 16


def model_of(layer: str) -> CausalLM:
    shape = Shape(hidden_size=8, num_heads=2, num_layers=2)
    return build(Model(name=layer, layer=layer), shape, 16, 12, seed=0).double()


def test_a_memory_of_value_heads_of_one_channel_is_one_memory():
    shape = Shape(hidden_size=8, num_heads=2, num_layers=1)
    model = build(simulations.CHANNEL_GATE, shape, 16, 12, seed=0).double()
    cache = model(IDS, use_cache=True).cache
    assert cache is not None and cache.layers[-1].state.shape == (2, 8, 4, 1)
    memories = cache.layers[-1].state.detach().reshape(4, 16)
    (found,) = simulations.tracked_norms(model, IDS, [12])
    assert found == pytest.approx(float(memories.norm(dim=1).mean()))


@pytest.mark.parametrize("layer", ["linear", "vla", "delta_net", "gla"])
def test_tracked_norms_are_those_of_one_pass_over_each_prefix(layer: str):
    model = model_of(layer)
    found = simulations.tracked_norms(model, IDS, [3, 7, 12])
    for T, norm in zip((3, 7, 12), found, strict=True):
        cache = model(IDS[:, :T], use_cache=True).cache
        assert cache is not None
        state = cache.layers[-1].state
        S = state if isinstance(state, torch.Tensor) else state[0]
        expected = sum(float(S[b, h].detach().norm()) for b in range(2) for h in range(2)) / 4
        assert norm == pytest.approx(expected)
    assert len(set(found)) == 3


def test_lengths_that_do_not_ascend_are_refused():
    for lengths in ([4, 4], [5, 3], [0, 3], [5, 13]):
        with pytest.raises(ValueError, match="lengths is .*, expected ascending numbers of 1 to 12"):
            simulations.tracked_norms(model_of("linear"), IDS, lengths)


def test_the_norm_of_linear_attention_grows_and_that_of_vla_hardly():
    found = simulations.state_norms(
        2, layers=["linear", "vla"], lengths=[16, 256], since=16, hidden_size=16, num_heads=2, num_layers=1
    )  # fmt: skip
    linear, vla = (found[f"{layer}, growth since T 16"] for layer in ("linear", "vla"))
    assert min(linear) > max(vla) > 1
    ratios = [a / b for a, b in zip(found["linear, T 256"], found["vla, T 256"], strict=True)]
    assert found["linear over vla"] == pytest.approx(ratios)


def test_a_needles_margin_without_contraction_is_as_it_was(monkeypatch: pytest.MonkeyPatch):
    assert simulations.needle_margin(3, lams=[0.0])["dense, spread 0.5, lam 0"] == pytest.approx([1.0] * 3)
    with_ccq = simulations.needle_margin(40, spreads=[0.25], lams=[0.9])
    isolated, dense = (with_ccq[f"{name}, spread 0.25, lam 0.9"] for name in ("isolated", "dense"))
    assert sum(isolated) > 40 > sum(dense)  # it helps the one, and costs the other
    real = ccq_reads.contracted
    monkeypatch.setattr(ccq_reads, "contracted", lambda keys, query, lam: real(keys, query, -lam))
    turned = simulations.needle_margin(40, spreads=[0.25], lams=[0.9])["isolated, spread 0.25, lam 0.9"]
    assert sum(turned) < 40  # the planted fault: the query is lengthened where keys vary


def test_recall_is_whole_for_orthogonal_keys_alone():
    found = simulations.recall(3, d=8, pairs=[8])
    assert found["orthogonal keys, u = k, n 8"] == pytest.approx([1.0] * 3)
    assert max(found["random keys, n 8"]) < 0.9


def test_a_simulation_runs_on_one_thread_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch):
    """Beside other work, threads spin: two took eight times as long as one."""
    made, before = recipe.read("vla.capacity", quick=True), torch.get_num_threads()
    assert isinstance(made, Simulated)
    monkeypatch.setitem(simulations.FUNCTIONS, "recall", lambda seeds, **_: {"threads": [torch.get_num_threads()]})
    torch.set_num_threads(2)
    try:
        assert simulations.simulated(made, 1) == {"threads": [1]} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", [n for n in recipe.names() if isinstance(recipe.read(n), Simulated)])
def test_rules_of_a_recipe_name_series_that_there_are(name: str):
    full, quick = recipe.read(name), recipe.read(name, quick=True)
    assert isinstance(full, Simulated) and isinstance(quick, Simulated)
    series = simulations.FUNCTIONS[quick.function](1, **quick.arguments)
    assert {rule.model for rule in full.rules} | {r.minus for r in full.rules if r.minus} <= set(series)
