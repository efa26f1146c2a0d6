"""The way back from d, eps and log f to keys, weights, forgetting and state: a reversed scan of a vector and a number.

With M_t and U_t the gradients of the mean and of log W_t behind token t, found, gamma_t = 1 - rho_t what the token is
of the mean (equations: covariance_prepare.py; dd, deps and Gamma, the gradient of log f: covariance_gradients.py):

    M_{t-1} = rho_t M_t - dd_t,     dk_t = gamma_t M_t + dd_t,      dgamma_t = <M_t, d_t>
    U_{t-1} = f_t U_t - eps_t dgamma_t + z_t,    z_t = eps_t (gamma_t - rho_t) deps_t + gamma_t Gamma_t
    dg_t = U_{t-1},                 dw_t = (U_t + rho_t dgamma_t + rho_t (rho_t - gamma_t) deps_t - Gamma_t) / W_t

Nothing is divided by a count but dw, so counts that fade away are nothing special. A token that finds the state empty
has rho = 0, z = -f Gamma and dg = Gamma; one that leaves it empty moves the count alone: z = 0, dw = U. A key that
becomes the reference moves later keys, but no difference of them: what it moves is the last reference and mean.

`local` finds what a segment does to (M, U, the reference's gradient), all linear; `scan` goes from the last segment to
the first; `finish` walks each segment again, and stores. In a chunk with M and U given at its end:

    M_t = alpha_t M - sum_{s > t} (prod_{t < r < s} rho_r) dd_s

Source: the recursion of `linattest.impls.covariance_contract`, reversed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels.blocks import at, dot, operand, put, segment, tile
from linattest.kernels.covariance_prepare import (
    COUNT,
    FACTOR,
    GAMMA,
    GATE,
    GATE_GRADIENT,
    MEAN_GATE,
    READ,
    VALUE_GRADIENT,
)

OFFSET, TURN, REFERENCE = (tl.constexpr(n) for n in range(3))
"""Vectors of a segment's record: M before it is DECAY M + OFFSET, U before it FACTORS U + <TURN, M> + CONSTANT, the
reference's gradient R before it PASSES R + REFERENCE_RATE M + REFERENCE. After `scan` OFFSET is M at its end, and TURN
what the last new reference of a sequence gets beside it."""

DECAY, FACTORS, CONSTANT, PASSES, REFERENCE_RATE, END_COUNT, END_U, LAST = (tl.constexpr(n) for n in range(8))
"""Numbers of a record; after `scan` also U at its end, and 1 if no later segment has a new reference."""


def record(K: int) -> int:
    """float32 values of a segment's record."""
    return 3 * K + 8


@triton.jit
def _plane(planes, number, size, i, live):
    return tl.load(planes + number * size + i, mask=live, other=0.0)


@triton.jit
def _sums(planes, number, size, i, left, C: tl.constexpr):
    """exp of sums of a chunk's logs: all; those before and after each token [C]; those between t and s [C, C]."""
    own = _plane(planes, number, size, i, i < left)
    earlier = _plane(planes, number, size, i - 1, (i > 0) & (i - 1 < left))
    later = _plane(planes, number, size, i + 1, (i + 1 < left) & (i + 1 < C))
    between = tl.cumsum(tl.where(i[None, :] - 1 > i[:, None], earlier[None, :], 0.0), axis=1)
    between = tl.where(i[None, :] > i[:, None], tl.exp(between), 0.0)
    after = tl.exp(tl.cumsum(later, axis=0, reverse=True))
    return tl.exp(tl.sum(own, axis=0)), tl.exp(tl.cumsum(earlier, axis=0)), after, between


@triton.jit
def _numbers(planes, size, i, live, last, HAS_FINAL: tl.constexpr):
    """gamma, rho, f, the signed count, deps, Gamma of a chunk's tokens, z, and what the last one adds to its U."""
    gamma, factor = _plane(planes, GAMMA, size, i, live), _plane(planes, FACTOR, size, i, live)
    count = _plane(planes, COUNT, size, i, live)
    rho = tl.where(count > 0, factor, 0.0)
    gate, value = _plane(planes, GATE_GRADIENT, size, i, live), _plane(planes, VALUE_GRADIENT, size, i, live)
    z = tl.where(rho > 0, gamma * rho * (gamma - rho) * value + gamma * gate, tl.where(count == 0, 0.0, -factor * gate))
    extra = tl.zeros_like(z)
    if HAS_FINAL:  # the scatter handed over is W times what is kept
        extra = tl.where(last & (count != 0), gate + gamma * rho * value - _plane(planes, READ, size, i, live), 0.0)
    return gamma, rho, factor, count, value, gate, z, extra


