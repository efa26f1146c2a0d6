"""ccq: a backbone whose memory is read with the query contracted by the keys' covariance.

    q~_t = q_t - lam_t Sigma_t q_t                      (covariance_contract)
    o_t  = read(S_t, q~_t)                              S_t and all else as in the backbone, untouched

On a ratio-normalised backbone the denominator keeps the query: o_t = S_t q~_t / max(z_t . q_t, eps). Keys count as
they are passed. Source: [CCQ], section 2; the denominator is ours (with q~ it would reach eps).

    symbol                   shape                        where
    q, k                     [B, T, H, K]
    v                        [B, T, HV, V]                HV = H on vla
    lam                      [B, T, H]
    cov_g, weight            [B, T, H]                    axes "forgetting", "weighted"
    g                        [B, T, HV] or [B, T, H, K]   gla, gated_delta_net
    beta                     [B, T, HV]                   delta_net, gated_delta_net
    u                        [B, T, H, K]                 vla
    count .. scatter         as in covariance_contract
    S; z; M                  as in the backbone
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.operators import covariance_contract, delta_net, gated_delta_net, gla, linear, vla
from linattest.verify.properties.covariance import IS_ITS_BACKBONE, MEMORY_UNTOUCHED
from linattest.verify.signature import Input, Option, State, option_is
from linattest.verify.spec import Operator, kernels, ours

BACKBONES = {
    "linear": linear.oracle,
    "gla": gla.oracle,
    "delta_net": delta_net.oracle,
    "gated_delta_net": gated_delta_net.oracle,
    "vla": vla.oracle,
}


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The backbone's own oracle, read with q~; its ratio, if it has one, is taken here with q."""
    options = head.options
    clean, covariance = covariance_contract.oracle(ctx, head)
    plain = {"scale": ctx.number(1), "gain": "unit", **options, "normalizer": False}
    numerator = replace(head, inputs={**head.inputs, "q": clean}, options=plain)
    rows, memory = BACKBONES[options["backbone"]](ctx, numerator)
    if options.get("normalizer"):
        z = head.state["z"] if head.state is not None else ctx.zeros(head.K)
        for t, (q, k) in enumerate(zip(head.q, head.k, strict=True)):
            z = z + k
            rows[t] = rows[t] * (1 / ctx.maximum(ctx.dot(z, q), options["eps"]))
        memory = {**memory, "z": z}
    return rows, {**covariance, **memory}


def _normalised(options: Any) -> bool:
    return options["backbone"] in ("linear", "vla") and options["normalizer"]


IN_KERNELS = {"backbone": ("linear", "gla", "delta_net", "gated_delta_net", "vla"), "normalizer": (False,)}
"""What kernels are there for."""

OPERATOR = Operator(
    name="ccq",
    title="Curvature-conditioned query on a backbone",
    inputs=(
        Input(name="q", shape="B T H K", domain="unit_feature"),
        Input(name="k", shape="B T H K", domain="unit_feature"),
        Input(name="v", shape="B T HV V", domain="real"),
        Input(name="lam", shape="B T H", domain="rate"),
        Input(
            name="g", shape="B T HV", domain="log_gate",
            when=lambda o: o["backbone"] == "gated_delta_net" or (o["backbone"] == "gla" and o["gate"] == "head"),
        ),
        Input(
            name="g", shape="B T H K", domain="log_gate",
            when=lambda o: o["backbone"] == "gla" and o["gate"] == "channel",
        ),
        Input(
            name="beta", shape="B T HV", domain="beta", when=option_is("backbone", "delta_net", "gated_delta_net")
        ),
        Input(name="u", shape="B T H K", domain="direction", when=option_is("backbone", "vla")),
        *covariance_contract.KNOBS,
    ),
    output="B T HV V",
    oracle=oracle,
    states=(
        *covariance_contract.STATES,
        State(name="S", shape="N HV K V", domain="state", part="backbone"),
        State(name="M", shape="N H K K", domain="psd", part="backbone", when=option_is("backbone", "vla")),
        State(
            name="z", shape="N H K", domain="feature_sum", part="backbone",
            when=lambda o: o["backbone"] == "vla" or _normalised(o),
        ),
    ),
    options=(
        Option(name="backbone", default="linear"),
        *covariance_contract.AXES,
        Option(name="gate", default="head", passed=False, when=option_is("backbone", "gla")),
        Option(name="normalizer", default=False, when=option_is("backbone", "linear", "vla")),
        Option(name="eps", default=1e-6, when=_normalised),
        Option(name="lam0", default=0.1, differentiable=True, when=option_is("backbone", "vla")),
        Option(
            name="scale", default=None, derived="K**-0.5",
            when=lambda o: o["backbone"] != "vla" and not _normalised(o),
        ),
    ),
    grid=(
        {},
        {"backbone": "gla"},
        {"backbone": "gated_delta_net"},
        {"backbone": "vla", "normalizer": True},
        {"backbone": "delta_net", "scale": -2.0},
        {"backbone": "gated_delta_net", "forgetting": True, "weighted": True},
        {"backbone": "gla", "gate": "channel", "weighted": True},
        {"backbone": "linear", "normalizer": True, "forgetting": True},
    ),
    families=("random", "duplicate", "coherent", "orthogonal", "zeros", "fading", "captured"),
    ungrouped=option_is("backbone", "vla"),
    variants=(*ours("ccq", "recurrent", "chunk", "step"), *kernels("ccq", serves=IN_KERNELS)),
    limitations=(
        covariance_contract.FADED_COUNT,
        covariance_contract.FADED_GATE,
        *covariance_contract.FADED_IN_KERNELS,
    ),
    properties=(IS_ITS_BACKBONE, MEMORY_UNTOUCHED),
    reading=("impls/ccq.py", "impls/covariance_contract.py", "kernels/ccq.py", "verify/properties/covariance.py"),
)  # fmt: skip
