"""K02, K03: decays from none to a reset, with the right values of the reports.

All on plain gated sums (conftest.gated_sum): o_t = sum_{s <= t} exp(g_{s+1} + ... + g_t) and, of the last output,
dg_j = sum_{s < j} exp(g_{s+1} + ... + g_T). Of a gate a channel, the first has all that is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import mpmath
import msgspec
import pytest
import torch

from linattest.verify.examine import Examination
from linattest.verify.inputs import Batch
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import resolve, run
from linattest.verify.tolerance import unit_roundoff

GATED = pytest.mark.under(keep=lambda operator, options: "log_gate" in {x.domain for x in operator.inputs_of(options)})


def takes_chunk_size(operator: Operator, variant: Variant) -> bool:
    return "chunk_size" in inspect.signature(resolve(variant.function)).parameters


def forgets_all(operator: Operator, batch: Batch) -> bool:
    """Whether every part of the memory has a gate."""
    gates = [x for x in operator.inputs_of(batch.options) if x.domain == "log_gate"]
    return len(gates) == len({x.part for x in operator.states_of(batch.options)})


def of_last(batch: Batch, total: str) -> Batch:
    """The batch with the last of the sums as its loss."""
    cotangents = {name: torch.zeros_like(x) for name, x in batch.cotangents.items()}
    cotangents[total][:, -1] = 1
    return batch.with_(cotangents=cotangents)


def part(batch: Batch, start: int, stop: int, state: dict[str, torch.Tensor] | None = None) -> Batch:
    """Tokens start to stop of a batch of one row, with another initial state."""
    structure = msgspec.structs.replace(batch.case.structure, T=stop - start, initial_state=state is not None)
    tensors, cotangents = (
        {name: x if name.startswith("state.") else x[:, start:stop] for name, x in group.items()}
        for group in (batch.tensors, batch.cotangents)
    )
    case = msgspec.structs.replace(batch.case, structure=structure)
    return batch.with_(case=case, tensors=tensors, cotangents=cotangents, state=state)


def final_state(operator: Operator, variant: Variant, batch: Batch) -> dict[str, torch.Tensor]:
    values = run(operator, variant, batch).values
    return {name.removeprefix("state."): x for name, x in values.items() if name.startswith("state.")}


def home_of(operator: Operator, batch: Batch, total: str) -> str | None:
    """The part of the memory that keeps a sum: that of the state itself, for an output the last part."""
    states = operator.states_of(batch.options)
    return next((x.part for x in states if f"state.{x.name}" == total), states[-1].part)


def shaped(numbers: Sequence[float] | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A number a token (of a final state: the last) in the shape of ``like``; of channels, the first has it all."""
    wanted = torch.zeros(like.shape, dtype=torch.float64)
    first = wanted[..., 0] if wanted.dim() == 4 else wanted
    first.copy_(torch.as_tensor(numbers, dtype=torch.float64)[-first.numel() :].view(first.shape))
    return wanted


