"""What must hold beside speed: no waiting for the device, equal bits run after run and in a CUDA graph, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.common import no_synchronisation
from benchmarks.gate import gradients
from benchmarks.workloads import Tensors, Workload, first_of

if TYPE_CHECKING:
    from benchmarks.measure import Run

RUNS = 20
"""Runs whose bits are compared."""

LIMITS = {"forward": 3.0, "forward+backward": 6.0}
"""Peak memory at most, in inputs and outputs of the forward."""

TREES = {"forward": 4.0, "forward+backward": 8.0}
"""The same for log-linear attention, which keeps a tree of states over the chunks."""

GRAPHED = 16384
"""Longest length at which a graph's bits are compared."""


def check(
    run: Run, workload: Workload, ours: Callable[[Tensors], Tensor], inputs: Tensors, directions: Sequence[str],
    *, thorough: bool,
) -> None:  # fmt: skip
    """All checks of one length, each a row; ``thorough``: the repeated runs."""
    tokens = first_of(inputs).shape[1]

    def row(what: str, ok: bool, value: Any = None) -> None:
        run.add("checks", workload, what=what, tokens=tokens, ok=ok, value=value)

    if workload.parameters:
        row("parameters", ok=True, value=sum(inputs[name].numel() for name in workload.parameters))
    if run.timer.cuda:
        row("no synchronisation", *_quiet(ours, inputs))
        for direction in directions:
            peak = _peak(ours, inputs, backward=direction != "forward")
            limits = TREES if workload.operator == "log_linear" else LIMITS
            row(f"peak memory, {direction}", peak["ratio"] <= limits[direction], peak)
        if tokens <= GRAPHED:
            row("equal bits in a graph", _equal_in_graph(run, ours, inputs))
    if thorough:
        row(f"equal bits in {RUNS} runs", _repeats(ours, inputs, backward="forward+backward" in directions))


def _quiet(ours: Callable[[Tensors], Tensor], inputs: Tensors) -> tuple[bool, str]:
    """Whether the forward never waits for the device, and what torch says where it does."""
    try:
        with no_synchronisation(cuda=True), torch.no_grad():
            ours(inputs)
    except RuntimeError as error:
        return False, str(error).splitlines()[0]
    return True, ""


def _peak(ours: Callable[[Tensors], Tensor], inputs: Tensors, *, backward: bool) -> dict[str, float]:
    """Bytes at the peak beside those of inputs and outputs. Gradients, and the one from above, count in the peak."""
    leaves = {name: x.detach().requires_grad_(backward) for name, x in inputs.items()}
    held = sum(x.nbytes for x in inputs.values())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o = ours(leaves)
    out = o.nbytes
    if backward:
        torch.autograd.grad(o, list(leaves.values()), torch.ones_like(o), allow_unused=True)
    peak = torch.cuda.max_memory_allocated() - before + held
    return {"inputs": held, "outputs": out, "peak": peak, "ratio": float(f"{peak / (held + out):.4g}")}


def _equal_in_graph(run: Run, ours: Callable[[Tensors], Tensor], inputs: Tensors) -> bool:
    """Whether one capture, replayed after its outputs were overwritten, gives the bits of an ordinary call."""
    with torch.no_grad():
        want = ours(inputs)
        kept: list[Tensor] = []
        replay, _ = run.timer.graph(lambda _: kept.append(ours(inputs)), 1, 1)
        kept[-1].fill_(torch.nan)
        replay(0)
        run.timer.wait()
    return torch.equal(kept[-1], want)


def _repeats(ours: Callable[[Tensors], Tensor], inputs: Tensors, *, backward: bool) -> bool:
    """Whether all runs give the bits of the first, gradients included."""

    def once() -> list[Tensor]:
        leaves = {name: x.detach().requires_grad_(backward) for name, x in inputs.items()}
        o = ours(leaves)
        if not backward:
            return [o]
        return [o.detach(), *gradients(o, leaves, torch.ones_like(o)).values()]

    first = once()
    return all(all(map(torch.equal, first, once())) for _ in range(RUNS - 1))
