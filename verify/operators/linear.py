"""linear: linear attention, plain or normalised.

    S_t = S_{t-1} + v_t k_t^T            o_t = scale S_t q_t
    with normalizer:  z_t = z_{t-1} + k_t,   o_t = S_t q_t / max(z_t . q_t, eps)

in the papers' layout S [V, K]; code stores S^T, [K, V]. The normaliser takes positive features and no
scale. Source: Katharopoulos et al. 2020, equations 9 to 12; VLA paper, section 1.

    symbol   shape            domain
    q, k     [B, T, H, K]     features (positive) with normaliser, any without
    v        [B, T, HV, V]    any
    S        [N, HV, K, V]    state
    z        [N, H, K]        state, with normaliser only
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.signature import Input, Option, State, option_is
from linattest.verify.spec import Operator, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence, token by token."""
    normalised = head.options["normalizer"]
    s = ctx.zeros(head.V, head.K) if head.state is None else ctx.transpose(head.state["S"])
    z = head.state["z"] if normalised and head.state is not None else ctx.zeros(head.K)
    rows: list[Any] = []
    for q, k, v in zip(head.q, head.k, head.v, strict=True):
        s = s + ctx.outer(v, k)
        z = z + k
        if normalised:
            rows.append(s * q * (1 / ctx.maximum(ctx.dot(z, q), head.options["eps"])))
        else:
            rows.append(s * q * head.options["scale"])
    return rows, {"S": ctx.transpose(s), "z": z}


OPERATOR = Operator(
    name="linear",
    title="Linear attention",
    inputs=(
        Input(name="q", shape="B T H K", domain="feature"),
        Input(name="k", shape="B T H K", domain="feature"),
        Input(name="v", shape="B T HV V", domain="real"),
    ),
    output="B T HV V",
    oracle=oracle,
    states=(
        State(name="S", shape="N HV K V", domain="state"),
        State(name="z", shape="N H K", domain="feature_sum", when=option_is("normalizer")),
    ),
    options=(
        Option(name="normalizer", default=False),
        Option(name="eps", default=1e-6),
        Option(name="scale", default=None, derived="K**-0.5", when=option_is("normalizer", False)),
    ),
    grid=({}, {"normalizer": True}, {"scale": -2.0}, {"normalizer": True, "eps": 30.0}),
    families=("random", "duplicate", "coherent", "zeros", "tiny", "huge", "subnormal", "captured"),
    variants=(
        *ours("linear", "recurrent", "chunk", "step"),
        *kernels("linear", serves={"normalizer": (False,)}),
    ),
    reading=("impls/linear.py", "kernels/linear.py"),
)
