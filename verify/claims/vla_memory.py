"""VLA as a memory: growth beside linear attention and DeltaNet, recall, repeated writes, where writes go."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import torch

from linattest.impls import linear, vla
from linattest.impls.features import phi
from linattest.impls.lm import CausalLM, LMConfig
from linattest.verify.claims import exact as balls
from linattest.verify.claims.gather import in_coq, proof
from linattest.verify.claims.verdicts import (
    Evidence,
    Verdict,
    counted,
    exact,
    interval,
    measured,
    proved,
    refuted,
    supported,
)
from linattest.verify.claims.vla_penalty import KEYS, LAM0, VALUES, inputs

PUBLIC_LOG = {"linear": 1633.9, "vla": 14.5, "delta_net": 1.2}
"""|S_1000|_F in the authors' public log."""


def linear_growth(lengths: tuple[int, ...] = (64, 256, 1024, 4096), seeds: int = 10, d: int = 16) -> Verdict:
    """|S_T| of linear attention: its bound T |v| |k|, and the slope of log |S_T| over log T."""
    slopes = {mean: _slopes(lengths, seeds, d, mean) for mean in (0.0, 1.0)}
    return proved(
        proof("vla.bounds.triangle"),
        *in_coq("linear.state-bound"),
        measured("values with a common part: slope of log |S_T| over log T", slopes[1.0], at_least=0.9, at_most=1.1),
        measured("values of mean 0: the bound is not reached, the slope is near 1/2", slopes[0.0], at_most=0.9),
    )


def _slopes(lengths: tuple[int, ...], seeds: int, d: int, mean: float) -> np.ndarray:
    g = torch.Generator().manual_seed(1)
    k = phi(torch.randn(seeds, max(lengths), 1, d, generator=g, dtype=torch.float64))
    v = torch.randn(seeds, max(lengths), 1, d, generator=g, dtype=torch.float64) + mean
    norms = []
    for T in lengths:
        _, state = linear.chunk(k[:, :T], k[:, :T], v[:, :T], normalizer=False, output_final_state=True)
        norms.append(_memory(state).norm(dim=(-2, -1)).flatten().numpy())
    x = np.log(lengths)
    return np.polyfit(x, np.log(np.array(norms)), 1)[0]


def _memory(state: Any) -> torch.Tensor:
    return state if isinstance(state, torch.Tensor) else state[0]


# --- the table of norms ------------------------------------------------------------------------------------------


