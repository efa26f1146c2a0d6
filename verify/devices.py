"""Where a variant runs: on a CPU, on a GPU, or in Triton's interpreter; and tensors on the way there and back.

Inputs are made on the CPU, the same bits for every device, and moved with their strides, offsets and surroundings;
results come back before they are judged. The oracle stays on the CPU; so do sensitivity and staging, unless the input
is beyond the oracle (examination.py).

Triton's interpreter runs kernels on a CPU. It checks semantics and bounds, not the rounding of a GPU, and takes seconds
where a GPU takes microseconds: there a kernel runs only where it is asked for by name, and only on small inputs.
Triton reads ``TRITON_INTERPRET`` when it is imported, so whoever wants it sets it before: ``interpret`` for processes
that start afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
import torch

from linattest.verify.environment import Environment, environment
from linattest.verify.inputs import Batch, Case
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Outcome, resolve

SWITCH = "TRITON_INTERPRET"

INTERPRETED_WORK = 1 << 14
"""Largest T * (K + V) * value heads * rows for the interpreter: a case takes it seconds, not minutes."""

LAUNCHER = "linattest.kernels.launch"
"""The module that says how kernels round: ``ENABLE_FP_FUSION``, ``INPUT_PRECISION``."""


def interpreting() -> bool:
    """Whether Triton's interpreter is switched on in this process, and in those that it starts."""
    return os.environ.get(SWITCH) == "1"


def interpret() -> None:
    """Switch the interpreter on for the processes that start from here; this one may have imported Triton already."""
    os.environ[SWITCH] = "1"


def kind(device: str) -> str:
    """ "cpu" of "cpu", "cuda" of "cuda:1"."""
    return torch.device(device).type


def missing(device: str) -> str:
    """Why this machine has no such device, "" if it has."""
    if kind(device) == "cpu":
        return ""
    if not torch.cuda.is_available():
        return f"no GPU: torch {torch.__version__} finds none that it can use"
    index, count = torch.device(device).index or 0, torch.cuda.device_count()
    return f"{device}: this machine has GPUs 0 to {count - 1}" if index >= count else ""


def obstacle(variant: Variant, device: str) -> str:
    """Why a variant cannot run on a device in this process, "" if it can."""
    place = kind(device)
    if place in variant.places or (place == "cpu" and "interpreter" in variant.places and interpreting()):
        return ""
    if place == "cpu" and "interpreter" in variant.places:
        return f"needs a GPU (--device cuda), or {SWITCH}=1"
    return f"runs on {' and '.join(sorted(variant.places))} alone, not on {place}"


def chosen(operator: Operator, names: tuple[str, ...], device: str) -> list[Variant]:
    """The named variants that can run there; without names all of them, but on a CPU no kernels."""
    kernels = kind(device) != "cpu"
    return [
        variant
        for variant in operator.variants
        if (variant.name in names if names else kernels or not variant.kernel) and not obstacle(variant, device)
    ]


def small_enough(variant: Variant, case: Case, device: str) -> bool:
    """Whether a case is one for the interpreter, where it would take that."""
    s = case.structure
    interpreted = variant.kernel and kind(device) == "cpu"
    return not interpreted or s.T * (s.K + s.V) * s.H * s.group * s.B <= INTERPRETED_WORK


class Left(msgspec.Struct, frozen=True):
    """A variant that a campaign did not run anywhere, and why."""

    operator: str
    variant: str
    why: str


def left_out(operators: Iterable[Operator], names: tuple[str, ...], device: str) -> list[Left]:
    """The variants that a campaign passes over: nothing that was not run looks like something that passed."""
    found: list[Left] = []
    for operator in operators:
        runs = chosen(operator, names, device)
        for variant in operator.variants:
            if variant not in runs and (not names or variant.name in names):
                why = obstacle(variant, device) or "in the interpreter it runs when named: --variant " + variant.name
                found.append(Left(operator.name, variant.name, why))
    return found


# --- what a number depends on there --------------------------------------------------------------------------


@cache
def surroundings(device: str, kernel: bool) -> Environment:
    """The environment of a number from a device; of a kernel, with how it rounds and whether it was interpreted."""
    found = msgspec.structs.replace(environment(), device=name(device))
    if not kernel:
        return found
    fusion, precision = (_constant(x) for x in ("ENABLE_FP_FUSION", "INPUT_PRECISION"))
    return msgspec.structs.replace(
        found, interpreted=kind(device) == "cpu", enable_fp_fusion=fusion, input_precision=_words(precision)
    )


def name(device: str) -> str:
    """ "cpu", or the GPU's own name."""
    return "cpu" if kind(device) == "cpu" else torch.cuda.get_device_name(torch.device(device))


def _constant(wanted: str) -> Any:
    try:
        return resolve(f"{LAUNCHER}:{wanted}")
    except (ImportError, AttributeError):
        return None


def _words(precision: Any) -> str | None:
    """``{torch.float32: "tf32x3", ...}`` as "float32 tf32x3, ..."; a word as it is."""
    if isinstance(precision, Mapping):
        return ", ".join(f"{str(dtype).removeprefix('torch.')} {word}" for dtype, word in precision.items())
    return None if precision is None else str(precision)


# --- there and back ------------------------------------------------------------------------------------------


def moved(x: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """The tensor on a device in memory of its own, with its strides, its offset and whatever lies around it."""
    flat = whole(x).to(device, copy=True)
    return flat.as_strided(x.shape, x.stride(), x.storage_offset())


def whole(x: torch.Tensor) -> torch.Tensor:
    """All the memory that a tensor lies in, as one row."""
    x = x.detach()
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def place(batch: Batch, device: str) -> Batch:
    """The batch on a device; itself if it lies there."""
    there = torch.device(device)
    if all(x.device.type == there.type for x in batch.tensors.values()):
        return batch

    def of(group: Mapping[str, Any]) -> dict[str, Any]:
        return {k: moved(x, there) if isinstance(x, torch.Tensor) else x for k, x in group.items()}

    state, offsets = batch.state, batch.cu_seqlens
    return batch.with_(
        tensors=of(batch.tensors),
        state=None if state is None else of(state),
        options=of(batch.options),
        cotangents=of(batch.cotangents),
        cu_seqlens=None if offsets is None else moved(offsets, there),
    )


def home(outcome: Outcome) -> Outcome:
    """The results on the CPU."""
    return Outcome({name: x.cpu() for name, x in outcome.values.items()})


Replay = Callable[[], None]


def capture(function: Callable[[], Mapping[str, torch.Tensor]]) -> tuple[Mapping[str, torch.Tensor], Replay]:
    """One call as a CUDA graph, after a warm-up on the side: its results, and what computes them again in their place.

    Raises:
        RuntimeError: PyTorch's own, for a call that cannot be captured: it waits for the device.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return results, graph.replay
