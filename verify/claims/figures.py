"""The ledger's figures as data: columns of equal length, what was measured beside the curves it should lie on.

A row of the ledger names its figure's function, which is called after its check, in the same process: what both need is
computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from linattest.impls import covariance_contract
from linattest.verify.claims.gather import folder
from linattest.verify.claims.record import Columns, Figure
from linattest.verify.claims.vla_penalty import inputs
from linattest.verify.claims.vla_stability import JACOBIAN, LENGTHS, STEPS, growth, space, typical_norms
from linattest.verify.search.objectives import jacobians
from linattest.verify.search.witness import load


def sigma_curve(points: int = 101, seeds: int = 4, T: int = 64, d: int = 4) -> Figure:
    """sigma(c) = (1 + sqrt(5 - 4c))/2 on [0, 1]; the norms of the token loop's Jacobians over their cosine c = a . k.

    ``random``: every token of random inputs, first to last; ``searched``: those of the witness.
    """
    c = np.linspace(0, 1, points)
    k, u, v = inputs(seeds, T, d, seed=0)
    found = load(folder() / f"{JACOBIAN}.safetensors").tensors["input"]
    return Figure(
        name="sigma",
        tables={
            "curve": {"c": c.tolist(), "sigma": ((1 + np.sqrt(5 - 4 * c)) / 2).tolist()},
            "random": _jacobian_norms({"q": k, "k": k, "v": v, "u": u}),
            "searched": _jacobian_norms(found),
        },
    )


def _jacobian_norms(x: dict[str, torch.Tensor], lam0: float = 0.1) -> Columns:
    """(c, |J|_2) of every token of inputs ``[B, T, 1, d]``: J from the implementation, c from the definition."""
    k, u = (x[name][:, :, 0].double() for name in ("k", "u"))
    key = k / k.norm(dim=-1, keepdim=True)
    M = lam0 * torch.eye(k.shape[-1], dtype=k.dtype) + (u[..., :, None] * u[..., None, :]).cumsum(1)
    raw = torch.linalg.solve(M, key)
    c = (raw * key).sum(-1) / raw.norm(dim=-1)
    with torch.no_grad():
        norm = torch.linalg.matrix_norm(jacobians(space(k.shape[1], k.shape[2]), x), 2)
    return {"c": c.flatten().tolist(), "norm": norm.flatten().tolist()}


def state_norms(
    searched: Sequence[int] = LENGTHS, steps: int = STEPS, longer: Sequence[int] = (256, 512, 1024), seeds: int = 8
) -> Figure:
    """|S_T|_F over T at d = 4: the largest that gradient search finds, the mean of random inputs, linear attention's.

    A sum of T writes of length 1, which is what linear attention keeps, reaches T and no more.
    """
    worst = growth(tuple(searched), steps)
    lengths = [*searched, *longer]
    return Figure(
        name="state-norms",
        tables={
            "norms": {
                "T": [float(T) for T in lengths],
                "searched": [worst.get(T) for T in lengths],
                "random": [float(typical_norms(T, 4, seeds).mean()) for T in lengths],
                "linear": [float(T) for T in lengths],
            }
        },
    )


def contraction_region(points: int = 41, seeds: int = 8) -> Figure:
    """Where q -> (I - lam Sigma) q shrinks: bounds over lam, and what the implementation does to random streams.

    ``bounds``: the largest eigenvalue of Sigma up to which every query shrinks or keeps its length (2/lam), and up to
    which none turns round (1/lam). ``measured``: rate, largest eigenvalue of the keys' covariance, and the factor by
    which a query along its direction comes out.
    """
    lam = np.linspace(0, 1, points)[1:]
    measured: Columns = {"lam": [], "sigma": [], "factor": []}
    for seed in range(seeds):
        for scale in (0.6, 1.0, 1.5, 2.2):
            for name, value in zip(measured, _contracted(seed, scale), strict=True):
                measured[name].append(value)
    bounds: Columns = {"lam": lam.tolist(), "shrinks_up_to": (2 / lam).tolist(), "turns_from": (1 / lam).tolist()}
    return Figure(name="contraction", tables={"bounds": bounds, "measured": measured})


def _contracted(seed: int, scale: float, T: int = 32, d: int = 4) -> tuple[float, float, float]:
    g = torch.Generator().manual_seed(1000 * seed + math.floor(100 * scale))
    k = scale * torch.randn(1, T, 1, d, generator=g, dtype=torch.float64)
    lam = torch.rand(1, generator=g, dtype=torch.float64).expand(1, T, 1)
    values, vectors = torch.linalg.eigh(torch.cov(k[0, :, 0].mT, correction=0))
    q = vectors[:, -1].expand(1, T, 1, d)
    o, _ = covariance_contract.chunk(q.contiguous(), k, lam.contiguous())
    return float(lam[0, 0, 0]), float(values[-1]), float(o[0, -1, 0] @ vectors[:, -1])
