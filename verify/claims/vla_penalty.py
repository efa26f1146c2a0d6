"""VLA's penalty: Sherman-Morrison, shrinking, the objective, and what the order of the writes means."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import flint
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from linattest.impls import vla
from linattest.impls.features import phi
from linattest.verify.claims import exact as balls
from linattest.verify.claims.gather import in_coq, proofs
from linattest.verify.claims.verdicts import Verdict, corrected, counted, exact, measured, proved, refuted
from linattest.verify.complexity import MULTIPLY_ADDS

LAM0 = Fraction(1, 10)
KEYS = ((Fraction(3, 5), Fraction(4, 5)), (Fraction(1), Fraction(0)))
VALUES = ((Fraction(1), Fraction(0)), (Fraction(0), Fraction(1)))
"""Two unit keys that are not orthogonal, and two values: enough to tell the recursion from everything else."""


def _rational(rng: np.random.Generator, *shape: int) -> list[list[flint.fmpq]]:
    return [[flint.fmpq(int(x), 8) for x in row] for row in rng.integers(-16, 17, shape)]


def _walk(d: int, tokens: int, seed: int) -> Iterator[tuple[flint.fmpq_mat, flint.fmpq_mat, flint.fmpq_mat]]:
    """(A_{t-1}, A_t by Sherman-Morrison, M_t) in exact rational arithmetic."""
    rng = np.random.Generator(np.random.PCG64(seed))
    M = _identity(d) * flint.fmpq(1, 10)
    A = M.inv()
    for row in _rational(rng, tokens, d):
        u = flint.fmpq_mat(d, 1, row)
        z = A * u
        M, before = M + u * u.transpose(), A
        A = A - z * z.transpose() * (1 / (1 + (u.transpose() * z).entries()[0]))
        yield before, A, M


def _identity(d: int) -> flint.fmpq_mat:
    return flint.fmpq_mat(d, d, [int(i == j) for i in range(d) for j in range(d)])


def _update_cost(d: int, T: int = 8) -> float:
    """Multiply-adds of one token of the Sherman-Morrison form and of A x; what is done once is taken off."""
    counts: list[int] = []
    for tokens in (1, 1 + T):
        x = torch.ones(1, 1, tokens, d, dtype=torch.float64)
        with FlopCounterMode(display=False, custom_mapping=MULTIPLY_ADDS) as counter:
            vla.sherman_morrison(x, x, None, lam=torch.ones(1, 1, dtype=torch.float64), period=0, nudge=0.0)
        counts.append(counter.get_total_flops())
    return (counts[1] - counts[0]) / 2 / T


def drift(steps: int, d: int = 16, seed: int = 0, nudge: float = 0.0, dtype: type = np.float32) -> float:
    """max |A M - I| after so many Sherman-Morrison updates, M summed in float64; ``nudge`` I every 20 steps."""
    rng = np.random.Generator(np.random.PCG64(seed))
    A, M = np.eye(d, dtype=dtype) / dtype(0.1), 0.1 * np.eye(d)
    for t in range(1, steps + 1):
        u = rng.standard_normal(d)
        u = (u / np.linalg.norm(u) / d**0.5).astype(dtype)
        z = A @ u
        A -= np.outer(z, z / (1 + u @ z))
        M += np.outer(u.astype(float), u.astype(float))
        if nudge and t % 20 == 0:
            A += dtype(nudge) * np.eye(d, dtype=dtype)
    return float(np.abs(A.astype(float) @ M - np.eye(d)).max())


def sherman_morrison(steps: int = 100_000, widths: tuple[int, ...] = (1, 2, 3, 4, 8)) -> Verdict:
    """Exact in rationals; what float32 makes of it, and the public code's nudge."""
    gaps = sum(_identity(d) != A * M for d in widths for _, A, M in _walk(d, 12, d))
    nudged = min(steps, 10_000)
    costs = {d: _update_cost(d) for d in (16, 32, 64)}
    return proved(
        *proofs("vla.sherman-morrison.width-2"),
        *in_coq("vla.sherman-morrison", "vla.sherman-morrison.recursion", "vla.sherman-morrison.denominator"),
        counted("A M = I in rational arithmetic after every one of 12 updates", gaps == 0, widths=widths, unequal=gaps),
        measured("float32 recursion: max |A M - I| at the end", [drift(steps, seed=s) for s in range(3)], steps=steps),
        measured(
            "the public code's nudge (1e-3 I every 20 steps): max |A M - I|",
            [drift(nudged, seed=s, nudge=1e-3, dtype=np.float64) for s in range(3)],
            at_least=0.1, steps=nudged,
        ),
        counted(
            "multiply-adds of an update, counted, by width: at most 4 times as many for twice the width",
            costs[64] <= 4 * costs[32] <= 16 * costs[16], where="impls/vla.py", multiply_adds=costs,
        ),
    )  # fmt: skip


