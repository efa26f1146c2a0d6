"""Properties of a well-behaved program: repeatable, the same in every mode, does not touch its inputs, keeps NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from linattest.verify import devices
from linattest.verify.inputs import Batch
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import brief, tokens
from linattest.verify.spec import Property
from linattest.verify.subjects import Outcome, call
from linattest.verify.values import FINITE

CHUNK = 64

RUNS = {"cpu": 2, "cuda": 20}
"""How often a run is repeated: on a GPU the order in which programs end is another each time."""


def repeatable(probe: Probe) -> Iterator[Finding]:
    """Every run gives the same bits, forward and backward."""
    backward = "gradient" in probe.variant.supports
    first, *others = (probe.run(probe.batch, backward=backward) for _ in range(RUNS[devices.kind(probe.device)]))
    for i, other in enumerate(others, start=2):
        for name, x in first.values.items():
            yield probe.same_bits(other[name], x, f"run {i} of {name}")


def inputs_unchanged(probe: Probe) -> Iterator[Finding]:
    """Inputs and initial state, and what lies around them, hold the same bits after a run; no result shares their
    memory."""
    batch = probe.there(probe.batch)
    given = batch.tensors | {f"state.{name}": x for name, x in (batch.state or {}).items()}
    before = {name: devices.whole(x).clone() for name, x in given.items()}
    outcome = probe.run_there(batch, backward="gradient" in probe.variant.supports)
    for name, x in given.items():
        yield probe.same_bits(devices.whole(x), before[name], f"memory of {name} after the run")
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
    before = 0 if batch.state is None or "position" not in batch.state else int(batch.state["position"][0])
    edge = max(0, (before + t) // CHUNK * CHUNK - before)  # chunks are aligned to the position, if there is one
    # gates and rates refuse NaN by contract
    for name in (x.name for x in probe.operator.inputs_of(batch.options) if x.domain not in FINITE):
        poisoned = batch.tensors[name].clone()
        poisoned[0, t, 0] = float("nan")
        o = probe.run(batch.with_(tensors={**batch.tensors, name: poisoned}))["o"]
        yield probe.same_bits(o[:, :, s.group :], probe.outcome["o"][:, :, s.group :], f"other heads, NaN in {name}")
        if batch.cu_seqlens is None:
            yield probe.same_bits(o[:, :edge], probe.outcome["o"][:, :edge], f"earlier chunks, NaN in {name}")
        seen = bool(torch.isnan(o[0, t, 0]).any()) or batch.cu_seqlens is not None
        yield Finding(0.0 if seen else float("inf"), f"NaN in {name} of the last token reaches its own output: {seen}")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def modes(probe: Probe) -> Iterator[Finding]:
    """Recording for a gradient or not, inference mode, offsets of either type and on either device: the same bits.

    Two threads may add up in another order: within the budget.
    """
    batch, backward = brief(probe), "gradient" in probe.variant.supports
    plain = probe.run(batch)
    with torch.inference_mode():
        inference = probe.run(batch)
    for name, x in plain.values.items():
        yield probe.same_bits(inference[name], x, f"{name} in inference mode")
    recorded = probe.run(batch, backward=backward)
    for name, x in plain.values.items():
        yield probe.same_bits(recorded[name], x, f"{name} of a run that records for a gradient")
    if batch.cu_seqlens is not None:
        for dtype in (torch.int32, torch.int64):
            other = probe.run(batch.with_(cu_seqlens=batch.cu_seqlens.to(dtype)))
            for name, x in plain.values.items():
                yield probe.same_bits(other[name], x, f"{name} with offsets of {dtype}")
    if devices.kind(probe.device) != "cpu":
        yield from _offsets_at_home(probe, batch, plain)
        return
    length = batch.case.structure.T
    with _threads(2):
        threaded = probe.run(tokens(probe.batch, 0, length))
    yield probe.judge("o", threaded["o"], "on two threads", slice(0, length))


def _offsets_at_home(probe: Probe, batch: Batch, plain: Outcome) -> Iterator[Finding]:
    """Offsets on the CPU and everything else on the GPU."""
    if batch.cu_seqlens is not None:
        there = probe.there(batch).with_(cu_seqlens=batch.cu_seqlens)
        for name, x in probe.run_there(there).values.items():
            yield probe.same_bits(x, plain[name], f"{name} with offsets on the CPU")


def autocast(probe: Probe) -> Iterator[Finding]:
    """Autocast to bfloat16 changes no bit: what an implementation computes in is its own affair."""
    batch, backward = brief(probe), "gradient" in probe.variant.supports
    plain = probe.run(batch, backward=backward)

    def under(*given: Any) -> Any:
        """Forward alone: a backward belongs outside, as PyTorch's documentation has it."""
        with torch.autocast(devices.kind(probe.device), dtype=torch.bfloat16):
            return call(*given)

    cast = probe.run(batch, backward=backward, caller=under)
    for name, x in plain.values.items():
        yield probe.same_bits(cast[name], x, f"{name} under autocast")


