"""What of our own is timed beside an operator: what it stands on, and slower ways to the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from benchmarks.common import resolve
from benchmarks.workloads import Tensors, Workload, call, output_of

Function = Callable[[Tensors], Tensor]
Direction = Literal["forward", "forward+backward"]

LOOP, SEQUENTIAL = "loop:python", "loop:kernel"
"""A token loop in PyTorch, and one in a single launch: what a chunk-parallel form is there to beat."""

LONGEST = {LOOP: 4096, SEQUENTIAL: 32768}
"""Tokens at most: a loop takes time in proportion, and says nothing new."""


def standing_on(room: str, workload: Workload) -> dict[str, Function]:
    """What a workload's cost is counted over, without a gate of its own: another workload has that."""
    name = workload.keywords.get("backbone")
    if name is not None:
        function = resolve(f"linattest.{room}.{name}:chunk")
        return {f"backbone:{name}": lambda x: function(**{n: t for n, t in x.items() if n != "lam"})[0]}
    if workload.parameters:
        chunk = resolve(f"linattest.{room}.{workload.operator}:chunk")

        def fixed(x: Tensors) -> Tensor:
            given = {n: t for n, t in x.items() if n not in workload.parameters and n != "d"}
            return chunk(**given, level_weights=x["d"])[0]

        return {"backbone:level weights given": fixed}
    return {}


def others(room: str, workload: Workload, T: int) -> dict[str, Function]:
    """Other forms of the same operator; they pass the same gate. On a CPU kernels are none."""
    paths = dict(workload.others) if room == "kernels" else {}
    found: dict[str, Function] = {}
    for name, path in paths.items():
        if LONGEST[name] >= T:
            function = resolve(path)
            found[name] = lambda x, f=function: output_of(call(f, workload, x))
    return found


def directions(name: str, asked: Sequence[Direction]) -> list[Direction]:
    """Those in which an implementation is measured: loops forward alone."""
    return [d for d in asked if d == "forward" or name not in LONGEST]
