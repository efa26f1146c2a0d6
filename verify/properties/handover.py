"""What a state is good for: its documented form, decode steps that go on from it, tokens that leave it alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from linattest.verify import devices
from linattest.verify.inputs import Batch
from linattest.verify.measure import compare
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import brief, tokens
from linattest.verify.spec import Operator, Property, Variant
from linattest.verify.subjects import Tensors, keywords, pack_state, resolve, spread
from linattest.verify.tolerance import TORCH_DTYPES, accumulation
from linattest.verify.values import KEYS

CHUNK = 64
DECODED = 5
"""Tokens that are decoded after a prefill."""


def _state(values: Mapping[str, torch.Tensor]) -> Tensors:
    return {name.removeprefix("state."): x for name, x in values.items() if name.startswith("state.")}


def form(probe: Probe) -> Iterator[Finding]:
    """The final state has the record's shapes and the accumulation type, in memory of its own; not asked for, None."""
    batch, s = probe.batch, probe.batch.case.structure
    kept = probe.operator.states_of(batch.options)
    if not kept or not s.T:
        return
    wide = TORCH_DTYPES[accumulation(batch.case.dtype)]
    outcome = probe.run_there(probe.there(batch))
    for x in kept:
        got, shape = outcome[f"state.{x.name}"], s.shape(x.shape)
        dtype = torch.int64 if x.whole else wide
        right = tuple(got.shape) == shape and got.dtype == dtype
        words = f"state.{x.name} is {list(got.shape)} {got.dtype}, expected {list(shape)} {dtype}"
        yield Finding(0.0 if right else float("inf"), words)
    parts = {name: x for name, x in outcome.values.items() if x.numel()}
    for (a, x), (b, y) in itertools.combinations(parts.items(), 2):
        same = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        yield Finding(float("inf") if same else 0.0, f"{a} and {b} {'share' if same else 'do not share'} memory")
    if probe.variant.kind == "sequence":
        yield from _not_asked_for(probe)


def _not_asked_for(probe: Probe) -> Iterator[Finding]:
    """Without ``output_final_state``: None in its place, and the same output."""
    batch = probe.there(probe.batch)
    given = keywords(probe.operator, probe.variant, batch)
    if batch.cu_seqlens is not None:
        given["cu_seqlens"] = batch.cu_seqlens
    positional, optional = spread(probe.operator, batch.tensors)
    state = pack_state(probe.operator, batch.state, batch.options)
    with torch.no_grad():
        o, final = resolve(probe.variant.function)(*positional, initial_state=state, **optional, **given)
    yield Finding(0.0 if final is None else float("inf"), f"a state not asked for is {type(final).__name__}")
    yield probe.same_bits(o, probe.outcome["o"], "output of the run that returns no state")


def _step_of(probe: Probe) -> Variant | None:
    """A decode step that goes on from the variant's state: of the same module, or any that runs there."""
    runs = devices.chosen(probe.operator, tuple(v.name for v in probe.operator.variants), probe.device)
    steps = [v for v in runs if v.kind == "step" and "state" in v.supports and probe.batch.case.dtype in v.dtypes]
    home = probe.variant.function.partition(":")[0]
    return min(steps, key=lambda v: v.function.partition(":")[0] != home, default=None)


def decoding(probe: Probe) -> Iterator[Finding]:
    """A prefill, then the operator's decode steps from its state: the output of the whole run."""
    batch, length = probe.batch, probe.batch.case.structure.T
    step = _step_of(probe)
    if step is None or probe.variant.kind == "step" or batch.cu_seqlens is not None:
        return
    for t in sorted({length - DECODED, CHUNK} & set(range(1, length))):
        stop = min(t + DECODED + 1, length)
        prefix = probe.run(tokens(batch, 0, t))
        rest = probe.run(tokens(batch, t, stop).with_(state=_state(prefix.values)), variant=step)
        o = torch.cat([prefix["o"], rest["o"]], dim=1)
        yield probe.judge("o", o, f"{t} tokens, then {stop - t} decoded", slice(0, stop))


# --- tokens that do nothing --------------------------------------------------------------------------------------

NO_OP = KEYS | {"beta", "log_gate", "weight"}
"""Domains whose zero makes a token change nothing (of the query, which only reads, no matter)."""

ANYTHING = 3.0
"""What the queries and values of such a token hold."""


