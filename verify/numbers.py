"""Number contexts for oracles: mpmath at any precision, and Arb balls whose radius is proved.

An oracle is written once against the small vocabulary below (``vector``, ``dot``, ``outer``, ``*`` for
matrix products, ...) and run in both contexts. The two share no arithmetic: mpmath is Python integers,
Arb is FLINT's midpoint-radius arithmetic (Johansson 2017), whose result encloses the exact value.

Every float that enters is converted exactly; nothing passes through Python float arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import flint
import mpmath

Number = Any
"""A scalar of a context: ``flint.arb`` or ``mpmath`` ``mpf``."""

Matrix = Any
"""A matrix or a column vector of a context; ``+``, ``-``, and ``*`` (by a matrix or a scalar) work on it."""


class Context(Protocol):
    """What an oracle may use. Vectors are one-column matrices."""

    prec: int

    def number(self, x: float) -> Number:
        """The exact value of a Python float or int."""
        ...

    def vector(self, xs: Sequence[float]) -> Matrix:
        """A column vector of exact values."""
        ...

    def matrix(self, rows: Sequence[Sequence[float]]) -> Matrix:
        """A matrix of exact values."""
        ...

    def zeros(self, n: int, m: int = 1) -> Matrix:
        """The n x m zero matrix."""
        ...

    def identity(self, n: int) -> Matrix:
        """The identity matrix."""
        ...

    def transpose(self, a: Matrix) -> Matrix:
        """The transpose."""
        ...

    def inverse(self, a: Matrix) -> Matrix:
        """The inverse of a square matrix. Raises ``ZeroDivisionError`` when it cannot be enclosed."""
        ...

    def dot(self, x: Matrix, y: Matrix) -> Number:
        """The scalar product of two vectors."""
        ...

    def outer(self, x: Matrix, y: Matrix) -> Matrix:
        """The matrix x y^T."""
        ...

    def gram(self, xs: Sequence[Matrix], n: int) -> Matrix:
        """The sum of x x^T over some vectors of length n."""
        ...

    def scale_columns(self, a: Matrix, xs: Sequence[Number]) -> Matrix:
        """The matrix with its i-th column times xs[i]."""
        ...

    def sqrt(self, x: Number) -> Number:
        """The square root."""
        ...

    def exp(self, x: Number) -> Number:
        """The exponential."""
        ...

    def maximum(self, x: Number, y: Number) -> Number:
        """The larger of two numbers."""
        ...

    def entries(self, a: Matrix) -> list[Number]:
        """The entries, row by row."""
        ...

    def is_zero(self, a: Matrix) -> bool:
        """Whether every entry is exactly zero."""
        ...


class ArbContext:
    """Balls of FLINT's Arb at ``prec`` bits. Enter ``working()`` before computing: FLINT's precision is global."""

    def __init__(self, prec: int) -> None:
        if prec < 53:
            raise ValueError(f"prec={prec}, expected at least 53 bits so that floats convert exactly")
        self.prec = prec

    @contextmanager
    def working(self) -> Iterator[ArbContext]:
        """Set FLINT's precision for the duration."""
        with flint.ctx.workprec(self.prec):
            yield self

    def number(self, x: float) -> flint.arb:
        return flint.arb(x)

    def vector(self, xs: Sequence[float]) -> flint.arb_mat:
        return flint.arb_mat(len(xs), 1, [flint.arb(x) for x in xs])

    def matrix(self, rows: Sequence[Sequence[float]]) -> flint.arb_mat:
        width = len(rows[0]) if rows else 0
        return flint.arb_mat(len(rows), width, [flint.arb(x) for row in rows for x in row])

    def zeros(self, n: int, m: int = 1) -> flint.arb_mat:
        return flint.arb_mat(n, m)

    def identity(self, n: int) -> flint.arb_mat:
        a = flint.arb_mat(n, n)
        for i in range(n):
            a[i, i] = flint.arb(1)
        return a

    def transpose(self, a: flint.arb_mat) -> flint.arb_mat:
        return a.transpose()

    def inverse(self, a: flint.arb_mat) -> flint.arb_mat:
        return a.inv()

    def dot(self, x: flint.arb_mat, y: flint.arb_mat) -> flint.arb:
        return (x.transpose() * y)[0, 0]

    def outer(self, x: flint.arb_mat, y: flint.arb_mat) -> flint.arb_mat:
        return x * y.transpose()

    def gram(self, xs: Sequence[flint.arb_mat], n: int) -> flint.arb_mat:
        rows = flint.arb_mat(len(xs), n, [entry for x in xs for entry in x.entries()])
        return rows.transpose() * rows

    def scale_columns(self, a: flint.arb_mat, xs: Sequence[flint.arb]) -> flint.arb_mat:
        entries = (x * y for row in a.table() for x, y in zip(row, xs, strict=True))
        return flint.arb_mat(a.nrows(), a.ncols(), list(entries))

    def sqrt(self, x: flint.arb) -> flint.arb:
        return x.sqrt()

    def exp(self, x: flint.arb) -> flint.arb:
        return x.exp()

    def maximum(self, x: flint.arb, y: flint.arb) -> flint.arb:
        return x.max(y)

    def entries(self, a: flint.arb_mat) -> list[flint.arb]:
        return a.entries()

    def is_zero(self, a: flint.arb_mat) -> bool:
        return all(x == 0 for x in a.entries())


