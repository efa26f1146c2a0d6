"""Searching for bad inputs: ascent climbs, bounds hold, finds are checked by the oracle, and each check can refuse."""

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from linattest.impls import linear
from linattest.verify import registry
from linattest.verify.numbers import MpContext
from linattest.verify.search import ascent, confirm, domain, explore, objectives
from linattest.verify.search.ascent import Found, ascend, fewest_tokens, shorten
from linattest.verify.search.domain import InfeasibleError, Space, Tensors
from linattest.verify.search.objectives import OBJECTIVES
from linattest.verify.search.witness import Kept, certify, replay
from linattest.verify.tolerance import THRESHOLD

STATE, JACOBIAN, PRODUCT = (OBJECTIVES[name] for name in ("state-norm", "jacobian", "product"))
LINEAR = registry.operator("linear")
BOUNDED = [x.name for x in registry.OPERATORS if Space(x, 1, 1, 1, {}).memory is not None]


def space(name: str, T: int = 6, d: int = 2, tie: domain.Tie = "tied", **options: Any) -> Space:
    return Space(registry.operator(name), T, d, d, options, tie)


def one(of: Space, seed: int = 0) -> Found:
    """A random input of a space, measured by nothing."""
    return Found(of, of.draw(1, np.random.default_rng(seed)), 0.0)


def planted(**changes: Any) -> Any:
    return dataclasses.replace(LINEAR, **changes)


@pytest.mark.parametrize("name", ["vla", "delta_net"])
def test_ascent_beats_as_many_random_inputs(name: str):
    of, starts, steps = space(name, T=8, d=3), 4, 40
    found = ascend(of, STATE, starts=starts, steps=steps)
    random = of.values(of.draw(starts * steps, np.random.default_rng(1)))
    assert found is not None and found.value > 1.2 * float(STATE.measure(of, random).max())


def test_a_seed_means_the_same_find():
    first, again, other = (ascend(space("vla"), STATE, seed=seed, steps=5) for seed in (3, 3, 4))
    assert first and again and other and first.value == again.value != other.value


@pytest.mark.parametrize("name", [*BOUNDED, "softmax", "ridge_solve", "covariance_contract"])
def test_drawn_and_climbed_inputs_are_proved_feasible(name: str):
    of = space(name, T=3)
    found = one(of)
    if of.memory is not None:
        found = ascend(of, STATE, steps=5, starts=2) or found
    assert of.check(found.free, found.tensors) <= domain.SLACK


@pytest.mark.parametrize(
    ("name", "tie", "which", "change", "said"),
    [
        ("vla", "tied", "v", lambda x: x + 2, r"v\[0\].*\|v_t\| <= 1"),
        ("vla", "tied", "k", lambda x: x * (1 + 1e-9), r"k\[0\].*phi"),
        ("vla", "tied", "u", lambda x: x.flip(1), r"u\[0\].*W x"),
        ("vla", "free", "u", lambda x: 9 * x, r"u\[0\].*\|u_t\| <= 1"),
        ("delta_net", "tied", "beta", lambda x: x + 1, r"beta\[0\].*0 <= beta_t <= 1"),
        ("gla", "tied", "g", lambda x: x * math.nan, r"g\[0\].*nan"),
        ("gla", "tied", "v", lambda x: x[:, :2], r"v: expected .* shape \(1, 6, 1, 2\)"),
    ],
)
def test_an_input_off_its_bound_is_refused_by_name(name: str, tie: domain.Tie, which: str, change: Any, said: str):
    found = one(space(name, tie=tie))
    tensors = {**found.tensors, which: change(found.tensors[which])}
    with pytest.raises(InfeasibleError, match=said):
        found.space.check(found.free, tensors)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(InfeasibleError, match="softmax.*keeps no memory"):
        ascend(space("softmax"), STATE)
    with pytest.raises(InfeasibleError, match="log_linear.*buckets"):
        ascend(space("log_linear"), PRODUCT)
    with pytest.raises(InfeasibleError, match="T=0"):
        space("vla", T=0)
    odd = planted(inputs=(*LINEAR.inputs[:2], dataclasses.replace(LINEAR.inputs[2], domain="odd")))
    with pytest.raises(InfeasibleError, match="v: no bounds are stated for domain 'odd'"):
        ascend(Space(odd, 2, 2, 2, {}), STATE)


