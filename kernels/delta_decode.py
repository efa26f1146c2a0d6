"""One token of a delta scan: a decode step reads a state once and writes it once, and nothing else of its size.

With S the state as the gate leaves it, u = v - S^T erase and w = beta * write (write is erase where there is none):
S' = S + w u^T, o = scale S'^T q. Upstream dO, times scale, and the gradient of the final state give

    dS' = q dO^T + dfinal,   dv = du = dS'^T w,   dw = dS' u,   dq = S' dO,   derase = -S du,   dS = dS' - erase du^T
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at


@triton.jit
def _row(ptr, strides, b, h, x, WIDTH: tl.constexpr):
    """Channels x of one token, float32."""
    return tl.load(at(ptr, strides, b, h, 0) + x * strides[3], mask=x < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _number(ptr, strides, b, h):
    return tl.load(at(ptr, strides, b, h, 0)).to(tl.float32)


@triton.jit
def _decayed(state, g, strides, b, h, where, mask):
    """The state in a tile, as the gate leaves it."""
    S = tl.load(state + where, mask=mask, other=0.0)
    if g is not None:
        S *= tl.exp(_number(g, strides, b, h))
    return S


@triton.jit
def delta_step(
    o, final, q, erase, write, v, g, beta, state, strides, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o [B, 1, HV, V] and final [B, HV, K, V] from state [B, HV, K, V]; a program is BV columns of it.

    strides are those of o, q, erase, write, v, g, beta; sizes HV, and value heads per head of q, of erase and of write.
    """
    os, qs, es, ws, vs, gs, bs = strides
    HV, per_query, per_erase, per_write = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    b, h = pid // (blocks * HV), pid // blocks % HV
    x, y = tl.arange(0, BK), pid % blocks * BV + tl.arange(0, BV)
    here = (x < K)[:, None] & (y < V)[None, :]
    where = (b.to(tl.int64) * HV + h) * (K * V) + x[:, None] * V + y[None, :]
    E, Q = _row(erase, es, b, h // per_erase, x, K), _row(q, qs, b, h // per_query, x, K)
    W = E if write is None else _row(write, ws, b, h // per_write, x, K)
    if beta is not None:
        W *= _number(beta, bs, b, h)
    u = _row(v, vs, b, h, y, V)
    if state is None:
        S = W[:, None] * u[None, :]  # [BK, BV]
    else:
        S = _decayed(state, g, gs, b, h, where, here)  # [BK, BV]
        S += W[:, None] * (u - tl.sum(S * E[:, None], axis=0))[None, :]
    out = tl.sum(Q[:, None] * S, axis=0) * scale
    tl.store(at(o, os, b, h, 0) + y * os[3], out.to(o.dtype.element_ty), mask=y < V)
    tl.store(final + where, S, mask=here)


@triton.jit
def delta_step_gradients(
    results, q, erase, write, v, g, beta, state, do, dfinal, strides, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The step's gradients, float32: dq, derase, dwrite [B, HV, K], dv [B, HV, V], dg, dbeta [B, HV], dstate.

    A program is a head; `write` is None where it is beta * erase, whose gradient then has both parts. strides are
    those of q, erase, write, v, g, beta, do.
    """
    qs, es, ws, vs, gs, bs, os = strides
    dq, derase, dwrite, dv, dg, dbeta, dstate = results
    HV, per_query, per_erase, per_write = sizes
    b, h = tl.program_id(0) // HV, tl.program_id(0) % HV
    head = b.to(tl.int64) * HV + h
    x = tl.arange(0, BK)
    E, Q = _row(erase, es, b, h // per_erase, x, K), _row(q, qs, b, h // per_query, x, K)
    W = E if write is None else _row(write, ws, b, h // per_write, x, K)
    factor = 1.0 if beta is None else _number(beta, bs, b, h)
    kept = 1.0 if g is None else tl.exp(_number(g, gs, b, h))
    dQ, dE, dW = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
    of_gate = tl.zeros([BK], tl.float32)
    for y0 in range(0, V, BV):
        y = y0 + tl.arange(0, BV)
        here = (x < K)[:, None] & (y < V)[None, :]
        where = head * (K * V) + x[:, None] * V + y[None, :]
        S = tl.zeros([BK, BV], tl.float32)
        if state is not None:
            S = _decayed(state, g, gs, b, h, where, here)
        u = _row(v, vs, b, h, y, V) - tl.sum(S * E[:, None], axis=0)  # [BV]
        upstream = _row(do, os, b, h, y, V) * scale  # [BV]
        after = Q[:, None] * upstream[None, :]  # [BK, BV]
        if dfinal is not None:
            after += tl.load(dfinal + where, mask=here, other=0.0)
        du = tl.sum(after * W[:, None], axis=0) * factor  # [BV]
        dQ += tl.sum(S * upstream[None, :], axis=1) + W * (factor * tl.sum(u * upstream, axis=0))
        dE -= tl.sum(S * du[None, :], axis=1)
        dW += tl.sum(after * u[None, :], axis=1)
        before = after - E[:, None] * du[None, :]  # [BK, BV]
        of_gate += tl.sum(S * before, axis=1)
        tl.store(dv + head * V + y, du, mask=y < V)
        tl.store(dstate + where, kept * before, mask=here)
    tl.store(dq + head * K + x, dQ, mask=x < K)
    if g is not None:
        tl.store(dg + head, tl.sum(of_gate, axis=0))
    if beta is not None:
        tl.store(dbeta + head, tl.sum(W * dW, axis=0))
    if write is None:
        tl.store(derase + head * K + x, dE + factor * dW, mask=x < K)
    else:
        tl.store(derase + head * K + x, dE, mask=x < K)
        tl.store(dwrite + head * K + x, factor * dW, mask=x < K)
