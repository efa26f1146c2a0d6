"""Hypothesis strategies for cases: they draw structure, family, options and a seed, never elements.

So a failing case shrinks to a small structure and prints as one line: every draw is labelled, and what it shrinks to
(few tokens, narrow, one row and head, no state, contiguous, float64, ordinary values, seed 0) comes first in it.
A case worth keeping is a line of a file (``Saved``), which a test replays.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import strategies as st

from linattest.verify.grids import fits, groups, ungroup
from linattest.verify.inputs import LAYOUTS, Case, Scalar, Structure
from linattest.verify.spec import DTYPES, Operator

EDGES = tuple(sorted({0, 1, 2, *(c + d for c in (16, 32, 64, 128) for d in (-1, 0, 1))}))
"""Lengths worth more than their neighbours: next to nothing, and around the edges of chunks."""

WIDTHS = (2, 7, 8, 16, 60, 64, 100, 128)
"""Widths worth more than their neighbours: powers of two, and what pads to one."""

NARROWEST = 2
"""Width 1 is left to the fixed grid. With unit keys every write wipes the whole memory there, true gradients are
exactly 0, and a chunk form, which forgets by subtraction, leaves float64 noise beside them."""


def lengths(most: int) -> st.SearchStrategy[int]:
    """Numbers of tokens up to ``most``, half of them at a chunk edge."""
    return st.one_of(st.sampled_from([edge for edge in EDGES if edge <= most]), st.integers(0, most))


def widths(most: int) -> st.SearchStrategy[int]:
    """Key or value widths from ``NARROWEST`` to ``most``."""
    return st.one_of(st.sampled_from([width for width in WIDTHS if width <= most]), st.integers(NARROWEST, most))


def offsets(length: int, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """``cu_seqlens`` of 1 to ``most`` sequences in ``length`` rows: empty ones and rows past the end occur."""
    ends = st.lists(st.integers(0, length), min_size=1, max_size=most)
    return ends.map(lambda found: (0, *sorted(found)))


@st.composite
def structures(draw: st.DrawFn, operator: Operator, *, tokens: int = 130, width: int = 64, heads: int = 3) -> Structure:
    """A structure that at least one variant of the operator takes.

    Args:
        tokens, width, heads: the largest T, the largest K and V, the largest H; groups have up to 3 heads.
    """
    supported = frozenset[str]().union(*(variant.supports for variant in operator.variants))
    T = draw(lengths(tokens), label="T")
    K = draw(widths(width), label="K")
    V = draw(widths(width), label="V")
    H = draw(st.integers(1, heads), label="H")
    grouped = "grouped" in supported and any(x.per_value_head for x in operator.inputs)
    group = draw(st.integers(1, 3), label="group") if grouped else 1
    packs = draw(st.booleans(), label="packed") if "packed" in supported else False
    cu_seqlens = draw(offsets(T), label="cu_seqlens") if packs else None
    B = 1 if packs else draw(st.integers(1, 2), label="B")
    takes_state = bool(operator.states) and "state" in supported
    return Structure(
        T=T, K=K, V=V, B=B, H=H, group=group, cu_seqlens=cu_seqlens,
        initial_state=draw(st.booleans(), label="initial_state") if takes_state else False,
        layout=draw(st.sampled_from(LAYOUTS), label="layout"),
    )  # fmt: skip


@st.composite
def cases(
    draw: st.DrawFn,
    operator: Operator,
    *,
    tokens: int = 130,
    width: int = 64,
    heads: int = 3,
    dtypes: tuple[str, ...] = DTYPES,
) -> Case:
    """A case of the operator: structure, family (none with a known limitation), dtype, options of the grid, a seed."""
    structure = draw(structures(operator, tokens=tokens, width=width, heads=heads), label="structure")
    dtype = draw(st.sampled_from(dtypes), label="dtype")
    known = {f for limit in operator.limitations if dtype in limit.dtypes for f in limit.families}
    options: dict[str, Scalar] = dict(draw(st.sampled_from(operator.grid), label="options"))
    if not groups(operator, options):
        structure = ungroup(structure)
    families = [family for family in operator.families if fits(family, structure) and family not in known]
    return Case(
        operator=operator.name,
        structure=structure,
        dtype=dtype,
        family=draw(st.sampled_from(families), label="family"),
        seed=draw(st.integers(0, 2**32 - 1), label="seed"),
        options=options,
        gradient=draw(st.booleans(), label="gradient"),
    )


class Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case that failed once, or that is on an edge, and what is remarkable about it: a line of a JSON-lines file."""

    why: str
    case: Case

    def line(self) -> str:
        """The line, without its end."""
        return msgspec.json.encode(self).decode()


def read_saved(path: Path) -> list[Saved]:
    """The saved cases of a JSON-lines file, in order.

    Raises:
        ValueError: a line that is no saved case, or one that is there twice; the message names file and line.
    """
    found: list[Saved] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            saved = msgspec.json.decode(line, type=Saved)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}:{number}: {error}, expected a saved case (verify/strategies.py)") from error
        if saved.case in [earlier.case for earlier in found]:
            raise ValueError(f"{path}:{number}: this case is in the file already: {saved.case.describe()}")
        found.append(saved)
    return found