class MpMatrix:
    """A dense matrix of ``mpf``: just what an oracle needs, several times faster than ``mpmath.matrix``."""

    __slots__ = ("mp", "rows")

    def __init__(self, mp: Any, rows: list[list[Any]]) -> None:
        self.mp = mp
        self.rows = rows

    def __add__(self, other: MpMatrix) -> MpMatrix:
        pairs = zip(self.rows, other.rows, strict=True)
        return MpMatrix(self.mp, [[x + y for x, y in zip(a, b, strict=True)] for a, b in pairs])

    def __sub__(self, other: MpMatrix) -> MpMatrix:
        pairs = zip(self.rows, other.rows, strict=True)
        return MpMatrix(self.mp, [[x - y for x, y in zip(a, b, strict=True)] for a, b in pairs])

    def __mul__(self, other: Any) -> MpMatrix:
        if not isinstance(other, MpMatrix):
            return MpMatrix(self.mp, [[x * other for x in row] for row in self.rows])
        columns = list(zip(*other.rows, strict=True))
        return MpMatrix(self.mp, [[self.mp.fdot(row, column) for column in columns] for row in self.rows])

    __rmul__ = __mul__

    def transpose(self) -> MpMatrix:
        return MpMatrix(self.mp, [list(column) for column in zip(*self.rows, strict=True)])


class MpContext:
    """mpmath at ``prec`` bits, on a context of its own: the module-wide precision is never touched."""

    def __init__(self, prec: int) -> None:
        if prec < 53:
            raise ValueError(f"prec={prec}, expected at least 53 bits so that floats convert exactly")
        self.prec = prec
        self.mp: Any = mpmath.mp.clone()
        self.mp.prec = prec

    def number(self, x: float) -> Any:
        return self.mp.mpf(x)

    def vector(self, xs: Sequence[float]) -> MpMatrix:
        return MpMatrix(self.mp, [[self.mp.mpf(x)] for x in xs])

    def matrix(self, rows: Sequence[Sequence[float]]) -> MpMatrix:
        return MpMatrix(self.mp, [[self.mp.mpf(x) for x in row] for row in rows])

    def zeros(self, n: int, m: int = 1) -> MpMatrix:
        return MpMatrix(self.mp, [[self.mp.zero] * m for _ in range(n)])

    def identity(self, n: int) -> MpMatrix:
        return MpMatrix(self.mp, [[self.mp.one if i == j else self.mp.zero for j in range(n)] for i in range(n)])

    def transpose(self, a: MpMatrix) -> MpMatrix:
        return a.transpose()

    def inverse(self, a: MpMatrix) -> MpMatrix:
        n = len(a.rows)
        x = self.mp.matrix(a.rows) ** -1
        return MpMatrix(self.mp, [[x[i, j] for j in range(n)] for i in range(n)])

    def dot(self, x: MpMatrix, y: MpMatrix) -> Any:
        return self.mp.fdot((row[0] for row in x.rows), (row[0] for row in y.rows))

    def outer(self, x: MpMatrix, y: MpMatrix) -> MpMatrix:
        ys = [row[0] for row in y.rows]
        return MpMatrix(self.mp, [[a[0] * b for b in ys] for a in x.rows])

    def gram(self, xs: Sequence[MpMatrix], n: int) -> MpMatrix:
        columns = [[x.rows[i][0] for x in xs] for i in range(n)]
        return MpMatrix(self.mp, [[self.mp.fdot(a, b) for b in columns] for a in columns])

    def scale_columns(self, a: MpMatrix, xs: Sequence[Any]) -> MpMatrix:
        return MpMatrix(self.mp, [[x * y for x, y in zip(row, xs, strict=True)] for row in a.rows])

    def sqrt(self, x: Any) -> Any:
        return self.mp.sqrt(x)

    def exp(self, x: Any) -> Any:
        return self.mp.exp(x)

    def maximum(self, x: Any, y: Any) -> Any:
        return max(x, y)

    def entries(self, a: MpMatrix) -> list[Any]:
        return [x for row in a.rows for x in row]

    def is_zero(self, a: MpMatrix) -> bool:
        return all(x == 0 for row in a.rows for x in row)


def unit(ctx: Context, x: Matrix) -> Matrix:
    """x/|x|, and 0 where x is exactly 0."""
    if ctx.is_zero(x):
        return x
    return x * (1 / ctx.sqrt(ctx.dot(x, x)))


def split_ball(x: flint.arb) -> tuple[float, float, float]:
    """A ball as ``(hi, lo, radius)``: hi + lo is its midpoint to about 106 bits, radius an upper bound.

    The radius covers what hi + lo leaves out. Raises ``ArithmeticError`` when the ball is not finite.
    """
    if x.is_zero():
        return 0.0, 0.0, 0.0
    if not x.is_finite():
        raise ArithmeticError(f"oracle value {x} is not finite")
    middle = x.mid()
    hi = float(middle)
    rest = middle - hi
    lo = float(rest)
    radius = float(x.rad().upper()) + abs(float((rest - lo).abs_upper()))
    return hi, lo, math.nextafter(radius, math.inf) if radius else 0.0


def encloses(ball: flint.arb, value: Any, slack_bits: int) -> bool:
    """Whether an ``mpf`` lies in the ball, up to mpmath's own rounding of ``2**-slack_bits`` relative."""
    sign, man, exp, _ = value._mpf_
    exact = flint.arb(-int(man) if sign else int(man)) * flint.arb(2) ** int(exp)
    gap = abs(exact - ball.mid()).lower() - ball.rad()
    return bool(gap <= abs(exact) * flint.arb(2) ** -slack_bits)
