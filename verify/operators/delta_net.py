"""delta_net: the delta rule.

    S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T          o_t = scale S_t q_t

in the papers' layout S [V, K]; code stores S^T, [K, V]. Keys are taken as given; callers normalise them.
Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length".

    symbol   shape            domain
    q, k     [B, T, H, K]     any (usual: |k| = 1)
    v        [B, T, HV, V]    any
    beta     [B, T, HV]       any (usual: [0, 1] or [0, 2])
    S        [N, HV, K, V]    state
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.spec import Input, Operator, Option, State, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence, token by token: correct what key k reads by a fraction beta."""
    s = ctx.zeros(head.V, head.K) if head.state is None else ctx.transpose(head.state["S"])
    rows: list[Any] = []
    for t in range(head.T):
        k = head.k[t]
        s = s + ctx.outer((head.v[t] - s * k) * head.beta[t], k)
        rows.append(s * head.q[t] * head.options["scale"])
    return rows, {"S": ctx.transpose(s)}


OPERATOR = Operator(
    name="delta_net",
    title="DeltaNet",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="k", shape="B T H K", domain="unit"),
        Input(name="v", shape="B T HV V", domain="real"),
        Input(name="beta", shape="B T HV", domain="beta"),
    ),
    output="B T HV V",
    oracle=oracle,
    states=(State(name="S", shape="N HV K V", domain="state"),),
    options=(Option(name="scale", default=None, derived="K**-0.5"),),
    grid=({}, {"scale": 1.0}, {"scale": 0.37}),
    families=("random", "duplicate", "coherent", "orthogonal", "zeros", "subnormal", "captured"),
    variants=(*ours("delta_net", "recurrent", "chunk", "step"), *kernels("delta_net")),
    reading=("impls/delta_net.py", "impls/delta_scan.py", "kernels/delta_net.py", "kernels/delta_rule.py"),
)
