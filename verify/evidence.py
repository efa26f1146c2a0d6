"""Targeted runs of a function under test: what is right, what is wrong, and what its answer would be the answer to.

Here an output is judged by a short rule, since a diagnosis only has to place an error that the oracle has already
found: beyond 30 times the error that our own reference makes on the same input in the same accumulation type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.given import batch_of, operator_of
from linattest.verify.grids import groups
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.measure import rounding
from linattest.verify.records import Record
from linattest.verify.returns import ShapeError
from linattest.verify.spec import Operator, Variant
from linattest.verify.staging import terms
from linattest.verify.subject import Subject
from linattest.verify.subjects import run
from linattest.verify.tolerance import THRESHOLD, accumulation, unit_roundoff

Array = NDArray[np.float64]
Arrays = dict[str, Array]

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 70, 96, 100, 127, 128, 130, 200)
"""On both sides of every chunk edge that a kernel may have."""


def badness(record: Record) -> tuple[bool, bool, float]:
    """How much a failing record shows: a wrong value before a property, a value before an error, then by its ratio."""
    ratio = float("inf") if record.ratio is None else record.ratio
    return record.direction != "property", record.status == "fail", ratio


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A likely fault in words: what, the numbers that say so, and what to look at."""

    rule: str
    fault: str
    evidence: str
    suggestion: str


@dataclass(frozen=True)
class Look:
    """One run: what came, what is right, and which elements are wrong; ``error`` is what was raised instead.

    ``shape`` is the error of an output of another shape than is due.
    """

    batch: Batch
    got: Arrays = field(default_factory=dict[str, Array])
    exact: Arrays = field(default_factory=dict[str, Array])
    slack: Arrays = field(default_factory=dict[str, Array])
    error: str = ""
    shape: ShapeError | None = None

    def differs(self, name: str, other: Array) -> NDArray[np.bool_]:
        """Where an output is not ``other`` (the whole of it, for another shape)."""
        got = self.got[name]
        if got.shape != other.shape:
            return np.ones(got.shape or (1,), dtype=bool)
        with np.errstate(all="ignore"):
            return ~(np.abs(got - other) <= self.slack[name])

    def wrong(self, name: str) -> NDArray[np.bool_]:
        """Where an output is wrong."""
        return self.differs(name, self.exact[name])

    @property
    def bad(self) -> list[str]:
        """The outputs of which something is wrong."""
        return [name for name in self.exact if name in self.got and self.wrong(name).any()]

    @property
    def off(self) -> bool:
        """Whether anything is wrong, an exception included."""
        return bool(self.error or self.bad)

    @property
    def tokens(self) -> list[int]:
        """The tokens whose output is wrong."""
        if "o" not in self.got or self.got["o"].shape != self.exact["o"].shape:
            return []
        return [int(t) for t in np.nonzero(self.wrong("o").any(axis=(0, 2, 3)))[0]]

    def relative(self, name: str = "o") -> float:
        """Largest error over the largest right value."""
        most = float(np.max(np.abs(self.exact[name]), initial=0.0))
        worst = float(np.max(np.abs(self.got[name] - self.exact[name]), initial=0.0))
        return worst / most if most else worst

    def worst(self, name: str = "o") -> str:
        """The largest error in words: a share of the largest right value, unless something is not finite."""
        if not np.isfinite(self.got[name]).all():
            return f"NaN or infinity in {int((~np.isfinite(self.got[name])).sum())} of {self.got[name].size} entries"
        return f"{self.relative(name):.2g} of the largest"


def arrays(values: dict[str, torch.Tensor]) -> Arrays:
    """Tensors as float64 arrays."""
    return {name: x.detach().double().numpy() for name, x in values.items()}


