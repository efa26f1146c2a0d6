"""The oracle: right on closed forms, precise enough or refusing, cross-checked, and cached without confusion."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import numpy as np
import pytest
import torch

from linattest.verify import oracle as oracles
from linattest.verify import registry
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import ArbContext, Context
from linattest.verify.operators import ridge_solve
from linattest.verify.oracle import OracleError, heads, truth
from linattest.verify.spec import Operator

DELTA_NET, LINEAR, RIDGE, VLA = (registry.operator(name) for name in ("delta_net", "linear", "ridge_solve", "vla"))


@pytest.fixture(autouse=True)
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LINATTEST_CACHE", str(tmp_path / "cache"))


def batch_of(operator: Operator, T: int, K: int = 3, V: int = 2, dtype: str = "float64", **options: Any) -> Batch:
    """A random batch of one head without initial state."""
    structure = Structure(T=T, K=K, V=V)
    return build(operator, Case(operator=operator.name, structure=structure, dtype=dtype, options=options))


def answer(operator: Operator, batch: Batch, budget: float = 1e-9) -> oracles.Truth:
    """The oracle's answer within one budget for all outputs."""
    structure = batch.case.structure
    shapes = {"o": operator.output} | {f"state.{x.name}": x.shape for x in operator.states_of(batch.options)}
    return truth(operator, batch, {name: np.full(structure.shape(x), budget) for name, x in shapes.items()})


def first_unit(batch: Batch, *names: str, value: float = 1.0) -> Batch:
    """The batch with the named inputs equal to ``value`` times the first coordinate vector at each token."""
    changed = {name: torch.zeros_like(batch.tensors[name]) for name in names}
    for x in changed.values():
        x[..., 0] = value
    return batch.with_(tensors=batch.tensors | changed)


def exact(x: oracles.Truth, name: str = "o") -> np.ndarray:
    return x.hi[name] + x.lo[name]


@pytest.mark.parametrize("family", ["random", "coherent", "one_direction", "zeros"])
@pytest.mark.parametrize("state", [False, True])
def test_sherman_morrison_oracle_equals_the_definition(family: str, state: bool):
    structure = Structure(T=12, K=4, V=1, H=2, initial_state=state)
    batch = build(RIDGE, Case(operator=RIDGE.name, structure=structure, family=family, options={"lam0": 1e-3}))
    arb = ArbContext(192)
    with arb.working():
        for _, _, head in heads(RIDGE, batch, arb):
            rows, final = ridge_solve.oracle(arb, head)
            direct, same = ridge_solve.definition(arb, head)
            for a, b in zip([*rows, final["M"]], [*direct, same["M"]], strict=True):
                for x, y in zip(a.entries(), b.entries(), strict=True):
                    assert x.overlaps(y) and float(x.rad()) < 1e-40 and float(y.rad()) < 1e-40


@pytest.mark.parametrize("lam0", [1e-8, 0.1, 10.0])
def test_after_n_unit_keys_the_inverse_is_one_over_lam0_plus_n(lam0: float):
    """K06: P_11 = 1/(lam0 + n); the other diagonal entries stay 1/lam0, the rest 0."""
    batch = first_unit(batch_of(RIDGE, T=7, lam0=lam0), "u")
    for column in range(3):
        x = torch.zeros_like(batch.tensors["x"])
        x[..., column] = 1
        o = exact(answer(RIDGE, batch.with_(tensors=batch.tensors | {"x": x})))[0, :, 0]
        expected = np.zeros((7, 3))
        expected[:, column] = 1 / (lam0 + np.arange(1, 8)) if column == 0 else 1 / lam0
        assert o == pytest.approx(expected, rel=1e-15)


def test_zero_keys_leave_the_inverse_alone():
    batch = batch_of(RIDGE, T=5, lam0=0.5)
    batch = batch.with_(tensors=batch.tensors | {"u": torch.zeros_like(batch.tensors["u"])})
    assert np.array_equal(exact(answer(RIDGE, batch)), 2 * batch.tensors["x"].numpy())