def shrinking() -> Verdict:
    """A_{t-1} - A_t = z z^T / (1 + u . z) is positive semi-definite."""
    worst, negative = 0.0, 0
    for d in (1, 2, 4, 8):
        for before, after, _ in _walk(d, 12, 10 + d):
            difference = before - after
            negative += _negative(difference)
            worst = max(worst, float(sum(difference.entries()[i * (d + 1)] < 0 for i in range(d))))
    return proved(
        *in_coq("vla.sherman-morrison.shrinks"),
        *proofs("vla.bounds.shrinking"),
        counted(
            "A_{t-1} - A_t has a negative diagonal entry or 2 x 2 minor (rationals)", negative == 0, found=negative
        ),
    )


def _negative(x: flint.fmpq_mat) -> int:
    d, e = x.nrows(), x.entries()
    minors = (e[i * d + i] * e[j * d + j] - e[i * d + j] ** 2 for i, j in itertools.combinations(range(d), 2))
    return sum(e[i * d + i] < 0 for i in range(d)) + sum(m < 0 for m in minors)


def minimiser(seeds: int = 20) -> Verdict:
    """The recursion against S*, exactly at two tokens and in float64 over random inputs."""
    with balls.working():
        steps = balls.recursion(KEYS, VALUES, KEYS, LAM0)
        M = steps[-1].M
        best = balls.minimiser(M, KEYS, VALUES)
        gap = balls.objective(steps[-1].S, M, KEYS, VALUES) - balls.objective(best, M, KEYS, VALUES)
        shown, known = balls.text(gap), balls.digits(gap)
        above = bool(gap > 0)
    excess = [_excess(seed) for seed in range(seeds)]
    return corrected(
        against=[
            exact("two tokens, u = k: objective of the recursion minus its minimum", above, known, minus_minimum=shown),
            measured("random inputs, d = 8, T = 32: objective over its minimum", excess, at_least=1.0),
        ],
        instead="with u_t = k_t and a gain that is not normalised, S_t = V^T K (lam0 I + K^T K)^{-1}: ridge regression",
        by=[*proofs("vla.least-squares"), *in_coq("vla.least-squares.any-length")],
    )


def _excess(seed: int, d: int = 8, T: int = 32) -> float:
    k, u, v = inputs(1, T, d, seed)
    _, state = vla.recurrent(k, k, v, u, normalizer=False, output_final_state=True)
    assert state is not None
    key = (k / k.norm(dim=-1, keepdim=True))[0, :, 0].numpy()
    value, S = v[0, :, 0].numpy(), state.S[0, 0].numpy().T
    M = 0.1 * np.eye(d) + state.M[0, 0].numpy()
    best = np.linalg.solve(key.T @ key + M, key.T @ value).T
    return _objective(S, M, key, value) / _objective(best, M, key, value)


def _objective(S: np.ndarray, M: np.ndarray, key: np.ndarray, value: np.ndarray) -> float:
    return float(((value - key @ S.T) ** 2).sum() + np.trace(S @ M @ S.T))


def inputs(B: int, T: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys (features), penalty directions and unit values as a layer makes them: [B, T, 1, d], float64."""
    g = torch.Generator().manual_seed(seed)
    raw = torch.randn(B, T, 1, d, generator=g, dtype=torch.float64)
    W = torch.randn(d, d, generator=g, dtype=torch.float64)
    v = torch.randn(B, T, 1, d, generator=g, dtype=torch.float64)
    u = raw @ W.mT
    return phi(raw), u / u.norm(dim=-1, keepdim=True) / d**0.5, v / v.norm(dim=-1, keepdim=True)


def recency(seeds: int = 20) -> Verdict:
    """A_T does not know the order: every permutation of the writes gives the same one."""
    ways = list(itertools.permutations(((1, 0), (Fraction(3, 5), Fraction(4, 5)), (0, 1))))
    penalties = {str(_penalty([list(map(Fraction, u)) for u in way])) for way in ways}
    late = [_recall(seed) for seed in range(seeds)]
    return refuted(
        exact("three writes in all six orders: one and the same A_3", len(penalties) == 1, -1, orders=len(ways)),
        measured("the memory does: recall error of the first d over that of the last d of 2d keys", late, at_least=1.0),
    )


def _penalty(directions: list[list[Fraction]]) -> flint.fmpq_mat:
    M = flint.fmpq_mat(2, 2, [flint.fmpq(1, 10), 0, 0, flint.fmpq(1, 10)])
    for u in directions:
        x = flint.fmpq_mat(2, 1, [flint.fmpq(y.numerator, y.denominator) for y in u])
        M = M + x * x.transpose()
    return M.inv()


def _recall(seed: int, d: int = 16) -> float:
    k, u, v = inputs(8, 2 * d, d, seed)
    _, state = vla.recurrent(k, k, v, u, normalizer=False, output_final_state=True)
    assert state is not None
    key = k / k.norm(dim=-1, keepdim=True)
    error = (key[:, :, 0] @ state.S[:, 0] - v[:, :, 0]).norm(dim=-1)
    return float(error[:, :d].mean() / error[:, d:].mean())
