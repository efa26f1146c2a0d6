"""Which part of an operator's space of cases was tried: the values of every axis, and the pairs of values.

A fault that needs two things at once (a packed sequence and an initial state, bfloat16 and a padded width) shows
only where both occur in one case; most faults need no more than two. So the measure is the share of the possible pairs
of values that some case had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from linattest.verify.grids import groups
from linattest.verify.inputs import LAYOUTS, Case, Scalar
from linattest.verify.spec import DTYPES, Operator

Value = tuple[str, str]
"""An axis and one of its values."""

Pair = tuple[Value, Value]

LENGTHS = (
    ("0", 0), ("1", 1), ("2-14", 14), ("15-17", 17), ("18-30", 30), ("31-33", 33), ("34-62", 62), ("63", 63),
    ("64", 64), ("65", 65), ("66-126", 126), ("127-130", 130),
)  # fmt: skip
"""Classes of T with their last member: around the edges of chunks of 16, 32, 64 (the default) and 128."""

WIDTHS = ("2-15", "16 and more, a power of two", "17 and more, padded")
"""Classes of K and V."""


def length_class(T: int) -> str:
    """The class of a number of tokens; beyond the last one there is one more."""
    return next((name for name, last in LENGTHS if last >= T), "more")


def width_class(width: int) -> str:
    """The class of a key or value width."""
    if width < 16:
        return WIDTHS[0]
    return WIDTHS[1] if width & (width - 1) == 0 else WIDTHS[2]


def setting(options: Mapping[str, Scalar]) -> str:
    """An option setting in words."""
    return " ".join(f"{name}={value}" for name, value in options.items()) or "defaults"


def traits(case: Case) -> dict[str, str]:
    """The value of every axis for a case."""
    s = case.structure
    lengths = {stop - start for _, start, stop in s.sequences}
    packed = "no" if s.cu_seqlens is None else "with an empty one" if 0 in lengths else "yes"
    several = {True: "several", False: "1"}
    return {
        "options": setting(case.options), "dtype": case.dtype, "family": case.family, "T": length_class(s.T),
        "K": width_class(s.K), "V": width_class(s.V), "layout": s.layout, "packed": packed,
        "shape": "K < V" if s.K < s.V else "K = V" if s.K == s.V else "K > V",
        "state": "yes" if s.initial_state else "no", "group": several[s.group > 1], "H": several[s.H > 1],
        "B": several[s.B > 1], "gradient": "yes" if case.gradient else "no",
    }  # fmt: skip


@dataclass(frozen=True)
class Space:
    """The cases of one operator that ``strategies.cases`` draws: axes, their values, and pairs that cannot be."""

    operator: Operator
    dtypes: tuple[str, ...] = DTYPES

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The values of every axis, in the order of ``traits``."""
        operator = self.operator
        supported = frozenset[str]().union(*(variant.supports for variant in operator.variants))
        state = bool(operator.states) and "state" in supported
        grouped = any(groups(operator, options) for options in operator.grid)
        grouped = grouped and any(x.per_value_head for x in operator.inputs)
        return {
            "options": tuple(dict.fromkeys(setting(options) for options in operator.grid)),
            "dtype": self.dtypes,
            "family": tuple(f for f in operator.families if any(self._drawn(f, dtype) for dtype in self.dtypes)),
            "T": tuple(name for name, _ in LENGTHS),
            "K": WIDTHS,
            "V": WIDTHS,
            "layout": LAYOUTS,
            "packed": ("no", "yes", "with an empty one") if "packed" in supported else ("no",),
            "shape": ("K < V", "K = V", "K > V"),
            "state": ("no", "yes") if state else ("no",),
            "group": ("1", "several") if grouped else ("1",),
            "H": ("1", "several"),
            "B": ("1", "several"),
            "gradient": ("no", "yes"),
        }

    def pairs(self) -> Iterator[Pair]:
        """Every pair of values that a case can have."""
        for (a, xs), (b, ys) in combinations(self.axes.items(), 2):
            yield from (((a, x), (b, y)) for x in xs for y in ys if self.possible({a: x, b: y}))

    def possible(self, pair: Mapping[str, str]) -> bool:
        """Whether one case can have these two values."""
        packed = pair.get("packed", "no")
        if packed != "no" and pair.get("B") == "several":
            return False  # packed sequences lie in one row
        if packed == "yes" and pair.get("T") == "0":
            return False  # all of them are empty
        if pair.get("group") == "several" and "options" in pair:
            return any(setting(o) == pair["options"] and groups(self.operator, o) for o in self.operator.grid)
        if {"dtype", "family"} <= pair.keys():
            return self._drawn(pair["family"], pair["dtype"])
        return True

    def _drawn(self, family: str, dtype: str) -> bool:
        """Known failures are left out of random cases."""
        return not any(dtype in limit.dtypes and family in limit.families for limit in self.operator.limitations)


@dataclass
class Coverage:
    """How often every value and every pair of values was tried, by operator."""

    spaces: Mapping[str, Space]
    cases: Counter[str] = field(default_factory=Counter[str])
    values: dict[str, Counter[Value]] = field(default_factory=dict[str, Counter[Value]])
    pairs: dict[str, Counter[Pair]] = field(default_factory=dict[str, Counter[Pair]])

    def add(self, case: Case) -> None:
        """One more case."""
        found = traits(case)
        self.cases[case.operator] += 1
        self.values.setdefault(case.operator, Counter()).update(found.items())
        self.pairs.setdefault(case.operator, Counter()).update(combinations(found.items(), 2))

    def novelty(self, case: Case) -> float:
        """How much a case would add: 1 for each pair that is new, less and less for what was tried before."""
        tried = self.pairs.get(case.operator, Counter[Pair]())
        return sum(1 / (1 + tried[pair]) ** 2 for pair in combinations(traits(case).items(), 2))

    def untried(self, operator: str) -> list[Pair]:
        """The possible pairs that no case had."""
        tried = self.pairs.get(operator, Counter[Pair]())
        return [pair for pair in self.spaces[operator].pairs() if pair not in tried]

    def times(self, operator: str) -> dict[str, dict[str, int]]:
        """How many cases had each value of each axis; 0 for those that none had."""
        tried = self.values.get(operator, Counter[Value]())
        return {axis: {x: tried[axis, x] for x in xs} for axis, xs in self.spaces[operator].axes.items()}


def coverage_of(spaces: Mapping[str, Space], cases: Iterable[Case]) -> Coverage:
    """The coverage that some cases make; each counts once."""
    found = Coverage(spaces)
    for case in {case.key: case for case in cases}.values():
        found.add(case)
    return found