def test_linear_attention_with_unit_keys_counts_tokens():
    batch = first_unit(batch_of(LINEAR, T=9, V=1, scale=0.37), "q", "k", "v")
    assert exact(answer(LINEAR, batch)).ravel() == pytest.approx(0.37 * np.arange(1, 10), rel=1e-15)
    ratio = first_unit(batch_of(LINEAR, T=9, V=1, normalizer=True), "q", "k", "v")
    assert np.array_equal(exact(answer(LINEAR, ratio)).ravel(), np.ones(9))


def test_delta_rule_with_identical_unit_keys_reads_the_value():
    batch = first_unit(batch_of(DELTA_NET, T=9, V=1, scale=0.25), "q", "k", "v")
    batch = batch.with_(tensors=batch.tensors | {"beta": torch.ones_like(batch.tensors["beta"])})
    assert np.array_equal(exact(answer(DELTA_NET, batch)).ravel(), np.full(9, 0.25))


def test_penalised_rule_with_a_huge_ridge_is_the_delta_rule():
    batch = batch_of(VLA, T=8, K=4, lam0=2.0**200, normalizer=False)
    k = torch.zeros_like(batch.tensors["k"])
    k[0, torch.arange(8), 0, torch.arange(8) % 3] = 5.0  # along the axes, so that k^ is exact
    batch = batch.with_(tensors=batch.tensors | {"k": k})
    other = batch_of(DELTA_NET, T=8, K=4, scale=1.0)
    tensors = {"q": batch.tensors["q"], "k": k / 5, "v": batch.tensors["v"]}
    tensors["beta"] = torch.ones_like(other.tensors["beta"])
    assert exact(answer(VLA, batch)) == pytest.approx(exact(answer(DELTA_NET, other.with_(tensors=tensors))), rel=1e-15)


def test_precision_doubles_until_it_is_enough():
    """2**300 + 1 - 2**300 needs 301 bits: at 192 + 3 the ball is wide, at twice that it is a point."""
    batch = first_unit(batch_of(LINEAR, T=3, K=1, V=1, scale=1.0), "q", "k", "v")
    batch.tensors["v"][0, :, 0, 0] = torch.tensor([2.0**300, 1.0, -(2.0**300)], dtype=torch.float64)
    found = answer(LINEAR, batch)
    assert found.prec == 2 * (192 + 3)
    assert found.hi["o"][0, 2, 0, 0] == 1 and found.radius["o"][0, 2, 0, 0] == 0
    assert found.crosschecked


def test_precision_doubles_when_a_ball_meets_a_singular_matrix():
    """A rank-one state of 2**250 hides lam0 at 192 bits: the inverse cannot be enclosed there, but it exists."""
    structure = Structure(T=1, K=2, V=1, initial_state=True)
    batch = build(RIDGE, Case(operator=RIDGE.name, structure=structure, dtype="float64", options={"lam0": 0.1}))
    assert batch.state is not None
    batch = first_unit(batch.with_(state={"M": torch.full((1, 1, 2, 2), 2.0**250, dtype=torch.float64)}), "x")
    batch = batch.with_(tensors=batch.tensors | {"u": torch.zeros_like(batch.tensors["u"])})
    found = answer(RIDGE, batch)
    assert found.prec > 192 + 1
    assert exact(found).ravel() == pytest.approx([5.0, -5.0], rel=1e-15)


Oracle = Callable[[Context, Any], tuple[list[Any], dict[str, Any]]]


def stub(value: Callable[[Context, Any], Any]) -> tuple[Operator, list[int]]:
    """Linear attention whose first output row is replaced, and the precisions at which Arb was asked."""
    calls: list[int] = []

    def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
        rows, final = LINEAR.oracle(ctx, head)
        if isinstance(ctx, ArbContext):
            calls.append(ctx.prec)
        return [value(ctx, rows[0]), *rows[1:]], final

    return dataclasses.replace(LINEAR, oracle=oracle), calls


def widened(ctx: Context, row: Any, below: int, radius: float = 1e-3) -> Any:
    """The row with a radius as long as the precision is below some bits."""
    if isinstance(ctx, ArbContext) and ctx.prec < below:
        return row + flint.arb_mat(row.nrows(), 1, [flint.arb(0, radius)] * row.nrows())
    return row


