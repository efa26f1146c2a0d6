"""The part of a delta scan that needs no state: for every chunk, the inverse of its triangular system, and its decays.

With A = strict_lower(E W^T * D) [C, C] (rows of E, W: the chunk's erase and write keys; D[t, s] the decay from s to t)
the residuals of a chunk that starts from S are R = Tm (V - d * (E S)), Tm = (I + A)^{-1}.

A chunk is cut into blocks of 16 tokens. A diagonal block's inverse takes three doublings, X <- X - (X O) X with O the
part of A that joins pairs of blocks of 2, 4, 8 tokens (2 dots each); a block below the diagonal is
X_ij = -X_ii sum_{j <= k < i} A_ik X_kj. That is substitution by blocks: as stable, for entries of any size, as the loop
over rows, in 13 dots of 16 x 16 x 16 one after the other. Doubling on the whole 64 x 64 tile takes 10 dots, 20 times
the arithmetic, so it can afford single bfloat16 operands only; here three tf32 products an operand pair are cheap.

Only Tm is stored, not Tm V and Tm (d * E), though a walk then has three dependent dots a chunk instead of two. It moves
a quarter of the bytes (C columns a token against K + V), and the residual is formed before it is multiplied by
Tm: what the state already knows cancels in float32, and a large Tm does not amplify the rounding of two products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, decays, dot, dot_add, put, segment, tile, unit_lower_inverse


@triton.jit
def _gates(g, strides, b, h, t0, end, R: tl.constexpr):
    """16 gates from token t0 on, 0 behind the end or without gates."""
    own = tl.zeros([R], tl.float32)
    if g is not None:
        i = tl.arange(0, R)
        own += tl.load(at(g, strides, b, h, t0) + i * strides[1], mask=t0 + i < end, other=0.0).to(tl.float32)
    return own


@triton.jit
def _after(g, strides, b, h, t0, end, R: tl.constexpr):
    """Sum of the gates behind each of R tokens, up to the R-th: the log of what is kept of it there."""
    own = tl.zeros([R], tl.float32)
    if g is not None:
        i = tl.arange(0, R)
        live = (t0 + i + 1 < end) & (i + 1 < R)
        own += tl.load(at(g, strides, b, h, t0 + 1) + i * strides[1], mask=live, other=0.0).to(tl.float32)
    return tl.cumsum(own, axis=0, reverse=True)


@triton.jit
def betas(beta, strides, b, h, t0, end, R: tl.constexpr):
    """beta of R tokens from t0 on, 1 if there is none."""
    factor = tl.full([R], 1.0, tl.float32)
    if beta is not None:
        i = tl.arange(0, R)
        factor = tl.load(at(beta, strides, b, h, t0) + i * strides[1], mask=t0 + i < end, other=0.0).to(tl.float32)
    return factor


@triton.jit
def _diagonal(A, own, beta, PRECISION: tl.constexpr, R: tl.constexpr):
    """(I + strict_lower(A * D * beta))^{-1} [R, R] of one block of tokens."""
    t = tl.arange(0, R)
    sums = tl.cumsum(tl.where(t[:, None] > t[None, :], own[:, None], 0.0), axis=0)
    A *= tl.where(t[:, None] > t[None, :], tl.exp(sums), 0.0) * beta[None, :]
    return unit_lower_inverse(A, R, PRECISION)


@triton.jit
def _below(A, since, between, after, beta):
    """A * D * beta [R, R] of a block below the diagonal: D = exp(gates since t's block began + between + after s)."""
    return A * tl.exp(since[:, None] + between + after[None, :]) * beta[None, :]


@triton.jit
def _store(tm, strides, t0, end, row: tl.constexpr, column: tl.constexpr, X, R: tl.constexpr, C: tl.constexpr,
           PLANES: tl.constexpr):  # fmt: skip
    """Block (row, column) of Tm; with two planes, C columns further on what the first one's rounding left."""
    i = tl.arange(0, R)
    live = t0 + row * R + i < end
    ptr = tm + row * R * strides[1]
    put(ptr, strides, i, column * R + i, live, X, C)
    if PLANES == 2:
        left = X - X.to(tm.dtype.element_ty).to(tl.float32)
        put(ptr, strides, i, C + column * R + i, live, left, 2 * C)


@triton.jit
def inverses(
    tm, factors, erase, write, g, beta, strides, table, sizes,
    K: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, R: tl.constexpr, PLANES: tl.constexpr, PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """tm [B, T, HV, PLANES * C]: rows of Tm, each at its token. factors [B, T, HV, 2] float32: d, and e times beta.

    A program is a chunk of a head, in blocks of R = C / 4 tokens. `write` is None where it is beta * erase. strides are
    those of tm, factors, erase, write, g, beta; sizes T, chunks in a row, HV, and value heads per head of erase and of
    write. Dots of input tiles take precision PRODUCT, dots of blocks PRECISION.
    """
    tl.static_assert(C == 4 * R)
    T, each, HV, per_erase, per_write = sizes
    tm_strides, f_strides, e_strides, w_strides, g_strides, beta_strides = strides
    c, h = tl.program_id(0) // HV, tl.program_id(0) % HV
    _, b, t0, end = segment(c, table, T, each, C, PACKED)
    if t0 < end:
        i = tl.arange(0, R)
        a00, a10, a11 = tl.zeros([R, R], tl.float32), tl.zeros([R, R], tl.float32), tl.zeros([R, R], tl.float32)
        a20, a21, a22 = tl.zeros([R, R], tl.float32), tl.zeros([R, R], tl.float32), tl.zeros([R, R], tl.float32)
        a30, a31 = tl.zeros([R, R], tl.float32), tl.zeros([R, R], tl.float32)
        a32, a33 = tl.zeros([R, R], tl.float32), tl.zeros([R, R], tl.float32)
        e_ptr = at(erase, e_strides, b, h // per_erase, t0)
        w_ptr = e_ptr if write is None else at(write, w_strides, b, h // per_write, t0)
        for k0 in range(0, K, BLOCK):
            x = k0 + tl.arange(0, BLOCK)
            e0 = tile(e_ptr, e_strides, i, x, t0 + i < end, K)  # [R, BLOCK]
            e1 = tile(e_ptr, e_strides, R + i, x, t0 + R + i < end, K)
            e2 = tile(e_ptr, e_strides, 2 * R + i, x, t0 + 2 * R + i < end, K)
            e3 = tile(e_ptr, e_strides, 3 * R + i, x, t0 + 3 * R + i < end, K)
            if write is None:
                w0, w1, w2, w3 = tl.trans(e0), tl.trans(e1), tl.trans(e2), tl.trans(e3)
            else:
                w0 = tl.trans(tile(w_ptr, w_strides, i, x, t0 + i < end, K))  # [BLOCK, R]
                w1 = tl.trans(tile(w_ptr, w_strides, R + i, x, t0 + R + i < end, K))
                w2 = tl.trans(tile(w_ptr, w_strides, 2 * R + i, x, t0 + 2 * R + i < end, K))
                w3 = tl.trans(tile(w_ptr, w_strides, 3 * R + i, x, t0 + 3 * R + i < end, K))
            a00, a10 = dot_add(a00, e0, w0, PRODUCT), dot_add(a10, e1, w0, PRODUCT)  # [R, BLOCK] [BLOCK, R]
            a11, a20 = dot_add(a11, e1, w1, PRODUCT), dot_add(a20, e2, w0, PRODUCT)
            a21, a22 = dot_add(a21, e2, w1, PRODUCT), dot_add(a22, e2, w2, PRODUCT)
            a30, a31 = dot_add(a30, e3, w0, PRODUCT), dot_add(a31, e3, w1, PRODUCT)
            a32, a33 = dot_add(a32, e3, w2, PRODUCT), dot_add(a33, e3, w3, PRODUCT)
        t1, t2, t3 = t0 + R, t0 + 2 * R, t0 + 3 * R
        g0, g1 = _gates(g, g_strides, b, h, t0, end, R), _gates(g, g_strides, b, h, t1, end, R)
        g2, g3 = _gates(g, g_strides, b, h, t2, end, R), _gates(g, g_strides, b, h, t3, end, R)
        s0, s1 = _after(g, g_strides, b, h, t0, end, R), _after(g, g_strides, b, h, t1, end, R)
        s2, s3 = _after(g, g_strides, b, h, t2, end, R), _after(g, g_strides, b, h, t3, end, R)
        b0, b1 = betas(beta, beta_strides, b, h, t0, end, R), betas(beta, beta_strides, b, h, t1, end, R)
        b2, b3 = betas(beta, beta_strides, b, h, t2, end, R), betas(beta, beta_strides, b, h, t3, end, R)
        p0, p1, p2, p3 = tl.cumsum(g0, axis=0), tl.cumsum(g1, axis=0), tl.cumsum(g2, axis=0), tl.cumsum(g3, axis=0)
        m0, m1, m2, m3 = tl.sum(g0, axis=0), tl.sum(g1, axis=0), tl.sum(g2, axis=0), tl.sum(g3, axis=0)

        f_ptr = at(factors, f_strides, b, h, t0) + i * f_strides[1]
        tl.store(f_ptr, tl.exp(p0), mask=t0 + i < end)
        tl.store(f_ptr + R * f_strides[1], tl.exp(m0 + p1), mask=t1 + i < end)
        tl.store(f_ptr + 2 * R * f_strides[1], tl.exp(m0 + m1 + p2), mask=t2 + i < end)
        tl.store(f_ptr + 3 * R * f_strides[1], tl.exp(m0 + m1 + m2 + p3), mask=t3 + i < end)
        tl.store(f_ptr + 1, tl.exp(s0 + m1 + m2 + m3) * b0, mask=t0 + i < end)
        tl.store(f_ptr + R * f_strides[1] + 1, tl.exp(s1 + m2 + m3) * b1, mask=t1 + i < end)
        tl.store(f_ptr + 2 * R * f_strides[1] + 1, tl.exp(s2 + m3) * b2, mask=t2 + i < end)
        tl.store(f_ptr + 3 * R * f_strides[1] + 1, tl.exp(s3) * b3, mask=t3 + i < end)

        x00, x11 = _diagonal(a00, g0, b0, PRECISION, R), _diagonal(a11, g1, b1, PRECISION, R)
        x22, x33 = _diagonal(a22, g2, b2, PRECISION, R), _diagonal(a33, g3, b3, PRECISION, R)
        a10, a21, a32 = _below(a10, p1, 0.0, s0, b0), _below(a21, p2, 0.0, s1, b1), _below(a32, p3, 0.0, s2, b2)
        a20, a31, a30 = _below(a20, p2, m1, s0, b0), _below(a31, p3, m2, s1, b1), _below(a30, p3, m1 + m2, s0, b0)
        x10 = -dot(x11, dot(a10, x00, PRECISION), PRECISION)  # every dot from here on: [R, R] [R, R]
        x21 = -dot(x22, dot(a21, x11, PRECISION), PRECISION)
        x32 = -dot(x33, dot(a32, x22, PRECISION), PRECISION)
        x20 = -dot(x22, dot_add(dot(a20, x00, PRECISION), a21, x10, PRECISION), PRECISION)
        x31 = -dot(x33, dot_add(dot(a31, x11, PRECISION), a32, x21, PRECISION), PRECISION)
        y = dot_add(dot(a30, x00, PRECISION), a31, x10, PRECISION)
        x30 = -dot(x33, dot_add(y, a32, x20, PRECISION), PRECISION)

        ptr = at(tm, tm_strides, b, h, t0)
        none = tl.zeros([R, R], tl.float32)
        _store(ptr, tm_strides, t0, end, 0, 0, x00, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 0, 1, none, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 0, 2, none, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 0, 3, none, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 1, 0, x10, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 1, 1, x11, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 1, 2, none, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 1, 3, none, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 2, 0, x20, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 2, 1, x21, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 2, 2, x22, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 2, 3, none, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 3, 0, x30, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 3, 1, x31, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 3, 2, x32, R, C, PLANES)
        _store(ptr, tm_strides, t0, end, 3, 3, x33, R, C, PLANES)


@triton.jit
def reads(
    reads, q, write, g, beta, strides, table, sizes, scale,
    K: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, PLANES: tl.constexpr, PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """reads [B, T, HV, PLANES * C]: row t, column s is how much of what s wrote t reads, scale lower(Q W^T * D * beta).

    A program is a chunk of a head. `write` is the erase key where its factor beta is apart. strides are those of reads,
    q, write, g, beta; sizes T, chunks in a row, HV, and value heads per head of q and of write.
    """
    T, each, HV, per_query, per_write = sizes
    reads_strides, q_strides, w_strides, g_strides, beta_strides = strides
    c, h, i = tl.program_id(0) // HV, tl.program_id(0) % HV, tl.arange(0, C)
    _, b, t0, end = segment(c, table, T, each, C, PACKED)
    live = t0 + i < end
    q, write = at(q, q_strides, b, h // per_query, t0), at(write, w_strides, b, h // per_write, t0)
    M = tl.zeros([C, C], tl.float32)
    for k0 in range(0, K, BLOCK):
        x = k0 + tl.arange(0, BLOCK)
        Q, W = tile(q, q_strides, i, x, live, K), tile(write, w_strides, i, x, live, K)  # [C, BLOCK]
        M = dot_add(M, Q, tl.trans(W), PRECISION)  # [C, BLOCK] [BLOCK, C]
    M *= scale
    if g is None:
        M = tl.where(i[:, None] >= i[None, :], M, 0.0)
    else:
        own = tl.load(at(g, g_strides, b, h, t0) + i * g_strides[1], mask=live, other=0.0).to(tl.float32)
        M *= decays(own, C, q.dtype.element_ty)
    if beta is not None:
        M *= betas(beta, beta_strides, b, h, t0, end, C)[None, :]
    ptr = at(reads, reads_strides, b, h, t0)
    put(ptr, reads_strides, i, i, live, M, C)
    if PLANES == 2:
        put(ptr, reads_strides, i, C + i, live, M - M.to(reads.dtype.element_ty).to(tl.float32), 2 * C)
