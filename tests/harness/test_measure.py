"""The error ratio: what passes, what does not, and what a failure says."""

import math

import numpy as np
import pytest
import torch

from linattest.verify.measure import Wanted, compare, compare_number, rounding
from linattest.verify.tolerance import THRESHOLD, smallest_subnormal, unit_roundoff

SHAPE = (1, 5, 2, 3)
FLOAT32 = unit_roundoff("float32")


def wanted(value: float = 1.0, kappa: float = FLOAT32, staged: float = 0.0) -> Wanted:
    """A constant exact value, known to double precision."""
    full = [np.full(SHAPE, x) for x in (value, 0.0, kappa, staged)]
    return Wanted(*full, head_axis=2)


def constant(value: float) -> torch.Tensor:
    """A float64 tensor that holds one value."""
    return torch.full(SHAPE, value, dtype=torch.float64)


def ratio(got: torch.Tensor, truth: Wanted, dtype: str = "float32") -> float:
    return compare("o", got, truth, dtype, FLOAT32).ratio


def test_exact_value_has_ratio_zero():
    for truth in (wanted(), wanted(kappa=0.0), wanted(0.0, 0.0)):
        assert ratio(torch.from_numpy(truth.hi.copy()), truth) == 0


def test_nothing_over_nothing_is_zero():
    assert ratio(constant(0.0), wanted(0.0, kappa=0.0)) == 0
    assert compare_number("d", 0.0, 0.0, 0.0, 0.0).ratio == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_value_that_is_not_finite_is_infinitely_wrong(bad: float):
    got = constant(1.0)
    got[0, 2, 1, 0] = bad
    verdict = compare("o", got, wanted(kappa=1e300), "float32", FLOAT32)
    assert verdict.ratio == math.inf and not verdict.passed
    assert verdict.index == (0, 2, 1, 0) and verdict.bad == 1
    assert "non-finite" in verdict.message()
    assert compare_number("d", bad, 1.0, 1e300, 1e300).ratio == math.inf


@pytest.mark.parametrize("tiny", [1e-300, -1e-300, 5e-324])
def test_anything_where_exact_zero_is_certain_is_infinitely_wrong(tiny: float):
    got = constant(0.0)
    got[0, 4, 0, 2] = tiny
    assert ratio(got, wanted(0.0, kappa=0.0)) == math.inf
    assert compare_number("d", tiny, 0.0, 0.0, 0.0).ratio == math.inf


def test_zero_where_a_value_is_certain_is_infinitely_wrong():
    assert ratio(constant(0.0), wanted(1.0, kappa=0.0)) == math.inf


@pytest.mark.parametrize("shape", [(1, 5, 2), (1, 5, 2, 4), (5, 2, 3), (1, 5, 3, 2), (1, 5, 2, 1)])
def test_another_shape_is_refused_not_broadcast(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"o has shape .*, expected \(1, 5, 2, 3\)"):
        ratio(torch.ones(shape), wanted())


def test_empty_output_passes():
    empty = np.zeros((1, 0, 2, 3))
    assert ratio(torch.zeros(1, 0, 2, 3), Wanted(empty, empty, empty, empty, 2)) == 0


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_one_rounding_of_the_output_is_free_and_two_are_not(dtype: str):
    u = unit_roundoff(dtype)
    truth = wanted(1.0, kappa=u * 1e-3)
    assert ratio(constant(1 + u), truth, dtype) == 0
    assert ratio(constant(1 + 2 * u), truth, dtype) == pytest.approx(990, rel=0.02)


def test_ratio_counts_unavoidable_errors_up_to_the_threshold():
    for count in (1.0, 29.9, 30.1, 1000.0):
        truth = wanted(0.5, kappa=1e-3)
        got = constant(0.5 + count * 1e-3)
        verdict = compare("o", got, truth, "float64", FLOAT32)
        assert verdict.ratio == pytest.approx(count, rel=1e-6)
        assert verdict.passed == (count <= THRESHOLD)


