"""Numbers of the oracle: every conversion is exact, every enclosure encloses, no precision leaks out."""

import math
import random
from typing import Any

import flint
import mpmath
import numpy as np
import pytest
import torch

from linattest.verify.numbers import ArbContext, Context, MpContext, encloses, split_ball, unit
from linattest.verify.oracle import convert
from linattest.verify.tolerance import TORCH_DTYPES

PREC = 192

DOUBLES = (
    0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 1 / 3, math.pi, 2.0**-1074, -(2.0**-1074), 3 * 2.0**-1074, 2.0**-1022,
    math.nextafter(2.0**-1022, 0), math.nextafter(math.inf, 0), -math.nextafter(math.inf, 0), 2.0**1023,
    math.nextafter(1, 2), math.nextafter(1, 0), 1e22, 1e-310,
)  # fmt: skip
"""Ordinary numbers, the smallest and largest ones, subnormals, neighbours of 1 and of the smallest normal."""


def contexts(prec: int) -> tuple[Context, Context]:
    return ArbContext(prec), MpContext(prec)


def exact(x: float) -> tuple[int, int]:
    """A float as numerator and denominator: integers, so that comparing them has no tolerance."""
    return x.as_integer_ratio()


def arb_ratio(x: flint.arb) -> tuple[int, int]:
    """The midpoint of a ball without radius as numerator and denominator."""
    assert x.is_exact()
    man, exp = x.man_exp()
    ratio = flint.fmpq(man) * flint.fmpq(2) ** int(exp)
    return int(ratio.p), int(ratio.q)


def mpf_ratio(x: Any) -> tuple[int, int]:
    """An mpf as numerator and denominator."""
    sign, man, exp, _ = x._mpf_
    value = -int(man) if sign else int(man)
    ratio = flint.fmpq(value) * flint.fmpq(2) ** int(exp)
    return int(ratio.p), int(ratio.q)


def random_doubles(count: int) -> list[float]:
    """Doubles of every exponent: random bits that are finite."""
    bits = np.random.Generator(np.random.PCG64(1)).integers(0, 2**64, count, dtype=np.uint64)
    return [float(x) for x in bits.view(np.float64) if math.isfinite(x)]


def test_doubles_enter_both_contexts_exactly():
    arb, mp = ArbContext(53), MpContext(53)  # the least precision allowed
    with arb.working():
        for x in (*DOUBLES, *random_doubles(200)):
            assert arb_ratio(arb.number(x)) == exact(x)
            assert mpf_ratio(mp.number(x)) == exact(x)
            assert float(arb.number(x)) == x and float(mp.number(x)) == x


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_quantised_tensors_enter_both_contexts_exactly(dtype: str):
    info = torch.finfo(TORCH_DTYPES[dtype])
    ends = [info.max, info.min, info.smallest_normal, info.smallest_normal * info.eps, info.eps, 0.1]
    x = torch.cat([torch.tensor(ends, dtype=torch.float64), torch.linspace(-3, 3, 20, dtype=torch.float64)])
    quantised = x.to(TORCH_DTYPES[dtype])
    values = quantised.double().numpy()
    arb, mp = ArbContext(53), MpContext(53)
    with arb.working():
        for number, ball, mpf in zip(
            values.tolist(), arb.entries(convert(arb, values)), mp.entries(convert(mp, values)), strict=True
        ):
            assert arb_ratio(ball) == mpf_ratio(mpf) == exact(number)
    assert torch.equal(torch.from_numpy(values).to(TORCH_DTYPES[dtype]), quantised)


def test_matrix_keeps_its_rows_and_columns():
    rows = np.arange(6.0).reshape(2, 3)
    for ctx in contexts(53):
        assert [float(x) for x in ctx.entries(convert(ctx, rows))] == [0, 1, 2, 3, 4, 5]
        assert [float(x) for x in ctx.entries(ctx.transpose(convert(ctx, rows)))] == [0, 3, 1, 4, 2, 5]
        assert [float(x) for x in ctx.entries(ctx.outer(ctx.vector([1.0, 2.0]), ctx.vector([3.0, 5.0])))] == [
            3,
            5,
            6,
            10,
        ]


def solve_and_normalise(ctx: Context) -> list[Any]:
    """A matrix computation that uses most of the vocabulary, on fixed random inputs."""
    rng = random.Random(3)
    a = ctx.matrix([[rng.uniform(-1, 1) for _ in range(5)] for _ in range(5)])
    x = ctx.vector([rng.uniform(-1, 1) for _ in range(5)])
    penalty = a * ctx.transpose(a) + ctx.identity(5) * ctx.number(0.1)
    y = unit(ctx, ctx.inverse(penalty) * x)
    gate = ctx.exp(ctx.number(-0.3)) * ctx.maximum(ctx.dot(x, y), ctx.number(0.5))
    return ctx.entries((ctx.outer(y, x) - a * gate) + ctx.zeros(5, 5))


