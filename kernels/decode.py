"""One token of a decay scan: a decode step reads a state once and writes it once, and nothing else of its size."""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at


@triton.jit
def decay_step(
    q, k, v, g, o, state, final, strides, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
    HAS_STATE: tl.constexpr,
):  # fmt: skip
    """o [B, 1, HV, V] and final [B, HV, K, V] from state [B, HV, K, V]; g is one gate a head or one a channel."""
    qs, ks, vs, gs, os = strides
    HV, G = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    b, h = pid // (blocks * HV), pid // blocks % HV
    x, y = tl.arange(0, BK), pid % blocks * BV + tl.arange(0, BV)
    here = (x < K)[:, None] & (y < V)[None, :]
    query = tl.load(at(q, qs, b, h // G, 0) + x * qs[3], mask=x < K, other=0.0).to(tl.float32)
    key = tl.load(at(k, ks, b, h // G, 0) + x * ks[3], mask=x < K, other=0.0).to(tl.float32)
    value = tl.load(at(v, vs, b, h, 0) + y * vs[3], mask=y < V, other=0.0).to(tl.float32)
    S = key[:, None] * value[None, :]  # [BK, BV]
    where = (b.to(tl.int64) * HV + h) * (K * V) + x[:, None] * V + y[None, :]
    if HAS_STATE:
        if CHANNEL:
            gate = tl.load(at(g, gs, b, h // G, 0) + x * gs[3], mask=x < K, other=0.0).to(tl.float32)
        else:
            gate = tl.zeros([BK], tl.float32) + tl.load(at(g, gs, b, h, 0)).to(tl.float32)
        S += tl.exp(gate)[:, None] * tl.load(state + where, mask=here, other=0.0)
    out = tl.sum(query[:, None] * S, axis=0) * scale
    tl.store(at(o, os, b, h, 0) + y * os[3], out.to(o.dtype.element_ty), mask=y < V)
    tl.store(final + where, S, mask=here)