def test_staged_error_is_added_once_not_thirty_times():
    truth = wanted(0.5, kappa=1e-9, staged=1e-3)
    assert ratio(constant(0.5 + 0.999e-3), truth, "float64") == 0
    assert ratio(constant(0.5 + 2e-3), truth, "float64") > 1e5


def test_exact_value_is_used_to_its_last_bit():
    """An error smaller than the double next to the exact value shows: lo is not dropped."""
    hi = np.ones(SHAPE)
    truth = Wanted(hi, hi * 2.0**-60, hi * 2.0**-70, hi * 0, 2)
    assert compare("o", torch.from_numpy(hi), truth, "float64", FLOAT32).ratio == 0  # within the rounding
    free = rounding(hi, "float64")[0, 0, 0, 0]
    near = Wanted(hi, hi * (free + 2.0**-60), hi * 2.0**-70, hi * 0, 2)
    assert compare("o", torch.from_numpy(hi), near, "float64", FLOAT32).ratio == pytest.approx(1024, rel=1e-3)


def test_subnormals_get_half_their_spacing_and_exact_zeros_nothing():
    smallest = smallest_subnormal("float32")
    free = rounding(np.array([0.0, smallest, 1.0]), "float32")
    assert free[0] == 0
    assert 0.5 * smallest < free[1] < 0.52 * smallest
    assert free[2] == pytest.approx(FLOAT32, rel=0.02)


def test_one_wrong_element_among_many_right_ones_fails():
    got = constant(1.0)
    got[0, 3, 1, 2] = 1.001
    verdict = compare("o", got, wanted(), "float32", FLOAT32)
    assert not verdict.passed and verdict.bad == 1 and verdict.total == 30
    assert verdict.index == (0, 3, 1, 2)


def test_message_says_what_where_and_how_bad():
    got = constant(1.0)
    got[0, 3, 1, 2] = 1.5
    message = compare("state.S", got, wanted(), "float32", FLOAT32).message()
    for part in (
        "state.S[0, 3, 1, 2]",
        "got 1.5",
        "wanted 1.0",
        "1 of 30",
        "at most 30",
        "the implementation is wrong",
    ):
        assert part in message


def test_message_blames_an_ill_conditioned_input():
    message = compare("o", constant(2.0), wanted(1.0, kappa=1e-2), "float32", FLOAT32).message()
    assert "ill-conditioned" in message and "implementation is wrong" not in message


def test_rows_judge_some_tokens_only():
    got = constant(1.0)
    got[0, 4] = 9.0
    truth = wanted()
    assert compare("o", got[:, :4], truth.rows(slice(0, 4)), "float32", FLOAT32).passed
    assert not compare("o", got[:, 2:], truth.rows(slice(2, 5)), "float32", FLOAT32).passed


def test_budget_is_rounding_plus_staged_plus_thirty_kappa():
    budget = wanted(2.0, kappa=1e-3, staged=1e-4).budget("float64")
    assert budget == pytest.approx(30e-3 + 1e-4 + 1.01 * 2 * 2.0**-53, rel=1e-9)


def test_number_is_judged_like_an_element():
    assert compare_number("d q.full", 1.0 + 1e-4, 1.0, 1e-4, 0.0).ratio == pytest.approx(0, abs=1e-9)
    verdict = compare_number("d q.full", 1.05, 1.0, 0.01, 1e-3)
    assert verdict.ratio == pytest.approx(40) and not verdict.passed and verdict.bad == 1
    assert "d q.full[]" in verdict.message() and "along a direction" in verdict.message()


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_truth_that_is_not_finite_never_passes(unknown: float):
    assert ratio(constant(1.0), wanted(unknown)) == math.inf
    assert compare_number("d", 1.0, unknown, 1e-3, 1e-3).ratio == math.inf


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_unavoidable_error_that_is_not_finite_allows_nothing(unknown: float):
    assert ratio(constant(1.5), wanted(1.0, kappa=unknown)) == math.inf
    assert ratio(constant(1.5), wanted(1.0, kappa=0.0, staged=unknown)) == math.inf
    assert compare_number("d", 1.5, 1.0, 0.0, unknown).ratio == math.inf
