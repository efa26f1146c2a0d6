"""Log-linear attention's levels and the weights that read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import flint
import torch
from torch import nn

from linattest.impls import gated_delta_net, gla, log_linear
from linattest.impls.arguments import levels_needed
from linattest.impls.level_weights import LambdaLinear, LambdaMLPSoftplus
from linattest.impls.lm import CausalLM, LMConfig
from linattest.verify import registry
from linattest.verify.claims import exact as balls
from linattest.verify.claims.gather import in_coq, proofs
from linattest.verify.claims.verdicts import (
    Evidence,
    Verdict,
    corrected,
    counted,
    exact,
    measured,
    proved,
    refuted,
    supported,
)
from linattest.verify.complexity import growth


def levels(longest: int = 1024) -> Verdict:
    """The partition and its count of buckets."""
    most = {T: max(t.bit_count() + 1 for t in range(T)) for T in (2, 16, 256, longest)}
    wrong = sum(_sizes(t) != t + 1 for t in range(longest))
    return proved(
        *proofs("lam.fenwick.blocks", "lam.fenwick.partition", "lam.fenwick.carry", "lam.fenwick.levels"),
        *in_coq("lam.fenwick.coq-partition", "lam.fenwick.coq-levels", needed=False),
        counted("tokens whose buckets hold another number of tokens", wrong == 0, wrong=wrong, tokens=longest),
        counted(
            "most buckets a token reads, by T: at most log2 T + 1", all(n <= T.bit_length() for T, n in most.items()),
            buckets=most,
        ),
    )  # fmt: skip


def _sizes(t: int) -> int:
    """Tokens in all buckets at time t: one of 2^j for each set bit j, and the token itself."""
    return sum(1 << j for j in range(t.bit_length()) if t >> j & 1) + 1


def complexity(lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)) -> Verdict:
    """Multiply-adds of the chunk form by T, and the states that decoding keeps."""
    operator = registry.operator("log_linear")
    found = growth(operator, operator.variant("chunk"), lengths=lengths)
    kept = {T: _states(T) for T in (15, 255, 1023)}
    return supported(
        counted(
            "multiply-adds a token = linear + logarithmic log2 T + quadratic T; the steepest that counts: T log T",
            found.order == "T log T" and found.misfit < 0.01, where="impls/fenwick_chunk.py",
            per_token=found.per_token, linear=found.linear, logarithmic=found.logarithmic, quadratic=found.quadratic,
            misfit=found.misfit,
        ),
        counted(
            "states that are not 0 after T = 2^n - 1 tokens, the most there are: log2(T + 1)",
            all(n == T.bit_length() for T, n in kept.items()), states=kept,
        ),
    )  # fmt: skip


def _operands(T: int, seed: int = 0, H: int = 1, d: int = 4) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, T, H, d, generator=g, dtype=torch.float64) for _ in range(3))
    k = k / k.norm(dim=-1, keepdim=True)
    gate, beta = (torch.rand(1, T, H, generator=g, dtype=torch.float64) for _ in range(2))
    return {"q": q, "k": k, "v": v, "g": -gate, "beta": beta}


def _ones(T: int, H: int = 1) -> torch.Tensor:
    return torch.ones(1, T, H, levels_needed(0, T), dtype=torch.float64)


def _states(T: int) -> int:
    x = _operands(T)
    _, state = log_linear.chunk(x["q"], x["k"], x["v"], x["g"], _ones(T), output_final_state=True)
    assert state is not None
    return int((state.S.abs().sum((0, 2, 3, 4)) > 0).sum())


def reduction(T: int = 70, seeds: int = 4) -> Verdict:
    """All level weights 1: gated linear attention, and with the delta rule Gated DeltaNet."""
    apart: dict[str, list[float]] = {"gated linear attention": [], "Gated DeltaNet": []}
    for seed in range(seeds):
        x = _operands(T, seed, H=2)
        q, k, v, g, beta = (x[name] for name in ("q", "k", "v", "g", "beta"))
        for form in ("recurrent", "chunk"):
            run: Callable[..., tuple[torch.Tensor, object]] = getattr(log_linear, form)
            plain = gla.recurrent(q, k, v, g)[0]
            apart["gated linear attention"].append(_distance(run(q, k, v, g, _ones(T, 2))[0], plain))
            plain = gated_delta_net.recurrent(q, k, v, g, beta)[0]
            apart["Gated DeltaNet"].append(_distance(run(q, k, v, g, _ones(T, 2), beta=beta)[0], plain))
    return supported(
        *(measured(f"|o - o'| / |o'| against {name}, float64", x, at_most=1e-12) for name, x in apart.items())
    )


def _distance(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x - y).norm() / y.norm())


# --- weights -----------------------------------------------------------------------------------------------------


def _softplus(x: flint.arb) -> flint.arb:
    return (1 + x.exp()).log()


def init(seeds: int = 5) -> Verdict:
    """softplus(0.54) is near 1; the start does not see the input; it is the baseline only where that is 1."""
    with balls.working():
        ours, baseline = _softplus(flint.arb(27) / 50), _softplus(flint.arb(0))
        gap = ours - baseline
        against = exact(
            "the start's weight softplus(0.54) less the baseline's softplus(0) for a token of features 0",
            bool(gap > 0.25), balls.digits(gap), difference=balls.text(gap), start=balls.text(ours),
        )  # fmt: skip
    return corrected(
        against=[against, _baseline_at_start(seeds)],
        instead="every weight starts at softplus(0.54) = 0.99916.., whatever the input; ln(e - 1) would give 1",
        by=[*proofs("lam.init.enclosure", "lam.init.exact-constant", "lam.init.constant-near"), _blind(seeds)],
    )


def _blind(seeds: int) -> Evidence:
    weights: list[torch.Tensor] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        module = LambdaMLPSoftplus(16, 2, 6)
        with torch.no_grad():
            weights.append(module(100 * torch.randn(1, 32, 16)))
    same = all(bool((x == weights[0].flatten()[0]).all()) for x in weights)
    return counted("weights at the start that are not bit for bit one number, over inputs and seeds", same, seeds=seeds)


def _baseline_at_start(seeds: int) -> Evidence:
    means: list[float] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        with torch.no_grad():
            means.append(float(LambdaLinear(64, 1, 9)(torch.randn(1, 512, 64)).mean()))
    return measured("the public baseline's mean weight at the start", means, at_most=0.95)


def baseline_static(seeds: int = 5) -> Verdict:
    """The public baseline softplus(L d_t) moves with the token before any training."""
    with balls.working():
        gap = _softplus(flint.arb(1)) - _softplus(flint.arb(0))
        against = exact(
            "softplus(L d) at L = 1 for d = 1 less that for d = 0", bool(gap > 0.1), balls.digits(gap),
            difference=balls.text(gap),
        )  # fmt: skip
    spread: list[float] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        with torch.no_grad():
            weights = LambdaLinear(64, 1, 9)(torch.randn(1, 512, 64))
        spread.append(float(weights.std(1).mean() / weights.mean()))
    return refuted(
        against,
        measured("standard deviation over tokens, over the mean, before training", spread, at_least=0.01),
    )


def softplus_independent() -> Verdict:
    """Jacobians of both maps."""
    names = ("decoupled", "slope", "coupled", "budget")
    return proved(*proofs(*(f"lam.softplus-independent.{name}" for name in names)))


def params() -> Verdict:
    """Extra parameters of the MLP with hidden width 2L, over those of the model."""
    wiki = {f"width {D}, {n} layers, vocabulary {V}": _share(D, n, V, 1024) for D, n, V in WIKITEXT}
    deepest = {
        D: max((n for n in range(1, 33) if _share(D, n, 50257, 1024) < LIMIT), default=0) for D in (256, 512, 1024)
    }
    small = {"width 64, 2 layers, vocabulary 128 (MQAR)": _share(64, 2, 128, 256)}
    return supported(
        counted(
            "percent of the model's parameters that an MLP of hidden width 2L a layer adds, WikiText-103 models",
            all(x < LIMIT for x in wiki.values()), where="impls/level_weights.py", percent=wiki,
        ),
        counted("on the MQAR model it is more", True, percent=small),
        counted("most layers for which it is less than 0.007%, by width", True, layers=deepest),
    )  # fmt: skip


LIMIT = 0.007
"""Percent: the paper's figure."""

WIKITEXT = ((512, 2, 50257), (256, 2, 50257))
"""Widths of the paper; it does not give depth and vocabulary: GPT-2's, and as many layers as in its other runs."""


def _share(D: int, layers: int, vocabulary: int, T: int) -> float:
    one, two, extra = _parameters(D, vocabulary, T)
    return 100 * layers * extra / (one + (layers - 1) * (two - one))


@cache
def _parameters(D: int, vocabulary: int, T: int) -> tuple[int, int, int]:
    """Parameters of the baseline model with one layer and with two, and of one MLP."""
    options = {"max_length": T, "level_weights": "linear"}
    with torch.device("meta"):
        one, two = (CausalLM(LMConfig(vocabulary, D, n, 1, layer="log_linear", layer_options=options)) for n in (1, 2))
        own: nn.Module = LambdaMLPSoftplus(D, 1, levels_needed(0, T))
    extra = sum(p.numel() for name, p in own.named_parameters() if not name.startswith("features"))
    return sum(p.numel() for p in one.parameters()), sum(p.numel() for p in two.parameters()), extra