def state_norm_table(T: int = 1000, seeds: int = 8) -> Verdict:
    """The paper's table rebuilt: 2 layers, width 128, 4 heads, random tokens, at initialisation, last layer."""
    found = {kind: [table_norm(kind, T, seed) for seed in range(seeds)] for kind in PUBLIC_LOG}
    found["ratio"] = [a / b for a, b in zip(found["linear"], found["vla"], strict=True)]
    said = {**PUBLIC_LOG, "ratio": 109.0}
    shorter = [table_norm("delta_net", T // 4, seed) for seed in range(seeds)]
    bounded = [a / b for a, b in zip(found["delta_net"], shorter, strict=True)]
    return supported(
        *(_among(f"{what}: a further seed could give the public log's figure", found[what], said[what])
          for what in ("ratio", "linear", "vla")),
        counted("seeds in which VLA's is less than 15", True, below=sum(x < 15 for x in found["vla"]), seeds=seeds),
        measured("DeltaNet, |S_1000| over |S_250|: bounded", bounded, at_most=2),
        measured(
            "DeltaNet as published (the paper's variant gates channels of S and has no beta)", found["delta_net"],
            public_log=PUBLIC_LOG["delta_net"],
        ),
        measured("linear, matrices as nn.Linear starts them", [table_norm("linear", T, 0, uniform=True)]),
        measured("VLA, matrices as nn.Linear starts them", [table_norm("vla", T, 0, uniform=True)]),
    )  # fmt: skip


def _among(text: str, samples: list[float], said: float) -> Evidence:
    """Whether one more run like these gives the figure: the prediction interval of the same level."""
    n = len(samples)
    mean, low, high = interval(samples)
    half = (high - low) / 2 * math.sqrt(n + 1)
    text = f"{text}, {said:g}: it gives {mean - half:.4g} to {mean + half:.4g} with the same confidence"
    evidence = measured(text, samples, said=said, prediction=[mean - half, mean + half])
    return msgspec.structs.replace(evidence, stands=abs(said - mean) <= half)


def table_norm(kind: str, T: int, seed: int, *, uniform: bool = False) -> float:
    """Mean over heads of the last layer's |S_T|_F; matrices from N(0, 0.02), or ``uniform`` as nn.Linear has them."""
    torch.manual_seed(seed)
    options = {"normalizer": True, "lam0": 0.1} if kind == "vla" else {}
    model = CausalLM(
        LMConfig(
            vocab_size=128, hidden_size=128, num_layers=2, num_heads=4, layer=kind, layer_options=options,
            mlp_ratio=2, max_positions=T,
        )
    )  # fmt: skip
    if uniform:
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not model.head:
                module.reset_parameters()
    ids = torch.randint(0, 128, (1, T))
    with torch.no_grad():
        cache = model(ids, use_cache=True).cache
    assert cache is not None
    return float(_memory(cache.layers[-1].state)[0].double().norm(dim=(-2, -1)).mean())


# --- recall ------------------------------------------------------------------------------------------------------


def capacity(d: int = 16, seeds: int = 8) -> Verdict:
    """Recall error |S k - v| / |v| after n writes, untrained: orthogonal, random and coherent keys."""
    curves: list[Evidence] = []
    for kind in KEY_SETS:
        most = EXACT if kind == KEY_SETS[0] else math.inf
        for n in (d // 4, d // 2, 3 * d // 4, d):
            errors = recall_errors(kind, n, d, seeds)
            curves.append(measured(f"{kind}, n = {n} of d = {d}: recall error", errors, at_most=most))
    return refuted(_second_write(), *curves)


EXACT = 1e-12
"""Recall errors below this are float64's rounding (2**-53 a operation, some thousand of them)."""

KEY_SETS = ("orthogonal keys, u = k", "orthogonal keys, u = W k", "random keys", "coherent keys")


def recall_errors(kind: str, n: int, d: int, seeds: int) -> np.ndarray:
    """Mean relative recall error of n pairs written once, one number a seed."""
    k, u, v = inputs(seeds, n, d, seed=n)
    if kind.startswith("orthogonal"):
        g = torch.Generator().manual_seed(n)
        basis = torch.linalg.qr(torch.randn(seeds, d, d, generator=g, dtype=torch.float64)).Q
        k = basis[:, :n].unsqueeze(2)
        u = u if kind.endswith("W k") else k / d**0.5
    elif kind == "coherent keys":
        k = k + 3
    key = k / k.norm(dim=-1, keepdim=True)
    _, state = vla.recurrent(k, k, v, u, normalizer=False, output_final_state=True)
    S = _memory(state)[:, 0]
    return ((key[:, :, 0] @ S - v[:, :, 0]).norm(dim=-1)).mean(1).numpy()


def _second_write() -> Evidence:
    with balls.working():
        S = balls.recursion(KEYS, VALUES, KEYS, LAM0)[-1].S
        error = balls.norm(S * balls.column(KEYS[0]) - balls.column(VALUES[0]))
        return exact(
            "two unit keys at width 2: recall error of the first after the second is written",
            bool(error > 0.01), balls.digits(error), error=balls.text(error),
        )  # fmt: skip


# --- repeated writes ---------------------------------------------------------------------------------------------


def plateau(d: int = 8, rounds: int = 64, seeds: int = 10) -> Verdict:
    """A fixed key, then n keys in turn: the relative residual, and how much the last round moved S."""
    evidence: list[Evidence] = []
    for n in (1, 2, 4):
        residual, moved = _repeated(n, d, rounds, seeds)
        evidence += [
            measured(f"{n} keys, {rounds} rounds: residual |v - S k| / |v|", residual, at_most=0.1),
            measured(f"{n} keys: |S_T - S_before| / |S_T| of the last round", moved, at_most=0.1),
        ]
    return supported(*evidence)


def _repeated(n: int, d: int, rounds: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    k, u, v = inputs(seeds, n, d, seed=100 + n)
    states = []
    for r in (rounds - 1, rounds):
        many = [x.repeat(1, r, 1, 1) for x in (k, k, v, u)]
        _, state = vla.recurrent(*many, normalizer=False, output_final_state=True)
        states.append(_memory(state)[:, 0])
    key = (k / k.norm(dim=-1, keepdim=True))[:, :, 0]
    residual = (key @ states[1] - v[:, :, 0]).norm(dim=-1).mean(1)
    moved = (states[1] - states[0]).norm(dim=(-2, -1)) / states[1].norm(dim=(-2, -1))
    return residual.numpy(), moved.numpy()


def routing(d: int = 16, seeds: int = 10) -> Verdict:
    """How much of a write direction lies in the span of the earlier keys, beside how much of the key itself does."""
    with balls.working():
        a = balls.recursion(KEYS, VALUES, KEYS, LAM0)[-1].a
        overlap = balls.dot(a, balls.column(KEYS[0]))
        shown, known, apart = balls.text(overlap), balls.digits(overlap), bool(abs(overlap) > 0.01)
    shares = {n: _shares(n, d, seeds) for n in (d // 4, d // 2)}
    return refuted(
        exact("two unit keys, u = k: a_2 . k_1 is not 0", apart, known, cosine=shown),
        *(
            measured(f"after {n} writes at d = {d}, u = k: share of a in the used subspace over the key's", x[:, 0])
            for n, x in shares.items()
        ),
        *(measured(f"the same with u = W k, W random, {n} writes", x[:, 1]) for n, x in shares.items()),
    )


def _shares(n: int, d: int, seeds: int) -> np.ndarray:
    found = []
    for seed in range(seeds):
        k, u, _ = (x[0, :, 0].numpy() for x in inputs(1, n + 1, d, 200 + seed))
        k = k / np.linalg.norm(k, axis=1, keepdims=True)
        used = np.linalg.qr(k[:n].T)[0]
        row = []
        for directions in (k / d**0.5, u):
            a = np.linalg.solve(0.1 * np.eye(d) + directions.T @ directions, k[n])
            row.append(np.linalg.norm(used.T @ a) / np.linalg.norm(a) / np.linalg.norm(used.T @ k[n]))
        found.append(row)
    return np.array(found)
