"""The gate before every timing: the same inputs, against the float64 chunk form on the same device.

Heads do not see each other, so the reference runs on a few of them. The limit is measured, not chosen: what the
reference moves by when every input is rounded once more in its own dtype. An implementation rounds its inputs, and
operands of two products made from them, so it may be off by `FACTOR` times as much. This keeps the speed of a wrong
result out of a record; how right a right one is, is what `linattest verify --device cuda` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import resolve
from benchmarks.workloads import Tensors, Workload, call, first_of

FACTOR = 3.0
"""One rounding of the inputs, and one of an operand of each of two products."""

HEADS = 2
"""How many heads the reference computes: the first and the last."""

UNIT = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclass(frozen=True)
class Verdict:
    """Whether an implementation may be timed: the worst error over its limit, and of what."""

    ok: bool
    worst: float | None
    message: str


@dataclass(frozen=True)
class Wanted:
    """What the reference says of some heads: values by name ("o", "d q", ..), and how far each may be off [heads]."""

    heads: Tensor
    values: Mapping[str, Tensor]
    limits: Mapping[str, Tensor]


def chosen_heads(x: Tensor) -> Tensor:
    """Indices of the heads that are compared."""
    return torch.linspace(0, x.shape[2] - 1, min(HEADS, x.shape[2]), device=x.device).long()


def wanted(workload: Workload, inputs: Tensors, cotangent: Tensor | None) -> Wanted:
    """The reference's answer, with gradients if there is a cotangent [B, T, H, D]."""
    heads = chosen_heads(first_of(inputs))
    shared = workload.parameters  # of all heads: their gradients are sums over more heads than these
    some = {n: x.detach() if n in shared else x.detach().index_select(2, heads) for n, x in inputs.items()}
    do = None if cotangent is None else cotangent.index_select(2, heads).double()
    right = _reference(workload, {name: x.double() for name, x in some.items()}, do)
    moved = _reference(workload, _rounded_again(some), do)
    right = {name: x for name, x in right.items() if name.removeprefix("d ") not in shared}
    limits = {
        name: FACTOR * (_rms(moved[name] - y) + UNIT[first_of(inputs).dtype] * _rms(y)) for name, y in right.items()
    }
    return Wanted(heads, right, limits)


def compare(want: Wanted, got: Mapping[str, Tensor]) -> Verdict:
    """Root mean square error of each head beside its limit; every named value that both have."""
    worst, where = 0.0, ""
    for name, y in want.values.items():
        if name not in got:
            continue
        ratio = _rms(got[name].detach().index_select(2, want.heads).double() - y) / want.limits[name].clamp(min=1e-300)
        if not bool(torch.isfinite(ratio).all()):
            return Verdict(False, None, f"{name} is not finite")
        if float(ratio.max()) > worst:
            worst, where = float(ratio.max()), name
    ok = worst <= 1
    return Verdict(ok, float(f"{worst:.3g}"), "" if ok else f"{where} is off by {worst:.3g} times its limit")


def gradients(o: Tensor, inputs: Tensors, cotangent: Tensor) -> dict[str, Tensor]:
    """ "d q", .. of every input."""
    unused: Any = torch.autograd.grad(o, list(inputs.values()), cotangent, allow_unused=True)
    pairs = zip(inputs.items(), unused, strict=True)
    return {f"d {name}": torch.zeros_like(x) if grad is None else grad for (name, x), grad in pairs}


def decode(workload: Workload, step: Any, inputs: Tensors, state: Any, dtype: torch.dtype) -> Verdict:
    """One token of the step against the float64 step, from the same state."""
    reference = resolve(workload.function("impls", "step"))
    got, _ = call(step, workload, inputs, initial_state=state)
    wide = {name: x.double() for name, x in inputs.items()}
    right, _ = call(reference, workload, wide, initial_state=widened(state))
    again, _ = call(reference, workload, _rounded_again(inputs), initial_state=widened(state))
    every = torch.arange(right.shape[2], device=right.device)
    limit = FACTOR * (_rms(again - right) + UNIT[dtype] * _rms(right))
    return compare(Wanted(every, {"o": right}, {"o": limit}), {"o": got})


def widened(state: Any) -> Any:
    """A state, of whatever parts, with float64 for its floating numbers."""
    if isinstance(state, Tensor):
        return state.double() if state.is_floating_point() else state
    if state is None:
        return None
    parts = [widened(part) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def _reference(workload: Workload, inputs: Tensors, cotangent: Tensor | None) -> dict[str, Tensor]:
    function = resolve(workload.function("impls", "chunk"))
    if cotangent is None:
        with torch.no_grad():
            return {"o": call(function, workload, inputs)[0]}
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    o, _ = call(function, workload, leaves)
    return {"o": o.detach()} | gradients(o, leaves, cotangent)


def _rounded_again(inputs: Tensors) -> Tensors:
    """Every number moved by a roundoff of its dtype, up or down."""
    generator = torch.Generator(next(iter(inputs.values())).device).manual_seed(0)

    def moved(x: Tensor) -> Tensor:
        signs = torch.randint(0, 2, x.shape, generator=generator, device=x.device, dtype=torch.int8).double() * 2 - 1
        return x.double() * (1 + UNIT[x.dtype] * signs)

    return {name: moved(x) for name, x in inputs.items()}


def _rms(x: Tensor) -> Tensor:
    """Root mean square of each head [heads]."""
    return x.square().transpose(0, 2).flatten(1).mean(1).sqrt()