@dataclass
class Evidence:
    """A function, the records that a campaign made of it, and what a rule may look at besides."""

    subject: Subject
    records: list[Record]
    broken: tuple[str, ...] = ()
    """Promises that are not kept: properties beyond right values, whose records are left out."""

    @cached_property
    def operator(self) -> Operator:
        """Its record."""
        return operator_of(self.subject)

    @cached_property
    def variant(self) -> Variant:
        """The function as the record's variant."""
        return self.operator.variant(self.subject.variant)

    @property
    def failed(self) -> list[Record]:
        """The records that fail."""
        return [record for record in self.records if record.failed]

    def fails(self, direction: str, what: str = "") -> bool:
        """Whether a record of this direction (and property) fails."""
        return any(r.direction == direction and (not what or r.what == what) for r in self.failed)

    def supports(self, feature: str) -> bool:
        """Whether it says so."""
        return feature in self.subject.supports

    @cached_property
    def dtype(self) -> str:
        """The dtype of the runs: float32 if it takes that, since its own errors are then neither hidden nor tiny."""
        return "float32" if "float32" in self.subject.dtypes else self.subject.dtypes[0]

    def batch(
        self, *, dtype: str = "", family: str = "random", seed: int = 101, options: Any = None, **sizes: Any
    ) -> Batch:
        """The tensors of a small case: two heads, 70 tokens, K = V = 16, unless told otherwise."""
        knobs: dict[str, Any] = {"T": 70, "K": 16, "V": 16, "H": 2, **sizes}
        knobs["T"] = -(-knobs["T"] // self.subject.multiple) * self.subject.multiple
        case = Case(
            operator=self.operator.name, structure=Structure(**knobs), dtype=dtype or self.dtype, family=family,
            seed=seed, options=self.operator.grid[0] if options is None else options,
        )  # fmt: skip
        return batch_of(self.subject, case)

    def look(self, batch: Batch | None = None, *, backward: bool = False, **knobs: Any) -> Look:
        """Run it on a batch, or on ``self.batch(**knobs)``, beside the reference."""
        batch = batch or self.batch(**knobs)
        try:
            got = run(self.operator, self.variant, batch.copy(), backward=backward).values
        except Exception as error:
            shape = error if isinstance(error, ShapeError) else None
            return Look(batch, error=f"{type(error).__name__}: {error}", shape=shape)
        exact = self.exact(batch, backward=backward)
        reference = self.operator.variant(self.operator.reference)
        ours = arrays(run(self.operator, reference, batch.copy(), backward=backward).values)
        kept = {name: x for name, x in exact.items() if name in got}
        staged = terms(self.operator, self.variant, batch, backward) if self.subject.operands else {}
        slack = {name: self._slack(batch, name, kept[name], ours[name]) for name in kept}
        slack |= {name: slack[name] + term.most for name, term in staged.items() if name in slack}
        return Look(batch, arrays(got), kept, slack)

    def _slack(self, batch: Batch, name: str, exact: Array, ours: Array) -> Array:
        dtype = batch.case.dtype
        inner = name.removeprefix("d ")
        out = dtype if inner == "o" or inner in batch.tensors else accumulation(dtype)
        free = rounding(exact, out)
        own = np.max(np.maximum(0.0, np.abs(ours - exact) - free), initial=0.0)
        least = unit_roundoff(accumulation(dtype)) * np.max(np.abs(exact), initial=0.0)
        return 2 * free + THRESHOLD * max(float(own), float(least))

    def exact(self, batch: Batch, *, backward: bool = False) -> Arrays:
        """The float64 reference's answer to a batch."""
        wide = msgspec.structs.replace(batch.case, dtype="float64")
        state = None if batch.state is None else {
            name: x.double() if x.is_floating_point() else x for name, x in batch.state.items()
        }  # fmt: skip
        tensors, cotangents = ({k: x.double() for k, x in y.items()} for y in (batch.tensors, batch.cotangents))
        there = batch.with_(case=wide, tensors=tensors, cotangents=cotangents, state=state)
        reference = self.operator.variant(self.operator.reference)
        return arrays(run(self.operator, reference, there, backward=backward).values)

    @cached_property
    def base(self) -> Look:
        """The plain run: 70 tokens from an empty state."""
        return self.look()

    @cached_property
    def lengths(self) -> dict[int, Look]:
        """Runs of other lengths."""
        found = {T: self.look(T=T) for T in LENGTHS if T % self.subject.multiple == 0}
        return {T: look for T, look in found.items() if not look.error}

    @cached_property
    def axes(self) -> dict[str, Look]:
        """Runs that differ from the plain one in one thing each."""
        found = {
            "several rows of a batch": self.look(B=3), "one head": self.look(H=1),
            "K = 12, no power of two": self.look(K=12), "V = 12, no power of two": self.look(V=12),
            "inputs whose heads come before tokens in memory": self.look(layout="transposed"),
            "inputs inside a larger buffer (strides, offset)": self.look(layout="guarded"),
        }  # fmt: skip
        if self.supports("rectangular"):
            found["K = 32, V = 16"] = self.look(K=32)
        if self.supports("grouped") and groups(self.operator, self.operator.grid[0]):
            found["grouped heads"] = self.look(group=2)
        if self.supports("state"):
            found["an initial state"] = self.look(initial_state=True)
        if self.supports("packed"):
            found["packed sequences"] = self.look(cu_seqlens=(0, 5, 5, 37, 66))
        first = self.operator.grid[0]
        for options in self.operator.grid[1:]:
            changed = {name: x for name, x in options.items() if first.get(name) != x}
            if len(changed) == 1:
                found[" ".join(f"{name}={x}" for name, x in changed.items())] = self.look(options=options)
        for dtype in self.subject.dtypes:
            if dtype != self.dtype:
                found[dtype] = self.look(dtype=dtype)
        return found

    def domain(self, name: str) -> str:
        """The domain of an input, as the record has it."""
        return next(x.domain for x in self.operator.inputs_of(self.base.batch.options) if x.name == name)

    def changed(self, batch: Batch, **tensors: torch.Tensor) -> Batch:
        """The batch with some inputs replaced."""
        return batch.with_(tensors={**batch.tensors, **tensors})

    def sibling(self, batch: Batch) -> Batch:
        """Other values in the same structure."""
        return build(self.operator, msgspec.structs.replace(batch.case, seed=batch.case.seed + 1))

    def explains(self, look: Look, other: Arrays, name: str = "o") -> bool:
        """Whether an output is another answer, which is not the right one, within its slack."""
        if look.error or name not in other or other[name].shape != look.exact[name].shape:
            return False
        told_apart = bool((np.abs(other[name] - look.exact[name]) > 4 * look.slack[name]).any())
        return told_apart and not bool(look.differs(name, other[name]).any())
