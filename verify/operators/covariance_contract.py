"""covariance_contract: a query less its image under the running covariance of the keys.

    W_t     = exp(cov_g_t) W_{t-1} + w_t                        (cov_g = 0 and w = 1 unless given)
    mu_t    = (1/W_t) sum_s w_s D(t,s) k_s,                     D(t,s) = exp(cov_g_{s+1} + ... + cov_g_t)
    Sigma_t = (1/W_t) sum_s w_s D(t,s) (k_s - mu_t)(k_s - mu_t)^T,       0 where W_t = 0
    q~_t    = q_t - lam_t Sigma_t q_t

The state is the count W, a reference key r, the mean less the reference, and the scatter W Sigma. The reference is
the key that first has weight while the count is 0. Source: [CCQ], section 2; the reference, weights and
forgetting are ours.

    symbol               shape             domain
    q, k                 [B, T, H, K]      any
    lam                  [B, T, H]         any finite number
    cov_g                [B, T, H]         log-forgetting, <= 0 (axis "forgetting")
    weight               [B, T, H]         >= 0 (axis "weighted")
    count                [N, H]            state, >= 0
    reference, mean      [N, H, K]         state
    scatter              [N, H, K, K]      state
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.properties.covariance import ANY_ORDER, CONTRACTS_NOTHING, SIGMA
from linattest.verify.signature import Input, Option, State, option_is
from linattest.verify.spec import FEATURES, Limitation, Operator, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The plain moments: sums of w, w k and w k k^T. Exact arithmetic has no cancellation to avoid."""
    zero, state = ctx.number(0), head.state
    count, reference = (zero, ctx.zeros(head.K)) if state is None else (state["count"], state["reference"])
    first, second, mean = ctx.zeros(head.K), ctx.zeros(head.K, head.K), ctx.zeros(head.K)
    scatter = ctx.zeros(head.K, head.K)
    if state is not None:
        mean, scatter = state["mean"], state["scatter"]
        if head.T:
            scatter = (scatter + ctx.transpose(scatter)) * (1 / ctx.number(2))
        first = (reference + mean) * count
        second = scatter + ctx.outer(first, reference + mean)
    rows: list[Any] = []
    for t, (q, k, lam) in enumerate(zip(head.q, head.k, head.lam, strict=True)):
        weight = head.weight[t] if head.options["weighted"] else ctx.number(1)
        if count == 0 and weight > 0:
            reference = k
        keep = ctx.exp(head.cov_g[t]) if head.options["forgetting"] else ctx.number(1)
        count = count * keep + weight
        first = first * keep + k * weight
        second = second * keep + ctx.outer(k, k) * weight
        mean, scatter = ctx.zeros(head.K), ctx.zeros(head.K, head.K)
        if count == 0:
            rows.append(q)
            continue
        centre = first * (1 / count)
        mean, scatter = centre - reference, second - ctx.outer(first, centre)
        rows.append(q - scatter * q * (lam * (1 / count)))
    return rows, {"count": count, "reference": reference, "mean": mean, "scatter": scatter}


STATES = (
    State(name="count", shape="N H", domain="count", part="covariance"),
    State(name="reference", shape="N H K", domain="location", part="covariance"),
    State(name="mean", shape="N H K", domain="location", part="covariance"),
    State(name="scatter", shape="N H K K", domain="scatter", part="covariance"),
)
"""What the covariance of the keys is kept as."""

KNOBS = (
    Input(name="cov_g", shape="B T H", domain="log_gate", when=option_is("forgetting")),
    Input(name="weight", shape="B T H", domain="weight", when=option_is("weighted")),
)
"""The inputs that may be left out."""

AXES = (
    Option(name="forgetting", default=False, passed=False),
    Option(name="weighted", default=False, passed=False),
)
"""Whether they are given."""

NARROW = ("float32", "bfloat16", "float16")

FADED_COUNT = Limitation(
    variant="step",
    dtypes=NARROW,
    families=("fading",),
    why="the count and the scatter are handed over in float32: after enough strong forgetting without a weighted token "
    "(e^-88 in all) both are 0, and Sigma, their quotient, with them; in float64 it is e^-708",
)
"""Of every decode step that carries a covariance."""

FADED_IN_KERNELS = tuple(replace(FADED_COUNT, variant=variant) for variant in ("triton", "triton-step"))
"""A kernel carries the count in float32 through a sequence too."""

FADED_GATE = Limitation(
    variant="chunk",
    families=("fading",),
    directions=("gradient",),
    why="the mean is a quotient of two decayed sums: where no gate moves it, the gradients of the two cancel "
    "to a rounding of 1, not to the 1e-55 that is left of the exact one",
)
"""Of every chunk form of a covariance."""

FAINT_GATE = Limitation(
    variant="chunk",
    dtypes=("float64",),
    families=("captured", "coherent", "far", "one_direction"),
    directions=("gradient",),
    most=1e5,
    rare=True,
    why="as for fading keys, but of a gate or weight that hardly moves the mean: some of its digits are left",
)
"""Of the primitive's chunk form; seen with one seed in dozens."""

FAINT_SCATTER = Limitation(
    variant="step",
    dtypes=NARROW,
    families=("one_direction",),
    most=1e3,
    rare=True,
    why="a scatter handed over in float32 that forgetting has taken to 0 keeps the roundings of the mean, squared",
)
"""Of the primitive's decode step; seen with one seed in dozens."""

OPERATOR = Operator(
    name="covariance_contract",
    title="Query contracted by the keys' covariance (primitive)",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="k", shape="B T H K", domain="feature"),
        Input(name="lam", shape="B T H", domain="rate"),
        *KNOBS,
    ),
    output="B T H K",
    oracle=oracle,
    states=STATES,
    options=AXES,
    grid=({}, {"forgetting": True, "weighted": True}, {"forgetting": True}, {"weighted": True}),
    families=("random", "fading", "duplicate", "coherent", "one_direction", "orthogonal", "far", "zeros", "captured"),
    variants=(
        *ours("covariance_contract", "recurrent", "chunk", "step", supports=FEATURES - {"grouped"}),
        *kernels("covariance_contract", supports=FEATURES - {"grouped"}),
    ),
    limitations=(
        FADED_COUNT,
        *FADED_IN_KERNELS,
        FADED_GATE,
        FAINT_GATE,
        FAINT_SCATTER,
        Limitation(
            variant="step",
            dtypes=NARROW,
            families=("far",),
            most=1e5,
            why="the mean is handed over in float32, relative to a reference that an initial state may hold far from "
            "all later keys; the squares of its roundings are then larger than a scatter that is nearly 0",
        ),
    ),
    properties=(CONTRACTS_NOTHING, SIGMA, ANY_ORDER),
    reading=("impls/covariance_contract.py", "impls/decay_scan.py", "kernels/covariance_contract.py"),
)
