"""Drift: how the error of a form grows with the length of the sequence, up to 100 000 tokens.

A row is the root mean square error of the last tokens (and of the final state), in roundoffs of the output's dtype
(of the state's) times the root mean square of what is wanted. A correctly rounded result has about 0.4 at every
length, so a line that stays there does not drift. Inputs are float32 numbers, which float64 has too: one exact answer
serves both. (Products of bfloat16 numbers are exact in float64, and a sum of them hides what it loses.)

What is right, by row:

``proved``        the oracle in Arb balls; the radius is below 2**-20 of a roundoff of float64. Balls of a recurrence
                  that contracts stay small at any length at 192 bits.
``50 digits``     the oracle in mpmath, where balls would need a bit a token and T is too large for that. Not enclosed:
                  a form's float64 row beside it says by how much a rounding is amplified, and 50 digits leave 34 more
                  than float64 has.
``float64``       for bfloat16, the same form in float64 on the same inputs, whose own error is in the row beside it;
                  for an operator without a state, whose oracle takes T**2 exponentials, the float64 token loop, which
                  is judged against the oracle where T allows that; for kernels, the float64 chunk form, certified by
                  the oracle at a small T.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import flint
import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify import devices
from linattest.verify.environment import Environment
from linattest.verify.examination import certify
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import ArbContext, Context, MpContext, split_ball
from linattest.verify.oracle import heads, numbers_of
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Outcome, run
from linattest.verify.tolerance import ORACLE_MARGIN, TORCH_DTYPES, accumulation, unit_roundoff

SCHEMA = 1

LENGTHS = (100, 1_000, 10_000, 100_000)
"""Tokens; one a decade."""

QUADRATIC = 10_000
"""Longest sequence of an operator without a state: it costs T**2."""

ENCLOSED = 1_000
"""Up to here a ball gets a bit a token, so that it stays small whatever the recurrence does; an operator without a
state has an oracle up to here."""

BITS, DIGITS_BITS = 192, 170
"""Bits of a ball where it need not grow, and of mpmath: 51 digits."""

DEVICE_LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 17)
"""Tokens of kernels on a GPU."""

DEVICE_WIDTH = 64
"""K and V of kernels: with fewer channels there is nothing for a tensor core to round."""

WINDOW = 64
"""How many of the last tokens are looked at."""

WIDTH = 4
"""K and V."""

INPUTS, LOW = "float32", "bfloat16"

Truth = Literal["proved", "50 digits", "float64"]
Array = NDArray[np.float64]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One form at one length. ``error`` and ``state_error`` are in roundoffs; ``None``: not finite, or no state."""

    operator: str
    variant: str
    dtype: str
    tokens: int
    error: float | None
    state_error: float | None
    truth: Truth
    seconds: float


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """What ``linattest drift`` writes."""

    schema: int = SCHEMA
    rows: list[Row]
    width: int = WIDTH
    window: int = WINDOW
    environment: Environment


@dataclass(frozen=True)
class Exact:
    """``hi + lo`` is right: ``"o"`` of the last tokens [W, V], ``"state.<name>"`` as the operator returns it."""

    hi: dict[str, Array]
    lo: dict[str, Array]
    truth: Truth


def measure(operator: Operator, lengths: Sequence[int] = LENGTHS) -> Iterator[list[Row]]:
    """The rows of one operator, a list a length, shortest first.

    Raises:
        ValueError: a length below ``WINDOW``.
    """
    for tokens in (n for n in lengths if operator.states or n <= QUADRATIC):
        if tokens < WINDOW:
            raise ValueError(f"tokens={tokens}, expected at least {WINDOW}")
        structure = Structure(T=tokens, K=WIDTH, V=WIDTH)
        case = Case(operator=operator.name, structure=structure, dtype=INPUTS, gradient=False)
        batch, low = (build(operator, msgspec.structs.replace(case, dtype=dtype)) for dtype in (INPUTS, LOW))
        right = exact(operator, batch)
        precise = right.truth != "float64"  # or a float64 run would be judged by another, or by itself
        judged = [(variant, dtype) for variant, dtype in forms(operator) if precise or dtype != "float64"]
        rows = [judge(operator, variant, cast(batch, dtype), right) for variant, dtype in judged]
        for variant in (v for v, dtype in forms(operator) if dtype == "float64" and LOW in v.dtypes):
            rows.append(judge(operator, variant, low, in_float64(operator, variant, low)))
        yield rows


def measure_kernels(
    operator: Operator, device: str, lengths: Sequence[int] = DEVICE_LENGTHS, width: int = DEVICE_WIDTH
) -> Iterator[list[Row]]:
    """The rows of an operator's kernels on a device, a list a length; none where it has no kernel that runs there.

    Raises:
        OracleError: the float64 chunk form, which judges them, fails where the oracle judges it.
    """
    runs = [v for v in operator.variants if v.kernel and v.kind == "sequence" and not devices.obstacle(v, device)]
    for tokens in lengths if runs else ():
        rows: list[Row] = []
        for dtype in sorted({dtype for variant in runs for dtype in variant.dtypes}):
            structure = Structure(T=tokens, K=width, V=width)
            case = Case(operator=operator.name, structure=structure, dtype=dtype, gradient=False)
            certify(operator, case)
            batch = build(operator, case)
            right = in_float64(operator, operator.variant("chunk"), batch)
            rows += [judge(operator, v, batch, right, device) for v in runs if dtype in v.dtypes]
        yield rows


