"""Detection power: for each operator, dtype and length, the smallest wrong that the harness sees.

Every right answer is spoilt by a known amount and judged as ``verify`` judges a variant with nothing staged. A wrong of
adjustable size (a relative error of the output, of one of its tokens or elements, of a final state, of a gradient) is
made smaller by powers of two until it is no longer seen; one of fixed size (``injections``) is seen or not. What
counts is the worst over the seeds: the largest of the smallest errors, seen only if seen with every seed that has it.

Gradients are judged elementwise alone, without the gradient oracle's directions: these could only see more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import msgspec
import numpy as np
import torch

from linattest.verify import registry
from linattest.verify.examine import Examination, verdicts
from linattest.verify.gradients import Direction as Along
from linattest.verify.grids import settings
from linattest.verify.injections import NOTHING, Wrong, wrongs
from linattest.verify.inputs import Case, Scalar, Structure, build, resolve_options
from linattest.verify.measure import Wanted
from linattest.verify.records import Direction, finite
from linattest.verify.spec import DTYPES, Operator, Variant
from linattest.verify.subjects import Outcome, Tensors
from linattest.verify.tolerance import TORCH_DTYPES

LENGTHS = (16, 64, 256)
LONG = (*LENGTHS, 1024)
"""T of the table, and of the full one."""

SHORT = 64
"""Up to here a length is tried with every seed, and with the structured family too; longer ones say more, and cost."""

SEEDS = 3
PLAIN, STRUCTURED = "random", "coherent"
"""Value families: independent values, and keys so alike that the problem is ill-conditioned where it can be."""

REQUIRED_DTYPE = "bfloat16"
"""Where what ``injections`` calls required must be seen, with plain values."""

ERRORS = tuple(2.0**n for n in range(-52, 1))
"""Relative errors that are tried: from one roundoff of float64 to the whole value."""

RELATIVE = "relative error of"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table, the worst over the seeds.

    ``smallest`` is the smallest relative error that is seen (``None``: not even 1, or a wrong of fixed size).
    ``ratio`` is the error ratio of a wrong of fixed size (``None``: infinite, or of adjustable size). ``by`` are the
    outputs that see it with every seed. ``required``: a harness that does not see it is not good enough.
    """

    operator: str
    dtype: str
    T: int
    family: str
    direction: Direction
    injection: str
    smallest: float | None = None
    ratio: float | None = None
    seen: bool
    by: tuple[str, ...] = ()
    required: bool = False

    @property
    def right(self) -> bool:
        """Whether nothing was injected, so that nothing must be seen."""
        return self.injection == NOTHING

    @property
    def false_alarm(self) -> bool:
        """Whether the right answer itself was called wrong, so that nothing else here says anything."""
        return self.right and self.seen

    @property
    def failed(self) -> bool:
        """Whether the table must not be published: a required wrong that is not seen, or a false alarm."""
        return self.false_alarm or (self.required and not self.seen)


class Bench(Examination):
    """A case that is judged many times: what is wanted is worked out once, and no direction is certified."""

    def wanted(self, name: str, variant: Variant, *, whole: bool = False) -> Wanted:
        """As for any examination."""
        key = (name, variant.name, whole)
        if key not in self._wanted:
            self._wanted[key] = super().wanted(name, variant, whole=whole)
        return self._wanted[key]

    @cached_property
    def _wanted(self) -> dict[tuple[str, str, bool], Wanted]:
        return {}

    @cached_property
    def certificates(self) -> list[tuple[Along, float]]:
        """None."""
        return []

    @cached_property
    def right(self) -> Tensors:
        """The float64 reference's outputs and gradients, before any rounding."""
        return {name: torch.from_numpy(np.array(x)) for name, x in self.sensitivity.values.items()}

    def judge(self, values: Tensors) -> Judged:
        """What of these float64 values, each rounded to its dtype, is seen to be wrong."""
        rounded = {name: x.to(TORCH_DTYPES[self.dtype_of(name)]) for name, x in (self.right | values).items()}
        direction: Direction = "gradient" if any(name.startswith("d ") for name in values) else "forward"
        variant = self.operator.variant(self.operator.reference)
        found = verdicts(self, variant, direction, Outcome(rounded))
        return Judged(
            max((x.ratio for x in found), default=0.0), frozenset(x.name for x in found if not x.passed), direction
        )


@dataclass(frozen=True)
class Judged:
    """The worst error ratio, the outputs that are out of budget, and the direction that was judged."""

    ratio: float
    by: frozenset[str]
    direction: Direction
    smallest: float | None = None
    required: bool = False


def power_table(
    operators: Iterable[Operator] = registry.OPERATORS,
    dtypes: Sequence[str] = DTYPES,
    *,
    lengths: Sequence[int] = LENGTHS,
    seeds: int = SEEDS,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Row]:
    """The table, sorted by operator, dtype, length, family, direction and injection.

    Args:
        lengths: numbers of tokens, each at least 2.
        executor: anything that maps over (operator, dtype); in this process without one.
        progress: called with how many of these are done, and how many there are.

    Raises:
        ValueError: a length below 2, an unknown dtype, fewer than one seed.
    """
    if min(lengths, default=2) < 2:
        raise ValueError(f"lengths={tuple(lengths)}, expected each at least 2: a token in the middle and one after it")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}, expected at least 1")
    if unknown := sorted(set(dtypes) - set(DTYPES)):
        raise ValueError(f"dtypes {unknown}, expected some of {DTYPES}")
    places = list(product([operator.name for operator in operators], dtypes))
    columns = [x[0] for x in places], [x[1] for x in places], [tuple(lengths)] * len(places), [seeds] * len(places)
    rows: list[Row] = []
    for done, found in enumerate((executor.map if executor else map)(rows_of, *columns), start=1):
        rows += found
        progress(done, len(places))
    return sorted(rows, key=lambda r: (r.operator, DTYPES.index(r.dtype), r.T, r.family, r.direction, r.injection))


