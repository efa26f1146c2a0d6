"""CCQ's reads over simulated memories: a needle in a haystack, and what softmax would have read."""

from __future__ import annotations

import math
from typing import Any

import flint
import torch

from linattest.verify.claims.gather import proofs
from linattest.verify.claims.verdicts import Evidence, Verdict, exact, measured, refuted, supported

Tensor = torch.Tensor


def memories(n: int, d: int, seeds: int, spread: float, *, along: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Unit keys [seeds, n, d] in a bundle around one direction (by ``spread``), a needle, and its query.

    The needle is the last key: a random direction, or (``along``) the bundle's own. The query is the needle plus noise.
    """
    g = torch.Generator().manual_seed(n + d)
    axis = _unit(torch.randn(seeds, 1, d, generator=g, dtype=torch.float64))
    signs = torch.randint(0, 2, (seeds, n, 1), generator=g) * 2.0 - 1
    hay = _unit(signs * axis + spread * torch.randn(seeds, n, d, generator=g, dtype=torch.float64) / d**0.5)
    needle = axis if along else _unit(torch.randn(seeds, 1, d, generator=g, dtype=torch.float64))
    query = _unit(needle + 0.5 * torch.randn(seeds, 1, d, generator=g, dtype=torch.float64) / d**0.5)
    return torch.cat([hay, needle], 1), needle, query


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def contracted(keys: Tensor, query: Tensor, lam: float) -> Tensor:
    """q - lam Sigma q over all keys, [seeds, 1, d]."""
    centred = keys - keys.mean(1, keepdim=True)
    sigma = centred.mT @ centred / keys.shape[1]
    return query - lam * query @ sigma


def margin(keys: Tensor, query: Tensor) -> Tensor:
    """The needle's score over the root mean square of the others', [seeds]: what a linear read is diluted by."""
    scores = (keys @ query.mT).squeeze(-1)
    return scores[:, -1] / (scores[:, :-1] ** 2).mean(1).sqrt()


def dense_directions(n: int = 64, d: int = 16, seeds: int = 40, lam: float = 0.9) -> Verdict:
    """The margin with CCQ over that without: an isolated needle, and one along the dense direction."""
    gains: dict[str, Tensor] = {}
    for name, along in (("isolated", False), ("along the dense direction", True)):
        keys, _, query = memories(n, d, seeds, 0.5, along=along)
        gains[name] = margin(keys, contracted(keys, query, lam)) / margin(keys, query)
    return refuted(
        _loses(),
        measured(
            "isolated needle: margin with CCQ over that without", gains["isolated"].numpy(), at_least=1.0, lam=lam
        ),
        measured("needle along the dense direction: the same", gains["along the dense direction"].numpy(), at_most=1.0),
        *proofs("ccq.bounds.sign"),
    )


def _loses() -> Evidence:
    """A query along the direction in which keys vary most is shortened there more than elsewhere, in rationals."""
    q = flint.fmpq
    keys = [[q(4, 5), q(3, 5)], [q(-4, 5), q(3, 5)], [q(1), q(0)], [q(0), q(1)], [q(0), q(-1)]]
    query, lam, n = [q(1), q(0)], q(1, 2), q(len(keys))
    mean = [sum((k[i] for k in keys), q(0)) / n for i in range(2)]
    sigma = [[sum((k[i] * k[j] for k in keys), q(0)) / n - mean[i] * mean[j] for j in range(2)] for i in range(2)]
    clean = [query[i] - lam * sum((sigma[i][j] * query[j] for j in range(2)), q(0)) for i in range(2)]
    before, after = (_margin(keys, x) for x in (query, clean))
    return exact(
        "five keys at width 2, the needle (1, 0) where the keys vary most, q the needle: score of the needle over the "
        "sum of the others' squares, before and after", after < before, -1, before=str(before), after=str(after),
    )  # fmt: skip


def _margin(keys: Any, query: Any) -> Any:
    """The needle's squared score over the sum of the others' squared scores."""
    scores = [sum((a * b for a, b in zip(k, query, strict=True)), flint.fmpq(0)) for k in keys]
    needle = scores[2] ** 2
    return needle / (sum((s * s for s in scores), flint.fmpq(0)) - needle)


def softmax_competition(n: int = 64, d: int = 16, seeds: int = 40, lam: float = 0.9) -> Verdict:
    """How near a linear read comes to softmax's, with CCQ and without: cosine of the weights over the keys."""
    gains: list[Evidence] = []
    for spread in (0.25, 0.5, 1.0):
        keys, _, query = memories(n, d, seeds, spread)
        for temperature in (16.0, 4.0, 1.0):
            gain = _agreement(keys, query, lam, temperature) - _agreement(keys, query, 0.0, temperature)
            competes = temperature >= 4  # at 1 the weights of unit keys are nearly equal: nobody has lost
            gains.append(
                measured(
                    f"cosine with softmax's weights, CCQ on less off: spread {spread:g}, inverse temperature "
                    f"{temperature:g}",
                    gain.numpy(),
                    at_least=0.0 if competes else -math.inf,
                    lam=lam,
                )  # fmt: skip
            )
    keys, _, query = memories(n, d, seeds, 0.5)
    return supported(
        *gains,
        measured(
            "rank correlation of CCQ's weights with softmax's, which without CCQ is 1: the order is not recovered",
            _ranks(keys, query, lam), at_most=1.0,
        ),
    )  # fmt: skip


def _ranks(keys: Tensor, query: Tensor, lam: float) -> list[float]:
    scores = ((keys @ x.mT).squeeze(-1) for x in (query, contracted(keys, query, lam)))
    plain, clean = (x.argsort(1).argsort(1).double() for x in scores)
    return [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(plain, clean, strict=True)]


def _agreement(keys: Tensor, query: Tensor, lam: float, temperature: float) -> Tensor:
    soft = torch.softmax(temperature * (keys @ query.mT).squeeze(-1), 1)
    linear = (keys @ contracted(keys, query, lam).mT).squeeze(-1)
    return torch.nn.functional.cosine_similarity(soft, linear, dim=1)