def forms(operator: Operator) -> Iterator[tuple[Variant, str]]:
    """Our forms over a whole sequence, and dtypes that hold the inputs; the token loop takes long: float32 alone.

    Left out are the decode step, which does the token loop's arithmetic, and what does not live in ``impls``: a kernel
    runs in an interpreter where there is no GPU, and takes hours for this.
    """
    for variant in operator.variants:
        if variant.kind == "sequence" and variant.function.startswith("linattest.impls."):
            slow = variant.name == operator.reference and operator.states
            yield from ((variant, dtype) for dtype in ((INPUTS,) if slow else ("float64", INPUTS)))


def cast(batch: Batch, dtype: str) -> Batch:
    """The same values, exactly, in a dtype that has them all."""
    tensors = {name: x.to(TORCH_DTYPES[dtype]) for name, x in batch.tensors.items()}
    return batch.with_(case=msgspec.structs.replace(batch.case, dtype=dtype), tensors=tensors)


def exact(operator: Operator, batch: Batch) -> Exact:
    """The right answer, from the strongest source that the length allows."""
    tokens = batch.case.structure.T
    if not operator.states and tokens > ENCLOSED:
        return in_float64(operator, operator.variant(operator.reference), batch)
    arb = ArbContext(BITS + (tokens if tokens <= ENCLOSED else 0))
    with arb.working():
        found, radius = _answer(operator, batch, arb, "proved")
    if radius <= ORACLE_MARGIN * unit_roundoff("float64"):
        return found
    return _answer(operator, batch, MpContext(DIGITS_BITS), "50 digits")[0]


def _answer(operator: Operator, batch: Batch, ctx: Context, truth: Truth) -> tuple[Exact, float]:
    """The oracle's last rows and final state, and its worst radius relative to their root mean square."""
    ((_, _, head),) = heads(operator, batch, ctx)
    rows, final = operator.oracle(ctx, head)
    parts = {"o": [x for row in rows[-WINDOW:] for x in numbers_of(ctx, row)]}
    parts |= {f"state.{x.name}": numbers_of(ctx, final[x.name]) for x in _followed(operator, batch)}
    hi, lo, worst = dict[str, Array](), dict[str, Array](), 0.0
    for name, values in parts.items():
        triples = np.array([_split(x) for x in values])
        hi[name], lo[name] = triples[:, 0], triples[:, 1]
        scale = _rms(hi[name])
        worst = max(worst, float(np.max(triples[:, 2])) / scale if np.isfinite(scale) and scale else np.inf)
    return Exact(hi, lo, truth), worst


def _split(x: Any) -> tuple[float, float, float]:
    """A number as hi + lo, and its radius: infinite for a ball that grew out of bounds, 0 for an ``mpf``."""
    if not isinstance(x, flint.arb):
        return float(x), float(x - float(x)), 0.0
    return split_ball(x) if x.is_finite() else (0.0, 0.0, np.inf)


def in_float64(operator: Operator, variant: Variant, batch: Batch) -> Exact:
    """A form's own float64 run, taken as right: for what float64 is precise enough to judge."""
    hi = _parts(operator, batch, run(operator, variant, cast(batch, "float64")))
    return Exact(hi, {name: np.zeros_like(x) for name, x in hi.items()}, "float64")


def judge(operator: Operator, variant: Variant, batch: Batch, right: Exact, device: str = "cpu") -> Row:
    """Run one form and compare it with what is right."""
    start = time.process_time()
    found = _parts(operator, batch, devices.home(run(operator, variant, devices.place(batch, device))))
    seconds = time.process_time() - start
    kept = accumulation(batch.case.dtype)
    errors = {
        name: _rms((x - right.hi[name]) - right.lo[name])
        / (unit_roundoff(batch.case.dtype if name == "o" else kept) * _rms(right.hi[name]))
        for name, x in found.items()
    }
    states = [x for name, x in errors.items() if name != "o"]
    return Row(
        operator=operator.name, variant=variant.name, dtype=batch.case.dtype, tokens=batch.case.structure.T,
        error=_finite(errors["o"]), state_error=_finite(max(states)) if states else None,
        truth=right.truth, seconds=round(seconds, 3),
    )  # fmt: skip


def _parts(operator: Operator, batch: Batch, outcome: Outcome) -> dict[str, Array]:
    """What is compared, flat: the last tokens and the states."""
    names = ["o", *(f"state.{x.name}" for x in _followed(operator, batch))]
    found = {name: outcome[name].double() for name in names}
    found["o"] = found["o"][:, -WINDOW:]
    return {name: torch.flatten(x).numpy() for name, x in found.items()}


def _followed(operator: Operator, batch: Batch) -> list[Any]:
    return [x for x in operator.states_of(batch.options) if not x.whole]


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def _finite(x: float) -> float | None:
    return round(x, 4) if np.isfinite(x) else None


def collect(rows: list[Row], device: str = "cpu", width: int = WIDTH) -> Drift:
    """The rows with the environment they were made in; of a GPU, that of its kernels."""
    return Drift(rows=rows, width=width, environment=devices.surroundings(device, devices.kind(device) != "cpu"))


def read(path: Path) -> Drift:
    """What ``linattest drift --output`` wrote.

    Raises:
        ValueError: not such a file, or of another schema.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Drift)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}; expected what `linattest drift --output` writes") from error
    if found.schema != SCHEMA:
        raise ValueError(f"{path}: schema={found.schema}, expected {SCHEMA}")
    return found
