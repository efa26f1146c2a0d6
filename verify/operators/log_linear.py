"""log_linear: a logarithmic number of states, each read with a weight of its own.

    o_t = scale sum_{s<=t} lam_t^(level(t,s)) (q_t . Phi(t,s) w_s) v_s
    level(t,s) = 0 if s = t, else bit_length(t xor s);  t and s count from the start of the sequence
    Phi(t,s) w_s = exp(g_{s+1} + .. + g_t) k_s                                        without beta
    Phi(t,s) w_s = beta_s prod_{j=t..s+1} exp(g_j)(I - beta_j k_j k_j^T) k_s          with beta (axis "delta")

The state keeps the buckets of tokens that share a level: after p tokens, level j + 1 is the bucket of set bit j of p
(after exactly 2^(L - 1) tokens, when L is the least that serves them, the one bucket is in the last level).
Source: [LogLinear]; [AdaptiveDecay] for the level weights.

    symbol          shape                 domain
    q, k            [B, T, H, K]          any; unit keys with beta
    v               [B, T, HV, V]         any
    g               [B, T, HV]            log-gate, <= 0
    level_weights   [B, T, HV, L]         any finite number, L >= bit_length(p + T - 1) + 1
    beta            [B, T, HV]            any
    S               [N, L, HV, K, V]      state
    position        [N]                   tokens seen, p
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.properties.reductions import MASK_FORM, UNIT_WEIGHTS
from linattest.verify.signature import Input, Option, State, option_is
from linattest.verify.spec import Operator, kernels, ours


def level(t: int, s: int) -> int:
    """Which level of token t holds token s <= t."""
    return (t ^ s).bit_length()


def _merged(buckets: list[tuple[int, Any]], t: int) -> list[tuple[int, Any]]:
    """Buckets (first token, matrix) regrouped by the level that their tokens have at t."""
    groups: dict[int, tuple[int, Any]] = {}
    for start, matrix in buckets:
        first, total = groups.get(level(t, start), (start, None))
        groups[level(t, start)] = (min(first, start), matrix if total is None else total + matrix)
    return list(groups.values())


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The tokens kept by level: those that share one keep sharing it, so their outer products may be added up."""
    position, buckets = 0, []
    if head.state is not None:
        position = head.state["position"]
        for bit in (bit for bit in range(position.bit_length()) if position >> bit & 1):
            start = position >> (bit + 1) << (bit + 1)
            buckets.append((start, ctx.transpose(head.state["S"][min(bit + 1, head.L - 1)])))
    rows: list[Any] = []
    for i in range(head.T):
        t, k, v = position + i, head.k[i], head.v[i]
        keep = ctx.exp(head.g[i])
        buckets = [(start, s * keep) for start, s in buckets]
        if head.options["delta"]:
            buckets = [(start, s - ctx.outer(s * k, k * head.beta[i])) for start, s in buckets]
            v = v * head.beta[i]
        buckets = _merged([*buckets, (t, ctx.outer(v, k))], t)
        weights = ctx.entries(head.level_weights[i])
        o = ctx.zeros(head.V)
        for start, s in buckets:
            o = o + s * head.q[i] * weights[level(t, start)]
        rows.append(o * head.options["scale"])
    return rows, {"S": _stored(ctx, head, buckets, position + head.T), "position": position + head.T}


def _stored(ctx: Context, head: Any, buckets: list[tuple[int, Any]], position: int) -> list[Any]:
    levels = [ctx.zeros(head.K, head.V) for _ in range(head.L)]
    for start, s in _merged(buckets, position):
        levels[min(level(position, start), head.L - 1)] = ctx.transpose(s)
    return levels


def definition(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The double sum as it is written, from an empty state; a test compares the two."""
    rows: list[Any] = []
    carried: list[Any] = []  # Phi(t, s) w_s for every s <= t
    for t in range(head.T):
        k, keep = head.k[t], ctx.exp(head.g[t])
        carried = [x * keep for x in carried]
        write = k
        if head.options["delta"]:
            carried = [x - k * (ctx.dot(k, x) * head.beta[t]) for x in carried]
            write = k * head.beta[t]
        carried.append(write)
        weights, o = ctx.entries(head.level_weights[t]), ctx.zeros(head.V)
        for s, (x, v) in enumerate(zip(carried, head.v, strict=False)):
            o = o + v * (ctx.dot(head.q[t], x) * weights[level(t, s)])
        rows.append(o * head.options["scale"])
    buckets = [(s, ctx.outer(v, x)) for s, (x, v) in enumerate(zip(carried, head.v, strict=True))]
    return rows, {"S": _stored(ctx, head, buckets, head.T), "position": head.T}


OPERATOR = Operator(
    name="log_linear",
    title="Log-linear attention with level weights",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="k", shape="B T H K", domain="unit"),
        Input(name="v", shape="B T HV V", domain="real"),
        Input(name="g", shape="B T HV", domain="log_gate"),
        Input(name="level_weights", shape="B T HV L", domain="level"),
        Input(name="beta", shape="B T HV", domain="beta", when=option_is("delta")),
    ),
    output="B T HV V",
    oracle=oracle,
    states=(
        State(name="S", shape="N L HV K V", domain="buckets"),
        State(name="position", shape="N", domain="position"),
    ),
    options=(
        Option(name="delta", default=False, passed=False),
        Option(name="scale", default=None, derived="K**-0.5"),
    ),
    grid=({}, {"delta": True}, {"scale": -2.0}, {"delta": True, "scale": 1.0}),
    families=("random", "duplicate", "coherent", "orthogonal", "zeros", "subnormal", "captured"),
    variants=(*ours("log_linear", "recurrent", "chunk", "step"), *kernels("log_linear")),
    properties=(UNIT_WEIGHTS, MASK_FORM),
    reading=(
        "impls/log_linear.py",
        "impls/fenwick_scan.py",
        "impls/level_weights.py",
        "kernels/log_linear.py",
        "kernels/fenwick_scan.py",
        "kernels/fenwick_delta.py",
    ),  # fmt: skip
)
