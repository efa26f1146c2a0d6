"""What the general properties rest on: degrees read off the oracle, poisoned memory, parts of a batch."""

from __future__ import annotations

import math

import pytest
import torch

from linattest.verify import poison, registry
from linattest.verify.grids import settings
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.properties import handover, pieces, scaling


def degrees(operator: str, **options: float | bool | str) -> dict[str, dict[str, int]]:
    case = Case(operator=operator, structure=scaling.SMALL, options=options)
    return {name: dict(found) for name, found in scaling.degrees(registry.operator(operator), case).items()}


@pytest.mark.parametrize("operator", registry.OPERATORS, ids=lambda operator: operator.name)
def test_every_operator_is_homogeneous_in_something_under_every_setting(operator):
    """Or the property of scaling would have nothing to try, and be green."""
    for setting in settings(operator):
        found = scaling.degrees(operator, Case(operator=operator.name, structure=scaling.SMALL, options=setting))
        values = [x.name for x in operator.inputs_of() if x.name in ("v", "x")] or ["q"]
        assert all(found[name]["o"] == 1 for name in values), found


def test_degrees_are_those_of_the_definition():
    assert degrees("vla")["k"] == {"o": -1, "state.S": 0, "state.M": 0, "state.z": 1}, "o = S q / (z . q), z a sum of k"
    assert degrees("vla", normalizer=False)["k"]["o"] == 0, "keys count by their direction"
    assert degrees("linear")["scale"] == {"o": 1, "state.S": 0}
    assert set(degrees("linear", normalizer=True)) == {"q", "k", "v"}
    assert set(degrees("softmax")) == {"v"}, "a softmax is homogeneous in nothing that its scores are made of"
    assert "k" not in degrees("delta_net") and "g" not in degrees("gla")
    assert degrees("log_linear")["level_weights"] == {"o": 1, "state.S": 0, "state.position": 0}
    assert degrees("covariance_contract", weighted=True)["weight"] == {
        "o": 0, "state.count": 1, "state.reference": 0, "state.mean": 0, "state.scatter": 1,
    }  # fmt: skip


def test_an_active_eps_promises_nothing():
    assert set(degrees("linear", normalizer=True, eps=30.0)) == set(degrees("vla", eps=30.0)) == {"v"}


def test_poison_is_nested_and_taken_back():
    before = [vars(owner).get(name) for owner, name in poison.ALLOCATORS]
    with poison.poisoned(2.0):
        assert bool((torch.empty(3) == 2).all()) and int(torch.empty(1, dtype=torch.int64)) == 2
        with poison.poisoned():
            assert bool(torch.ones(2).new_empty(3).isnan().all())
            assert int(torch.empty(1, dtype=torch.int32)) == torch.iinfo(torch.int32).max
        assert bool((torch.empty_like(torch.ones(2)) == 2).all())
    assert [vars(owner).get(name) for owner, name in poison.ALLOCATORS] == before
    assert math.isnan(float(torch.empty(1))), "the tests' own poison is back"


def test_pieces_of_packed_sequences_keep_what_lies_there():
    structure = Structure(T=10, K=2, V=2, cu_seqlens=(0, 3, 3, 8), initial_state=True)
    batch = build(registry.operator("linear"), Case(operator="linear", structure=structure))
    for (start, stop), offsets in {(0, 2): (0, 2, 2, 2), (2, 5): (0, 1, 1, 3), (4, 10): (0, 0, 0, 4)}.items():
        piece = pieces.tokens(batch, start, stop)
        assert piece.case.structure.cu_seqlens == offsets and piece.cu_seqlens is not None
        assert piece.cu_seqlens.tolist() == list(offsets) and piece.cu_seqlens.dtype == torch.int32
        assert torch.equal(piece.tensors["q"], batch.tensors["q"][:, start:stop])


def test_idle_tokens_belong_to_the_sequence_they_stand_in():
    structure = Structure(T=4, K=2, V=2, cu_seqlens=(0, 2, 2, 4))
    operator = registry.operator("linear")
    batch = build(operator, Case(operator="linear", structure=structure))
    longer = handover.padded(operator, batch, [-1, 0, 1, -1, 2, 3, -1])
    assert longer.case.structure.cu_seqlens == (0, 3, 3, 6), "the one before token 2 is of the third sequence"
    assert bool((longer.tensors["k"][:, [0, 3, 6]] == 0).all())


def test_every_operator_with_a_state_has_tokens_that_do_nothing():
    """Under some setting: what counts its keys needs weights for that."""
    skipping: set[str] = set()
    for operator in registry.OPERATORS:
        for setting in settings(operator):
            case = Case(operator=operator.name, structure=scaling.SMALL, options=setting)
            if handover.skips(operator, build(operator, case).options):
                skipping.add(operator.name)
    assert skipping == {operator.name for operator in registry.OPERATORS if operator.states}
