"""The data of the ledger's figures: points measured from implementations lie where the theorems say."""

import math

import pytest

from linattest.verify.claims import figures, ledger
from linattest.verify.claims.record import Figure
from linattest.verify.tolerance import THRESHOLD, unit_roundoff

U = unit_roundoff("float64")
LAM0 = 0.1


def near(found: list[float], wanted: list[float], condition: float, width: int, size: float) -> bool:
    """Within LAPACK's bound of a computed number: 30 n u |A|, times the condition of what it was solved from."""
    return max(abs(x - y) for x, y in zip(found, wanted, strict=True)) <= THRESHOLD * condition * width * U * size


def sigma(c: float) -> float:
    return (1 + math.sqrt(5 - 4 * c)) / 2


def test_measured_norms_lie_on_sigma():
    """A's direction carries the condition of M_T: at most 1 + T |u|^2 / lam0, and |u|^2 = 1/d."""
    T, d = 16, 4
    found = figures.sigma_curve(points=11, seeds=2, T=T, d=d)
    random, searched = found.tables["random"], found.tables["searched"]
    assert len(random["c"]) == 2 * T and len(searched["c"]) == 64
    for columns, tokens in ((random, T), (searched, 64)):
        c, norm = ([x for x in columns[name] if x is not None] for name in ("c", "norm"))
        assert near(norm, list(map(sigma, c)), 1 + tokens / d / LAM0, d, 2.0)
    assert max(x or 0 for x in searched["norm"]) > 1.53 > max(x or 0 for x in random["norm"])


def test_a_norm_off_the_curve_is_seen():
    assert not near([sigma(0.5) * (1 + 1e-10)], [sigma(0.5)], 161, 4, 2.0)


def test_contracted_queries_come_out_by_the_factor_of_their_eigenvalue():
    columns = figures.contraction_region(points=5, seeds=3).tables["measured"]
    lam, top, factor = ([x for x in columns[name] if x is not None] for name in ("lam", "sigma", "factor"))
    assert near(factor, [1 - a * b for a, b in zip(lam, top, strict=True)], 1.0, 32, max(top))
    assert min(factor) < -1 < 0 < max(factor), "no point on either side of the boundary"


def test_norms_are_those_of_the_search_and_gaps_are_none():
    found = figures.state_norms((8, 16), steps=5, longer=(32,), seeds=2)
    columns = found.tables["norms"]
    assert columns["T"] == columns["linear"] == [8.0, 16.0, 32.0]
    assert columns["searched"][2] is None and None not in columns["random"]
    assert (columns["searched"][1] or 0) > (columns["random"][1] or 0)


def test_every_figure_of_the_ledger_exists():
    named = [row.names(row.figure) for row in ledger.read() if row.figure is not None]
    assert [name for _, name in named] == ["state_norms", "sigma_curve", "contraction_region"]
    assert all(callable(getattr(figures, name)) for _, name in named)


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="expected one length"):
        Figure(name="f", tables={"t": {"x": [1.0], "y": [1.0, 2.0]}})