@pytest.mark.parametrize(("g", "digits"), [(-2, ("1.15651764274967", "0.156517642749666")), (-6, None)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_decay_and_its_gradient_have_the_closed_form(
    operator, variant, setting, gate, gated_sum, near, g, digits, dtype
):
    T = 64
    batch, total = gated_sum(operator, setting, gate, T=T, g=g, dtype=dtype)
    batch = of_last(batch, total)
    with mpmath.workdps(30):
        power = [mpmath.exp(g * n) for n in range(T + 1)]
        outputs = [mpmath.fsum(power[: t + 1]) for t in range(T)]
        slopes = [mpmath.fsum(power[T - s] for s in range(1, j)) for j in range(1, T + 1)]
        # what a rounding of every value and gate can move: a term e^(gn) by 1 + n |g| roundoffs
        moved = [x * (1 - g * n) for n, x in enumerate(power)]
        kappas = [mpmath.fsum(moved[: t + 1]) for t in range(T)]
        kappas_of_slopes = [mpmath.fsum(moved[T - s] for s in range(1, j)) for j in range(1, T + 1)]
        assert digits in (None, (mpmath.nstr(outputs[-1], 15), mpmath.nstr(slopes[-1], 15)))
    outcome = run(operator, variant, batch, backward=True)
    for name, exact, kappa in ((total, outputs, kappas), (f"d {gate.name}", slopes, kappas_of_slopes)):
        wanted, moves = (shaped([float(x) for x in numbers], outcome[name]) for numbers in (exact, kappa))
        near(name, outcome[name], wanted, unit_roundoff(dtype) * moves, dtype)
    assert all(bool(x.isfinite().all()) for x in outcome.values.values())


@pytest.mark.parametrize("T", [1, 2, 16, 17, 64])
def test_a_decay_of_minus_fifty_leaves_each_token_alone(operator, variant, setting, gate, gated_sum, same_bits, T):
    """o_t = 1 + 1.93e-22; |dg| < 1e-20, and so is the difference of other gradients from a token's own."""
    batch, total = gated_sum(operator, setting, gate, T=T, g=-50)
    structure = msgspec.structs.replace(batch.case.structure, B=T, T=1)
    apart = batch.with_(
        case=msgspec.structs.replace(batch.case, structure=structure),
        tensors={name: x.transpose(0, 1) for name, x in batch.tensors.items()},
        cotangents={name: torch.zeros_like(x).repeat(T, *[1] * (x.dim() - 1)) for name, x in batch.cotangents.items()},
    )
    if total != "o":  # a final state is the last token's
        batch.cotangents[total].fill_(1)
        apart.cotangents[total][-1] = 1
    batch.cotangents["o"].fill_(1)
    apart.cotangents["o"] = batch.cotangents["o"].transpose(0, 1)
    outcome, alone = (run(operator, variant, x, backward=True) for x in (batch, apart))
    same_bits(outcome[total].double(), shaped(torch.ones(T), outcome[total]), total)
    assert all(bool(x.isfinite().all()) for x in outcome.values.values())
    for name in batch.tensors if forgets_all(operator, batch) else [gate.name, "v"] if total == "o" else []:
        got = outcome[f"d {name}"].transpose(0, 1).double()
        assert bool(((got - alone[f"d {name}"].double()).abs() < 1e-20).all()), name
    assert bool((outcome[f"d {gate.name}"].abs() < 1e-20).all())


@pytest.mark.parametrize("g", [-torch.inf, -1e30], ids=str)
@pytest.mark.parametrize("p", [0, 1, 31, 63, 64, 65, 69])
def test_a_reset_forgets_everything_before_it(operator, variant, setting, gate, gated_sum, same_bits, p, g):
    """Against the counts of tokens, that of the initial state (one) included."""
    T = 70 if takes_chunk_size(operator, variant) else 15
    p %= T
    gates = torch.zeros(1, T + 1, 1)
    gates[:, p + 1] = g
    whole, total = gated_sum(operator, setting, gate, T=T + 1, g=gates)
    batch = part(whole, 1, T + 1, final_state(operator, variant, part(whole, 0, 1)))
    if total != "o":
        batch.cotangents[total].fill_(1)
    batch.cotangents["o"][:, p:] = 1
    outcome = run(operator, variant, batch, backward=True)
    count = torch.arange(T)
    same_bits(outcome[total].double(), shaped(torch.where(count < p, count + 2, count - p + 1), outcome[total]), total)
    assert all(bool(x.isfinite().all()) for x in outcome.values.values())
    forgotten = (
        set(batch.tensors) if forgets_all(operator, batch) else {gate.name, "v"} if total == "o" else {gate.name}
    )
    for name in forgotten:
        before = outcome[f"d {name}"][:, :p]
        same_bits(before, torch.zeros_like(before), f"d {name} before {p}")
    home = home_of(operator, batch, total)
    for x in operator.states_of(batch.options):
        if not x.whole and (x.part == home or forgets_all(operator, batch)):
            d = outcome[f"d state.{x.name}"]
            same_bits(d, torch.zeros_like(d), f"d state {x.name}")


@pytest.mark.parametrize("p", [33, 64])
def test_after_a_reset_all_is_as_from_the_start(operator, setting, gate, make, gated_sum, judge, p):
    """Random inputs: outputs and gradients from p on are those of a memory that is empty there.

    What else there is, another memory or the number of tokens seen, is carried over.
    """
    whole = make(operator, T=70, K=3, V=2, options=setting)
    whole.tensors[gate.name][:, p] = -torch.inf
    for name, x in whole.cotangents.items():
        (x[:, :p] if name == "o" else x).zero_()
    _, total = gated_sum(operator, setting, gate, T=1, g=0)
    states = operator.states_of(whole.options)
    home = home_of(operator, whole, total)
    kept = final_state(operator, operator.variant(operator.reference), part(whole, 0, p))
    empty = {x.name: kept[x.name] * (x.whole or x.part != home) for x in states}
    fresh = part(whole, p, 70, empty)

    def obtain(variant: Variant) -> dict[str, torch.Tensor]:
        values = run(operator, variant, whole, backward=True).values
        return {name: x[:, p:] for name, x in values.items() if name == "o" or name[2:] in whole.tensors}

    judge(operator, fresh, obtain, backward=True)


@pytest.mark.parametrize("size", [1e6, 1e7, 1e8])
def test_no_decay_after_huge_decays_is_exactly_one(operator, variant, setting, gate, gated_sum, same_bits, size):
    """Prefix sums of these gates are not monotone in float32: differences come out 4, 32 and 512."""
    generator = torch.Generator().manual_seed(0)
    gates = torch.cat([-size * torch.rand(48, generator=generator), torch.zeros(16)]).view(1, 64, 1)
    batch, total = gated_sum(operator, setting, gate, T=64, g=gates)
    outcome = run(operator, variant, of_last(batch, total), backward=True)
    same_bits(outcome[total].flatten()[-17:], torch.arange(1.0, 18.0)[-outcome[total].numel() :], "tail")
    added = f"d {'v' if total == 'o' else 'weight'}"
    if added in outcome.values:
        same_bits(outcome[added].flatten(), torch.cat([torch.zeros(47), torch.ones(17)]), added)
    assert all(bool(x.isfinite().all()) for x in outcome.values.values())


def test_a_gate_of_subnormal_size_is_exactly_one(operator, variant, setting, gate, gated_sum, same_bits):
    batch, total = gated_sum(operator, setting, gate, T=65, g=-3.72e-44)
    assert bool((batch.tensors[gate.name] < 0).all())
    outcome = run(operator, variant, of_last(batch, total), backward=True)
    for name, numbers in ((total, torch.arange(1.0, 66.0)), (f"d {gate.name}", torch.arange(65.0))):
        same_bits(outcome[name].double(), shaped(numbers, outcome[name]), name)


@pytest.mark.where(keep=takes_chunk_size)
def test_a_long_sequence_with_a_tail_has_the_closed_form(operator, variant, setting, gate, gated_sum, near):
    """T = 43884 = 64 * 685 + 44, g = -0.01: o_T = 100.500833331944, and b (1 - r^T) / (1 - r), r = e^g (1 - b), if of
    each token's value the part b is stored and of what was there taken away.

    With f = 1/(1 - r) the output is b f in effect, and a rounding of every gate moves it by at most
    b |g| sum_n n r^n = b |g| r f^2 < b f roundoffs; of every token's product and sum, by b f each: 3 b f in all.
    """
    part = 2.0**-10
    batch, total = gated_sum(operator, setting, gate, T=43884, g=-0.01, K=2, fill={"beta": part})
    r = mpmath.exp(mpmath.mpf(float(batch.tensors[gate.name].flatten()[0])))
    b = part if "beta" in batch.tensors and total == "o" else 1
    with mpmath.workdps(30):
        r *= 1 - b if b < 1 else 1
        exact = b * (1 - r**43884) / (1 - r)
        assert mpmath.nstr((1 - mpmath.exp("-438.84")) / (1 - mpmath.exp("-0.01")), 15) == "100.500833331944"
    got = run(operator, variant, batch)[total][:, -1:]
    wanted = torch.full(got.shape, float(exact), dtype=torch.float64)
    near(total, got, wanted, 3 * unit_roundoff("float32") * wanted, "float32")


@GATED
@pytest.mark.where(keep=takes_chunk_size)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_long_run_may_be_cut_at_any_chunk(operator, variant, setting, make, same_bits, near, dtype):
    """g = logsigmoid(N(0,1))/16, T = 6444: finite; in float64 (where a carried state is not rounded), bit for bit.

    A mean is carried as a quotient, which is rounded: the 64 tokens on both sides within the harness's budget.
    """
    batch = make(operator, T=6444, K=4, V=3, dtype=dtype, options=setting)
    raw = torch.randn(1, 6444, 1, generator=torch.Generator().manual_seed(0))
    log_gate = torch.nn.functional.logsigmoid(raw) / 16
    for gate in (x for x in operator.inputs_of(batch.options) if x.domain == "log_gate"):
        x = batch.tensors[gate.name]
        x.copy_(log_gate.unsqueeze(-1) if x.dim() == 4 else log_gate)
    if "erase" in batch.tensors:  # erasing along other keys than those written grows without bound
        batch.tensors["erase"].copy_(batch.tensors["write"])
    whole = run(operator, variant, batch)
    assert bool(whole["o"].isfinite().all())
    counts = any(x.domain == "count" for x in operator.states_of(batch.options))
    for cut in (64, 3200, 6400) if dtype == "float64" else ():
        left = part(batch, 0, cut)
        right = part(batch, cut, min(cut + 64, 6444) if counts else 6444, final_state(operator, variant, left))
        for start, piece in ((0, left), (cut, right)) if not counts or cut == 64 else ((cut, right),):
            got = run(operator, variant, piece)["o"]
            wanted = whole["o"][:, start : start + got.shape[1]]
            if counts:
                kappa = torch.from_numpy(Examination(operator, piece).sensitivity.kappa("o"))
                near("o", got, wanted, kappa, dtype)
            else:
                same_bits(got, wanted, f"cut at {cut}")
