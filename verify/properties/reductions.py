"""Operators that become others: without a gate, with equal gates, with all level weights 1.

The other operator's float64 reference is the exact answer; the error nobody can avoid is measured on the operator
at hand. Each property changes the inputs to the special case and keeps everything else, initial state included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from linattest.verify.inputs import Batch, resolve_options
from linattest.verify.measure import compare
from linattest.verify.probe import Finding, Probe
from linattest.verify.spec import Property
from linattest.verify.subjects import Tensors, run

Function = Callable[..., Any]


def _judge(probe: Probe, batch: Batch, exact: np.ndarray, what: str) -> Finding:
    """The variant's output on ``batch`` against ``exact``."""
    verdict = compare("o", probe.run(batch)["o"], probe.against(batch, "o", exact), batch.case.dtype, probe.roundoff)
    return Finding(verdict.ratio, f"{what}: {verdict.message()}")


def _other(probe: Probe, name: str, batch: Batch, state: Tensors | None, **options: Any) -> np.ndarray:
    """The output of another operator's float64 reference on the same tensors, as far as it takes them."""
    other = probe.operators[name]
    shared = {x.name for x in other.options} & set(batch.case.options)
    given = {k: batch.case.options[k] for k in shared} | options
    case = msgspec.structs.replace(batch.case, operator=name, dtype="float64", options=given)
    resolved = resolve_options(other, given)
    tensors = {x.name: batch.tensors[x.name].double() for x in other.inputs_of(resolved)}
    found = run(other, other.variant(other.reference), Batch(case, tensors, state, resolved, {}, batch.cu_seqlens))
    return found["o"].numpy()


def _memory(batch: Batch) -> Tensors | None:
    return None if batch.state is None else {"S": batch.state["S"].double()}


def _ungated(other: str) -> Callable[[Probe], Iterator[Finding]]:
    def check(probe: Probe) -> Iterator[Finding]:
        batch = probe.batch
        open_gates = batch.with_(tensors={**batch.tensors, "g": torch.zeros_like(batch.tensors["g"])})
        exact = _other(probe, other, open_gates, _memory(batch))
        yield _judge(probe, open_gates, exact, f"all log-gates 0 against {other}")

    return check


def equal_channels(probe: Probe) -> Iterator[Finding]:
    """One gate for all channels of a key is one gate a head."""
    batch = probe.batch
    if batch.options["gate"] != "channel":
        return
    g = batch.tensors["g"][..., :1]
    equal = batch.with_(tensors={**batch.tensors, "g": g.expand(batch.tensors["g"].shape).contiguous()})
    per_head = g.squeeze(-1).repeat_interleave(batch.case.structure.group, 2)
    scalar = equal.with_(tensors={**equal.tensors, "g": per_head})
    yield _judge(
        probe, equal, _other(probe, "gla", scalar, _memory(batch), gate="head"), "equal channels against a gate"
    )


def unit_weights(probe: Probe) -> Iterator[Finding]:
    """All level weights 1: the buckets add up to one state, that of gated linear attention or Gated DeltaNet."""
    batch = probe.batch
    ones = batch.with_(tensors={**batch.tensors, "level_weights": torch.ones_like(batch.tensors["level_weights"])})
    state = None if batch.state is None else {"S": batch.state["S"].double().sum(1)}
    other = "gated_delta_net" if batch.options["delta"] else "gla"
    yield _judge(probe, ones, _other(probe, other, ones, state), f"level weights 1 against {other}")


def mask_form(probe: Probe) -> Iterator[Finding]:
    """(Q K^T . M^S . M^H) V with the decay mask and the mask of level weights, from an empty state."""
    batch, s = probe.batch, probe.batch.case.structure
    if batch.options["delta"] or batch.state is not None or batch.cu_seqlens is not None or s.T == 0:
        return
    q, k, v, g, weights = (batch.tensors[x].double() for x in ("q", "k", "v", "g", "level_weights"))
    q, k = (x.repeat_interleave(s.group, 2) for x in (q, k))
    t = np.arange(s.T)
    level = torch.tensor([[int(a ^ b).bit_length() for b in t] for a in t])
    past = torch.from_numpy(t[:, None] >= t)
    decay = torch.where(past, _segment_sums(g), -torch.inf).exp()
    chosen = weights.transpose(1, 2).gather(3, level.expand(s.B, weights.shape[2], s.T, s.T))
    scores = torch.einsum("bthk,bshk->bhts", q, k) * decay * torch.where(past, chosen, 0)
    scale = batch.options.get("scale")
    o = torch.einsum("bhts,bshv->bthv", scores, v) * (s.K**-0.5 if scale is None else float(scale))  # type: ignore[arg-type]
    yield _judge(probe, batch, o.numpy(), "mask form")


def _segment_sums(g: torch.Tensor) -> torch.Tensor:
    """g [B, T, H] -> [B, H, T, T], entry (t, s) the sum of g over (s, t]."""
    length = g.shape[1]
    later = torch.ones(length, length, dtype=torch.bool).tril(-1)
    return torch.where(later, g.transpose(1, 2).unsqueeze(-1), 0).cumsum(2)


# --- planted faults ----------------------------------------------------------------------------------------------


def never_fully_open(right: Function) -> Function:
    """A gate of 1 becomes 0.999."""

    def wrong(*x: torch.Tensor, g: torch.Tensor | None = None, **given: Any) -> Any:
        if g is not None:
            return right(*x, g=g.clamp(max=-1e-3), **given)
        return right(*x[:3], x[3].clamp(max=-1e-3), *x[4:], **given)

    return wrong


def first_channel_apart(right: Function) -> Function:
    """One channel decays twice as fast."""

    def wrong(*x: torch.Tensor, g: torch.Tensor, **given: Any) -> Any:
        return right(*x, g=torch.cat([2 * g[..., :1], g[..., 1:]], -1) if g.dim() == 4 else g, **given)

    return wrong


def top_level_dropped(right: Function) -> Function:
    """The level of a token's second nearest bucket is read with weight 0."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        weights = x[4].clone()
        weights[..., 2] = 0
        return right(*x[:4], weights, **given)

    return wrong


def levels_off_by_one(right: Function) -> Function:
    """Each bucket is read with the weight of the next level."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        return right(*x[:4], x[4].roll(-1, -1), **given)

    return wrong


NO_GATE_IS_DELTA_NET = Property(
    name="no-gate", statement="with all log-gates 0 it is DeltaNet", check=_ungated("delta_net"),
    faults=(never_fully_open,),
)  # fmt: skip
NO_GATE_IS_LINEAR = Property(
    name="no-gate", statement="with all log-gates 0 it is linear attention", check=_ungated("linear"),
    faults=(never_fully_open,),
)  # fmt: skip
EQUAL_CHANNELS = Property(
    name="equal-channels", statement="equal gates in all channels are one gate a head", check=equal_channels,
    faults=(first_channel_apart,),
)  # fmt: skip
UNIT_WEIGHTS = Property(
    name="unit-weights", statement="level weights 1 give gated linear attention, or Gated DeltaNet with beta",
    check=unit_weights, faults=(top_level_dropped,),
)  # fmt: skip
MASK_FORM = Property(
    name="mask-form", statement="(Q K^T . M^S . M^H) V, from an empty state", check=mask_form,
    faults=(levels_off_by_one,),
)  # fmt: skip
