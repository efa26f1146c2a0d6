"""Tile sizes, kept here: no kernel is tuned at run time.

Rows for bfloat16 (2 bytes) of `decay_states`, `decay_outputs`, `channel_*`, `covariance_states`, `covariance_outputs`,
`ridge_sums` and `delta_*` (not `delta_carry_roomy`) are the fastest, or near it, of some that were timed on an H200 at
128 by 128, T = 4096 and 32768; `fenwick_states`, `fenwick_outputs` and `fenwick_gather` at 32768. The others, and all
for float32, are what compiles with few spills: not timed.

A row says how many elements of a state a program keeps (its value block is what fits beside the key width), its warps
and the stages of its pipelined loop; it is looked up by kernel, bytes of an input element and GPU. A GPU without rows
of its own gets the fallback.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from linattest.kernels.blocks import CHUNK
from linattest.kernels.launch import Config, width


class Row(NamedTuple):
    """State elements of a program, warps, stages; whether it was seen right on a GPU with warpgroup instructions where
    the rule forbids them, or wrong where it allows them (`building.environment`)."""

    tile: int
    warps: int
    stages: int
    warpgroups: bool | None = None


FALLBACK = Row(64 * 64, 4, 2)

TABLE: dict[str, dict[tuple[int, int], dict[int, Row]]] = {
    "decay_states": {(9, 0): {2: Row(128 * 128, 4, 3, warpgroups=True), 4: Row(64 * 128, 8, 1)}},
    "decay_outputs": {(9, 0): {2: Row(128 * 128, 8, 2), 4: Row(64 * 128, 8, 1)}},
    "covariance_states": {(9, 0): {2: Row(128 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "covariance_states_forgetting": {(9, 0): {2: Row(128 * 128, 8, 2), 4: Row(16 * 128, 8, 1)}},
    "covariance_outputs": {(9, 0): {2: Row(128 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "covariance_prepare": {(9, 0): {2: Row(64 * 128, 8, 2), 4: Row(32 * 128, 8, 1)}},
    "covariance_gradients": {(9, 0): {2: Row(32 * 128, 8, 1, warpgroups=False), 4: Row(16 * 16, 8, 1)}},
    "covariance_adjoint": {(9, 0): {2: Row(32 * 128, 4, 1), 4: Row(32 * 128, 8, 1)}},
    "covariance_step": {(9, 0): {2: Row(32 * 128, 4, 1), 4: Row(32 * 128, 4, 1)}},
    "decay_walk": {(9, 0): {2: Row(128 * 128, 8, 3), 4: Row(64 * 128, 8, 1)}},
    "decay_gradients": {(9, 0): {2: Row(32 * 128, 8, 1, warpgroups=True), 4: Row(64 * 128, 8, 1)}},
    "decay_step": {(9, 0): {2: Row(64 * 128, 4, 1), 4: Row(64 * 128, 4, 1)}},
    "channel_prepare": {(9, 0): {2: Row(64 * 32, 4, 2, warpgroups=True), 4: Row(64 * 32, 4, 2)}},
    "channel_tree": {(9, 0): {2: Row(64 * 32, 8, 2, warpgroups=True), 4: Row(64 * 16, 8, 2)}},
    "channel_states": {(9, 0): {2: Row(64 * 128, 4, 3), 4: Row(64 * 128, 8, 1)}},
    "channel_outputs": {(9, 0): {2: Row(64 * 128, 4, 2), 4: Row(64 * 128, 8, 1)}},
    "channel_pairs": {(9, 0): {2: Row(64 * 64, 4, 2), 4: Row(64 * 32, 8, 1)}},
    "channel_gradients": {(9, 0): {2: Row(64 * 32, 4, 2, warpgroups=True), 4: Row(64 * 16, 8, 1)}},
    "delta_transitions": {(9, 0): {2: Row(64 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "delta_transitions_apart": {(9, 0): {2: Row(128 * 128, 8, 3)}},
    "delta_scan": {(9, 0): {2: Row(64 * 128, 4, 3), 4: Row(64 * 128, 8, 2)}},
    "delta_outputs": {(9, 0): {2: Row(64 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "delta_outputs_apart": {(9, 0): {2: Row(128 * 128, 8, 2)}},
    "delta_residuals": {(9, 0): {2: Row(64 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "delta_carry": {(9, 0): {2: Row(128 * 128, 8, 2), 4: Row(16 * 128, 8, 1)}},
    "delta_carry_roomy": {(9, 0): {2: Row(128 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "delta_gradients": {(9, 0): {2: Row(64 * 64, 4, 1), 4: Row(64 * 64, 8, 1)}},
    "ridge_sums": {(9, 0): {2: Row(128 * 128, 4, 3), 4: Row(32 * 128, 8, 1)}},
    "delta_step": {(9, 0): {2: Row(32 * 128, 4, 1), 4: Row(32 * 128, 4, 1)}},
    "fenwick_states": {(9, 0): {2: Row(32 * 128, 4, 3, warpgroups=True), 4: Row(16 * 128, 8, 1)}},
    "fenwick_outputs": {(9, 0): {2: Row(128 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "fenwick_final": {(9, 0): {2: Row(64 * 128, 4, 1), 4: Row(16 * 128, 8, 1)}},
    "fenwick_gather": {(9, 0): {2: Row(64 * 128, 4, 3), 4: Row(16 * 128, 8, 1)}},
    "fenwick_carry": {(9, 0): {2: Row(16 * 128, 4, 1, warpgroups=True), 4: Row(16 * 128, 8, 1)}},
    "fenwick_gradients": {(9, 0): {2: Row(64 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "fenwick_step": {(9, 0): {2: Row(32 * 128, 4, 1), 4: Row(32 * 128, 4, 1)}},
    "fenwick_leaves": {(9, 0): {2: Row(64 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "fenwick_join": {(9, 0): {2: Row(64 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "fenwick_delta_outputs": {(9, 0): {2: Row(128 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "fenwick_delta_walks": {(9, 0): {2: Row(64 * 128, 4, 2), 4: Row(16 * 128, 8, 1)}},
    "fenwick_delta_walks_roomy": {(9, 0): {2: Row(32 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "fenwick_delta_collect": {(9, 0): {2: Row(64 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
    "fenwick_delta_gradients": {(9, 0): {2: Row(64 * 128, 8, 1), 4: Row(16 * 128, 8, 1)}},
}
"""Kernel -> compute capability -> bytes of an element of q -> row."""


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a GPU; that of the H200 for anything else, so that a compile check sees its kernels."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


@functools.cache
def choose(kernel: str, device: torch.device, dtype: torch.dtype, K: int, V: int) -> Config:
    """How to build a kernel for key width K and value width V: `block` is the width of its value tile."""
    row = TABLE.get(kernel, {}).get(capability(device), {}).get(dtype.itemsize, FALLBACK)
    block = max(16, min(width(V), row.tile // width(K)))
    return Config(block, row.warps, row.stages, warpgroups=row.warpgroups)


def segment_length(T: int) -> int:
    """Tokens of a segment: a multiple of CHUNK, longer where there are enough of them to fill a GPU.

    It depends on T alone, so that a sequence gives the same bits in a batch of any size.
    """
    return CHUNK * (4 if T <= 4096 else 8 if T <= 8192 else 16 if T <= 16384 else 32)
