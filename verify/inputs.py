"""Cases and the tensors they stand for: structure, value family, dtype and seed, nothing more.

A case is small and printable; ``build`` turns it into tensors, always the same ones. Values are drawn in
float64, quantised to the case's dtype, and from then on taken as exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch

from linattest.verify.spec import Operator
from linattest.verify.tolerance import TORCH_DTYPES, accumulation
from linattest.verify.values import POSITIONS, Drawn, draw

Scalar = float | bool | str

LAYOUTS = ("contiguous", "transposed", "guarded")
"""How a tensor lies in memory: dense; heads before tokens; inside a NaN-filled buffer at an odd offset."""


FEWEST_LEVELS = 10
"""Fenwick levels of short structures: a piece of one has those of the whole."""


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a case. ``group`` is HV / H; ``cu_seqlens`` packs sequences into one row (B = 1)."""

    T: int
    K: int
    V: int
    B: int = 1
    H: int = 1
    group: int = 1
    cu_seqlens: tuple[int, ...] | None = None
    initial_state: bool = False
    layout: str = "contiguous"

    @property
    def sequences(self) -> list[tuple[int, int, int]]:
        """(row of the batch, first token, one past the last token) of every sequence."""
        if self.cu_seqlens is None:
            return [(b, 0, self.T) for b in range(self.B)]
        return [(0, a, b) for a, b in zip(self.cu_seqlens, self.cu_seqlens[1:], strict=False)]

    def sizes(self) -> dict[str, int]:
        """The size of every shape letter; L has room for T tokens after any position of the domain."""
        return {
            "B": self.B, "T": self.T, "H": self.H, "HV": self.H * self.group, "K": self.K, "V": self.V,
            "L": max(FEWEST_LEVELS, (max(POSITIONS) + self.T).bit_length() + 1), "N": len(self.sequences),
        }  # fmt: skip

    def shape(self, letters: str) -> tuple[int, ...]:
        """The sizes behind "B T H K"."""
        sizes = self.sizes()
        return tuple(sizes[letter] for letter in letters.split())


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One input of one operator: what ``verify`` runs, prints, saves and replays."""

    operator: str
    structure: Structure
    dtype: str = "float32"
    family: str = "random"
    seed: int = 0
    options: Mapping[str, Scalar] = {}
    gradient: bool = True

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits that name the case."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    def describe(self) -> str:
        """One line for tables and messages."""
        s = self.structure
        parts = [f"B={s.B} T={s.T} H={s.H} HV={s.H * s.group} K={s.K} V={s.V}", self.dtype, self.family]
        if s.cu_seqlens is not None:
            parts.append(f"cu_seqlens={list(s.cu_seqlens)}")
        if s.initial_state:
            parts.append("initial_state")
        if s.layout != "contiguous":
            parts.append(s.layout)
        parts += [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([*parts, f"seed={self.seed}"])


@dataclass(frozen=True)
class Batch:
    """The tensors of a case: inputs, initial state, options, and the cotangents of the outputs.

    ``cotangents`` has a tensor for ``"o"`` and for each ``"state.<name>"``.
    """

    case: Case
    tensors: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor] | None
    options: Mapping[str, Scalar | torch.Tensor | None]
    cotangents: dict[str, torch.Tensor]
    cu_seqlens: torch.Tensor | None = field(default=None)

    def with_(self, **changes: object) -> Batch:
        """A copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def copy(self) -> Batch:
        """The same values in memory of its own, laid out alike: for a run that may modify what it is given."""
        layout = self.case.structure.layout
        tensors = {name: lay_out(x.clone(), layout) for name, x in self.tensors.items()}
        state = None if self.state is None else {name: x.clone() for name, x in self.state.items()}
        return replace(
            self, tensors=tensors, state=state, cotangents={k: x.clone() for k, x in self.cotangents.items()}
        )


