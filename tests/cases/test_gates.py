"""K02, K03: decays from none to a reset, with the right values of the reports.

All on plain gated sums: o_t = scale sum_{s <= t} exp(g_{s+1} + ... + g_t), and, of the last output,
dg_j = scale sum_{s < j} exp(g_{s+1} + ... + g_T). An operator with erase keys is one when they are 0.
"""

from __future__ import annotations

import inspect

import mpmath
import pytest
import torch

from linattest.verify import registry
from linattest.verify.examine import Examination
from linattest.verify.inputs import Batch
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import call, resolve, run
from linattest.verify.tolerance import unit_roundoff

GATED = pytest.mark.where(keep=lambda operator, variant: "log_gate" in {x.domain for x in operator.inputs_of()})
GATED_SUM = pytest.mark.where(
    keep=lambda operator, variant: {"log_gate"} == {x.domain for x in operator.inputs_of()} & {"log_gate", "beta"}
)


def corrects(operator: Operator, variant: Variant) -> bool:
    names = {x.name for x in operator.inputs_of()}
    return "v" in names and bool(names & {"beta", "erase", "u"})


CORRECTS = pytest.mark.where(keep=corrects)


def takes_chunk_size(operator: Operator, variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


def of_last_output(batch: Batch) -> Batch:
    """The batch with the last output as its loss."""
    cotangents = {name: torch.zeros_like(x) for name, x in batch.cotangents.items()}
    cotangents["o"][:, -1] = 1
    return batch.with_(cotangents=cotangents)


@GATED_SUM
@pytest.mark.parametrize(("g", "digits"), [(-2, ("1.15651764274967", "0.156517642749666")), (-6, None)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_decay_and_its_gradient_have_the_closed_form(operator, variant, uniform, near, g, digits, dtype):
    T = 64
    batch = of_last_output(uniform(operator, T=T, K=2, V=1, dtype=dtype, options={"scale": 1.0}, fill={"g": g}))
    with mpmath.workdps(30):
        power = [mpmath.exp(g * n) for n in range(T + 1)]
        outputs = [mpmath.fsum(power[: t + 1]) for t in range(T)]
        slopes = [mpmath.fsum(power[T - s] for s in range(1, j)) for j in range(1, T + 1)]
        assert digits in (None, (mpmath.nstr(outputs[-1], 15), mpmath.nstr(slopes[-1], 15)))
    sensitive, outcome = Examination(operator, batch).sensitivity, run(operator, variant, batch, backward=True)
    for name, exact in (("o", outputs), ("d g", slopes)):
        shape = outcome[name].shape
        wanted = torch.tensor([float(x) for x in exact], dtype=torch.float64).view(shape)
        near(name, outcome[name], wanted, torch.from_numpy(sensitive.kappa(name)), dtype)
    assert all(bool(x.isfinite().all()) for x in outcome.values.values())


@GATED_SUM
@pytest.mark.parametrize("T", [1, 2, 16, 17, 64])
def test_a_decay_of_minus_fifty_leaves_each_token_alone(operator, variant, uniform, T):
    """o_t = scale (1 + 1.93e-22); |dg| < 1e-20, and so is the difference of other gradients from a token's own."""
    batch = uniform(operator, T=T, K=2, V=1, options={"scale": 1.0}, fill={"g": -50})
    batch.cotangents["o"].fill_(1)
    outcome = run(operator, variant, batch, backward=True)
    assert bool((outcome["o"] == 1).all())
    apart = uniform(operator, B=T, T=1, K=2, V=1, options={"scale": 1.0}, fill={"g": -50})
    apart.cotangents["o"].fill_(1)
    alone = run(operator, variant, apart, backward=True)
    for name in batch.tensors:
        got = outcome[f"d {name}"].transpose(0, 1).double()
        assert bool(((got - alone[f"d {name}"].double()).abs() < 1e-20).all()), name
    assert bool((outcome["d g"].abs() < 1e-20).all())


@GATED_SUM
@pytest.mark.parametrize("g", [-torch.inf, -1e30], ids=str)
@pytest.mark.parametrize("p", [0, 1, 31, 63, 64, 65, 69])
def test_a_reset_forgets_everything_before_it(operator, variant, uniform, same_bits, p, g):
    T = 70
    gates = torch.zeros(1, T, 1)
    gates[:, p] = g
    batch = uniform(operator, T=T, K=2, V=1, options={"scale": 1.0}, fill={"g": gates}, initial_state=True)
    batch.cotangents["o"][:, p:] = 1
    batch = batch.with_(state={name: torch.ones_like(x) for name, x in (batch.state or {}).items()})
    outcome = run(operator, variant, batch, backward=True)
    count = torch.arange(T)
    wanted = torch.where(count < p, count + 2, count - p + 1).float()  # the state counts as one token
    same_bits(outcome["o"].flatten(), wanted, "o")
    for name in batch.tensors:
        assert bool(outcome[f"d {name}"].isfinite().all()), name
        same_bits(outcome[f"d {name}"][:, :p], torch.zeros_like(batch.tensors[name][:, :p]), f"d {name} before {p}")
    for name, x in (batch.state or {}).items():
        same_bits(outcome[f"d state.{name}"], torch.zeros_like(x), f"d state {name}")


@GATED_SUM
@pytest.mark.parametrize("size", [1e6, 1e7, 1e8])
def test_no_decay_after_huge_decays_is_exactly_one(operator, variant, uniform, same_bits, size):
    """Prefix sums of these gates are not monotone in float32: differences come out 4, 32 and 512."""
    generator = torch.Generator().manual_seed(0)
    gates = torch.cat([-size * torch.rand(48, generator=generator), torch.zeros(16)]).view(1, 64, 1)
    batch = uniform(operator, T=64, K=2, V=1, options={"scale": 1.0}, fill={"g": gates})
    outcome = run(operator, variant, of_last_output(batch), backward=True)
    same_bits(outcome["o"].flatten()[47:], torch.arange(1.0, 18.0), "tail")
    same_bits(outcome["d v"].flatten(), torch.cat([torch.zeros(47), torch.ones(17)]), "d v")
    assert bool(outcome["d g"].isfinite().all())


@GATED_SUM
def test_a_gate_of_subnormal_size_is_exactly_one(operator, variant, uniform, same_bits):
    batch = uniform(operator, T=65, K=2, V=1, options={"scale": 1.0}, fill={"g": -3.72e-44})
    assert bool((batch.tensors["g"] < 0).all())
    outcome = run(operator, variant, of_last_output(batch), backward=True)
    same_bits(outcome["o"].flatten(), torch.arange(1.0, 66.0), "o")
    same_bits(outcome["d g"].flatten(), torch.arange(65.0), "d g")


@GATED_SUM
@pytest.mark.where(keep=takes_chunk_size)
def test_a_long_sequence_with_a_tail_has_the_closed_form(operator, variant, uniform, near):
    """T = 43884 = 64 * 685 + 44, g = -0.01: o_T = 100.500833331944.

    With f = 1/(1 - e^g) the output is f in effect, and a rounding of every gate moves it by at most
    |g| sum_n n e^(gn) = |g| e^g f^2 < f roundoffs; of every token's product and sum, by f each: 3 f in all.
    """
    batch = uniform(operator, T=43884, K=2, V=1, options={"scale": 1.0}, fill={"g": -0.01})
    gate = mpmath.mpf(float(batch.tensors["g"][0, 0, 0]))
    with mpmath.workdps(30):
        exact = (1 - mpmath.exp(gate * 43884)) / (1 - mpmath.exp(gate))
        assert mpmath.nstr((1 - mpmath.exp("-438.84")) / (1 - mpmath.exp("-0.01")), 15) == "100.500833331944"
    wanted = torch.tensor(float(exact), dtype=torch.float64).view(1, 1, 1, 1)
    got = run(operator, variant, batch)["o"][:, -1:]
    near("o", got, wanted, 3 * unit_roundoff("float32") * wanted, "float32")


@GATED
@pytest.mark.where(keep=takes_chunk_size)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_long_run_may_be_cut_at_any_chunk(operator, variant, make, same_bits, dtype):
    """g = logsigmoid(N(0,1))/16, T = 6444: finite; in float64 (where a carried state is not rounded), bit for bit."""
    T = 6444
    batch = make(operator, T=T, K=4, V=3, dtype=dtype)
    raw = torch.randn(1, T, 1, generator=torch.Generator().manual_seed(0))
    gate = torch.nn.functional.logsigmoid(raw) / 16
    changed = {"g": gate.to(batch.tensors["g"].dtype)}
    if "erase" in batch.tensors:  # erasing along other keys than those written grows without bound
        changed["erase"] = batch.tensors["write"]
    batch = batch.with_(tensors=batch.tensors | changed)
    whole = run(operator, variant, batch)
    assert bool(whole["o"].isfinite().all())
    for cut in (64, 3200, 6400) if dtype == "float64" else ():
        left = run(operator, variant, batch.with_(tensors={k: x[:, :cut] for k, x in batch.tensors.items()}))
        state = {name: left[f"state.{name}"] for name in (x.name for x in operator.states_of(batch.options))}
        rest = batch.with_(tensors={k: x[:, cut:] for k, x in batch.tensors.items()}, state=state)
        right = run(operator, variant, rest)
        same_bits(torch.cat([left["o"], right["o"]], 1), whole["o"], f"cut at {cut}")


@GATED
@pytest.mark.parametrize("T", [7, 50, 64, 65, 128, 200])
def test_gates_of_one_are_no_gates(operator, variant, make, same_bits, T):
    """Against the call without the gate or, where it is no option, the operator that has the other inputs."""
    gate = next(x.name for x in operator.inputs_of() if x.domain == "log_gate")
    batch = make(operator, T=T, K=4, V=3, H=2)
    batch.tensors[gate].zero_()
    gated = run(operator, variant, batch, backward=True)
    others = {name: x for name, x in batch.tensors.items() if name != gate}
    twin = next((o for o in registry.OPERATORS if [x.name for x in o.inputs_of()] == list(others)), operator)
    optional = inspect.signature(resolve(variant.function)).parameters[gate].default is None
    assert optional or twin is not operator, "no way to leave the gate out"
    plain = run(twin, twin.variant(variant.name), batch.with_(tensors=others), backward=True, caller=call)
    for name, x in plain.values.items():
        same_bits(gated[name], x, name)


@GATED
@pytest.mark.parametrize("g", [0.0, -1e-3, -1.0, -5.0, -50.0, None], ids=str)
def test_every_regime_of_gates_is_right(operator, make, judge, g):
    """K29's regimes too; None sets a random half of random gates to 0."""
    batch = make(operator, T=67, K=3, V=2)
    gate = batch.tensors["g"]
    half = torch.rand(gate.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    batch = batch.with_(tensors=batch.tensors | {"g": torch.where(half, 0, gate) if g is None else gate * 0 + g})
    judge(operator, batch, backward=True)


@CORRECTS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_repeated_key_reads_the_last_value(operator, variant, uniform, same_bits, dtype):
    """The delta rule with identical unit keys, v = 1, beta = 1: o_t = scale exactly."""
    options = {"normalizer": False} if any(o.name == "normalizer" for o in operator.options) else {"scale": 0.5}
    batch = uniform(operator, T=70, K=4, V=2, options=options, dtype=dtype)
    if "erase" in batch.tensors:
        batch.tensors["erase"].copy_(batch.tensors["write"])
    o = run(operator, variant, batch)["o"]
    same_bits(o, torch.full_like(o, float(options.get("scale", 1))), "o")
