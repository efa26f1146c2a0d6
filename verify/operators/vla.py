"""vla: variational linear attention, a delta rule that writes along a penalised key.

    k^_t = k_t / |k_t|
    M_t  = lam0 I + sum_{s<=t} u_s u_s^T,    A_t = M_t^{-1}
    a^_t = A_t k^_t / |A_t k^_t|                       (gain="raw": A_t k^_t itself)
    S_t  = S_{t-1} + (v_t - S_{t-1} k^_t) a^_t^T
    z_t  = z_{t-1} + k_t
    o_t  = S_t q_t / max(z_t . q_t, eps)               (normalizer=False: S_t q_t)

in the paper's layout S [V, K]; code stores S^T, [K, V]. norm(0) = 0. Source: VLA paper, section 2.3
(equations 1 to 3); the ratio of recurrences as in linear attention; lam0 = 0.1 is the authors' benchmark
value. The state's M does not contain lam0 I and is read as (M + M^T)/2.

    symbol   shape            domain
    q, k     [B, T, H, K]     features, ELU(x) + 1
    v        [B, T, H, V]     any
    u        [B, T, H, K]     penalty direction, length 1/sqrt(K)
    lam0     scalar or [H]    > 0
    S        [N, H, K, V]     state
    M        [N, H, K, K]     state
    z        [N, H, K]        state (kept without normaliser too)
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context, unit
from linattest.verify.operators.ridge_solve import ROUNDED_PENALTY
from linattest.verify.properties.penalty import BOUNDED_STATE, DELTA_NET, ENERGY_NORM, SPECTRAL_NORM
from linattest.verify.spec import FEATURES, Input, Limitation, Operator, Option, State, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence, token by token; A by the Sherman-Morrison formula, exact in exact arithmetic."""
    options, state = head.options, head.state
    s = ctx.zeros(head.V, head.K) if state is None else ctx.transpose(state["S"])
    m = ctx.zeros(head.K, head.K) if state is None else state["M"]
    if state is not None and head.T > 0:
        m = (m + ctx.transpose(m)) * (1 / ctx.number(2))
    z = state["z"] if state is not None else ctx.zeros(head.K)
    # the inverse of a multiple of the identity needs no elimination (mpmath's is slow)
    a = ctx.identity(head.K) * (1 / options["lam0"])
    if state is not None:
        a = ctx.inverse(m + ctx.identity(head.K) * options["lam0"])
    rows: list[Any] = []
    for q, k, v, u in zip(head.q, head.k, head.v, head.u, strict=True):
        w = a * u
        a = a - ctx.outer(w, w * (1 / (1 + ctx.dot(u, w))))
        key = unit(ctx, k)
        write = a * key
        if options["gain"] == "unit":
            write = unit(ctx, write)
        s = s + ctx.outer(v - s * key, write)
        z = z + k
        o = s * q
        if options["normalizer"]:
            o = o * (1 / ctx.maximum(ctx.dot(z, q), options["eps"]))
        rows.append(o)
    return rows, {"S": ctx.transpose(s), "M": m + ctx.gram(head.u, head.K), "z": z}


OPERATOR = Operator(
    name="vla",
    title="Variational linear attention",
    inputs=(
        Input(name="q", shape="B T H K", domain="feature"),
        Input(name="k", shape="B T H K", domain="feature"),
        Input(name="v", shape="B T H V", domain="real"),
        Input(name="u", shape="B T H K", domain="direction"),
    ),
    output="B T H V",
    oracle=oracle,
    states=(
        State(name="S", shape="N H K V", domain="state"),
        State(name="M", shape="N H K K", domain="psd"),
        State(name="z", shape="N H K", domain="feature_sum"),
    ),
    options=(
        Option(name="lam0", default=0.1, differentiable=True),
        Option(name="normalizer", default=True),
        Option(name="eps", default=1e-6),
        Option(name="gain", default="unit"),
    ),
    grid=(
        {},
        {"normalizer": False},
        {"gain": "raw", "lam0": 1.0},
        {"lam0": 1e-3},
        {"lam0": 10.0, "normalizer": False},
        {"gain": "raw", "lam0": 2.0, "normalizer": False},
        {"eps": 30.0},
    ),
    families=(
        "random", "duplicate", "coherent", "orthogonal", "one_direction", "zeros", "tiny", "huge", "subnormal",
        "captured", "strong_penalty",
    ),
    variants=(
        *ours("vla", "recurrent", "chunk", "scan", "step", supports=FEATURES - {"grouped"}),
        *kernels("vla", supports=FEATURES - {"grouped"}),
    ),
    properties=(BOUNDED_STATE, ENERGY_NORM, SPECTRAL_NORM, DELTA_NET),
    limitations=(
        *ROUNDED_PENALTY,
        *(
        Limitation(
            variant=variant,
            dtypes=("float64",),
            families=("one_direction", "duplicate"),
            most=300.0,
            why="where every token overwrites what the one before wrote, a chunk forgets by subtraction: an element "
            "that happens to be small keeps the rounding of the larger ones it replaced (narrower inputs have "
            "float64's spare digits)",
        )
        for variant in ("chunk", "scan")
        ),
        Limitation(
            variant="triton",
            dtypes=("float32",),
            families=("one_direction", "duplicate"),
            most=300.0,
            rare=True,
            why="as of the chunk form in float64: a kernel's sums of float32 inputs have no spare digits",
        ),
    ),
    reading=(
        "impls/vla.py", "impls/ridge_solve.py", "impls/delta_scan.py", "kernels/vla_rule.py", "kernels/ridge_rule.py",
        "verify/properties/penalty.py",
    ),
)  # fmt: skip