@pytest.mark.parametrize(("radius", "asked"), [(2.0**-19, [194, 388, 776]), (2.0**-21, [194])])
def test_precision_stops_doubling_at_the_first_radius_below_the_margin(radius: float, asked: list[int]):
    operator, calls = stub(lambda ctx, row: widened(ctx, row, 500, radius))
    answer(operator, batch_of(operator, T=2), budget=1.0)
    assert calls == asked


@pytest.mark.parametrize("radius", [1e-3, float("inf"), float("nan")])
def test_ball_that_never_gets_small_is_refused(radius: float):
    operator, calls = stub(lambda ctx, row: widened(ctx, row, 1 << 30, radius))
    with pytest.raises(OracleError, match="linear: radius above"):
        answer(operator, batch_of(operator, T=2))
    assert len(calls) == 7


def test_disagreement_of_the_two_contexts_is_refused():
    def off(ctx: Context, row: Any) -> Any:
        return row if isinstance(ctx, ArbContext) else row * ctx.number(1 + 2.0**-52)

    operator, _ = stub(off)
    with pytest.raises(OracleError, match="mpmath gives"):
        answer(operator, batch_of(operator, T=2))


def test_large_cases_are_arb_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert answer(LINEAR, batch_of(LINEAR, T=2)).crosschecked
    monkeypatch.setattr(oracles, "CROSSCHECK", 29)  # T K (K + V) = 30
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LINATTEST_CACHE", str(tmp_path / "file" / "cache"))  # cannot be made, which only costs time
    assert not answer(LINEAR, batch_of(LINEAR, T=2)).crosschecked


def test_cache_hit_returns_the_same_numbers():
    operator, calls = stub(lambda ctx, row: row)
    first, second = (answer(operator, batch_of(operator, T=3)) for _ in range(2))
    assert len(calls) == 1 and (first.prec, first.crosschecked) == (second.prec, second.crosschecked)
    for part in ("hi", "lo", "radius"):
        a, b = getattr(first, part), getattr(second, part)
        assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def changed_cases() -> dict[str, Batch]:
    """Batches that differ from the first in one thing each."""
    base = batch_of(LINEAR, T=3, dtype="float32", scale=0.5)
    v = base.tensors["v"].clone()
    v.view(torch.int32)[0, 2, 0, 1] ^= 1
    return {
        "base": base,
        "last bit of an input": base.with_(tensors=base.tensors | {"v": v}),
        "dtype": base.with_(tensors={name: x.double() for name, x in base.tensors.items()}),
        "option": base.with_(options=dict(base.options) | {"scale": 0.5000000000000001}),
        "number of a tensor option": base.with_(options=dict(base.options) | {"scale": torch.tensor(0.5)}),
        "last bit of a tensor option": base.with_(options=dict(base.options) | {"scale": torch.tensor(0.50000006)}),
        "state": base.with_(state={"S": torch.zeros(1, 1, 3, 2), "z": torch.zeros(1, 1, 3)}),
        "names": base.with_(tensors=base.tensors | {"q": base.tensors["k"], "k": base.tensors["q"]}),
    }


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(changed_cases(), 2)))
def test_cache_misses_when_anything_differs(a: str, b: str):
    found = changed_cases()
    assert oracles.cache_file(LINEAR, found[a]) != oracles.cache_file(LINEAR, found[b])


def test_cache_too_wide_for_a_smaller_budget_is_computed_anew():
    operator, calls = stub(lambda ctx, row: widened(ctx, row, 300, radius=1e-9))
    assert answer(operator, batch_of(operator, T=2), budget=1.0).radius["o"].max() > 1e-10
    assert answer(operator, batch_of(operator, T=2), budget=1e-6).radius["o"].max() < 1e-30
    assert calls == [194, 194, 388]


@pytest.mark.parametrize("kept", [0, 3, 200, -30])
def test_damaged_cache_file_is_computed_anew(tmp_path: Path, kept: int):
    operator, calls = stub(lambda ctx, row: row)
    first = answer(operator, batch_of(operator, T=3))
    (path,) = (tmp_path / "cache").glob("*.npz")
    path.write_bytes(path.read_bytes()[:kept])
    assert np.array_equal(exact(answer(operator, batch_of(operator, T=3))), exact(first)) and len(calls) == 2
