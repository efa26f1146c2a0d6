"""gated_delta_net: decay, then correct what the state stores under a key.

    S_t = exp(g_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T          o_t = scale S_t q_t

in the papers' layout S [V, K]; code stores S^T, [K, V]. Keys are used as given. Source:
[GatedDeltaNet].

    symbol   shape            domain
    q        [B, T, H, K]     any
    k        [B, T, H, K]     any; callers give unit keys
    v        [B, T, HV, V]    any
    g        [B, T, HV]       log-gate, <= 0 (-inf resets the state)
    beta     [B, T, HV]       any; usually [0, 1] or [0, 2]
    S        [N, HV, K, V]    state
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.properties.reductions import NO_GATE_IS_DELTA_NET
from linattest.verify.signature import Input, Option, State
from linattest.verify.spec import Operator, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence, token by token: the decay comes first, the correction sees the decayed state."""
    s = ctx.zeros(head.V, head.K) if head.state is None else ctx.transpose(head.state["S"])
    rows: list[Any] = []
    for t in range(head.T):
        k = head.k[t]
        s = s * ctx.exp(head.g[t])
        s = s + ctx.outer((head.v[t] - s * k) * head.beta[t], k)
        rows.append(s * head.q[t] * head.options["scale"])
    return rows, {"S": ctx.transpose(s)}


OPERATOR = Operator(
    name="gated_delta_net",
    title="Gated DeltaNet",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="k", shape="B T H K", domain="unit"),
        Input(name="v", shape="B T HV V", domain="real"),
        Input(name="g", shape="B T HV", domain="log_gate"),
        Input(name="beta", shape="B T HV", domain="beta"),
    ),
    output="B T HV V",
    oracle=oracle,
    states=(State(name="S", shape="N HV K V", domain="state"),),
    options=(Option(name="scale", default=None, derived="K**-0.5"),),
    grid=({}, {"scale": 1.0}, {"scale": -2.0}),
    families=("random", "duplicate", "coherent", "orthogonal", "zeros", "subnormal", "captured"),
    variants=(*ours("gated_delta_net", "recurrent", "chunk", "step"), *kernels("gated_delta_net")),
    properties=(NO_GATE_IS_DELTA_NET,),
    reading=("impls/gated_delta_net.py", "impls/delta_scan.py", "kernels/gated_delta_net.py", "kernels/delta_rule.py"),
)