def test_jacobians_are_those_of_the_definition():
    of = space("delta_scan", T=4, d=3)
    x = {name: y[0, :, 0].numpy() for name, y in one(of).tensors.items()}
    steps = [np.exp(x["g"][t]) * (np.eye(3) - np.outer(x["write"][t], x["erase"][t])) for t in range(4)]
    wanted = max(np.linalg.norm(j, 2) for j in steps)
    assert float(JACOBIAN.measure(of, one(of).tensors)) == pytest.approx(wanted, rel=1e-12)
    wanted = np.linalg.norm(np.linalg.multi_dot(steps[::-1]), 2)
    assert float(PRODUCT.measure(of, one(of).tensors)) == pytest.approx(wanted, rel=1e-12)


def test_a_product_that_has_all_but_vanished_keeps_its_digits():
    of = space("gla", T=8)
    free = {**one(of).free, "g": torch.full((1, 8, 1), -8.0, dtype=torch.float64)}
    x = of.values(free)
    exact = confirm.confirm(PRODUCT, of, free, x, PRODUCT.probe(of, x))
    assert float(PRODUCT.measure(of, x)) == pytest.approx(math.exp(-64), rel=1e-12, abs=0) == exact.value


@pytest.mark.parametrize("name", ["vla", "gated_delta_net", "gla", "ccq"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES))
def test_oracle_confirms_the_float64_value(name: str, objective: objectives.Objective):
    of = space(name, T=4)
    x = one(of)
    value = float(objective.measure(of, x.tensors))
    exact = confirm.confirm(objective, of, x.free, x.tensors, objective.probe(of, x.tensors))
    assert exact.value == pytest.approx(value, rel=1e-12) and exact.radius < 1e-40


def test_growth_of_a_plain_sum_of_equal_writes_is_linear():
    of = space("linear", T=32)
    free = {name: torch.ones_like(x) / 2 for name, x in one(of).free.items()}
    assert objectives.exponent(objectives.growth(of, of.values(free))) == pytest.approx(1, abs=1e-9)


def grown(ctx: MpContext, head: Any) -> Any:
    """An oracle whose memory is not affine in the memory before: it adds its square."""
    rows, final = LINEAR.oracle(ctx, head)
    return rows, {**final, "S": final["S"] + final["S"] * final["S"]}


def test_a_memory_that_is_not_affine_is_refused():
    of = Space(planted(oracle=grown), 2, 2, 2, {})
    x = one(of)
    with pytest.raises(confirm.RefusedError, match="not affine"):
        confirm.confirm(PRODUCT, of, x.free, x.tensors, PRODUCT.probe(of, x.tensors))


def growing(*x: torch.Tensor, **given: Any) -> Any:
    """A reference whose memory is ten times too large."""
    o, state = linear.recurrent(*x, **given)
    assert isinstance(state, torch.Tensor)
    return o, 10 * state


def test_a_value_that_only_float64_sees_is_refused():
    reference = dataclasses.replace(LINEAR.variant("recurrent"), function=f"{__name__}:growing")
    found = ascend(Space(planted(variants=(reference,)), 4, 2, 2, {}), STATE, steps=3)
    assert found and found.value > 5
    with pytest.raises(confirm.RefusedError, match="at 60 digits is .* at least 5"):
        certify(found, STATE, at_least=5)


@pytest.fixture(scope="module")
def kept() -> Kept:
    found = ascend(space("vla"), PRODUCT, steps=5)
    assert found
    return certify(found, PRODUCT, at_least=0.1)


def test_too_few_digits_are_refused(kept: Kept):
    with pytest.raises(ValueError, match="digits=49, expected at least 50"):
        replay(kept, 49)


