"""Device pieces that several kernels share: where a program is, masked tiles, products, decays, triangular inverses.

Everything here is inlined into a kernel. `C` is the number of tokens in a chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattest.kernels import launch

INTERPRETED = tl.constexpr(launch.INTERPRETED)

CHUNK = launch.CHUNK


@triton.jit
def segment(pid, table, T, each, LENGTH: tl.constexpr, PACKED: tl.constexpr):
    """Segment number `pid` of a `launch.Layout`: (sequence, batch row, first token, end); PACKED = 2: its row is its
    sequence."""
    if PACKED:
        row = table + 4 * pid.to(tl.int64)
        n, begin, end = tl.load(row), tl.load(row + 1), tl.load(row + 2)
        b = n if PACKED == 2 else 0 * n
    else:
        n = pid // each
        begin = (pid % each) * LENGTH
        end = tl.minimum(begin + LENGTH, T)
        b = n
    return n, b, begin, end


@triton.jit
def first_chunk(pid, table, T, each, LENGTH: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr):
    """The number of the first chunk of segment `pid`, counted over all sequences: where a chunk's results are kept."""
    if PACKED:
        number = tl.load(table + 4 * pid.to(tl.int64) + 3)
    else:
        number = pid // each * tl.cdiv(T, C) + pid % each * (LENGTH // C)
    return number.to(tl.int64)


@triton.jit
def at(ptr, strides, b, h, t):
    """The address of token t of head h in batch row b; 64-bit, whatever the sizes."""
    b, t, h = tl.cast(b, tl.int64), tl.cast(t, tl.int64), tl.cast(h, tl.int64)
    return ptr + b * strides[0] + t * strides[1] + h * strides[2]


@triton.jit
def tile(ptr, strides, rows, columns, live, WIDTH: tl.constexpr):
    """[rows, columns] of a tensor whose address is of row 0; 0 where `live` (of rows) is false or columns end."""
    mask = live[:, None] & (columns < WIDTH)[None, :]
    return tl.load(ptr + rows[:, None] * strides[1] + columns[None, :] * strides[3], mask=mask, other=0.0)


@triton.jit
def put(ptr, strides, rows, columns, live, value, WIDTH: tl.constexpr):
    """Store [rows, columns], rounded to the tensor's type; the mirror image of `tile`."""
    mask = live[:, None] & (columns < WIDTH)[None, :]
    pointers = ptr + rows[:, None] * strides[1] + columns[None, :] * strides[3]
    tl.store(pointers, value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def load_matrix(ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A [ROWS, COLUMNS] contiguous matrix in a tile that may be larger, filled up with 0."""
    mask = (rows < ROWS)[:, None] & (columns < COLUMNS)[None, :]
    return tl.load(ptr + rows[:, None] * COLUMNS + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_matrix(ptr, rows, columns, value, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The mirror image of `load_matrix`."""
    mask = (rows < ROWS)[:, None] & (columns < COLUMNS)[None, :]
    tl.store(ptr + rows[:, None] * COLUMNS + columns[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def operand(x, STAGE: tl.constexpr):
    """x as a tensor core takes it, rounded to nearest: the interpreter, which truncates to bfloat16, is told how."""
    if INTERPRETED and STAGE.is_bf16():
        x = x.to(tl.float32)
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return tl.where(x != x, x, bits.to(tl.float32, bitcast=True))  # NaN stays one
    return x.to(STAGE)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a @ b in float32, of operands as a tensor core sees them (`seen`)."""
    if INTERPRETED:
        return tl.dot(seen(a, PRECISION), seen(b, PRECISION), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def dot_add(acc, a, b, PRECISION: tl.constexpr):
    """acc + a @ b, in acc's registers."""
    if INTERPRETED:
        return tl.dot(seen(a, PRECISION), seen(b, PRECISION), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def seen(x, PRECISION: tl.constexpr):
    """What the interpreter multiplies: float32, since it mishandles bfloat16 products, without the bits behind tf32's
    where those count, which a tensor core does not look at."""
    x = x.to(tl.float32)
    if PRECISION == "tf32":
        x = (x.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)
    return x


CLOSED = tl.constexpr(-110.0)
"""A gate that lets nothing through: its exp is 0 in float32."""


@triton.jit
def finite(g):
    """Gates without -inf, which closes no more than `CLOSED` does; NaN stays."""
    return tl.where(g < CLOSED, CLOSED, g)


@triton.jit
def decays(g, C: tl.constexpr, STAGE: tl.constexpr):
    """g [C], at most 0 -> D [C, C], D[t, s] = exp(g_{s+1} + ... + g_t) for s <= t and 0 above.

    Each entry is the exp of its own segment's sum: a difference of running sums would cancel, and be NaN at -inf. Only
    where the products around are of bfloat16 is it one, of gates that are `finite`: then a sum is at most 64 times 110,
    and what its last bit is worth is a quarter of a rounding to bfloat16.
    """
    t = tl.arange(0, C)
    if STAGE.is_bf16():
        since = tl.cumsum(finite(g), axis=0)
        sums = since[:, None] - since[None, :]
    else:
        sums = tl.cumsum(tl.where(t[:, None] > t[None, :], g[:, None], 0.0), axis=0)
    return tl.where(t[:, None] >= t[None, :], tl.exp(sums), 0.0)


@triton.jit
def until_decays(g, C: tl.constexpr, STAGE: tl.constexpr):
    """The transpose of `decays`, made as such: row s, column t."""
    t = tl.arange(0, C)
    if STAGE.is_bf16():
        since = tl.cumsum(finite(g), axis=0)
        sums = since[None, :] - since[:, None]
    else:
        sums = tl.cumsum(tl.where(t[:, None] < t[None, :], g[None, :], 0.0), axis=1)
    return tl.where(t[:, None] <= t[None, :], tl.exp(sums), 0.0)


@triton.jit
def _joined(X, A, n: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    """Inverses of diagonal blocks of n rows -> of 2n rows: X - (X O) X, O the part of A that joins each pair."""
    t = tl.arange(0, N)
    row, column = t[:, None], t[None, :]
    O = tl.where((row // (2 * n) == column // (2 * n)) & (row // n != column // n), A, 0.0)
    return dot_add(X, -dot(X, O, PRECISION), X, PRECISION)  # [N, N] [N, N]


@triton.jit
def unit_lower_inverse(A, N: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^{-1} for a strictly lower triangular A [N, N] float32; N a power of two from 16 to 64.

    Doubling: from the inverses of diagonal blocks of n rows those of 2n rows, log2(N) - 1 times two dots (pairs of
    single rows need none). As stable as substitution; products like (I - A)(I + A^2) ... fail for entries near 1.
    """
    t = tl.arange(0, N)
    row, column = t[:, None], t[None, :]
    X = tl.where(row == column, 1.0, 0.0) - tl.where(row // 2 == column // 2, A, 0.0)
    X = _joined(X, A, 2, N, PRECISION)
    X = _joined(X, A, 4, N, PRECISION)
    X = _joined(X, A, 8, N, PRECISION)
    if N >= 32:
        X = _joined(X, A, 16, N, PRECISION)
    if N >= 64:
        X = _joined(X, A, 32, N, PRECISION)
    return X
