"""Parts of a batch, for properties that run one thing in several ways: some tokens, one row, fewer tokens."""

from __future__ import annotations

import msgspec
import torch

from linattest.verify.inputs import Batch
from linattest.verify.probe import Probe
from linattest.verify.tolerance import TORCH_DTYPES, accumulation

BRIEF = 9
"""Tokens of a token loop that say as much as many."""


def tokens(batch: Batch, start: int, stop: int) -> Batch:
    """Tokens [start, stop) of every row. Of packed ones, the sequences keep what lies there of them, maybe nothing.

    The initial state is that of the whole batch: whoever starts later hands on another.
    """
    structure = batch.case.structure
    offsets, cu_seqlens = structure.cu_seqlens, batch.cu_seqlens
    if offsets is not None and cu_seqlens is not None:
        offsets = tuple(min(max(place - start, 0), stop - start) for place in offsets)
        cu_seqlens = cu_seqlens.new_tensor(offsets)
    structure = msgspec.structs.replace(structure, T=stop - start, cu_seqlens=offsets)
    return batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={name: x[:, start:stop] for name, x in batch.tensors.items()},
        cotangents={name: x[:, start:stop] if name == "o" else x for name, x in batch.cotangents.items()},
        cu_seqlens=cu_seqlens,
    )


def unpacked(batch: Batch) -> Batch:
    """The whole row as one sequence; its state is the caller's."""
    structure = msgspec.structs.replace(batch.case.structure, cu_seqlens=None)
    return batch.with_(case=msgspec.structs.replace(batch.case, structure=structure), cu_seqlens=None)


def rows(batch: Batch, chosen: list[int]) -> Batch:
    """Some rows of an unpacked batch, each as often as it is named."""
    structure = msgspec.structs.replace(batch.case.structure, B=len(chosen))
    return batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={name: x[chosen] for name, x in batch.tensors.items()},
        state=None if batch.state is None else {name: x[chosen] for name, x in batch.state.items()},
        cotangents={name: x[chosen] for name, x in batch.cotangents.items()},
    )


def brief(probe: Probe) -> Batch:
    """The batch; of a token loop its first tokens, since a loop has no edges within, and takes its time.

    Differentiable options are tensors of the accumulation type, as in a run with a gradient (``subjects.run``), so that
    runs with and without one compute the same thing.
    """
    batch, dtype = probe.batch, TORCH_DTYPES[accumulation(probe.batch.case.dtype)]
    options = dict(batch.options)
    for name in (option.name for option in probe.operator.options if option.differentiable):
        if options.get(name) is not None:
            options[name] = torch.as_tensor(options[name], dtype=dtype)
    batch = batch.with_(options=options)
    if probe.accepts("chunk_size") or (probe.variant.kernel and probe.variant.kind == "sequence"):
        return batch
    return tokens(batch, 0, min(batch.case.structure.T, BRIEF))
