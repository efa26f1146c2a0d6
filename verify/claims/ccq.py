"""CCQ: the expansion it comes from, its covariance, and what it leaves untouched."""

from __future__ import annotations

from typing import Any

import flint
import mpmath
import numpy as np
import torch

from linattest.impls import ccq, covariance_contract, delta_net, gated_delta_net, gla, linear, vla
from linattest.verify.claims.gather import proofs
from linattest.verify.claims.verdicts import (
    Evidence,
    Verdict,
    corrected,
    counted,
    exact,
    measured,
    proved,
    supported,
)

MODULES: dict[str, Any] = {
    "linear": linear, "gla": gla, "delta_net": delta_net, "gated_delta_net": gated_delta_net, "vla": vla,
}  # fmt: skip


def taylor(seeds: int = 3, digits: int = 50) -> Verdict:
    """Gradient and Hessian are proved; the remainder falls with the cube of |q|."""
    return proved(
        *proofs("ccq.taylor.gradient", "ccq.taylor.hessian", "ccq.taylor.remainder", "ccq.taylor.constant"),
        measured(
            f"slope of log |remainder| over log |q|, |q| = 1e-4 to 1e-10, {digits} digits",
            [_slope(seed, digits) for seed in range(seeds)], at_least=2.99, at_most=3.01,
        ),
    )  # fmt: skip


def _slope(seed: int, digits: int) -> float:
    rng = np.random.Generator(np.random.PCG64(seed))
    mp: Any = mpmath.mp.clone()
    mp.dps = digits
    projections = [mp.mpf(float(x)) for x in rng.standard_normal(12)]
    mean = sum(projections) / 12
    variance = sum((x - mean) ** 2 for x in projections) / 12

    def remainder(r: Any) -> Any:
        whole = mp.log(sum(mp.exp(r * x) for x in projections))
        return abs(whole - mp.log(12) - r * mean - r * r * variance / 2)

    far, near = mp.mpf(10) ** -4, mp.mpf(10) ** -10
    return float(mp.log(remainder(far) / remainder(near)) / mp.log(far / near))


def recurrent(d: int = 16, T: int = 256, seeds: int = 4) -> Verdict:
    """The update identity is proved; streaming equals the batch; how many numbers, and what plain sums would lose."""
    kept = _state_numbers(d)
    return proved(
        *proofs("ccq.recurrent.update", "ccq.recurrent.merge", "ccq.recurrent.forgetting"),
        measured("streaming Sigma q against the batch covariance, float64", _streaming(d, T, seeds), at_most=1e-10),
        counted(
            "numbers a head keeps: d^2 + d, a count, and a reference key so that no digits cancel",
            kept == d * d + 2 * d + 1, kept=kept, paper=d * d + d,
        ),
        measured("float32, keys 1e4 from the origin: relative error of ours", _far(ours=True), at_most=1e-3),
        measured("the same for second moment minus square of the mean", _far(ours=False), at_least=0.1),
    )  # fmt: skip


def _state_numbers(d: int) -> int:
    x = torch.zeros(1, 1, 1, d)
    _, state = covariance_contract.step(x, x, torch.zeros(1, 1, 1))
    return sum(part.numel() for part in state)


def _streaming(d: int, T: int, seeds: int) -> list[float]:
    found: list[float] = []
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(1, T, 1, d, generator=g, dtype=torch.float64) for _ in range(2))
        o, _ = covariance_contract.recurrent(q, k, torch.ones(1, T, 1, dtype=torch.float64))
        last, keys = q[0, -1, 0], k[0, :, 0]
        wanted = last - torch.cov(keys.mT, correction=0) @ last
        found.append(float((o[0, -1, 0] - wanted).norm() / wanted.norm()))
    return found


def _far(ours: bool, T: int = 512, d: int = 8, seeds: int = 4) -> list[float]:
    found: list[float] = []
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        k = torch.randn(1, T, 1, d, generator=g) + 1e4
        q = torch.randn(1, T, 1, d, generator=g)
        keys, last = k[0, :, 0], q[0, -1, 0]
        wanted = torch.cov(keys.double().mT, correction=0) @ last.double()
        if ours:
            o, _ = covariance_contract.chunk(q, k, torch.ones(1, T, 1))
            got = last - o[0, -1, 0]
        else:
            mean = keys.mean(0)
            got = (keys.mT @ (keys @ last)) / T - mean * (mean @ last)
        found.append(float((got.double() - wanted).norm() / wanted.norm()))
    return found


