"""K26, K27: under torch.compile and under autocast, the bits of the plain call."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import keywords, name_state, pack_state, resolve, run, spread
from linattest.verify.values import FINITE


def takes_chunk_size(operator: Operator, variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


@pytest.mark.where(keep=lambda operator, variant: variant.name == "chunk")
def test_a_compiled_call_gives_the_bits_of_the_plain_one(operator, variant, make, same_bits):
    """Traced and differentiated piece by piece (where data decide, the graph breaks), from a cold cache.

    Two shapes in a row; o and state share no memory; h0 is as it was.
    """
    torch._dynamo.reset()
    function = resolve(variant.function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about itself
        compiled = torch.compile(function, backend="aot_eager", dynamic=False)
        for T in (9, 6):
            batch = make(operator, T=T, K=4, V=2, H=2, initial_state=bool(operator.states))
            options = keywords(operator, variant, batch) | {"output_final_state": True}
            if batch.state:
                options["initial_state"] = pack_state(operator, batch.state, batch.options)
            before = {name: x.clone() for name, x in (batch.state or {}).items()}
            results = []
            for call in (function, compiled):
                tensors = {name: x.clone().requires_grad_() for name, x in batch.tensors.items()}
                positional, optional = spread(operator, tensors)
                o, state = call(*positional, **optional, **options)
                grads = torch.autograd.grad(o, list(tensors.values()), batch.cotangents["o"])
                parts = [o, *name_state(operator, state, batch.options).values()]
                results.append([*(x.detach() for x in parts), *grads])
                assert len({x.untyped_storage().data_ptr() for x in parts}) == len(parts), "shared memory"
            for i, (got, wanted) in enumerate(zip(*reversed(results), strict=True)):
                same_bits(got, wanted, f"result {i} at T = {T}")
            for name, x in (batch.state or {}).items():
                same_bits(x, before[name], f"initial {name}")
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_autocast_changes_no_bit(operator, variant, setting, make, same_bits, dtype):
    """Inputs of a type are computed with as explicit casts to that type would be."""
    batch = make(operator, T=65 if takes_chunk_size(operator, variant) else 5, K=32, V=32, dtype=dtype, options=setting)
    plain = run(operator, variant, batch, backward=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(operator, variant, batch, backward=True)
    for name, x in plain.values.items():
        same_bits(inside[name], x, name)


@pytest.mark.under(keep=lambda operator, options: bool(FINITE & {x.domain for x in operator.inputs_of(options)}))
def test_a_float32_gate_goes_with_bfloat16_keys(operator, variant, setting, make, same_bits):
    """T = 65, head size 32: no type error; the numbers of a bfloat16 gate give the bits of the same in float32.

    So do those of beta, lam, weights: of everything that is one number, or one a level or channel, a head.
    """
    T = 65 if takes_chunk_size(operator, variant) else 5
    batch = make(operator, T=T, K=32, V=32, dtype="bfloat16", options=setting)
    gates = {x.name for x in operator.inputs_of(batch.options) if x.domain in FINITE}
    for x in (x for x in operator.inputs_of(batch.options) if x.domain == "rate"):
        batch.tensors[x.name] *= 64  # so that what it takes from a query shows in bfloat16
    wide = batch.with_(tensors={k: x.float() if k in gates else x for k, x in batch.tensors.items()})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(operator, variant, wide, backward=True)
    for name, x in run(operator, variant, batch, backward=True).values.items():
        same_bits(got[name].to(x.dtype), x, name)
    for gate in gates:
        finer = wide.tensors | {gate: wide.tensors[gate] * (1 + 2.0**-12)}
        moved = run(operator, variant, wide.with_(tensors=finer), backward=True).values
        assert any(bool((x != got[name]).any()) for name, x in moved.items()), f"{gate}: it was narrowed"