def altered(kept: Kept, group: str, name: str, by: float) -> Kept:
    groups: dict[str, Tensors] = {key: dict(x) for key, x in kept.tensors.items()}
    groups[group][name] = groups[group][name] + by
    return Kept(kept.witness, groups)


def test_a_witness_that_was_tampered_with_does_not_stand(kept: Kept):
    def claims(**changes: Any) -> Kept:
        return Kept(msgspec.structs.replace(kept.witness, **changes), kept.tensors)

    exact = kept.witness.exact
    assert exact and replay(kept).stands and replay(kept, 100).stands
    digit = str((int(exact[30]) + 1) % 10)
    assert "apart by" in replay(claims(exact=exact[:30] + digit + exact[31:])).why
    assert "at least 1000000" in replay(claims(at_least=1e6)).why
    assert "its bounds are" in replay(claims(bounds=("none",))).why
    assert "apart by" in replay(claims(case=msgspec.structs.replace(kept.witness.case, options={"lam0": 0.2}))).why
    assert "away from its bound" in replay(altered(kept, "input", "u", 1e-11)).why
    assert "away from its bound" in replay(altered(kept, "free", "u", 0.1)).why
    assert "apart by" in replay(altered(kept, "probe", "direction", 0.1)).why
    assert "direction" in replay(Kept(kept.witness, {**kept.tensors, "probe": {}})).why


def test_shrinking_keeps_the_value_above_the_floor_in_fewer_tokens_and_short_numbers():
    found = ascend(space("vla", T=12), STATE, steps=60)
    assert found
    floor = found.value / 2
    small = shorten(fewest_tokens(found, STATE, floor), STATE, floor)
    assert small.value >= floor and small.space.T < 12 and small.bits is not None
    assert all(bool((x * 2.0**small.bits == (x * 2.0**small.bits).round()).all()) for x in small.free.values())
    assert certify(small, STATE, at_least=floor).witness.case.structure.T == small.space.T


def stop_after(steps: int) -> ascent.Progress:
    def progress(step: int, best: float) -> None:
        if step >= steps:
            raise KeyboardInterrupt

    return progress


def test_an_interruption_keeps_the_best_so_far():
    found = ascend(space("vla"), STATE, progress=stop_after(3))
    assert found is not None and found.interrupted and found.value > 0
    explored = explore.explore(LINEAR, "kappa", tokens=4, width=4, progress=stop_after(3))
    assert explored.interrupted and explored.tried == 3 and explored.best is not None


def slightly_wrong(*x: torch.Tensor, **given: Any) -> Any:
    o, state = linear.chunk(*x, **given)
    return (1 + 1e-3) * o, state


def test_exploration_finds_a_planted_error_shrinks_it_and_finds_none_without(monkeypatch: pytest.MonkeyPatch):
    def search() -> explore.Explored:
        return explore.explore(LINEAR, "error", tokens=9, width=4, most=15, at_least=THRESHOLD)

    assert search().smallest is None
    wrong = (
        dataclasses.replace(v, function=f"{__name__}:slightly_wrong") for v in LINEAR.variants if v.name == "chunk"
    )
    monkeypatch.setitem(registry.BY_NAME, "linear", planted(variants=(LINEAR.variant("recurrent"), *wrong)))
    found = search()
    assert found.best and found.smallest and found.best.value >= found.smallest.value > THRESHOLD
    assert found.smallest.size <= found.best.size and found.smallest.size[0] <= 2


def test_condition_tells_a_cancelling_sum_from_one_that_does_not():
    values: list[float] = []
    for signs in ((1.0, 1.0), (1.0, -1 + 2.0**-12)):
        of = space("linear", T=2, d=1)
        ones = {x.name: torch.ones(1, 2, 1, 1, dtype=torch.float64) for x in of.inputs}
        ones["v"] = torch.tensor(signs, dtype=torch.float64).view(1, 2, 1, 1)
        values.append(explore.condition(LINEAR, of.batch(ones).with_(cotangents={"o": ones["v"]})))
    assert values[0] < 10 and values[1] > 2.0**11
