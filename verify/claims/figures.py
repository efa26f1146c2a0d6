"""Data of the ledger's three figures: columns of equal length, with the points that were measured beside the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from linattest.verify.claims.vla_penalty import inputs
from linattest.verify.claims.vla_stability import growth, typical_norms

Columns = dict[str, list[float]]


def sigma_curve(points: int = 101, seeds: int = 4, T: int = 64, d: int = 4) -> dict[str, Columns]:
    """sigma(c) = (1 + sqrt(5 - 4c))/2 on (0, 1], and the norms of Jacobians on random inputs over their cosine."""
    c = np.linspace(0, 1, points)
    k, u, _ = (x[:, :, 0].numpy() for x in inputs(seeds, T, d, seed=0))
    cosines: list[float] = []
    norms: list[float] = []
    for keys, directions in zip(k, u, strict=True):
        M = 0.1 * np.eye(d)
        for key, direction in zip(keys / np.linalg.norm(keys, axis=1, keepdims=True), directions, strict=True):
            M = M + np.outer(direction, direction)
            a = np.linalg.solve(M, key)
            a = a / np.linalg.norm(a)
            cosines.append(float(a @ key))
            norms.append(float(np.linalg.norm(np.eye(d) - np.outer(a, key), 2)))
    return {
        "curve": {"c": c.tolist(), "sigma": ((1 + np.sqrt(5 - 4 * c)) / 2).tolist()},
        "measured": {"c": cosines, "norm": norms},
    }


def state_norms(lengths: Sequence[int] = (16, 32, 64, 128), steps: int = 300, d: int = 4, seeds: int = 8) -> Columns:
    """|S_T|_F over T: the largest that gradient search finds, the mean of random inputs, and linear attention's T."""
    worst = growth(tuple(lengths), steps)
    typical = [float(typical_norms(T, d, seeds).mean()) for T in lengths]
    return {
        "T": [float(T) for T in lengths], "worst": [worst.get(T, math.nan) for T in lengths], "typical": typical,
        "linear_at_most": [float(T) for T in lengths],
    }  # fmt: skip


def contraction_region(points: int = 61, largest: float = 4.0) -> Columns:
    """|1 - lam sigma| on a grid of lam in [0, 1] and eigenvalues sigma of Sigma, row by row.

    ``kind``: 0 shrinks and keeps the sign (lam sigma <= 1), 1 shrinks and turns it (<= 2), 2 expands.
    """
    lam, sigma = np.meshgrid(np.linspace(0, 1, points), np.linspace(0, largest, points))
    product = (lam * sigma).ravel()
    return {
        "lam": lam.ravel().tolist(), "sigma": sigma.ravel().tolist(), "factor": np.abs(1 - product).tolist(),
        "kind": (1.0 * (product > 1) + 1.0 * (product > 2)).tolist(),
    }  # fmt: skip
