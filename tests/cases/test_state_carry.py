"""K08: a prefix and then token by token; the layout of a stored state; nothing stale in a fresh one.

States are handed on as each operator returns them, a cache of keys and values included.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
import torch

from linattest.verify.inputs import Batch, Scalar, resolve_options
from linattest.verify.poison import poisoned
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Tensors, keywords, name_state, resolve, run, spread

WHOLE = pytest.mark.where(keep=lambda operator, variant: variant.kind == "sequence")
MEMORY = pytest.mark.where(keep=lambda operator, variant: any(x.shape.endswith(" K V") for x in operator.states_of()))


def plain(operator: Operator, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The setting without a normaliser and with scale 1, as far as it has these."""
    chosen = dict(options)
    if "normalizer" in resolve_options(operator, chosen):
        chosen["normalizer"] = False
    return chosen | ({"scale": 1.0} if "scale" in resolve_options(operator, chosen) else {})


def gated_sum(operator: Operator, options: Mapping[str, object]) -> bool:
    """Whether uniform inputs add up in a memory that decays by g."""
    return "g" in (names := {x.name for x in operator.inputs_of(options)}) and "beta" not in names


GATED_SUM = pytest.mark.under(keep=gated_sum)


def decoded(operator: Operator, variant: Variant, batch: Batch, prefix: int) -> Tensors:
    """Output and final state of the variant on a prefix, continued by the operator's step."""
    options = {name: value for name, value in keywords(operator, variant, batch).items() if name != "chunk_size"}
    step = resolve(operator.variant("step").function)
    first, optional = spread(operator, {name: x[:, :prefix] for name, x in batch.tensors.items()})
    o, state = resolve(variant.function)(*first, output_final_state=True, **optional, **options)
    rows = [o]
    for t in range(prefix, batch.case.structure.T):
        token, optional = spread(operator, {name: x[:, t : t + 1] for name, x in batch.tensors.items()})
        o, state = step(*token, initial_state=state, **optional, **options)
        rows.append(o)
    names = (
        {f"state.{name}": x for name, x in name_state(operator, state, batch.options).items()}
        if operator.states_of(batch.options)
        else {}
    )
    return {"o": torch.cat(rows, 1)} | names


PREFIXES = (1, 63, 64, 65, 70, 127, 128, 129)


@WHOLE
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_then_token_by_token_is_the_full_pass(operator, make, judge, in_turn, prefix):
    def obtain(batch: Batch, variant: Variant) -> Tensors | None:
        if variant.kind == "step" or (variant.name != "chunk" and prefix not in (1, 70)):
            return None
        got = decoded(operator, variant, batch, prefix)
        staged = operator.variant("step").staged  # the carried state's rounding, once a decoded token
        return got if not staged else {"o": got["o"]}

    for options in in_turn(operator, PREFIXES.index(prefix)):
        batch = make(operator, T=140, K=4, V=3, options=options)
        judge(operator, batch, functools.partial(obtain, batch))


@WHOLE
@GATED_SUM
def test_decoding_after_a_prefix_decays_once(operator, variant, setting, uniform):
    """g = -0.1, weights 1: o_64 = 10.4908717494033, o_70 = 10.4987495863865, o_71 = 10.4996614683521.

    Gates summed twice would give o_71 = 4.34. In float64, where the gate is -0.1 to 17 digits. All keys are one, so
    their covariance is 0 and a query contracted by it is the query.
    """
    digits = {64: "10.4908717494033", 70: "10.4987495863865", 71: "10.4996614683521"}
    batch = uniform(operator, T=71, K=2, V=2, dtype="float64", options=plain(operator, setting), fill={"g": -0.1})
    for prefix in (64, 70):
        o = decoded(operator, variant, batch, prefix)["o"][0, :, 0, 0]
        assert {t: f"{o[t - 1].item():.15g}" for t in digits} == digits, prefix


@MEMORY
@pytest.mark.parametrize("V", [2, 3])
def test_a_stored_state_is_keys_by_values(operator, variant, setting, uniform, same_bits, V):
    """k = e_1, v = e_2, T = 65: state[0, 1] = 65 where writes add up, 1 where they overwrite; state[1, 0] = 0.

    A state of levels has the token of bit 0 of 65 at level 1 and the 64 of bit 6, if not overwritten, at level 7.
    """
    value = torch.zeros(V)
    value[1] = 1
    batch = uniform(operator, T=65, K=2, V=V, options=plain(operator, setting), fill={"v": value})
    outcome = run(operator, variant, batch)
    got, count = outcome["state.S"], 1.0 if {"beta", "u"} & batch.tensors.keys() else 65.0
    if setting.get("gain") == "raw":  # a ridge regression of the 65 values: nearly 1, in the same place
        count = got[0, 0, 0, 1].item()
        assert 0.9 < count < 1
    levels = {1: 1.0, 7: count - 1} if "state.position" in outcome.values else {0: count}
    wanted = torch.zeros_like(got)
    assert wanted.shape[-2:] == (2, V)
    for place, number in levels.items():
        wanted[:, place, ..., 0, 1] = number
    same_bits(outcome["state.S"], wanted, "state")
    state = {name.removeprefix("state."): x for name, x in outcome.values.items() if name.startswith("state.")}
    silent = batch.with_(tensors=batch.tensors | {"v": torch.zeros_like(batch.tensors["v"])}, state=state)
    if count == 65:  # zero values leave a sum as it is; a correction would erase it
        second = run(operator, variant, silent)["o"][0, :, 0]
        same_bits(second, (65.0 * value).expand(65, V), "second block")


@pytest.mark.parametrize("poison", [2.0, 6.0])
def test_a_fresh_token_reads_no_stale_memory(operator, variant, setting, make, same_bits, poison):
    """conftest.py fills what torch allocates with NaN; here, once more with ordinary numbers."""
    batch = make(operator, T=1, K=4, V=3, H=2, options=setting)
    clean = run(operator, variant, batch, backward=True)
    assert all(bool(x.isfinite().all()) for x in clean.values.values())
    with poisoned(poison):
        for name, x in run(operator, variant, batch, backward=True).values.items():
            same_bits(x, clean[name], name)


@pytest.mark.where(keep=lambda operator, variant: "packed" in variant.supports and variant.kind == "sequence")
def test_a_packed_neighbour_gets_no_gradient(operator, variant, setting, make, same_bits):
    """The loss of sequence B has gradient exactly 0 for every input of A, before and after it."""
    batch = make(operator, T=80, K=4, V=3, H=2, cu_seqlens=(0, 30, 50, 80), options=setting)
    cotangents = {name: torch.zeros_like(x) for name, x in batch.cotangents.items()}
    cotangents["o"][:, 30:50] = batch.cotangents["o"][:, 30:50]
    outcome = run(operator, variant, batch.with_(cotangents=cotangents), backward=True)
    for name in batch.tensors:
        got = outcome[f"d {name}"]
        assert bool((got[:, 30:50] != 0).any()), name
        for part in (got[:, :30], got[:, 50:]):
            same_bits(part, torch.zeros_like(part), f"d {name}")