@triton.jit
def local(
    dd, deltas, planes, records, first, strides, table, sizes,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, RECORD: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, HAS_FINAL: tl.constexpr,
):  # fmt: skip
    """The records [segments, H, RECORD] of segments, but for what holds at their ends."""
    T, each, H, size = sizes
    size = tl.cast(size, tl.int64)
    pid = tl.program_id(0)
    s, h = pid // H, pid % H
    x, i = tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    head, tail = begin == 0, end == T
    if PACKED:
        head, tail = s == tl.load(first + n), s + 1 == tl.load(first + n + 1)
    dd, deltas = at(dd, strides, b, h, 0), at(deltas, strides, b, h, 0)
    planes += (tl.cast(b, tl.int64) * H + h) * T
    decay, factors, constant, passes, rate = 1.0, 1.0, 0.0, 1.0, 0.0
    offset, turn, reference = (tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32))
    chunks = tl.cdiv(end - begin, C)
    for j in range(0, chunks):
        t0 = begin + tl.cast((chunks - 1 - j) * C, tl.int64)
        left = end - t0
        live, here = i < left, planes + t0
        kept, before, after, between = _sums(here, MEAN_GATE, size, i, left, C)
        factor, ahead, _behind, _apart = _sums(here, GATE, size, i, left, C)
        gamma, rho, own_factor, count, value, gate, z, extra = _numbers(
            here, size, i, live, (i == left - 1) & tail, HAS_FINAL
        )
        # the scatter that is given is W times what is kept: the first token's gate passes on none of that
        opening = (i == 0) & (i * 0 + tl.where(head, t0, begin + 1) == begin)
        eps = gamma * rho
        z = tl.where(opening & (rho > 0), eps * (gamma - rho) * value - rho * gate, z) + own_factor * extra
        down = tile(dd + t0 * strides[1], strides, i, x, live, K)  # [C, BK]
        delta = tile(deltas + t0 * strides[1], strides, i, x, live, K).to(tl.float32)  # [C, BK]
        mean = -dot(operand(between, STAGE), operand(down, STAGE), PRECISION)  # [C, C] [C, BK]
        turned = -tl.sum(delta * (ahead * eps * after)[:, None], axis=0)
        added = tl.sum(ahead * (z - eps * tl.sum(delta * mean, axis=1)), axis=0)
        alone = tl.cumsum(tl.where(count < 0, 1.0, 0.0), axis=0) == 0  # not behind a new reference in this chunk
        here_passes = tl.where(tl.sum(tl.where(count < 0, 1.0, 0.0), axis=0) == 0, 1.0, 0.0)
        moved = tl.sum(tl.where(alone[:, None], gamma[:, None] * mean + down, 0.0), axis=0)
        moved_rate = tl.sum(tl.where(alone, gamma * after, 0.0), axis=0)
        constant = factor * constant + added + tl.sum(turned * offset, axis=0)
        turn = factor * turn + decay * turned
        factors = factor * factors
        reference = here_passes * reference + moved + moved_rate * offset
        rate = here_passes * rate + moved_rate * decay
        passes = here_passes * passes
        offset = kept * offset - tl.sum(down * before[:, None], axis=0)
        decay = kept * decay
    ptr = records + (s.to(tl.int64) * H + h) * RECORD
    inside = x < K
    tl.store(ptr + OFFSET * K + x, offset, mask=inside)
    tl.store(ptr + TURN * K + x, turn, mask=inside)
    tl.store(ptr + REFERENCE * K + x, reference, mask=inside)
    numbers = ptr + 3 * K
    tl.store(numbers + DECAY, decay)
    tl.store(numbers + FACTORS, factors)
    tl.store(numbers + CONSTANT, constant)
    tl.store(numbers + PASSES, passes)
    tl.store(numbers + REFERENCE_RATE, rate)
    tl.store(numbers + END_COUNT, tl.abs(tl.load(planes + COUNT * size + end - 1, mask=begin < end, other=0.0)))


