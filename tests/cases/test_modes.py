"""K26, K27: under torch.compile and under autocast, the bits of the plain call."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import keywords, pack_state, resolve, run


def takes_chunk_size(operator: Operator, variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


def leaves(state: object) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else list(state)  # type: ignore[call-overload]


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
            batch = make(operator, T=T, K=4, V=2, H=2, initial_state=bool(operator.states_of()))
            options = keywords(operator, variant, batch) | {"output_final_state": True}
            if batch.state:
                options["initial_state"] = pack_state(operator, batch.state, batch.options)
            before = {name: x.clone() for name, x in (batch.state or {}).items()}
            results = []
            for call in (function, compiled):
                inputs = [x.clone().requires_grad_() for x in batch.tensors.values()]
                o, state = call(*inputs, **options)
                grads = torch.autograd.grad(o, inputs, batch.cotangents["o"])
                results.append([o.detach(), *(x.detach() for x in leaves(state)), *grads])
                parts = [o, *leaves(state)]
                assert len({x.untyped_storage().data_ptr() for x in parts}) == len(parts), "shared memory"
            for i, (got, wanted) in enumerate(zip(*reversed(results), strict=True)):
                same_bits(got, wanted, f"result {i} at T = {T}")
            for name, x in (batch.state or {}).items():
                same_bits(x, before[name], f"initial {name}")
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_autocast_changes_no_bit(operator, variant, make, same_bits, dtype):
    """Inputs of a type are computed with as explicit casts to that type would be."""
    batch = make(operator, T=65 if takes_chunk_size(operator, variant) else 5, K=32, V=32, dtype=dtype)
    plain = run(operator, variant, batch, backward=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(operator, variant, batch, backward=True)
    for name, x in plain.values.items():
        same_bits(inside[name], x, name)


@pytest.mark.where(keep=lambda o, v: bool({"log_gate", "beta"} & {x.domain for x in o.inputs_of()}))
def test_a_float32_gate_goes_with_bfloat16_keys(operator, variant, make, same_bits):
    """T = 65, head size 32: no type error; the numbers of a bfloat16 gate give the bits of the same in float32."""
    batch = make(operator, T=65 if takes_chunk_size(operator, variant) else 5, K=32, V=32, dtype="bfloat16")
    gates = {x.name for x in operator.inputs_of(batch.options) if x.domain in {"log_gate", "beta"}}
    wide = batch.with_(tensors={k: x.float() if k in gates else x for k, x in batch.tensors.items()})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(operator, variant, wide, backward=True)
    for name, x in run(operator, variant, batch, backward=True).values.items():
        same_bits(got[name].to(x.dtype), x, name)
    finer = {k: x * (1 + 2.0**-12) if k in gates else x for k, x in wide.tensors.items()}
    moved = run(operator, variant, wide.with_(tensors=finer))["state.S"]
    assert bool((moved != got["state.S"]).any()), "a float32 gate's last bits are dropped: it was narrowed"
