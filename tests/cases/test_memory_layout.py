"""K13, K19: strides, storage offsets and guards do not reach a single bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

from linattest.verify.inputs import Batch
from linattest.verify.subjects import resolve, run


def hole(x: torch.Tensor) -> float:
    """What stands in memory beside the numbers: NaN, of whole numbers -1, which none of ours is."""
    return torch.nan if x.is_floating_point() else -1


def transposed(x: torch.Tensor) -> torch.Tensor:
    """The same values, stored with the last two axes exchanged."""
    return x.mT.contiguous().mT if x.dim() > 1 else every_other(x)


def fused_slice(x: torch.Tensor) -> torch.Tensor:
    """A slice of a wider buffer, as of a fused projection, with NaN on both sides."""
    wide = torch.full((*x.shape[:-1], 3 * x.shape[-1]), hole(x), dtype=x.dtype)
    wide[..., x.shape[-1] : 2 * x.shape[-1]] = x
    return wide[..., x.shape[-1] : 2 * x.shape[-1]]


def every_other(x: torch.Tensor) -> torch.Tensor:
    """Every second element along the last axis of a buffer with NaN between."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), hole(x), dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """Stored with heads before tokens (what has no token axis: the second axis after the third, if there is one)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 2 else transposed(x)


def odd_offset(x: torch.Tensor) -> torch.Tensor:
    """Contiguous at storage offset 1, with NaN before and after."""
    buffer = torch.full((x.numel() + 18,), hole(x), dtype=x.dtype)
    view = buffer[1 : 1 + x.numel()].view(x.shape)
    view.copy_(x)
    return view


LAYOUTS = (transposed, fused_slice, every_other, heads_first, odd_offset)
Layout = Callable[[torch.Tensor], torch.Tensor]


def laid_out(batch: Batch, layout: Layout, names: set[str]) -> Batch:
    """The batch with the named inputs (all else if "state" is named: the state) in another layout."""
    tensors = {name: layout(x) if name in names else x for name, x in batch.tensors.items()}
    state = batch.state
    if state is not None and "state" in names:
        state = {name: layout(x) for name, x in state.items()}
    return batch.with_(tensors=tensors, state=state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_a_layout_of_each_input_gives_the_bits_of_the_contiguous_copy(
    operator, variant, setting, make, same_bits, layout, dtype
):
    """Each input by itself, the state, and all together; forward, states and gradients; T = 17 and two chunks."""
    state = bool(operator.states) and "state" in variant.supports
    chunked = "chunk_size" in inspect.signature(resolve(variant.function)).parameters
    for T in (17, 66) if chunked else (7,):
        batch = make(operator, T=T, K=8, V=4, H=2, dtype=dtype, options=setting, initial_state=state)
        wanted = run(operator, variant, batch, backward=True)
        everything = {*batch.tensors, "state"}
        each = [{name} for name in sorted(everything)] if T == 17 and dtype == "float32" else []
        for names in [*each, everything]:
            got = run(operator, variant, laid_out(batch, layout, names), backward=True)
            for name, x in wanted.values.items():
                same_bits(got[name], x, f"{name} with {sorted(names)} as {layout.__name__}")


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "tokens", "heads"])
def test_an_expanded_input_is_its_copy(operator, variant, setting, make, same_bits, axis):
    """Stride 0 along batch, tokens or heads, for each input in turn."""
    batch = make(operator, B=2, T=4, K=4, V=3, H=2, options=setting)
    for name, x in batch.tensors.items():
        view = x.narrow(axis, 0, 1).expand(x.shape)
        assert view.stride(axis) == 0
        got = run(operator, variant, batch.with_(tensors=batch.tensors | {name: view}), backward=True)
        copy = batch.with_(tensors=batch.tensors | {name: view.contiguous()})
        for key, value in run(operator, variant, copy, backward=True).values.items():
            same_bits(got[key], value, f"{key} with {name} expanded")


def test_gradients_arrive_in_any_layout(operator, variant, make, same_bits):
    """An upstream gradient may be expanded (as from .sum()) or transposed."""
    batch = make(operator, T=9, K=4, V=3, H=2)
    ones = {name: torch.ones(()).expand(x.shape) for name, x in batch.cotangents.items()}
    got = run(operator, variant, batch.with_(cotangents=ones), backward=True)
    dense = batch.with_(cotangents={name: x.contiguous() for name, x in ones.items()})
    for key, value in run(operator, variant, dense, backward=True).values.items():
        same_bits(got[key], value, key)