def generator(case: Case, purpose: str) -> np.random.Generator:
    """A stream of random numbers of its own for each purpose, equal on every machine."""
    digest = hashlib.sha256(f"{case.operator}|{case.family}|{case.seed}|{purpose}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def resolve_options(operator: Operator, given: Mapping[str, Scalar]) -> dict[str, Scalar | None]:
    """Every option of the operator that has a meaning there: the given value or the default (None: derived).

    Raises:
        ValueError: an option that the operator has not, or that has no meaning beside the others.
    """
    known = {option.name: option for option in operator.options}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"options {unknown} are none of operator {operator.name!r}'s: {sorted(known)}")
    values = {name: given.get(name, option.default) for name, option in known.items()}
    idle = {name for name, option in known.items() if option.when is not None and not option.when(values)}
    if idle & set(given):
        raise ValueError(f"options {sorted(idle & set(given))} have no meaning in {operator.name!r} with {dict(given)}")
    return {name: value for name, value in values.items() if name not in idle}


def build(operator: Operator, case: Case) -> Batch:
    """The tensors of a case.

    Raises:
        ValueError: a structure that cannot be (unknown layout, packed with B > 1, an unknown family).
    """
    s = case.structure
    if s.layout not in LAYOUTS:
        raise ValueError(f"layout={s.layout!r}, expected one of {LAYOUTS}")
    if s.cu_seqlens is not None and s.B != 1:
        raise ValueError(f"B={s.B}, expected 1 with cu_seqlens")
    drawn = Drawn(sizes=s.sizes(), dtype=case.dtype, family=case.family)
    dtype, wide = TORCH_DTYPES[case.dtype], TORCH_DTYPES[accumulation(case.dtype)]

    def tensor(name: str, shape: str, domain: str, to: torch.dtype) -> torch.Tensor:
        values = draw(drawn, name, domain, s.shape(shape), generator(case, name))
        return torch.from_numpy(values).to(to)

    options = resolve_options(operator, case.options)
    inputs, states = operator.inputs_of(options), operator.states_of(options)
    tensors = {x.name: lay_out(tensor(x.name, x.shape, x.domain, dtype), s.layout) for x in inputs}
    state = None
    if s.initial_state and states:
        kinds = {x.name: torch.int64 if x.whole else wide for x in states}
        state = {x.name: tensor(f"state.{x.name}", x.shape, x.domain, kinds[x.name]) for x in states}
        for x in (x for x in states if x.domain == "buckets"):
            state[x.name] *= _occupied(state["position"], state[x.name])
    cotangents = {"o": tensor("d o", operator.output, "real", dtype)}
    for x in states:
        if not x.whole:
            cotangents[f"state.{x.name}"] = tensor(f"d state.{x.name}", x.shape, "real", wide)
        if x.domain == "buckets":  # what must be 0 is no function of the inputs
            seen = torch.tensor([stop - start for _, start, stop in s.sequences], dtype=torch.int64)
            final = seen if state is None else seen + state["position"]
            cotangents[f"state.{x.name}"] *= _occupied(final, cotangents[f"state.{x.name}"])
    cu_seqlens = None if s.cu_seqlens is None else torch.tensor(s.cu_seqlens, dtype=torch.int32)
    return Batch(case, tensors, state, options, cotangents, cu_seqlens)


def _occupied(position: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
    """1 for the levels of a Fenwick state [N, L, ..] that hold a bucket: level j + 1 for each set bit j."""
    bits = torch.arange(S.shape[1]) - 1
    held = (bits >= 0) & ((position[:, None] >> bits.clamp(min=0)) & 1).bool()
    return held.to(S.dtype).view(*held.shape, *[1] * (S.dim() - 2))


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another memory layout (never a copy that could hide a stride bug)."""
    if layout == "transposed" and x.dim() >= 3:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "guarded":
        padded = [*x.shape[:-1], 2 * x.shape[-1] + 1]
        buffer = torch.full((int(np.prod(padded)) + 1,), float("nan"), dtype=x.dtype)
        view = buffer[1:].view(padded)[..., 1 : 2 * x.shape[-1] + 1 : 2]
        view.copy_(x)
        return view
    return x.contiguous()