def rows_of(operator_name: str, dtype: str, lengths: Sequence[int] = LENGTHS, seeds: int = SEEDS) -> list[Row]:
    """The rows of one operator in one dtype, in no order."""
    operator = registry.operator(operator_name)
    rows: list[Row] = []
    for T, family in product(lengths, (PLAIN, STRUCTURED)):
        found: dict[str, list[Judged]] = {}
        for case in cases(operator, dtype, T, family, seeds):
            for name, judged in _sights(operator, case):
                found.setdefault(name, []).append(judged)
        rows += [_row(operator, dtype, T, family, name, each) for name, each in found.items()]
    return rows


def cases(operator: Operator, dtype: str, T: int, family: str, seeds: int = SEEDS) -> list[Case]:
    """The inputs behind one row, in the richest setting of the operator: one a seed, fewer where they are long."""
    structure = Structure(T=T, K=8, V=6, H=2, initial_state=bool(operator.states))
    count = (seeds if T <= SHORT else 1) if family == PLAIN else int(T <= SHORT and family in operator.families)
    options = richest(operator)
    return [
        Case(operator=operator.name, structure=structure, dtype=dtype, family=family, seed=seed, options=options)
        for seed in range(count)
    ]


def richest(operator: Operator) -> dict[str, Scalar]:
    """The setting of the grid with the most inputs, then states and options: the one that can go wrong in most ways."""

    def parts(given: dict[str, Scalar]) -> tuple[int, int]:
        options = resolve_options(operator, given)
        return len(operator.inputs_of(options)), len(operator.states_of(options)) + len(options)

    return max(settings(operator), key=parts)


def _sights(operator: Operator, case: Case) -> Iterator[tuple[str, Judged]]:
    """What is seen of every wrong of one case, by the wrong's name."""
    bench, length = Bench(operator, build(operator, case)), case.structure.T
    for name, spoil in _adjustable(bench):
        yield name, _smallest(bench, spoil)
    forward = {name: x for name, x in bench.right.items() if not name.startswith("d ")}
    for wrong in wrongs(operator, bench.batch, forward):
        required = wrong.required_from is not None and wrong.required_from <= length
        if required or wrong.name == NOTHING or _differs(wrong, forward):
            yield wrong.name, replace(bench.judge(wrong.values), required=required)


def _differs(wrong: Wrong, right: Tensors) -> bool:
    """Whether this input has what is to go wrong: a gate that is 1 already cannot be ignored."""
    return not all(torch.equal(wrong.values[name], x) for name, x in right.items())


def _row(operator: Operator, dtype: str, T: int, family: str, name: str, found: list[Judged]) -> Row:
    """The worst of what the seeds gave."""
    sizes = [x.smallest for x in found]
    fixed = not name.startswith(RELATIVE)
    return Row(
        operator=operator.name, dtype=dtype, T=T, family=family, direction=found[0].direction, injection=name,
        smallest=None if None in sizes else max(size for size in sizes if size is not None),
        ratio=finite(min(x.ratio for x in found)) if fixed else None,
        seen=all(x.by for x in found),
        by=tuple(sorted(frozenset.intersection(*(x.by for x in found)))),
        required=found[0].required and dtype == REQUIRED_DTYPE and family == PLAIN,
    )  # fmt: skip


Spoil = Callable[[float], Tensors]


def _adjustable(bench: Bench) -> Iterator[tuple[str, Spoil]]:
    """Relative errors of every output and gradient that is not all zero, nor a count of tokens."""
    whole = {f"state.{x.name}" for x in bench.operator.states if x.whole}
    for name, x in bench.right.items():
        if name not in whole and bool((x != 0).any()):
            yield f"{RELATIVE} {name}", lambda e, name=name, x=x: {name: x * (1 + e)}
    o = bench.right["o"]
    token, element = torch.zeros_like(o), torch.zeros_like(o)
    token[:, o.shape[1] // 2] = 1
    element.view(-1)[int(o.abs().flatten().argsort()[o.numel() // 2])] = 1
    yield f"{RELATIVE} o in one token", lambda e: {"o": o * (1 + e * token)}
    yield f"{RELATIVE} o in one element", lambda e: {"o": o * (1 + e * element)}


def _smallest(bench: Bench, spoil: Spoil) -> Judged:
    """The smallest error that is seen, by bisection (what is larger has more to show)."""
    at = bisect_left(ERRORS, True, key=lambda e: bool(bench.judge(spoil(e)).by))
    if at == len(ERRORS):
        return bench.judge(spoil(ERRORS[-1]))
    return replace(bench.judge(spoil(ERRORS[at])), smallest=ERRORS[at])
