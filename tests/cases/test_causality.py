"""K28: a change at token P leaves every bit before P, forward and backward."""

from __future__ import annotations

import inspect

import torch

from linattest.verify.inputs import Batch
from linattest.verify.spec import Input, Operator
from linattest.verify.subjects import resolve, run

SIGNS = {"log_gate": -1.0, "weight": 1.0}
"""Domains of one sign."""


def changed(operator: Operator, batch: Batch, P: int, names: set[str]) -> Batch:
    """The named inputs replaced from token P on by other numbers, four times as large.

    Not larger: a delta rule's memory grows by |k|^2 a token, and 64 of them must stay within float64.
    """
    generator = torch.Generator().manual_seed(P)

    def other(x: Input) -> torch.Tensor:
        value = batch.tensors[x.name].clone()
        noise = 4 * torch.randn(value[:, P:].shape, generator=generator)
        value[:, P:] = noise.abs() * SIGNS[x.domain] if x.domain in SIGNS else noise
        return value

    return batch.with_(
        tensors={
            x.name: other(x) if x.name in names else batch.tensors[x.name] for x in operator.inputs_of(batch.options)
        }
    )


def test_the_future_of_each_input_reaches_no_earlier_bit(operator, variant, setting, make, same_bits):
    chunked = "chunk_size" in inspect.signature(resolve(variant.function)).parameters
    T, places = (130, (16, 65) if setting else (1, 16, 63, 64, 65, 129)) if chunked else (6, (1, 5))
    batch = make(operator, T=T, K=8, V=4, H=2, options=setting)
    wanted = run(operator, variant, batch)["o"]
    everything = {x.name for x in operator.inputs_of(batch.options)}
    for P in places:
        for names in [*({name} for name in sorted(everything)), everything]:
            got = run(operator, variant, changed(operator, batch, P, names))["o"]
            same_bits(got[:, :P], wanted[:, :P], f"outputs before {P} with other {sorted(names)}")


def test_the_reported_shape_keeps_its_past(operator, variant, make, same_bits):
    """L = 22, P = 21, H = 4, D = 128 in bfloat16: outputs and gradients before 21, with other last tokens.

    The loss is of the outputs before 21, so the last token's gradients are exactly 0.
    """
    P = 21
    batch = make(operator, T=22, K=128, V=128, H=4, dtype="bfloat16")
    cotangents = {name: torch.zeros_like(x) for name, x in batch.cotangents.items()}
    cotangents["o"][:, :P] = batch.cotangents["o"][:, :P]
    batch = batch.with_(cotangents=cotangents)
    wanted = run(operator, variant, batch, backward=True)
    for x in operator.inputs_of(batch.options):
        got = run(operator, variant, changed(operator, batch, P, {x.name}), backward=True)
        same_bits(got["o"][:, :P], wanted["o"][:, :P], f"outputs with another last {x.name}")
        for name in batch.tensors:
            same_bits(got[f"d {name}"][:, :P], wanted[f"d {name}"][:, :P], f"d {name} with another last {x.name}")
            last = got[f"d {name}"][:, P:]
            same_bits(last, torch.zeros_like(last), f"d {name} of the last token")
