"""What a kernel owes to those who use it on a GPU: CUDA graphs, ``torch.compile``, tensors beyond 2**31 elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from linattest.verify import devices, gpu_share
from linattest.verify.inputs import Batch
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import brief, tokens
from linattest.verify.spec import Property
from linattest.verify.subjects import Outcome, provide, resolve

FAR = 1 << 31
"""Elements that a signed 32-bit offset cannot count."""


def graphed(probe: Probe) -> Iterator[Finding]:
    """Captured once and replayed, a call gives its own bits again, and those of other values put into its inputs."""
    if not probe.variant.kernel or not on_gpu(probe.device):
        return
    backward = "gradient" in probe.variant.supports
    batch = probe.there(brief(probe))
    other = probe.there(tokens(probe.sibling(), 0, batch.case.structure.T))
    other = other.with_(options=batch.options)
    plain, changed = (probe.run_there(x, backward=backward).values for x in (batch, other))
    results, again = devices.capture(lambda: probe.run_there(batch, backward=backward).values)
    again()
    for name, x in plain.items():
        yield probe.same_bits(results[name], x, f"{name} of a replayed graph")
    _put(batch, other)
    again()
    for name, x in changed.items():
        yield probe.same_bits(results[name], x, f"{name} of a graph replayed on other values")


def on_gpu(device: str) -> bool:
    """Whether a device has CUDA graphs."""
    return devices.kind(device) == "cuda"


def _put(batch: Batch, other: Batch) -> None:
    """The values of another batch into the memory of this one."""
    states = batch.state or {}, other.state or {}
    for into, values in ((batch.tensors, other.tensors), states, (batch.cotangents, other.cotangents)):
        for name, x in into.items():
            x.copy_(values[name])


def compiled(probe: Probe) -> Iterator[Finding]:
    """Under ``torch.compile`` the same bits, forward and backward (backend aot_eager, which changes no operation)."""
    if not probe.variant.kernel or not probe.batch.case.structure.T:
        return
    batch, backward = brief(probe), "gradient" in probe.variant.supports
    path = f"compiled {probe.variant.function}"
    provide(path, torch.compile(resolve(probe.variant.function), backend="aot_eager", dynamic=False))
    plain = probe.run(batch, backward=backward)
    try:
        got = probe.run(batch, backward=backward, variant=replace(probe.variant, function=path))
    finally:
        torch.compiler.reset()
    for name, x in plain.values.items():
        yield probe.same_bits(got[name], x, f"{name} under torch.compile")


def far_memory(probe: Probe) -> Iterator[Finding]:
    """Each input in turn with rows, then with tokens, that lie more than 2**31 elements apart: the same bits."""
    batch = brief(probe)
    if not probe.variant.kernel or batch.case.dtype not in ("bfloat16", "float16") or not has_room(probe.device):
        return
    there = probe.there(batch)
    plain = probe.run_there(there)
    with gpu_share.alone(probe.device):
        yield from _spread(probe, there, plain)


def _spread(probe: Probe, there: Batch, plain: Outcome) -> Iterator[Finding]:
    for name, x in there.tensors.items():
        for axis, what in enumerate(("rows", "tokens")):
            if x.shape[axis] > 1:
                apart = there.with_(tensors={**there.tensors, name: spread_out(x, axis)})
                for output, y in probe.run_there(apart).values.items():
                    yield probe.same_bits(y, plain[output], f"{output} with far {what} of {name}")


def has_room(device: str) -> bool:
    """Whether a GPU has memory for a tensor of that size (of two bytes an element) several times over."""
    return on_gpu(device) and torch.cuda.mem_get_info(torch.device(device))[0] > 16 * FAR


def spread_out(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The same values, with the last along an axis more than ``FAR`` elements behind the first, and NaN between."""
    step = FAR // (x.shape[axis] - 1) + 64
    strides = list(x.contiguous().stride())
    strides[axis] = max(step, x.numel())
    last = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True))
    far = torch.full((last + 1,), float("nan"), dtype=x.dtype, device=x.device)
    return far.as_strided(x.shape, strides).copy_(x)


# --- planted faults ----------------------------------------------------------------------------------------------


def reads_a_number_on_the_host(right: Callable[..., Any]) -> Callable[..., Any]:
    """The largest value decides in Python, and so is part of the graph."""

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        most = float(v.detach().abs().max())
        return right(q, k, v / most * most, *x, **given)

    return wrong


def rounds_once_more_when_compiled(right: Callable[..., Any]) -> Callable[..., Any]:
    """Another path where ``torch.compile`` traces."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        return (o * (1 + torch.finfo(o.dtype).eps) if torch.compiler.is_compiling() else o), state

    return wrong


def counts_in_32_bits(right: Callable[..., Any]) -> Callable[..., Any]:
    """Offsets are taken modulo ``FAR``."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        return right(*(_wrapped(y) for y in x), **given)

    return wrong


def _wrapped(x: torch.Tensor) -> torch.Tensor:
    last = [(size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    near = [stride if end <= FAR else 0 for stride, end in zip(x.stride(), last, strict=True)]
    return x.as_strided(x.shape, near, x.storage_offset())


GRAPHED = Property(
    name="cuda-graph", promise=True, statement="a captured and replayed CUDA graph gives the same bits", check=graphed,
    faults=(reads_a_number_on_the_host,),
)  # fmt: skip
COMPILED = Property(
    name="compiled", promise=True, statement="torch.compile changes no bit, forward and backward", check=compiled,
    faults=(rounds_once_more_when_compiled,),
)  # fmt: skip
FAR_MEMORY = Property(
    name="far-memory", promise=True,
    statement="inputs whose rows or tokens lie more than 2**31 elements apart give the same bits", check=far_memory,
    faults=(counts_in_32_bits,),
)  # fmt: skip

DEVICE = (GRAPHED, COMPILED, FAR_MEMORY)
