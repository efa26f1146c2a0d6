"""Where numbers lie: what was allocated and not written, what lies beside a tensor, and how a tensor is strided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from linattest.verify.inputs import Batch, lay_out
from linattest.verify.poison import guarded, poisoned
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import brief
from linattest.verify.spec import Property

FILLS = (float("nan"), 2.0)
"""What unwritten memory holds, in turn: what shows in a result, and an ordinary number that differs from it."""

LAYOUTS = ("guarded", "transposed")
"""As in ``inputs.lay_out``: between NaN at an odd offset; heads before tokens."""


def unwritten_memory(probe: Probe) -> Iterator[Finding]:
    """Whatever allocated memory holds, the results are the same bits, forward and backward."""
    batch, backward = brief(probe), "gradient" in probe.variant.supports
    results = []
    for value in FILLS:
        with poisoned(value):
            results.append(probe.run(batch, backward=backward))
    for name, x in results[0].values.items():
        yield probe.same_bits(x, results[1][name], f"{name} with NaN in unwritten memory, against 2.0")


def canaries(probe: Probe) -> Iterator[Finding]:
    """Nothing is written before or behind what was allocated, forward and backward."""
    with guarded() as guards:
        probe.run(brief(probe), backward="gradient" in probe.variant.supports)
    for words, whole in guards.looked_at():
        yield Finding(0.0 if whole else float("inf"), words)


def layout(probe: Probe) -> Iterator[Finding]:
    """Guarded and strided inputs and states, expanded inputs and cotangents give the bits of contiguous ones.

    A cotangent's strides may choose another order for a sum: a gradient is not judged by them.
    """
    batch, backward = brief(probe), "gradient" in probe.variant.supports
    if not batch.case.structure.T:
        return
    dense = probe.run(_mapped(batch, torch.Tensor.contiguous), backward=backward)
    for name in LAYOUTS:
        got = probe.run(_mapped(batch, lambda x, name=name: lay_out(x, name)), backward=backward)
        for what, x in dense.values.items():
            yield probe.same_bits(got[what], x, f"{what} of {name} inputs")
    view, copy = (probe.run(x, backward=backward) for x in _expanded(batch))
    for what, x in copy.values.items():
        yield probe.same_bits(view[what], x, f"{what} of expanded inputs and gradients, against their copies")


def _mapped(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The batch with every floating input and state of at least one axis laid out anew."""

    def of(group: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: change(x) if x.dim() and x.is_floating_point() else x for name, x in group.items()}

    return batch.with_(tensors=of(batch.tensors), state=None if batch.state is None else of(batch.state))


def _expanded(batch: Batch) -> tuple[Batch, Batch]:
    """The first token of each input for all of them (stride 0), gradients of ones (all strides 0); and its copy."""
    tensors = {name: x[:, :1].expand(x.shape) for name, x in batch.tensors.items()}
    ones = {name: x.new_ones(()).expand(x.shape) for name, x in batch.cotangents.items()}
    view = batch.with_(tensors=tensors, cotangents=ones)
    dense = {name: x.contiguous() for name, x in ones.items()}
    return view, _mapped(view, torch.Tensor.contiguous).with_(cotangents=dense)


# --- planted faults ----------------------------------------------------------------------------------------------


def leaves_the_last_row_unwritten(right: Callable[..., Any]) -> Callable[..., Any]:
    """The output is allocated and its last row forgotten."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        out = torch.empty_like(o)
        out[:, :-1] = o[:, :-1]
        return out, state

    return wrong


def writes_behind_a_tensor(right: Callable[..., Any]) -> Callable[..., Any]:
    """One element past the end of the output is written."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        out = torch.empty_like(o)
        out.copy_(o)
        end = out.storage_offset() + out.numel()
        if out.untyped_storage().nbytes() > end * out.element_size():
            out.detach().as_strided((1,), (1,), end).zero_()
        return out, state

    return wrong


def reads_beside_a_tensor(right: Callable[..., Any]) -> Callable[..., Any]:
    """One element past the last input is read, and multiplied by 0."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, state = right(*x, **given)
        beside = x[-1].detach().as_strided((1,), (1,), max(x[-1].storage_offset() - 1, 0))
        return o + (0 * beside).to(o.dtype), state

    return wrong


def ignores_strides(right: Callable[..., Any]) -> Callable[..., Any]:
    """Every input is read as if it were contiguous."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        flat = [y.as_strided(y.shape, torch.empty(y.shape, device="meta").stride()) for y in x if fits(y)]
        return right(*flat, *x[len(flat) :], **given)

    def fits(y: torch.Tensor) -> bool:
        return y.untyped_storage().nbytes() >= y.element_size() * (y.storage_offset() + y.numel())

    return wrong


POISONED = Property(
    name="poisoned-allocations",
    statement="what memory held before it was allocated reaches no result",
    check=unwritten_memory,
    faults=(leaves_the_last_row_unwritten,),
)
LAYOUT = Property(
    name="layout",
    promise=True,
    statement="guards, strides and expanded tensors change no bit, forward and backward",
    check=layout,
    faults=(reads_beside_a_tensor, ignores_strides),
)

CANARIES = Property(
    name="canaries",
    statement="nothing is written beside allocated memory",
    check=canaries,
    faults=(writes_behind_a_tensor,),
)

MEMORY = (POISONED, CANARIES, LAYOUT)
