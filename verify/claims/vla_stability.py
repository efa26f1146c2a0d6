"""VLA's propositions: how far the memory grows, what one step and a product of steps do to a perturbation."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import torch

from linattest.impls import vla
from linattest.proofs_checks.enclosures.witnesses import as_kept, replay
from linattest.verify import registry
from linattest.verify.claims import exact as balls
from linattest.verify.claims.gather import WITNESSES, folder, in_coq, proofs, witness
from linattest.verify.claims.verdicts import (
    Evidence,
    Verdict,
    corrected,
    counted,
    exact,
    interval,
    measured,
    not_reproduced,
    supported,
)
from linattest.verify.claims.vla_penalty import inputs
from linattest.verify.environment import ROOT
from linattest.verify.search.ascent import ascend
from linattest.verify.search.domain import Space, Tensors
from linattest.verify.search.objectives import OBJECTIVES, exponent, product_norm
from linattest.verify.search.witness import load

STATE, JACOBIAN, PRODUCT = (f"vla-{what}-d4-T64-seed0" for what in ("state-norm", "jacobian", "product"))
"""The witnesses: bounded inputs at width 4, 64 tokens, lam0 = 0.1."""

LENGTHS, STEPS = (16, 32, 64, 128), 200
"""Where the search for large memories looks, and for how long."""


def space(T: int, d: int = 4) -> Space:
    """VLA's bounded inputs: unit feature keys, penalty directions tied to them, values of the unit ball."""
    return Space(registry.operator("vla"), T, d, d, {})


# --- proposition 1 -----------------------------------------------------------------------------------------------


def bounded_state(
    lengths: tuple[int, ...] = LENGTHS, steps: int = STEPS, plateau: tuple[int, ...] = (64, 256, 1024)
) -> Verdict:
    """Worst case against typical case, and the certificate."""
    grown = growth(lengths, steps)
    slope = exponent([(T, x) for T, x in grown.items()]) or 0.0
    typical = {T: typical_norms(T) for T in plateau}
    return corrected(
        against=[
            witness(STATE),
            *proofs("vla.witness.state-norm", "vla.witness.state-norm.in-bounds"),
            counted(
                "gradient search at d = 4 finds memories that grow faster than T", slope > 1, largest=grown,
                exponent=slope,
            ),
            *(measured(f"random inputs, d = 32, T = {T}: |S_T|_F", x) for T, x in typical.items()),
            measured(
                "random inputs plateau: |S_T|_F at the longest T over that at the shortest",
                typical[max(plateau)] / typical[min(plateau)],
                at_most=2.0,
            ),
        ],
        instead=(
            "|S_t|_F <= B_t / sqrt(lam_min(M_t)), B_t = sqrt(1 + u.A u) B_{t-1} + |v| sqrt(c / |A k|), for every "
            "input: polynomial in t; random inputs plateau, bounded ones need not"
        ),
        by=[
            *proofs("vla.energy.width-2", "vla.determinant.width-2"),
            *in_coq(
                "vla.energy.lyapunov-step", "vla.determinant.growth", "vla.certificate", "vla.certificate.state",
                "vla.certificate.floor",
            ),
            certificate(),
        ],
    )  # fmt: skip


@cache
def growth(lengths: tuple[int, ...], steps: int, seed: int = 0) -> dict[int, float]:
    """The largest |S_T|_F that gradient ascent finds at each length (d = 4), one start after another in one batch."""
    found = {T: ascend(space(T), OBJECTIVES["state-norm"], seed=seed, starts=4, steps=steps) for T in lengths}
    return {T: x.value for T, x in found.items() if x is not None}


def typical_norms(T: int, d: int = 32, seeds: int = 6) -> np.ndarray:
    """|S_T|_F of random inputs, one number a seed."""
    k, u, v = inputs(seeds, T, d, seed=T)
    _, state = vla.chunk(k, k, v, u, normalizer=False, output_final_state=True)
    assert state is not None
    return state.S.norm(dim=(-2, -1)).flatten().numpy()