def cotangents(probe: Probe) -> Iterator[Finding]:
    """A gradient is linear in what comes from above: times 4 bitwise, of nothing exactly 0; and none is missing."""
    batch = brief(probe)
    if "gradient" not in probe.variant.supports or batch.case.structure.T < 2:
        return
    plain, four, none = (
        probe.run(batch.with_(cotangents={k: x * factor for k, x in batch.cotangents.items()}), backward=True)
        for factor in (1, 4, 0)
    )
    for name in (name for name in plain.values if name.startswith("d ")):
        x, most = plain[name], torch.finfo(plain[name].dtype).smallest_normal
        got = torch.where((x.abs() < most) & four[name].isfinite(), x * 4, four[name])
        yield probe.same_bits(got, x * 4, f"{name} of a cotangent times 4")
        yield probe.same_bits(none[name], torch.zeros_like(x), f"{name} of a cotangent of zeros")
        if name.removeprefix("d ") not in batch.options:
            missing = x.numel() > 0 and not bool((x != 0).any())
            yield Finding(float("inf") if missing else 0.0, f"{name} is {'zero everywhere' if missing else 'there'}")


# --- planted faults ----------------------------------------------------------------------------------------------


def computes_in_autocasts_type(right: Callable[..., Any]) -> Callable[..., Any]:
    """What autocast asks for is what it computes in."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            x = tuple(y.to(torch.get_autocast_dtype("cpu")).to(y.dtype) for y in x)
        return right(*x, **given)

    return wrong


def another_path_while_recording(right: Callable[..., Any]) -> Callable[..., Any]:
    """Rounds once more where a gradient is recorded."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o * (1 + torch.finfo(o.dtype).eps) if o.requires_grad else o, state

    return wrong


def another_path_for_inference(right: Callable[..., Any]) -> Callable[..., Any]:
    """Rounds once more in inference mode."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o * (1 + torch.finfo(o.dtype).eps) if torch.is_inference_mode_enabled() else o, state

    return wrong


def reads_offsets_as_int32(right: Callable[..., Any]) -> Callable[..., Any]:
    """The memory of 64-bit offsets is read as 32-bit ones: every other is 0."""

    def wrong(*x: torch.Tensor, cu_seqlens: torch.Tensor | None = None, **given: Any) -> Any:
        if cu_seqlens is not None and cu_seqlens.dtype == torch.int64:
            cu_seqlens = cu_seqlens.view(torch.int32)[: len(cu_seqlens)].cummax(0).values
        return right(*x, cu_seqlens=cu_seqlens, **given)

    return wrong


def threads_write_over_each_other(right: Callable[..., Any]) -> Callable[..., Any]:
    """With more than one thread, the last row is lost."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return torch.cat([o[:, :-1], 0 * o[:, -1:]], 1) if torch.get_num_threads() > 1 else o, state

    return wrong


def clips_gradients(right: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients of the values end at 1."""

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        v = v.clone()
        if v.requires_grad:
            v.register_hook(lambda g: g.clamp(-1, 1))
        return right(q, k, v, *x, **given)

    return wrong


def adds_to_gradients(right: Callable[..., Any]) -> Callable[..., Any]:
    """A regulariser's gradient is added to that of the values."""

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        v = v.clone()
        if v.requires_grad:
            v.register_hook(lambda g: g + 2.0**-20)
        return right(q, k, v, *x, **given)

    return wrong


def cuts_the_states_graph(right: Callable[..., Any]) -> Callable[..., Any]:
    """The initial state is read without its graph."""

    def wrong(*x: torch.Tensor, initial_state: Any = None, **given: Any) -> Any:
        detached = initial_state.detach() if isinstance(initial_state, torch.Tensor) else initial_state
        return right(*x, initial_state=detached, **given)

    return wrong


REPEATABLE = Property(
    name="repeatable", statement="two runs (20 on a GPU) give the same bits, forward and backward", check=repeatable
)
INPUTS_UNCHANGED = Property(
    name="inputs-unchanged",
    statement="inputs and states keep their bits, with what lies around them, and results do not share their memory",
    check=inputs_unchanged,
)
NAN_CONTAINED = Property(
    name="nan-contained",
    promise=True,
    statement="NaN in one head stays in that head and never reaches an earlier chunk",
    check=nan_contained,
)
MODES = Property(
    name="modes", promise=True,
    statement="recording, inference mode and the type of offsets change no bit; two threads stay in the budget",
    check=modes,
    faults=(
        another_path_while_recording, another_path_for_inference, reads_offsets_as_int32,
        threads_write_over_each_other,
    ),
)  # fmt: skip
AUTOCAST = Property(
    name="autocast", promise=True, statement="autocast changes no bit, forward and backward", check=autocast,
    faults=(computes_in_autocasts_type,),
)  # fmt: skip
COTANGENTS = Property(
    name="cotangents",
    statement="gradients are linear in what comes from above, bitwise for powers of two, and none is missing",
    check=cotangents,
    needs=frozenset({"gradient"}),
    faults=(clips_gradients, adds_to_gradients, cuts_the_states_graph),
)

MACHINE = (REPEATABLE, INPUTS_UNCHANGED, NAN_CONTAINED, MODES, AUTOCAST, COTANGENTS)
