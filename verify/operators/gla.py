"""gla: gated linear attention, with one gate a head (simple GLA, Mamba-2) or one a key channel (GLA).

    S_t = S_{t-1} diag(exp g_t) + v_t k_t^T          o_t = scale S_t q_t

in the papers' layout S [V, K]; code stores S^T, [K, V]. The axis "gate" of the harness says which gate is given.
Source: [GLA]; [Mamba2] for one gate a head.

    symbol   shape                          domain
    q, k     [B, T, H, K]                   any
    v        [B, T, HV, V]                  any
    g        [B, T, HV] or [B, T, H, K]     log-gate, <= 0 (-inf resets the state)
    S        [N, HV, K, V]                  state
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.properties.reductions import EQUAL_CHANNELS, NO_GATE_IS_LINEAR
from linattest.verify.signature import Input, Option, State, option_is
from linattest.verify.spec import Operator, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence, token by token."""
    s = ctx.zeros(head.V, head.K) if head.state is None else ctx.transpose(head.state["S"])
    rows: list[Any] = []
    for q, k, v, g in zip(head.q, head.k, head.v, head.g, strict=True):
        if head.options["gate"] == "head":
            s = s * ctx.exp(g)
        else:
            s = ctx.scale_columns(s, [ctx.exp(x) for x in ctx.entries(g)])
        s = s + ctx.outer(v, k)
        rows.append(s * q * head.options["scale"])
    return rows, {"S": ctx.transpose(s)}


OPERATOR = Operator(
    name="gla",
    title="Gated linear attention",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="k", shape="B T H K", domain="unit"),
        Input(name="v", shape="B T HV V", domain="real"),
        Input(name="g", shape="B T HV", domain="log_gate", when=option_is("gate", "head")),
        Input(name="g", shape="B T H K", domain="log_gate", when=option_is("gate", "channel")),
    ),
    output="B T HV V",
    oracle=oracle,
    states=(State(name="S", shape="N HV K V", domain="state"),),
    options=(
        Option(name="gate", default="head", passed=False),
        Option(name="scale", default=None, derived="K**-0.5"),
    ),
    grid=({}, {"gate": "channel"}, {"scale": -2.0}, {"gate": "channel", "scale": 1.0}),
    families=("random", "duplicate", "coherent", "zeros", "tiny", "huge", "subnormal", "captured"),
    variants=(*ours("gla", "recurrent", "chunk", "step"), *kernels("gla")),
    properties=(NO_GATE_IS_LINEAR, EQUAL_CHANNELS),
    reading=("impls/gla.py", "impls/decay_scan.py", "kernels/gla.py", "kernels/decay_scan.py"),
)
