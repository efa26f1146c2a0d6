"""Metamorphic relations: what must happen to the output when the input changes in a known way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from linattest.verify.measure import compare
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import tokens, unpacked
from linattest.verify.spec import Property
from linattest.verify.tolerance import OUTPUT_ROUNDING, unit_roundoff

CHUNK_SIZES = (16, 32, 128)


def _cuts(length: int) -> list[int]:
    """Positions worth cutting at: next to the ends, the middle, and around a chunk of 64."""
    return sorted({1, length // 2, 63, 64, 65, length - 1} & set(range(1, length)))


def causality(probe: Probe) -> Iterator[Finding]:
    """Changing tokens >= P leaves the bits of outputs < P, and gradients to tokens >= P exactly 0."""
    length = probe.batch.case.structure.T
    other = probe.sibling()
    for cut in _cuts(length):
        tensors = {
            name: torch.cat([x[:, :cut], other.tensors[name][:, cut:]], dim=1)
            for name, x in probe.batch.tensors.items()
        }
        changed = probe.run(probe.batch.with_(tensors=tensors))
        yield probe.same_bits(
            changed["o"][:, :cut], probe.outcome["o"][:, :cut], f"outputs before {cut} after a change at {cut}"
        )
    if "gradient" in probe.variant.supports and length > 1:
        cut = length // 2
        cotangents = {name: torch.zeros_like(x) for name, x in probe.batch.cotangents.items()}
        cotangents["o"][:, :cut] = probe.batch.cotangents["o"][:, :cut]
        result = probe.run(probe.batch.with_(cotangents=cotangents), backward=True)
        for name in probe.batch.tensors:
            tail = result[f"d {name}"][:, cut:]
            yield probe.same_bits(tail, torch.zeros_like(tail), f"gradient of outputs before {cut} to later {name}")


def linearity(probe: Probe) -> Iterator[Finding]:
    """Twice the values (and memory) give twice the output, bitwise; two halves of the values add up."""
    batch = probe.batch
    if "v" not in batch.tensors:
        return
    memory = {x.name for x in probe.operator.states if x.domain in {"state", "buckets"}}
    state = None if batch.state is None else {k: x * 2 if k in memory else x for k, x in batch.state.items()}
    doubled = probe.run(batch.with_(tensors={**batch.tensors, "v": batch.tensors["v"] * 2}, state=state))
    o = probe.outcome["o"]
    normal = o.abs() >= torch.finfo(o.dtype).smallest_normal  # below, doubling does not commute with rounding
    twice = torch.where(normal, doubled["o"], o * 2)
    yield probe.same_bits(twice, o * 2, "output for values and memory times 2")
    even = (torch.arange(batch.case.structure.T) % 2 == 0).view(1, -1, 1, 1)
    v = batch.tensors["v"]
    blank = None if batch.state is None else {k: x * 0 if k in memory else x for k, x in batch.state.items()}
    first = probe.run(batch.with_(tensors={**batch.tensors, "v": torch.where(even, v, 0)}))["o"].double()
    second = probe.run(batch.with_(tensors={**batch.tensors, "v": torch.where(even, 0, v)}, state=blank))["o"].double()
    rounding = OUTPUT_ROUNDING * unit_roundoff(batch.case.dtype) * (first.abs() + second.abs()).numpy()
    wanted = replace(probe.wanted["o"], staged=probe.wanted["o"].staged + rounding, staged_rms=None)
    verdict = compare("o", first + second, wanted, "float64", probe.roundoff)
    yield Finding(verdict.ratio, f"sum of the outputs for even and odd values: {verdict.message()}")


def split(probe: Probe) -> Iterator[Finding]:
    """Running [0, t) and handing the state to [t, T) gives the output of one run, for every t.

    The reference, a token loop, has no edges within it: a few cuts say as much. So they do of packed sequences, which
    lie on one side, on the other (where they are empty, and pass their state on), or on both; and they must in Triton's
    interpreter.
    """
    batch, length = probe.batch, probe.batch.case.structure.T
    if probe.variant.kind == "step":
        return
    every = length <= 80 and probe.variant.name != probe.operator.reference and batch.cu_seqlens is None
    every = every and not probe.interpreted
    points = range(length + 1) if every else [0, *_cuts(length), length]
    for t in points:
        before = tokens(batch, 0, t)
        left = probe.run(before)
        state = {name.removeprefix("state."): x for name, x in left.values.items() if name.startswith("state.")}
        behind = tokens(batch, t, length).with_(state=state)
        right, parts = probe.run(behind), (before, behind)
        o = torch.cat([left["o"], right["o"]], dim=1)
        yield probe.judge_parts("o", o, f"split at {t}", parts)
        for name in (name for name in right.values if name.startswith("state.")):
            yield probe.judge_parts(name, right[name], f"split at {t}", parts)


def chunk_sizes(probe: Probe) -> Iterator[Finding]:
    """Every chunk size gives the exact output within the same budget."""
    if not probe.accepts("chunk_size"):
        return
    for size in CHUNK_SIZES:
        variant = replace(probe.variant, options={**probe.variant.options, "chunk_size": size})
        for name, got in probe.run(probe.batch, variant=variant).values.items():
            yield probe.judge(name, got, f"chunk_size={size}")


def packed(probe: Probe) -> Iterator[Finding]:
    """A packed sequence is what it is alone; its neighbours and the rows past the end do not matter."""
    batch, structure = probe.batch, probe.batch.case.structure
    if batch.cu_seqlens is None or structure.cu_seqlens is None:
        return
    end = structure.cu_seqlens[-1]
    rest = probe.outcome["o"][:, end:]
    yield probe.same_bits(rest, torch.zeros_like(rest), "rows past the last sequence")
    other = probe.sibling()
    for n, (_, start, stop) in enumerate(structure.sequences):
        alone = unpacked(tokens(batch, start, stop))
        if batch.state is not None:
            alone = alone.with_(state={k: x[n : n + 1] for k, x in batch.state.items()})
        found = probe.run(alone)
        yield probe.judge("o", found["o"], f"sequence {n} alone", slice(start, stop))
        for name in (name for name in found.values if name != "o"):
            yield probe.same_bits(probe.outcome[name][n : n + 1], found[name], f"{name} of sequence {n} alone")
        mine = torch.zeros(structure.T, dtype=torch.bool)
        mine[start:stop] = True
        tensors = {
            name: torch.where(mine.view(1, -1, *[1] * (x.dim() - 2)), x, other.tensors[name])
            for name, x in batch.tensors.items()
        }
        changed = probe.run(batch.with_(tensors=tensors))["o"]
        what = f"sequence {n} with other neighbours"
        yield probe.same_bits(changed[:, start:stop], probe.outcome["o"][:, start:stop], what)
        if "gradient" in probe.variant.supports and stop > start:
            yield from _isolated(probe, n, mine)


def _isolated(probe: Probe, n: int, mine: torch.Tensor) -> Iterator[Finding]:
    """The gradient of one packed sequence's outputs to every other row is exactly 0."""
    cotangents = {name: torch.zeros_like(x) for name, x in probe.batch.cotangents.items()}
    cotangents["o"][:, mine] = probe.batch.cotangents["o"][:, mine]
    result = probe.run(probe.batch.with_(cotangents=cotangents), backward=True)
    for name in probe.batch.tensors:
        rest = result[f"d {name}"][:, ~mine]
        yield probe.same_bits(rest, torch.zeros_like(rest), f"gradient of sequence {n} to other rows of {name}")


