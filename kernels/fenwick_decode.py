"""One token of a Fenwick scan: popcount(t) buckets and the token itself are read, all levels of the state written.

At position t, with W = beta k (k without beta), S_j the bucket of set bit j of t and z the trailing ones of t,

    S_j' = exp(g) S_j               with beta: exp(g) (S_j - W (k^T S_j)),          N = W v^T
    o = scale (lam^0 N + sum_j lam^{j + 1} S_j')^T q

and behind the token the buckets of bits below z and N are one, that of bit z. Upstream dO, times scale, and the
gradient F of the state behind it (F_j that of the level in which bucket j is then) give, with du = -dS_j'^T W and S_j
as the gate leaves it,

    dS_j' = lam^{j + 1} q dO^T + F_j,   dS_j = exp(g) (dS_j' + k du^T)
    dk = sum_j S_j du,                  dW = dN v - sum_j dS_j' (S_j^T k)
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at


@triton.jit
def row(ptr, strides, b, h, x, WIDTH: tl.constexpr):
    """Channels x of one token, float32."""
    return tl.load(at(ptr, strides, b, h, 0) + x * strides[3], mask=x < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def entry(ptr, strides, b, h):
    """The number that one token has in a head, float32."""
    return tl.load(at(ptr, strides, b, h, 0)).to(tl.float32)


@triton.jit
def ones(t):
    """The trailing ones of a position."""
    last = tl.cast((t + 1) & -(t + 1), tl.float32)
    return (last.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def weight(lam, strides, b, h, level, L):
    """One level weight, NaN without such a level."""
    found = tl.load(at(lam, strides, b, h, 0) + level * strides[3], mask=level < L, other=0.0).to(tl.float32)
    return tl.where(level < L, found, float("nan"))


@triton.jit
def fenwick_step(
    o, final, q, k, v, g, lam, beta, state, position, strides, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o [B, 1, HV, V] and final [B, L, HV, K, V] from state [B, L, HV, K, V] (or None) at position [B].

    A program is BV columns of v of a head. strides are those of o, q, k, v, g, lam, beta; sizes HV, value heads per
    head, L.
    """
    os, qs, ks, vs, gs, ls, bs = strides
    HV, G, L = sizes
    blocks: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    b, h = (pid // (blocks * HV)).to(tl.int64), pid // blocks % HV
    x, y = tl.arange(0, BK), pid % blocks * BV + tl.arange(0, BV)
    here = (x < K)[:, None] & (y < V)[None, :]
    size = K * V * tl.cast(HV, tl.int64)
    where = (b * L * HV + h) * (K * V) + x[:, None] * V + y[None, :]
    Q, erase = row(q, qs, b, h // G, x, K), row(k, ks, b, h // G, x, K)
    W = erase if beta is None else erase * entry(beta, bs, b, h)
    merged = W[:, None] * row(v, vs, b, h, y, V)[None, :]  # [BK, BV]
    out = tl.sum(Q[:, None] * merged, axis=0) * weight(lam, ls, b, h, 0, L)  # [BV]
    none = tl.zeros([BK, BV], tl.float32)
    tl.store(final + where, none, mask=here)
    t, kept = 0 * b, 1.0
    if state is not None:
        t, kept = tl.load(position + b).to(tl.int64), tl.exp(entry(g, gs, b, h))
    z = ones(t)
    for level in range(1, L):
        S = none
        if (t >> (level - 1)) & 1 == 1:  # noqa: SIM102 (the next is decided when compiled)
            if state is not None:
                S = tl.load(state + level * size + where, mask=here, other=0.0) * kept  # [BK, BV]
                if beta is not None:
                    S -= W[:, None] * tl.sum(S * erase[:, None], axis=0)[None, :]
                out += weight(lam, ls, b, h, level, L) * tl.sum(Q[:, None] * S, axis=0)
        if level <= z:
            merged += S
            S = none
        if level == z + 1:
            S = merged
        tl.store(final + level * size + where, S, mask=here)
    if z >= L - 1:  # the one bucket stays in the last level
        tl.store(final + (L - 1) * size + where, merged, mask=here)
    if t >> (L - 1) != 0:
        out += float("nan")
        tl.store(final + (L - 1) * size + where, none + float("nan"), mask=here)
    tl.store(at(o, os, b, h, 0) + y * os[3], (out * scale).to(o.dtype.element_ty), mask=y < V)


@triton.jit
def fenwick_step_gradients(
    results, q, k, v, g, lam, beta, state, position, do, dfinal, strides, sizes, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """The step's gradients, float32: dq, dk [B, HV, K], dv [B, HV, V], dg [B, HV], dlam [B, HV, L], dbeta [B, HV],
    dstate [B, L, HV, K, V] or None.

    A program is a head. strides are those of q, k, v, g, lam, beta, do; sizes HV, value heads per head, L <= LEVELS.
    """
    qs, ks, vs, gs, ls, bs, os = strides
    dq, dk, dv, dg, dlam, dbeta, dstate = results
    HV, G, L = sizes
    b, h = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    head, x, levels = b * HV + h, tl.arange(0, BK), tl.arange(0, LEVELS)
    size = K * V * tl.cast(HV, tl.int64)
    Q, erase = row(q, qs, b, h // G, x, K), row(k, ks, b, h // G, x, K)
    factor = 1.0 if beta is None else entry(beta, bs, b, h)
    W = erase * factor
    t, kept = 0 * b, 1.0
    if state is not None:
        t, kept = tl.load(position + b).to(tl.int64), tl.exp(entry(g, gs, b, h))
    z = ones(t)
    to = tl.minimum(z + 1, L - 1)  # the level of the bucket that the token is in, behind it
    dQ, dE, dW = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
    of_gate, of_weights = tl.zeros([BK], tl.float32), tl.zeros([LEVELS], tl.float32)
    for y0 in range(0, V, BV):
        y = y0 + tl.arange(0, BV)
        here = (x < K)[:, None] & (y < V)[None, :]
        where = (b * L * HV + h) * (K * V) + x[:, None] * V + y[None, :]
        values, upstream = row(v, vs, b, h, y, V), row(do, os, b, h, y, V) * scale  # [BV]
        of_read = Q[:, None] * upstream[None, :]  # [BK, BV]
        of_merged = tl.zeros([BK, BV], tl.float32)
        if dfinal is not None:
            of_merged += tl.load(dfinal + to * size + where, mask=here, other=0.0)
        # the token itself
        w = weight(lam, ls, b, h, 0, L)
        of_token = w * of_read + of_merged
        given = tl.sum(values * upstream, axis=0)
        of_weights += tl.where(levels == 0, tl.sum(Q * W, axis=0) * given, 0.0)
        dQ += w * given * W
        dW += tl.sum(of_token * values[None, :], axis=1)
        tl.store(dv + head * V + y, tl.sum(of_token * W[:, None], axis=0), mask=y < V)
        if state is not None:
            tl.store(dstate + where, tl.zeros([BK, BV], tl.float32), mask=here)
            for level in range(1, L):
                before = tl.zeros([BK, BV], tl.float32)
                if (t >> (level - 1)) & 1 == 1:
                    decayed = tl.load(state + level * size + where, mask=here, other=0.0) * kept  # [BK, BV]
                    S, known = decayed, tl.sum(decayed * erase[:, None], axis=0)  # [BV]
                    w = weight(lam, ls, b, h, level, L)
                    after = w * of_read
                    if level <= z:
                        after += of_merged
                    elif dfinal is not None:
                        after += tl.load(dfinal + level * size + where, mask=here, other=0.0)
                    before = after
                    if beta is not None:
                        S = decayed - W[:, None] * known[None, :]
                        du = -tl.sum(after * W[:, None], axis=0)  # [BV]
                        dE += tl.sum(decayed * du[None, :], axis=1)
                        dW -= tl.sum(after * known[None, :], axis=1)
                        before = after + erase[:, None] * du[None, :]
                    read = tl.sum(S * upstream[None, :], axis=1)  # [BK]
                    dQ += w * read
                    of_weights += tl.where(levels == level, tl.sum(read * Q, axis=0), 0.0)
                    of_gate += tl.sum(decayed * before, axis=1)
                tl.store(dstate + level * size + where, before * kept, mask=here)
    tl.store(dq + head * K + x, dQ, mask=x < K)
    tl.store(dk + head * K + x, dE + factor * dW, mask=x < K)
    tl.store(dg + head, tl.sum(of_gate, axis=0))
    tl.store(dlam + head * L + levels, of_weights, mask=levels < L)
    if beta is not None:
        tl.store(dbeta + head, tl.sum(erase * dW, axis=0))
