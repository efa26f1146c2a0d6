"""Experiments without training: named series of numbers, one a seed. All are measured on the implementations.

`needle_margin`: how far a needle's score stands out of the others', with CCQ over without. `state_norms`: |S_T|_F of
the last layer while random tokens go by. `recall`: what VLA finds again of pairs that were written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linattest.impls.lm import CausalLM, LMCache
from linattest.verify.claims import ccq_reads, vla_memory
from linattest.verify.experiments import models
from linattest.verify.experiments.advancing import settled
from linattest.verify.experiments.recipe import Model, Shape, Simulated
from linattest.verify.experiments.tasks import TEST, generator

Series = dict[str, list[float]]


def needle_margin(
    seeds: int, *, n: int = 64, d: int = 16, spreads: Sequence[float] = (0.5,), lams: Sequence[float] = (0.9,)
) -> Series:
    """Margin of the needle with the contracted query over that with the query itself: above 1, CCQ helps.

    n unit keys in a bundle (by ``spread``), a needle elsewhere ("isolated") or along the bundle ("dense").
    """
    found: Series = {}
    for name, along in (("isolated", False), ("dense", True)):
        for spread in spreads:
            keys, _, query = ccq_reads.memories(n, d, seeds, spread, along=along)
            before = ccq_reads.margin(keys, query)
            for lam in lams:
                gain = ccq_reads.margin(keys, ccq_reads.contracted(keys, query, lam)) / before
                found[f"{name}, spread {spread:g}, lam {lam:g}"] = gain.tolist()
    return found


def state_norms(
    seeds: int, *, layers: Sequence[str] = ("linear", "vla", "delta_net"), lengths: Sequence[int] = (250, 1000),
    since: int = 250, vocab_size: int = 128, hidden_size: int = 128, num_heads: int = 4, num_layers: int = 2,
) -> Series:  # fmt: skip
    """|S_T|_F, mean over the last layer's heads, of random tokens at initialisation, for each layer and T.

    Layers are those of `impls.lm`, and "channel_gate" (module `models`).

    Beside them, at the last T: the first layer's norm over each other's, and each one's growth ``since`` a T.
    """
    if since not in lengths:
        raise ValueError(f"since is {since}, expected one of lengths = {list(lengths)}")
    shape = Shape(hidden_size=hidden_size, num_heads=num_heads, num_layers=num_layers)
    found: Series = {f"{layer}, T {T}": [] for layer in layers for T in lengths}
    for seed in range(seeds):
        ids = torch.from_numpy(generator(seed, TEST).integers(0, vocab_size, (1, max(lengths))))
        for layer in layers:
            kind = CHANNEL_GATE if layer == CHANNEL_GATE.name else Model(name=layer, layer=layer)
            model = models.build(kind, shape, vocab_size, max(lengths), seed=seed)
            for T, norm in zip(lengths, tracked_norms(model, ids, lengths), strict=True):
                found[f"{layer}, T {T}"].append(norm)
    last = lengths[-1]
    for layer in layers:
        ends, begins = (np.array(found[f"{layer}, T {T}"]) for T in (last, since))
        found[f"{layer}, growth since T {since}"] = (ends / begins).tolist()
        if layer != layers[0]:
            found[f"{layers[0]} over {layer}"] = (np.array(found[f"{layers[0]}, T {last}"]) / ends).tolist()
    return found


CHANNEL_GATE = Model(name="channel_gate", layer="gated_delta_net", variant="channel_gate")


@torch.no_grad()
def tracked_norms(model: CausalLM, ids: Tensor, lengths: Sequence[int]) -> list[float]:
    """|S_T|_F of the last layer, mean over rows and heads, after so many tokens each; lengths ascend.

    The tokens go by in pieces, each from the cache that the last one left.
    """
    if list(lengths) != sorted(set(lengths)) or lengths[0] < 1 or lengths[-1] > ids.shape[1]:
        raise ValueError(f"lengths is {list(lengths)}, expected ascending numbers of 1 to {ids.shape[1]} tokens")
    norms: list[float] = []
    cache: LMCache | None = None
    for start, end in zip((0, *lengths), lengths, strict=False):
        cache = model(ids[:, start:end], cache=cache, use_cache=True).cache
        assert cache is not None
        S = _memory(cache.layers[-1].state).double()
        heads = S.unflatten(1, (model.config.num_heads, -1))  # those of a channel each belong to one memory
        norms.append(float(heads.flatten(2).norm(dim=-1).mean()))
    return norms


def _memory(state: Any) -> Tensor:
    return state if isinstance(state, Tensor) else state[0]


def recall(seeds: int, *, d: int = 16, pairs: Sequence[int] = (4, 8, 16)) -> Series:
    """1 - |S k - v| / |v|, the mean over n pairs that were written once: 1 if all are found again."""
    found: Series = {}
    for kind in vla_memory.KEY_SETS:
        for n in pairs:
            found[f"{kind}, n {n}"] = (1 - vla_memory.recall_errors(kind, n, d, seeds)).tolist()
    return found


FUNCTIONS: dict[str, Callable[..., Series]] = {
    "needle_margin": needle_margin, "state_norms": state_norms, "recall": recall,
}  # fmt: skip


def simulated(recipe: Simulated, seeds: int) -> Series:
    """The series of a recipe, on one thread, as everything else that runs on a CPU."""
    with settled("cpu"):
        return FUNCTIONS[recipe.function](seeds, **recipe.arguments)
