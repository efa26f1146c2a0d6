"""One token of a decay scan: a decode step reads a state once and writes it once, and nothing else of its size."""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at


@triton.jit
def _kept(g, strides, b, h, G, x, K: tl.constexpr, CHANNEL: tl.constexpr):
    """exp(g) [BK] of one token, whatever the gate's rank."""
    if CHANNEL:
        gate = tl.load(at(g, strides, b, h // G, 0) + x * strides[3], mask=x < K, other=0.0).to(tl.float32)
    else:
        gate = tl.zeros_like(x).to(tl.float32) + tl.load(at(g, strides, b, h, 0)).to(tl.float32)
    return tl.exp(gate)


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
        kept = _kept(g, gs, b, h, G, x, K, CHANNEL)
        S += kept[:, None] * tl.load(state + where, mask=here, other=0.0)
    out = tl.sum(query[:, None] * S, axis=0) * scale
    tl.store(at(o, os, b, h, 0) + y * os[3], out.to(o.dtype.element_ty), mask=y < V)
    tl.store(final + where, S, mask=here)


@triton.jit
def decay_step_gradients(
    q, k, v, g, state, do, dfinal, grads, strides, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
    HAS_STATE: tl.constexpr, HAS_FINAL: tl.constexpr,
):  # fmt: skip
    """The step's gradients, float32: dq, dk, dg [B, HV, K], dv [B, HV, V], dstate [B, HV, K, V] as `grads`."""
    qs, ks, vs, gs, os = strides
    dq, dk, dv, dg, dstate = grads
    HV, G = sizes
    b, h = tl.program_id(0) // HV, tl.program_id(0) % HV
    at_head = b.to(tl.int64) * HV + h
    x = tl.arange(0, BK)
    query = tl.load(at(q, qs, b, h // G, 0) + x * qs[3], mask=x < K, other=0.0).to(tl.float32)
    key = tl.load(at(k, ks, b, h // G, 0) + x * ks[3], mask=x < K, other=0.0).to(tl.float32)
    kept = _kept(g, gs, b, h, G, x, K, CHANNEL)
    dQ = tl.zeros([BK], tl.float32)
    dK = tl.zeros([BK], tl.float32)
    dG = tl.zeros([BK], tl.float32)
    for y0 in range(0, V, BV):
        y = y0 + tl.arange(0, BV)
        here = (x < K)[:, None] & (y < V)[None, :]
        where = at_head * (K * V) + x[:, None] * V + y[None, :]
        value = tl.load(at(v, vs, b, h, 0) + y * vs[3], mask=y < V, other=0.0).to(tl.float32)
        upstream = tl.load(at(do, os, b, h, 0) + y * os[3], mask=y < V, other=0.0).to(tl.float32) * scale
        after = query[:, None] * upstream[None, :]  # [BK, BV], the gradient of the new state
        if HAS_FINAL:
            after += tl.load(dfinal + where, mask=here, other=0.0)
        dQ += key * tl.sum(upstream * value, axis=0)
        if HAS_STATE:
            before = kept[:, None] * tl.load(state + where, mask=here, other=0.0)
            dQ += tl.sum(before * upstream[None, :], axis=1)
            dG += tl.sum(before * after, axis=1)
        dK += tl.sum(after * value[None, :], axis=1)
        tl.store(dv + at_head * V + y, tl.sum(after * key[:, None], axis=0), mask=y < V)
        tl.store(dstate + where, kept[:, None] * after, mask=here)
    tl.store(dq + at_head * K + x, dQ, mask=x < K)
    tl.store(dk + at_head * K + x, dK, mask=x < K)
    tl.store(dg + at_head * K + x, dG, mask=x < K)
