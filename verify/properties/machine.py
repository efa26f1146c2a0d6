"""Properties of a well-behaved program: repeatable, does not touch its inputs, keeps NaN where it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from linattest.verify.probe import Finding, Probe
from linattest.verify.spec import Property
from linattest.verify.values import FINITE

CHUNK = 64


def repeatable(probe: Probe) -> Iterator[Finding]:
    """Two runs give the same bits, forward and backward."""
    backward = "gradient" in probe.variant.supports
    first, second = (probe.run(probe.batch, backward=backward) for _ in range(2))
    for name, x in first.values.items():
        yield probe.same_bits(second[name], x, f"second run of {name}")


def inputs_unchanged(probe: Probe) -> Iterator[Finding]:
    """Inputs and initial state hold the same bits after a run, and no result shares their memory."""
    batch = probe.batch
    given = batch.tensors | {f"state.{name}": x for name, x in (batch.state or {}).items()}
    before = {name: x.clone() for name, x in given.items()}
    outcome = probe.run(batch, backward="gradient" in probe.variant.supports)
    for name, x in given.items():
        yield probe.same_bits(x, before[name], f"{name} after the run")
    owners = {x.untyped_storage().data_ptr(): name for name, x in given.items() if x.numel()}
    if batch.case.structure.T > 0:
        for name in ("o", *(name for name in outcome.values if name.startswith("state."))):
            owner = owners.get(outcome[name].untyped_storage().data_ptr())
            yield Finding(float("inf") if owner else 0.0, f"{name} shares memory with {owner or 'nothing'}")


def nan_contained(probe: Probe) -> Iterator[Finding]:
    """NaN in one token of one head reaches no other head and no earlier chunk."""
    batch, s = probe.batch, probe.batch.case.structure
    if s.T == 0 or s.H < 2:
        return
    t = s.T - 1
    # gates and rates refuse NaN by contract
    for name in (x.name for x in probe.operator.inputs_of(batch.options) if x.domain not in FINITE):
        poisoned = batch.tensors[name].clone()
        poisoned[0, t, 0] = float("nan")
        o = probe.run(batch.with_(tensors={**batch.tensors, name: poisoned}))["o"]
        yield probe.same_bits(o[:, :, s.group :], probe.outcome["o"][:, :, s.group :], f"other heads, NaN in {name}")
        edge = t // CHUNK * CHUNK
        if batch.cu_seqlens is None:
            yield probe.same_bits(o[:, :edge], probe.outcome["o"][:, :edge], f"earlier chunks, NaN in {name}")
        seen = bool(torch.isnan(o[0, t, 0]).any()) or batch.cu_seqlens is not None
        yield Finding(0.0 if seen else float("inf"), f"NaN in {name} of the last token reaches its own output: {seen}")


REPEATABLE = Property(
    name="repeatable", statement="two runs give the same bits, forward and backward", check=repeatable
)
INPUTS_UNCHANGED = Property(
    name="inputs-unchanged",
    statement="inputs and states keep their bits, and results do not share their memory",
    check=inputs_unchanged,
)
NAN_CONTAINED = Property(
    name="nan-contained",
    statement="NaN in one head stays in that head and never reaches an earlier chunk",
    check=nan_contained,
)

MACHINE = (REPEATABLE, INPUTS_UNCHANGED, NAN_CONTAINED)