def permutation(probe: Probe) -> Iterator[Finding]:
    """Reversing the heads or the batch reverses the output, bitwise."""
    batch, structure = probe.batch, probe.batch.case.structure
    head_axes = {x.name: x.head_axis for x in probe.operator.states}

    def reverse(name: str, x: torch.Tensor, heads: bool) -> torch.Tensor:
        axis = head_axes.get(name.removeprefix("state."), 2) if heads else 0
        return x if axis is None else x.flip(axis)

    for heads, many in ((True, structure.H > 1), (False, structure.B > 1)):
        if not many:
            continue
        tensors = {name: reverse("", x, heads) for name, x in batch.tensors.items()}
        state = None if batch.state is None else {k: reverse(k, x, heads) for k, x in batch.state.items()}
        flipped = probe.run(batch.with_(tensors=tensors, state=state))
        for name, x in probe.outcome.values.items():
            back = reverse(name, flipped[name], heads)
            yield probe.same_bits(back, x, f"{name} for reversed {'heads' if heads else 'batch'}")


CAUSALITY = Property(
    name="causality",
    statement="outputs before P do not depend on tokens from P on, bitwise; gradients to them are exactly 0",
    check=causality,
)
LINEARITY = Property(
    name="linearity",
    statement="the output is linear in v (and the memory): times 2 bitwise, sums within the budget",
    check=linearity,
)
SPLIT = Property(
    name="split",
    statement="a run cut at any t, with the state handed over, equals the whole run",
    check=split,
    needs=frozenset({"state"}),
)
CHUNK_SIZE = Property(name="chunk-size", statement="all chunk sizes agree with the exact output", check=chunk_sizes)
PACKED = Property(
    name="packed",
    statement="a packed sequence equals the sequence alone, whatever its neighbours hold",
    check=packed,
    needs=frozenset({"packed"}),
)
PERMUTATION = Property(
    name="permutation", promise=True, statement="heads and batch rows are independent, bitwise", check=permutation
)

METAMORPHIC = (CAUSALITY, LINEARITY, SPLIT, CHUNK_SIZE, PACKED, PERMUTATION)