def certificate(T: int = 64, seeds: int = 8) -> Evidence:
    """|S_t| over its certificate at every t: on the witness, and on random inputs. It may not exceed 1."""
    tensors = [_tensors(witness_tensors(STATE))]
    for seed in range(seeds):
        k, u, v = inputs(1, T, 4, seed)
        tensors.append((k[0, :, 0].numpy(), u[0, :, 0].numpy(), v[0, :, 0].numpy()))
    ratios = [_certified(*x) for x in tensors]
    return counted(
        "largest |S_t| over its certificate: the witness first, then random inputs", max(ratios) <= 1 + 1e-9,
        where="verify/properties/penalty.py", ratios=[round(x, 4) for x in ratios],
    )  # fmt: skip


def witness_tensors(name: str) -> Tensors:
    """The inputs of a witness."""
    return load(folder() / f"{name}.safetensors").tensors["input"]


def _tensors(x: Tensors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    k, u, v = (x[name][0, :, 0].double().numpy() for name in ("k", "u", "v"))
    return k, u, v


def _certified(k: np.ndarray, u: np.ndarray, v: np.ndarray, lam0: float = 0.1) -> float:
    d, worst, bound = k.shape[1], 0.0, 0.0
    M, S = lam0 * np.eye(d), np.zeros((v.shape[1], d))
    for key, penalty, value in zip(k / np.linalg.norm(k, axis=1, keepdims=True), u, v, strict=True):
        bound *= np.sqrt(1 + penalty @ np.linalg.solve(M, penalty))
        M = M + np.outer(penalty, penalty)
        raw = np.linalg.solve(M, key)
        gain = np.linalg.norm(raw)
        S = S + np.outer(value - S @ key, raw / gain)
        bound += np.linalg.norm(value) * np.sqrt(raw @ key / gain / gain)
        worst = max(worst, float(np.linalg.norm(S) * np.sqrt(np.linalg.eigvalsh(M)[0]) / bound))
    return worst


# --- proposition 2 -----------------------------------------------------------------------------------------------


def jacobian_norm() -> Verdict:
    """The spectral norm is sigma(c), not 1; the energy norm and the spectral radius are 1."""
    return corrected(
        against=[
            witness(JACOBIAN),
            spectral("jacobian"),
            *proofs("vla.witness.jacobian", "vla.witness.jacobian.norm", "vla.witness.jacobian.in-bounds"),
            _half(),
        ],
        instead=(
            "|J|_2 = sigma(c) = (1 + sqrt(5 - 4c))/2 with c = a.k in (0, 1], below the golden ratio; the spectral "
            "radius is 1, and so is the norm in the energy s M_t s^T (width >= 2)"
        ),
        by=[
            *proofs(
                "vla.jacobian.exceeds-one", "vla.jacobian.bound", "vla.jacobian.attained", "vla.jacobian.cosine",
                "vla.jacobian.radius", "vla.energy.width-2", "vla.sigma.golden", "vla.kantorovich.bound",
                "vla.kantorovich.attained",
            ),
            *in_coq("vla.energy", "vla.energy.contraction", "vla.energy.attained", "vla.energy.cosine"),
        ],
    )  # fmt: skip


def spectral(objective: str) -> Evidence:
    """The norm that a witness bounds from below: the largest singular value, in balls, from the kept inputs anew."""
    what = {"jacobian": "one token's Jacobian", "product": "the product of all 64 Jacobians"}[objective]
    where = f"{WITNESSES}/vla-{objective}-d4-T64-seed0.safetensors"
    try:
        norm = replay(objective, as_kept, 0.1).spectral()
    except (ArithmeticError, ValueError) as error:
        short = str(error).replace(str(ROOT), "").partition(": ")[0]
        return exact(f"|J|_2 of {what}: not computed ({short})", False, 0, where)
    return exact(
        f"|J|_2 of {what}: the largest singular value in balls, from the same kept inputs", bool(norm > 1),
        balls.digits(norm), where, norm=norm.mid().str(balls.digits(norm), radius=False),
    )  # fmt: skip


def _half() -> Evidence:
    """c = 3/5 by hand: J x for one x is longer than x, in balls."""
    with balls.working():
        k, a = balls.column((1, 0)), balls.column((Fraction(3, 5), Fraction(4, 5)))
        x = balls.column((Fraction(1), Fraction(-1, 2)))
        y = x - a * balls.dot(k, x)
        ratio = balls.dot(y, y) / balls.dot(x, x)
        return exact(
            "|J x|^2 / |x|^2 for k = (1, 0), a = (3/5, 4/5), x = (1, -1/2)", bool(ratio > 1),
            balls.digits(ratio), ratio=balls.text(ratio),
        )  # fmt: skip


def gradient_flow(seeds: int = 10) -> Verdict:
    """Products of Jacobians: one that grows, one that is exactly 0, and what random inputs give."""
    lengths = (16, 64, 256)
    norms = {T: products(T, seeds) for T in lengths}
    return corrected(
        against=[
            witness(PRODUCT),
            spectral("product"),
            *proofs("vla.witness.product", "vla.witness.product.norm", "vla.witness.product.in-bounds"),
            _vanishing(),
            *(measured(f"random inputs, d = 8, T = {T}: log10 |J_T...J_1|_2", x) for T, x in norms.items()),
        ],
        instead="|J_T...J_1|_2^2 <= (1 + T |u|^2 / (d lam0))^d: at most polynomial growth; no lower bound",
        by=[
            *proofs("vla.energy.width-2", "vla.determinant.width-2"),
            *in_coq("vla.energy.lyapunov", "vla.determinant.one-plus", "vla.energy.products"),
            _polynomial(),
        ],
    )


def _vanishing() -> Evidence:
    keys = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    with balls.working():
        steps = balls.recursion(keys, keys, keys, Fraction(1, 10))
        J = balls.product(steps, keys)
        square = float(balls.dot(J, J).abs_upper())
    return exact(
        "keys e1, e2, e3 with u = k at width 3: the squared norm of the three Jacobians' product is below 1e-120",
        square < 1e-120, 60, below=square,
    )  # fmt: skip


def products(T: int, seeds: int, d: int = 8) -> np.ndarray:
    """log10 of the spectral norm of the product of all Jacobians on random inputs, one number a seed."""
    k, u, v = inputs(seeds, T, d, seed=T)
    with torch.no_grad():
        norms = product_norm(space(T, d), {"q": k, "k": k, "v": v, "u": u})
    return norms.clamp_min(1e-300).log10().numpy()


def _polynomial() -> Evidence:
    x = witness_tensors(PRODUCT)
    T, d = x["k"].shape[1], x["k"].shape[-1]
    with torch.no_grad():
        found = float(product_norm(space(T, d), x)[0])
    u2 = float((x["u"] ** 2).sum(-1).max())
    bound = (1 + T * u2 / (d * 0.1)) ** (d / 2)
    return counted("the witness keeps the polynomial bound", found <= bound, norm=found, bound=bound)


# --- without normalisation ---------------------------------------------------------------------------------------


def unnormalised_growth(d: int = 96, steps: int = 25, seeds: int = 10) -> Verdict:
    """J = I - A k k^T with neither vector normalised: log10 of the product's norm after 25 steps."""
    arithmetic = {str(lam0): 25 * float(np.log10(d / lam0)) for lam0 in (5, 0.1)}
    random = {lam0: [_unnormalised(d, steps, lam0, seed, False) for seed in range(seeds)] for lam0 in (5.0, 0.1)}
    same = [_unnormalised(d, steps, 5.0, seed, True) for seed in range(seeds)]
    claimed = arithmetic["5"]
    _, low, high = interval(random[5.0])
    return (supported if low <= claimed <= high else not_reproduced)(
        counted("25 log10(d_h / lam0): 1e32 needs lam0 = 5, and 0.1 would give 4e74", True, log10=arithmetic),
        *(
            measured(
                f"random keys of variance 1, lam0 = {lam0:g}: log10 |J_25...J_1|_2", x, claimed=arithmetic[f"{lam0:g}"]
            )
            for lam0, x in random.items()
        ),
        measured("one key 25 times over, no penalty, lam0 = 5: log10 of the norm", same, claimed=claimed),
    )


def _unnormalised(d: int, steps: int, lam0: float, seed: int, same: bool) -> float:
    rng = np.random.Generator(np.random.PCG64(seed))
    M, J, log = lam0 * np.eye(d), np.eye(d), 0.0
    key = rng.standard_normal(d)
    for _ in range(steps):
        if not same:
            key, u = rng.standard_normal((2, d))
            M = M + np.outer(u, u) / (u @ u) / d
        J = J - np.outer(np.linalg.solve(M, key), key @ J)
        size = float(np.linalg.norm(J))  # kept near 1, so that nothing overflows
        J, log = J / size, log + float(np.log10(size))
    return log + float(np.log10(np.linalg.norm(J, 2)))