@triton.jit
def scan(
    records, first, count, end_gradients, gradients, each, H,
    K: tl.constexpr, BK: tl.constexpr, RECORD: tl.constexpr, PACKED: tl.constexpr, HAS_FINAL: tl.constexpr,
):  # fmt: skip
    """M and U at segments' ends into their records, and the gradients of count, reference, mean at the start.

    `end_gradients` and `gradients`: of count [N, H], reference and mean [N, H, K].
    """
    end_count, end_reference, end_mean = end_gradients
    start_count, start_reference, start_mean = gradients
    pid = tl.program_id(0)
    n, h = (pid // H).to(tl.int64), pid % H
    x = tl.arange(0, BK)
    if PACKED:
        begin, end = tl.load(first + n).to(tl.int64), tl.load(first + n + 1).to(tl.int64)
    else:
        begin, end = n * each, (n + 1) * each
    own, inside = n * H + h, x < K
    U, last = 0.0, 1.0
    M, R, anchor = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
    if HAS_FINAL:
        U = tl.load(end_count + own)
        M = tl.load(end_mean + own * K + x, mask=inside, other=0.0)
        R = -tl.load(end_reference + own * K + x, mask=inside, other=0.0)
        if begin < end:
            W = tl.load(records + ((end - 1) * H + h) * RECORD + 3 * K + END_COUNT)
            U = U * tl.where(W == 0, 1.0, W)
            anchor = -R - tl.where(W == 0, 0.0, M)
    for j in range(0, end - begin):
        ptr = records + ((end - 1 - j) * H + h) * RECORD
        numbers = ptr + 3 * K
        offset = tl.load(ptr + OFFSET * K + x, mask=inside, other=0.0)
        turn = tl.load(ptr + TURN * K + x, mask=inside, other=0.0)
        reference = tl.load(ptr + REFERENCE * K + x, mask=inside, other=0.0)
        tl.store(ptr + OFFSET * K + x, M, mask=inside)
        tl.store(ptr + TURN * K + x, anchor, mask=inside)
        tl.store(numbers + END_U, U)
        tl.store(numbers + LAST, last)
        passes = tl.load(numbers + PASSES)
        U = tl.load(numbers + FACTORS) * U + tl.sum(turn * M, axis=0) + tl.load(numbers + CONSTANT)
        R = passes * R + tl.load(numbers + REFERENCE_RATE) * M + reference
        M = tl.load(numbers + DECAY) * M + offset
        last = passes * last
    if start_count is not None:
        W = tl.load(count + own)
        if begin < end:
            U = U / tl.where(W == 0, 1.0, W)
            M = tl.where(W == 0, 0.0, M)
        tl.store(start_count + own, U)
        tl.store(start_reference + own * K + x, -R, mask=inside)
        tl.store(start_mean + own * K + x, M, mask=inside)


@triton.jit
def finish(
    dd, deltas, planes, records, results, first, strides, table, sizes,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, RECORD: tl.constexpr,
    STAGE: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, HAS_FINAL: tl.constexpr,
):  # fmt: skip
    """Gradients of k [B, T, H, K] and, where they are not None, of cov_g and weight [B, T, H]: `results`."""
    dk, dg, dw = results
    xs, ks, gs, ws = strides
    T, each, H, size = sizes
    size = tl.cast(size, tl.int64)
    pid = tl.program_id(0)
    s, h = pid // H, pid % H
    x, i = tl.arange(0, BK), tl.arange(0, C)
    n, b, begin, end = segment(s, table, T, each, LENGTH, PACKED)
    tail = end == T
    if PACKED:
        tail = s + 1 == tl.load(first + n + 1)
    dd, deltas = at(dd, xs, b, h, 0), at(deltas, xs, b, h, 0)
    planes += (tl.cast(b, tl.int64) * H + h) * T
    ptr = records + (s.to(tl.int64) * H + h) * RECORD
    M = tl.load(ptr + OFFSET * K + x, mask=x < K, other=0.0)
    U, pending = tl.load(ptr + 3 * K + END_U), tl.load(ptr + 3 * K + LAST)
    anchor = tl.zeros([BK], tl.float32)
    if HAS_FINAL:
        anchor = tl.load(ptr + TURN * K + x, mask=x < K, other=0.0)
    chunks = tl.cdiv(end - begin, C)
    for j in range(0, chunks):
        t0 = begin + tl.cast((chunks - 1 - j) * C, tl.int64)
        left = end - t0
        live, here = i < left, planes + t0
        kept, before, after, between = _sums(here, MEAN_GATE, size, i, left, C)
        factor, ahead, behind, apart = _sums(here, GATE, size, i, left, C)
        gamma, rho, own_factor, count, value, gate, z, extra = _numbers(
            here, size, i, live, (i == left - 1) & tail, HAS_FINAL
        )
        down = tile(dd + t0 * xs[1], xs, i, x, live, K)  # [C, BK]
        delta = tile(deltas + t0 * xs[1], xs, i, x, live, K).to(tl.float32)  # [C, BK]
        mean = after[:, None] * M[None, :] - dot(operand(between, STAGE), operand(down, STAGE), PRECISION)  # [C, BK]
        moved = tl.sum(mean * delta, axis=1)
        steps = z - gamma * rho * moved
        jumps = steps + own_factor * extra
        counts = behind * U + tl.sum(apart * jumps[None, :], axis=1) + extra
        gradient = gamma[:, None] * mean + down
        if HAS_FINAL:
            latest = tl.max(tl.where(count < 0, i, -1), axis=0)
            gradient += tl.where(i == latest, pending, 0.0)[:, None] * anchor[None, :]
            pending = tl.where(latest < 0, pending, 0.0)
        put(at(dk, ks, b, h, t0), ks, i, x, live, gradient, K)
        if dg is not None:
            gates = tl.where(rho > 0, own_factor * counts + steps, gate)
            tl.store(at(dg, gs, b, h, t0) + i * gs[1], gates.to(dg.dtype.element_ty), mask=live)
        if dw is not None:
            total = tl.where(count == 0, 1.0, tl.abs(count))
            weights = counts + rho * (moved + (rho - gamma) * value) - tl.where(count == 0, 0.0, gate)
            tl.store(at(dw, ws, b, h, t0) + i * ws[1], (weights / total).to(dw.dtype.element_ty), mask=live)
        U = factor * U + tl.sum(ahead * jumps, axis=0)
        M = kept * M - tl.sum(down * before[:, None], axis=0)