def contraction() -> Verdict:
    """Two keys, 3 and -3, and lam = 1/2: the query grows by 7/2."""
    keys, lam = [flint.fmpq(3), flint.fmpq(-3)], flint.fmpq(1, 2)
    mean = sum(keys, flint.fmpq(0)) / len(keys)
    sigma = sum((k * k for k in keys), flint.fmpq(0)) / len(keys) - mean * mean
    factor = 1 - lam * sigma
    return corrected(
        against=[
            exact("keys 3 and -3, lam = 1/2: q becomes -7/2 q", abs(factor.p) > factor.q, -1, factor=str(factor)),
        ],
        instead="I - lam Sigma is non-expansive exactly if lam lam_max(Sigma) <= 2, and keys of length 1 ensure it",
        by=proofs("ccq.bounds.contraction", "ccq.bounds.sign", "ccq.bounds.unit-keys"),
    )  # fmt: skip


# --- beside a backbone -------------------------------------------------------------------------------------------


def _operands(name: str, seed: int, T: int = 40, H: int = 2, d: int = 8) -> tuple[list[torch.Tensor], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, T, H, d, generator=g) for _ in range(3))
    unit = torch.nn.functional.normalize
    extra: dict[str, Any] = {}
    if name in ("delta_net", "gated_delta_net"):
        q, k, extra["beta"] = unit(q, dim=-1), unit(k, dim=-1), torch.rand(1, T, H, generator=g)
    if name in ("linear", "vla"):
        q, k = q.exp(), k.exp()
    if name in ("gla", "gated_delta_net"):
        extra["g"] = -torch.rand(1, T, H, *((d,) if name == "gla" else ()), generator=g)
    if name == "vla":
        extra["u"] = unit(torch.randn(1, T, H, d, generator=g), dim=-1) / d**0.5
    return [q, k, v], extra


def _alone(name: str, form: str, tensors: list[torch.Tensor], extra: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    positional = [extra[x] for x in ("g", "beta", "u") if x in extra]
    return getattr(MODULES[name], form)(*tensors, *positional, output_final_state=True)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _bitwise(what: str, seeds: int, lam: float | None) -> Evidence:
    """Compare the backbone's memory (lam drawn) or output (lam given) with the backbone's alone, bit by bit."""
    equal: dict[str, int] = dict.fromkeys(MODULES, 0)
    runs = 2 * seeds
    for name in MODULES:
        for seed in range(seeds):
            tensors, extra = _operands(name, seed)
            g = torch.Generator().manual_seed(seed)
            shape = tensors[0].shape[:3]
            rate = torch.rand(shape, generator=g) if lam is None else torch.full(shape, lam)
            for form in ("recurrent", "chunk"):
                o, state = getattr(ccq, form)(*tensors, rate, backbone=name, **extra, output_final_state=True)
                plain, memory = _alone(name, form, tensors, extra)
                equal[name] += _same(state.backbone, memory) if lam is None else torch.equal(o, plain)
    return counted(what, all(n == runs for n in equal.values()), where="impls/ccq.py", equal=equal, runs=runs)


def write_untouched(seeds: int = 3) -> Verdict:
    """The memory of five backbones with and without CCQ, two forms, random lam."""
    return supported(_bitwise("final memories that are bit for bit the backbone's, by backbone", seeds, None))


def identity(seeds: int = 3) -> Verdict:
    """lam = 0 is the backbone, and lam -> 0 goes there."""
    return supported(
        _bitwise("outputs that are bit for bit the backbone's at lam = 0, by backbone", seeds, 0.0),
        measured("|o(lam) - o(0)| / lam at lam = 1e-3 over 1e-2, on gla", [_linear_in_lam(s) for s in range(seeds)],
                 at_least=0.98, at_most=1.02),
    )  # fmt: skip


def _linear_in_lam(seed: int) -> float:
    tensors, extra = _operands("gla", seed)
    shape = tensors[0].shape[:3]
    q, k, v = (x.double() for x in tensors)
    extra = {name: x.double() for name, x in extra.items()}

    def moved(lam: float) -> float:
        rates = [torch.full(shape, x, dtype=torch.float64) for x in (lam, 0.0)]
        o, base = (ccq.recurrent(q, k, v, rate, backbone="gla", **extra)[0] for rate in rates)
        return float((o - base).norm()) / lam

    return moved(1e-3) / moved(1e-2)


def memory_aware(seeds: int = 5) -> Verdict:
    """One query, two memories, two contracted queries; a map of the query alone gives one."""
    return proved(*proofs("ccq.bounds.memory"), _two_memories(seeds))


def _two_memories(seeds: int) -> Evidence:
    apart: list[float] = []
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        q = torch.randn(1, 1, 1, 8, generator=g, dtype=torch.float64).expand(2, 32, 1, 8)
        k = torch.randn(2, 32, 1, 8, generator=g, dtype=torch.float64)
        o, _ = covariance_contract.chunk(q, k, torch.full((2, 32, 1), 0.5, dtype=torch.float64))
        apart.append(float((o[0, -1] - o[1, -1]).norm() / q[0, -1].norm()))
    return measured("|q~ - q~'| / |q| for one query over two random memories, lam = 1/2", apart, at_least=0.01)