def test_arb_encloses_mpmath():
    arb, mp = ArbContext(PREC), MpContext(2 * PREC)
    with arb.working():
        balls = solve_and_normalise(arb)
        assert all(encloses(ball, value, PREC) for ball, value in zip(balls, solve_and_normalise(mp), strict=True))
        assert all(float(ball.rad()) < 2.0**-150 for ball in balls)


def test_encloses_rejects_a_value_one_ulp_out():
    arb, mp = ArbContext(PREC), MpContext(2 * PREC)
    with arb.working():
        for x in (0.1, -3.0, 1e-300, 7e200):
            ball = arb.number(x) * 1
            value = mp.number(x)
            assert encloses(ball, value, PREC)
            ulp = mp.mp.ldexp(1, mp.mp.frexp(value)[1] - PREC + 1)
            assert not encloses(ball, value + ulp, PREC) and not encloses(ball, value - ulp, PREC)
        wide = flint.arb(1, 2.0**-20)
        assert encloses(wide, mp.number(1 + 2.0**-21), PREC) and not encloses(wide, mp.number(1 + 2.0**-19), PREC)
        assert encloses(arb.number(0.0), mp.number(0.0), PREC)
        assert not encloses(arb.number(0.0), mp.number(2.0**-1074), PREC)


@pytest.mark.parametrize("raises", [False, True])
def test_precision_is_local(raises: bool):
    before = mpmath.mp.prec, mpmath.mp.dps, flint.ctx.prec
    arb, mp = ArbContext(777), MpContext(888)
    try:
        with arb.working():
            assert flint.ctx.prec == 777
            solve_and_normalise(arb)
            solve_and_normalise(mp)
            if raises:
                raise RuntimeError
    except RuntimeError:
        pass
    assert (mpmath.mp.prec, mpmath.mp.dps, flint.ctx.prec) == before
    mpmath.mp.prec += 1  # and the other way: the module's precision does not reach a context
    try:
        assert mp.mp.prec == 888 and MpContext(99).mp.prec == 99
    finally:
        mpmath.mp.prec -= 1


def test_too_little_precision_is_refused():
    for kind in (ArbContext, MpContext):
        with pytest.raises(ValueError, match="prec=52"):
            kind(52)


def test_split_ball_covers_what_its_two_doubles_leave_out():
    with flint.ctx.workprec(400):
        third = flint.arb(1) / 3
        for ball in (third, third * 2**300, -third, third + flint.arb(0, 1e-20), third * flint.arb(2) ** -900):
            hi, lo, radius = split_ball(ball)
            middle = flint.arb(hi) + flint.arb(lo)
            gap = abs(middle - ball.mid()) + ball.rad()
            assert gap <= flint.arb(radius), (ball, hi, lo, radius)
            assert abs(lo) <= abs(hi) * 2**-52
        assert split_ball(flint.arb(0.1)) == (0.1, 0.0, 0.0)
        assert split_ball(flint.arb(0)) == (0.0, 0.0, 0.0)


def test_split_ball_refuses_what_is_not_finite():
    for ball in (flint.arb("nan"), flint.arb("inf"), flint.arb(0, math.inf)):
        with pytest.raises(ArithmeticError):
            split_ball(ball)


def test_unit_of_zero_is_zero_and_of_tiny_is_not():
    for ctx in contexts(PREC):
        assert [float(x) for x in ctx.entries(unit(ctx, ctx.vector([0.0, -0.0])))] == [0, 0]
        assert [float(x) for x in ctx.entries(unit(ctx, ctx.vector([2.0**-1074, 0.0])))] == [1, 0]
        assert [float(x) for x in ctx.entries(unit(ctx, ctx.vector([-3e300, 4e300])))] == pytest.approx([-0.6, 0.8])


def test_oracle_arithmetic_agrees_at_twice_the_precision():
    """K30, R40: division happens in the context, and the digits claimed at prec hold at 2 prec."""
    for kind in (ArbContext, MpContext):
        coarse, fine = kind(PREC), kind(2 * PREC)
        with ArbContext(2 * PREC).working():
            seven_fifths = fine.exp(fine.number(7.0) / fine.number(5.0))
            assert abs(float(seven_fifths - fine.exp(fine.number(7.0 / 5.0)))) > 1e-17  # Python's 7/5 is another number
            twice = solve_and_normalise(fine)
        with ArbContext(PREC).working():
            once = solve_and_normalise(coarse)
        with flint.ctx.workprec(2 * PREC):
            for a, b in zip(once, twice, strict=True):
                assert abs(float(a - b)) <= 2.0 ** (30 - PREC) * max(1.0, abs(float(b)))


def test_numpy_scalars_enter_exactly():
    """K30, R40: numpy's narrow scalars are refused or rounded by mpmath itself; `convert` widens them first."""
    for kind in (np.float16, np.float32):
        x = kind(0.1)
        for ctx in contexts(PREC):
            assert float(convert(ctx, x)) == float(x) != 0.1


def test_singular_matrix_is_refused_not_inverted():
    for ctx in contexts(PREC):
        with ArbContext(PREC).working(), pytest.raises(ZeroDivisionError):
            ctx.inverse(ctx.matrix([[1.0, 2.0], [2.0, 4.0]]))
