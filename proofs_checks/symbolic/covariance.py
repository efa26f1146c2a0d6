"""Identities of the running covariance and of the log-partition at q = 0 (CCQ)."""

from __future__ import annotations

import sympy as sp

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.symbolic.algebra import equal, symbols

WIDTH, TOKENS = 2, 3
KEYS = symbols("k", WIDTH, TOKENS)
q = symbols("q", WIDTH)
ZERO = dict.fromkeys(q, 0)


def _moments(keys: sp.Matrix) -> tuple[sp.Matrix, sp.Matrix]:
    """Mean and covariance (divided by the count) of the columns, from their definitions."""
    n = keys.cols
    mean = keys * sp.ones(n, 1) / n
    centred = keys - mean * sp.ones(1, n)
    return mean, centred * centred.T / n


def _log_partition() -> sp.Expr:
    return sp.log(sum((sp.exp((KEYS[:, j].T * q)[0]) for j in range(TOKENS)), start=sp.Integer(0)))


def _gradient(factor: sp.Rational) -> Answer:
    mean, _ = _moments(KEYS)
    f = _log_partition()
    return equal((sp.Matrix([sp.diff(f, x) for x in q]).subs(ZERO), factor * mean))


def _hessian(centred: bool) -> Answer:
    mean, covariance = _moments(KEYS)
    wanted = covariance if centred else covariance + mean * mean.T
    return equal((sp.hessian(_log_partition(), list(q)).subs(ZERO), wanted))


def _remainder(order: int) -> Answer:
    """Along any ray the expansion leaves the third cumulant: mean of (x - mean)^3 over 6, x = k . q."""
    x, r = symbols("x", TOKENS), sp.Symbol("r", real=True)
    f = sp.log(sum((sp.exp(r * y) for y in x), start=sp.Integer(0)))
    mean = sum(x, start=sp.Integer(0)) / TOKENS
    moment = sum(((y - mean) ** order for y in x), start=sp.Integer(0)) / TOKENS
    return equal((sp.diff(f, r, order).subs(r, 0), moment))


def _update(kept: bool) -> Answer:
    """One more key: scatter' = scatter + (n / (n + 1)) d d^T, mean' = mean + d / (n + 1), d = key - mean."""
    n = TOKENS - 1
    mean, covariance = _moments(KEYS[:, :n])
    d = KEYS[:, n] - mean
    later_mean, later = _moments(KEYS)
    scatter = n * covariance + (sp.Rational(n, n + 1) if kept else 1) * d * d.T
    return equal((later_mean, mean + d / (n + 1)), (later * (n + 1), scatter))


def _merge(kept: bool) -> Answer:
    """Two parts: scatter = scatter_1 + scatter_2 + (n m / (n + m)) d d^T, d the difference of the means."""
    n, m = 2, 3
    keys = symbols("x", WIDTH, n + m)
    (first, a), (second, b), (_, whole) = (_moments(x) for x in (keys[:, :n], keys[:, n:], keys))
    d = second - first
    weight = sp.Rational(n * m, n + m) if kept else sp.Rational(n * m, 2)
    return equal((whole * (n + m), n * a + m * b + weight * d * d.T))


def _forgetting(divisor: str) -> Answer:
    """Weights w_s with decay f: d = k - m, m += (w / W) d, scatter = f scatter + (w W' / W) d d^T keeps, for a mean
    that is not decayed, scatter = sum of decayed weights times squares about the running means."""
    w, f, total = (sp.Symbol(name, positive=True) for name in ("w", "f", "total"))
    mean, scatter, key = symbols("m", WIDTH), symbols("s", WIDTH, WIDTH), symbols("k", WIDTH)
    kept = f * total
    weight = kept + w
    d = key - mean
    later = mean + (w / (weight if divisor == "W" else kept)) * d
    # squares about a mean that moves from m to m': the old ones gain kept (m' - m)(m' - m)^T, the new one is about m'
    exact = f * scatter + kept * (later - mean) * (later - mean).T + w * (key - later) * (key - later).T
    return equal((f * scatter + (w * kept / weight) * d * d.T, exact))


TOKENS_WIDE = f"width {WIDTH}, {TOKENS} keys, every entry a symbol"

STATEMENTS = (
    Statement(
        id="ccq.taylor.gradient", method="symbolic", assumptions=TOKENS_WIDE,
        statement="the gradient of log sum_j exp(k_j . q) at q = 0 is the mean key",
        ask=_gradient, right=(sp.Integer(1),), twin="it is 1 + 1e-9 times the mean key",
        wrong=(1 + sp.Rational(1, 10**9),),
    ),
    Statement(
        id="ccq.taylor.hessian", method="symbolic", assumptions=TOKENS_WIDE,
        statement="the Hessian of log sum_j exp(k_j . q) at q = 0 is the covariance of the keys",
        ask=_hessian, right=(True,),
        twin="it is the second moment about 0", wrong=(False,),
    ),
    Statement(
        id="ccq.taylor.remainder", method="symbolic", assumptions=f"{TOKENS} keys, along any ray",
        statement="the third derivative at q = 0 is the third central moment of k . q: the remainder is cubic",
        ask=_remainder, right=(3,),
        twin="the fourth derivative is the fourth central moment", wrong=(4,),
    ),
    Statement(
        id="ccq.recurrent.update", method="symbolic", assumptions=TOKENS_WIDE,
        statement="scatter + (n / (n + 1)) d d^T, d = key - mean, is the scatter with one more key",
        ask=_update, right=(True,),
        twin="scatter + d d^T is", wrong=(False,),
    ),
    Statement(
        id="ccq.recurrent.merge", method="symbolic", assumptions="parts of 2 and 3 keys, width 2, every entry a symbol",
        statement="scatters of two parts add up to the whole's with (n m / (n + m)) d d^T (Chan)",
        ask=_merge, right=(True,),
        twin="with (n m / 2) d d^T", wrong=(False,),
    ),
    Statement(
        id="ccq.recurrent.forgetting", method="symbolic", assumptions="weights w > 0, decay f > 0, width 2",
        statement="f scatter + (w W' / W) d d^T is the decayed scatter about the moved mean m + (w / W) d",
        ask=_forgetting, right=("W",),
        twin="it is about the mean m + (w / W') d", wrong=("kept",),
    ),
)  # fmt: skip