def skips(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether a token can leave the memory alone: what counts its keys must have a weight to leave it out by."""
    domains = {x.domain for x in operator.inputs_of(options)}
    counts = any(x.domain == "count" for x in operator.states_of(options))
    return bool(operator.states) and bool(NO_OP & domains) and (not counts or "weight" in domains)


def padded(operator: Operator, batch: Batch, order: list[int]) -> Batch:
    """The tokens in this order, with one that does nothing for each -1."""
    inputs = operator.inputs_of(batch.options)
    read = {"q", "x"} if any(x.name == "v" for x in inputs) else {"q", "x", "k"}  # keys without weight, if only counted
    live, places = torch.tensor(order) >= 0, torch.tensor(order).clamp(min=0)
    tensors: Tensors = {}
    for x in inputs:
        filler = 0.0 if x.domain in NO_OP and x.name not in read else ANYTHING
        rows = batch.tensors[x.name][:, places]
        tensors[x.name] = torch.where(live.view(1, -1, *[1] * (rows.dim() - 2)), rows, filler)
    structure = batch.case.structure
    offsets, cu_seqlens = structure.cu_seqlens, batch.cu_seqlens
    if offsets is not None and cu_seqlens is not None:
        before = [0, *itertools.accumulate(int(i >= 0) for i in order)]
        offsets = tuple(before.index(place) for place in offsets)
        cu_seqlens = cu_seqlens.new_tensor(offsets)
    structure = msgspec.structs.replace(structure, T=len(order), cu_seqlens=offsets)
    case = msgspec.structs.replace(batch.case, structure=structure)
    return batch.with_(case=case, tensors=tensors, cu_seqlens=cu_seqlens)


def idle_tokens(probe: Probe) -> Iterator[Finding]:
    """Tokens of zero keys, gates, rates and weights, between others and at the end: what the others give stays."""
    batch, length = probe.batch, probe.batch.case.structure.T
    if not length or not skips(probe.operator, batch.options):
        return
    counted = any(x.whole for x in probe.operator.states_of(batch.options))
    wanted = probe.wanted
    if counted:  # positions move, so that levels must weigh alike
        batch = brief(probe)
        length = batch.case.structure.T
        levels = {x.name for x in probe.operator.inputs_of(batch.options) if x.domain == "level"}
        tensors = {name: torch.ones_like(x) if name in levels else x for name, x in batch.tensors.items()}
        batch = batch.with_(tensors=tensors)
        wanted = {"o": probe.against(batch, "o", probe.sensitivity(batch).values["o"])}
    places = {1, length // 2, length}
    order = [i for t in range(length + 1) for i in [-1] * (2 * (t in places)) + [t]][:-1]
    outcome = probe.run(padded(probe.operator, batch, order))
    live = torch.tensor(order) >= 0
    for name in ["o"] if counted else outcome.values:
        got = outcome[name][:, live] if name == "o" else outcome[name]
        dtype = batch.case.dtype if name == "o" else accumulation(batch.case.dtype)
        verdict = compare(name, got, wanted[name], dtype, probe.roundoff)
        yield Finding(verdict.ratio, f"among tokens that do nothing: {verdict.message()}")


def idle_state(probe: Probe) -> Iterator[Finding]:
    """Where every token does nothing the memory comes out bit for bit, from chunk to chunk: whoever carries it on in
    fewer bits than it was given with has nothing else to hide that behind."""
    batch = probe.batch
    kept = [x.name for x in probe.operator.states_of(batch.options) if x.domain == "state"]
    still = {
        x.name: torch.zeros_like(batch.tensors[x.name])
        for x in probe.operator.inputs_of(batch.options)
        if x.domain in NO_OP and x.name not in ("q", "x")
    }
    if batch.state is None or not kept or not still:
        return
    outcome = probe.run(batch.with_(tensors={**batch.tensors, **still}))
    for name in kept:
        yield probe.same_bits(outcome[f"state.{name}"], batch.state[name], f"state.{name} after tokens that do nothing")


# --- planted faults ----------------------------------------------------------------------------------------------


def returns_a_narrow_state(right: Callable[..., Any]) -> Callable[..., Any]:
    """The state is kept in bfloat16."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o, state.bfloat16() if isinstance(state, torch.Tensor) else state

    return wrong


def returns_the_state_of_values_by_keys(right: Callable[..., Any]) -> Callable[..., Any]:
    """The memory is stored [V, K]: of square ones, only the numbers say so."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o, state.mT.contiguous() if isinstance(state, torch.Tensor) else state

    return wrong


def state_in_the_outputs_buffer(right: Callable[..., Any]) -> Callable[..., Any]:
    """Output and state are two views of one buffer."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        if not isinstance(state, torch.Tensor) or state.dtype != o.dtype:
            return o, state
        both = torch.cat([o.flatten(), state.flatten()])
        return both[: o.numel()].view(o.shape), both[o.numel() :].view(state.shape)

    return wrong


def always_returns_a_state(right: Callable[..., Any]) -> Callable[..., Any]:
    """``output_final_state`` is ignored."""

    def wrong(*x: torch.Tensor, output_final_state: bool = False, **given: Any) -> Any:
        return right(*x, output_final_state=True, **given)

    return wrong


def carries_the_state_in(dtype: torch.dtype) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The state passes through a narrower type on its way."""

    def plant(right: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(*x: torch.Tensor, initial_state: Any = None, **given: Any) -> Any:
            if isinstance(initial_state, torch.Tensor):
                initial_state = initial_state.to(dtype).to(initial_state.dtype)
            return right(*x, initial_state=initial_state, **given)

        return wrong

    return plant


def forgets_a_thousandth_a_token(right: Callable[..., Any]) -> Callable[..., Any]:
    """The state decays by itself, also where nothing happens."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return o, state * 0.999 ** x[0].shape[1] if isinstance(state, torch.Tensor) else state

    return wrong


STATE_FORM = Property(
    name="state-form",
    statement="the final state has the record's shapes and types, in memory of its own, and is None if not asked for",
    check=form,
    needs=frozenset({"state"}),
    faults=(returns_a_narrow_state, state_in_the_outputs_buffer, always_returns_a_state),
)
DECODING = Property(
    name="decoding",
    statement="a prefill, then decode steps from its state, is the whole run",
    check=decoding,
    needs=frozenset({"state"}),
    faults=(returns_the_state_of_values_by_keys,),
)
IDLE_TOKENS = Property(
    name="idle-tokens",
    statement="tokens of zero keys, gates, rates and weights change no other output and not the state",
    check=idle_tokens,
    needs=frozenset({"state"}),
    faults=(forgets_a_thousandth_a_token,),
)

IDLE_STATE = Property(
    name="idle-state",
    statement="tokens that do nothing leave the memory bit for bit, across chunks",
    check=idle_state,
    needs=frozenset({"state"}),
    faults=(carries_the_state_in(torch.bfloat16), carries_the_state_in(torch.float16)),
)

HANDOVER = (STATE_FORM, DECODING, IDLE_TOKENS, IDLE_STATE)
