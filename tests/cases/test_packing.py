"""K01, K09, K11: what lies behind a short chunk, in no-op tokens, and behind the last packed sequence."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping

import pytest
import torch

from linattest.verify.inputs import Batch
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import resolve, run
from linattest.verify.values import FINITE, KEYS

NO_OP = KEYS | {"beta", "log_gate", "weight"}
"""Domains whose zero makes a token change nothing (of the query, which only reads, no matter)."""


def skips(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether a token can leave the memory alone: what counts its keys must have a weight to leave it out by."""
    domains = {x.domain for x in operator.inputs_of(options)}
    counts = any(x.domain == "count" for x in operator.states_of(options))
    return bool(operator.states) and bool(NO_OP & domains) and (not counts or "weight" in domains)


PACKED = pytest.mark.where(keep=lambda operator, variant: "packed" in variant.supports and variant.kind == "sequence")


def takes_chunk_size(variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


@pytest.mark.parametrize("T", [1, 63, 65, 127, 129, 191])
def test_nothing_behind_a_short_chunk_is_read(operator, variant, setting, make, same_bits, T):
    """Inputs are the first rows of buffers whose rest is NaN, then 1e30: the same bits, forward and backward."""
    batch = make(operator, T=T if takes_chunk_size(variant) else min(T, 12), K=4, V=3, options=setting)
    wanted = run(operator, variant, batch, backward=True)
    for rest in (torch.nan, 1e30):
        tensors: dict[str, torch.Tensor] = {}
        for name, x in batch.tensors.items():
            buffer = torch.full((x.shape[0], x.shape[1] + 64, *x.shape[2:]), rest)
            buffer[:, : x.shape[1]] = x
            tensors[name] = buffer[:, : x.shape[1]]
        got = run(operator, variant, batch.with_(tensors=tensors), backward=True)
        for name, x in wanted.values.items():
            same_bits(got[name], x, f"{name} before {rest}")


def test_the_gate_gradient_survives_a_chunk_of_one_token(operator, variant, setting, gate, gated_sum, same_bits):
    """T = 65, gates 0: o_65 = 65 and dg_j of o_65 is j - 1, for the lone token of the last chunk too."""
    batch, total = gated_sum(operator, setting, gate, T=65, g=0.0)
    batch.cotangents[total][:, -1] = 1
    outcome = run(operator, variant, batch, backward=True)
    sums, slopes = outcome[total].flatten(), outcome[f"d {gate.name}"]
    same_bits(sums, torch.arange(1.0, 66.0)[-sums.numel() :], total)
    same_bits((slopes[..., 0] if slopes.dim() == 4 else slopes).flatten(), torch.arange(65.0), f"d {gate.name}")


@PACKED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rest", [0.0, 1e30, torch.nan], ids=str)
def test_rows_past_the_last_sequence_are_zero_and_get_zero_gradient(
    operator, variant, setting, make, same_bits, rest, dtype
):
    """Total 80, cu_seqlens [0, 30, 70]: whatever the last ten rows hold (a gate stays a gate) and ask for."""
    batch = make(operator, T=80, K=4, V=3, H=2, cu_seqlens=(0, 30, 70), dtype=dtype, options=setting)
    short = batch.copy()
    for x in operator.inputs_of(batch.options):
        if x.domain not in FINITE or math.isfinite(rest):
            batch.tensors[x.name][:, 70:] = -rest if x.domain == "log_gate" else rest
    batch.cotangents["o"][:, 70:] = torch.nan
    got, wanted = (run(operator, variant, b, backward=True) for b in (batch, short))
    for name, x in wanted.values.items():
        same_bits(got[name], x, name)
    for name in ("o", *(f"d {name}" for name in batch.tensors)):
        tail = got[name][:, 70:]
        same_bits(tail, torch.zeros_like(tail), f"{name} from row 70 on")


def padded(operator: Operator, batch: Batch, places: list[int], content: float) -> dict[str, torch.Tensor]:
    """The tensors with no-op tokens before the given places: 0 where 0 makes a no-op, the content elsewhere."""
    inputs = operator.inputs_of(batch.options)
    read = {"q", "x"} if any(x.name == "v" for x in inputs) else {"q", "x", "k"}  # keys without weight, if only counted
    tensors: dict[str, torch.Tensor] = {}
    for x in inputs:
        value = 0.0 if x.domain in NO_OP and x.name not in read else content
        given = batch.tensors[x.name]
        rows = [torch.full_like(given[:, :1], value) if t < 0 else given[:, t : t + 1] for t in order(batch, places)]
        tensors[x.name] = torch.cat(rows, 1)
    return tensors


def order(batch: Batch, places: list[int]) -> list[int]:
    """Token numbers in turn, with -1 for a no-op before each of the places."""
    return [i for t in range(batch.case.structure.T + 1) for i in [-1] * places.count(t) + [t]][:-1]


@pytest.mark.under(keep=skips)
@pytest.mark.parametrize("content", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("places", [[3, 3], [0, 5, 6, 6], [6, 6, 6]], ids=str)
def test_a_no_op_token_changes_no_value(operator, setting, make, judge, content, places):
    """Zero keys, gates, beta and weights: live outputs and the final state are those of the run without these tokens.

    Their queries and values may be anything finite. Where a position counts them, levels are read alike, and buckets
    may be others.
    """
    batch = make(operator, T=6, K=4, V=3, H=2, options=setting, initial_state=True)
    for x in (x for x in operator.inputs_of(batch.options) if x.domain == "level"):
        batch.tensors[x.name].fill_(1)
    tensors = padded(operator, batch, places, content)
    live = torch.tensor([i >= 0 for i in order(batch, places)])
    counted = any(x.whole for x in operator.states_of(batch.options))

    def obtain(variant):
        outcome = run(operator, variant, longer.with_(tensors=tensors))
        names = ["o"] if counted else outcome.values
        return {name: outcome[name][:, live] if name == "o" else outcome[name] for name in names}

    longer = make(operator, T=len(live), K=4, V=3, H=2, options=setting, initial_state=True).with_(state=batch.state)
    judge(operator, batch, obtain)
