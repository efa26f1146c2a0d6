"""delta_scan: the delta rule with distinct erase and write keys and an optional gate.

    S_t = exp(g_t) S_{t-1} (I - e_t w_t^T) + v_t w_t^T          o_t = scale S_t q_t

in the papers' layout S [V, K]; code stores S^T, [K, V]. DeltaNet is e = k, w = beta k; VLA is e = k^,
w = a^, no gate. Source: Yang et al. 2024 (DeltaNet), Gated DeltaNet; VLA paper, section 2.3.

    symbol         shape                domain
    q              [B, T, H, K]         any
    erase, write   [B, T, H or HV, K]   any
    v              [B, T, HV, V]        any
    g              [B, T, HV]           log-gate, <= 0 (-inf resets the state)
    S              [N, HV, K, V]        state
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.spec import Input, Limitation, Operator, Option, State, kernels, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence, token by token."""
    s = ctx.zeros(head.V, head.K) if head.state is None else ctx.transpose(head.state["S"])
    rows: list[Any] = []
    for t in range(head.T):
        erase, write, v = head.erase[t], head.write[t], head.v[t]
        s = s * ctx.exp(head.g[t])
        s = s + ctx.outer(v - s * erase, write)
        rows.append(s * head.q[t] * head.options["scale"])
    return rows, {"S": ctx.transpose(s)}


OPERATOR = Operator(
    name="delta_scan",
    title="Delta rule with erase and write keys (primitive)",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="erase", shape="B T H K", domain="unit"),
        Input(name="write", shape="B T H K", domain="unit"),
        Input(name="v", shape="B T HV V", domain="real"),
        Input(name="g", shape="B T HV", domain="log_gate"),
    ),
    output="B T HV V",
    oracle=oracle,
    states=(State(name="S", shape="N HV K V", domain="state"),),
    options=(Option(name="scale", default=None, derived="K**-0.5"),),
    grid=({}, {"scale": 1.0}, {"scale": -2.0}),
    families=("random", "duplicate", "coherent", "orthogonal", "zeros", "tiny", "huge", "subnormal", "captured"),
    variants=(*ours("delta_scan", "recurrent", "chunk", "step"), *kernels("delta_scan")),
    limitations=(
        Limitation(
            variant="chunk",
            dtypes=("float64",),
            families=("orthogonal",),
            directions=("gradient",),
            most=1e4,
            rare=True,
            why="a chunk forgets what it wrote by subtraction: where a later key erases all of it, a rounding is left "
            "of what the token loop has as 0",
        ),
    ),
    reading=("impls/delta_scan.py", "kernels/delta_scan.py", "kernels/delta_rule.py"),
)
