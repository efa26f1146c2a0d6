"""K29, K30, K31, K34: the references, the oracle's numbers, the profile of property tests, failed factorisations."""

from __future__ import annotations

from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import settings

from linattest.verify import devices
from linattest.verify.examine import Examination, examine
from linattest.verify.grids import Job, groups
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.measure import compare
from linattest.verify.numbers import ArbContext, MpContext
from linattest.verify.oracle import OracleError, heads
from linattest.verify.subjects import run
from linattest.verify.tolerance import unit_roundoff

TESTS = Path(__file__).parents[1]
SILENCED = "function_scoped" + "_fixture"

PENALISED = pytest.mark.under(keep=lambda operator, options: "psd" in {x.domain for x in operator.states_of(options)})


def judge_every_variant(operator, setting, dtype):
    """B = 3, T = 5, H = 2, HV = 2 or 4, K = 4, V = 7: no axis can stand in for another; forward and backward."""
    group = 2 if groups(operator, setting) else 1
    structure = Structure(B=3, T=5, H=2, K=4, V=7, group=group, initial_state=bool(operator.states_of()))
    records = examine(Job(Case(operator=operator.name, structure=structure, dtype=dtype, options=setting)))
    ours = [r for r in records if operator.variant(r.variant).function.startswith("linattest.impls.")]
    assert {r.direction for r in ours} == {"forward", "gradient"} and all(r.crosschecked for r in ours)
    failed = [f"{r.variant} {r.direction}: {r.message}" for r in ours if r.failed]
    assert not failed, failed


def test_every_variant_is_right_with_all_sizes_distinct(operator, setting):
    judge_every_variant(operator, setting, "float64")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_variant_is_right_in_narrow_types(operator, dtype):
    """Under the default setting: others differ in what they compute, not in how they round, and float64 says that."""
    judge_every_variant(operator, {}, dtype)


def test_twice_the_digits_change_no_digit_the_oracle_claims(operator, make):
    batch = make(operator, T=5, K=3, V=2, H=2, initial_state=bool(operator.states_of()))
    truth = Examination(operator, batch).truth
    wide = MpContext(2 * (2 * truth.prec + 64))  # twice the bits of the oracle's own cross-check
    for n, h, head in heads(operator, batch, wide):
        rows, _ = operator.oracle(wide, head)
        for t, row in enumerate(rows):
            for i, value in enumerate(wide.entries(row)):
                hi, lo, radius = (float(part["o"][n, t, h, i]) for part in (truth.hi, truth.lo, truth.radius))
                with mpmath.workprec(wide.prec):
                    assert abs(value - mpmath.mpf(hi) - mpmath.mpf(lo)) <= mpmath.mpf(radius), (n, h, t, i)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_number_enters_the_oracle_with_its_binary_value(operator, make, dtype):
    """No Python float arithmetic on the way: entry by entry equal to the tensor's own number."""
    batch = make(operator, T=3, K=3, V=2, dtype=dtype, initial_state=bool(operator.states_of()))
    for ctx in (MpContext(200), ArbContext(200)):
        for _, _, head in heads(operator, batch, ctx):
            for x in operator.inputs_of(batch.options):
                values = batch.tensors[x.name][0, :, 0].double().numpy().reshape(3, -1)
                entered = [ctx.entries(v) if len(x.shape.split()) == 4 else [v] for v in head.inputs[x.name]]
                assert [[float(v) for v in row] for row in entered] == values.tolist(), x.name
                exact = [[ctx.number(v) - e == 0 for v, e in zip(*pair, strict=True)] for pair in zip(
                    values.tolist(), entered, strict=True)]  # fmt: skip
                assert np.all(exact), x.name


def test_property_tests_have_no_deadline():
    """A cold cache, of kernels or of the oracle, must not make a first example late and the second one flaky."""
    assert settings().deadline is None


def test_no_property_test_silences_the_check_of_its_fixtures():
    """A function-scoped fixture is made once for all examples; Hypothesis says so, unless told not to."""
    found = [path.name for path in sorted(TESTS.rglob("*.py")) if SILENCED in path.read_text(encoding="utf-8")]
    assert found == []


@PENALISED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("what", ["indefinite", "nan"])
def test_one_head_that_cannot_be_factorised_leaves_the_others_alone(
    operator, variant, setting, make, same_bits, what, dtype
):
    """[[1, 2], [2, 1]] less 20 I, or one NaN, as one head's penalty: no error, NaN there, the same bits elsewhere."""
    T = 66 if variant.kind == "sequence" else 4
    batch = make(operator, B=2, T=T, K=2, V=2, H=2, dtype=dtype, options=setting, initial_state=True)
    wanted = run(operator, variant, batch, backward=True)
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]]) - 20 * torch.eye(2)
    if what == "nan":
        bad = torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]])
    state = dict(batch.state or {})
    state["M"] = state["M"].clone()
    state["M"][1, 0] = bad
    got = run(operator, variant, batch.with_(state=state), backward=True)
    assert bool(got["o"][1, :, 0].isnan().all()), "a failed factorisation must show"
    for name, x in wanted.values.items():
        if name.removeprefix("d ") in {o.name for o in operator.options}:
            continue  # a sum over heads
        axis = 1 if "state." in name else 2
        for row, head in ((0, 0), (0, 1), (1, 1)):
            same_bits(got[name][row].select(axis - 1, head), x[row].select(axis - 1, head), f"{name}, {row}, {head}")


@PENALISED
@pytest.mark.parametrize("what", ["indefinite", "nan"])
def test_a_matrix_that_is_not_positive_definite_never_passes(operator, setting, what):
    """[[1, 2], [2, 1]] less 20 I, which has an inverse, or one NaN: no answer of a variant is taken for a right one."""
    structure = Structure(T=3, K=2, V=2, initial_state=True)
    case = Case(operator=operator.name, structure=structure, dtype="float64", options=setting, gradient=False)
    batch = build(operator, case)
    bad = torch.tensor([[-19.0, 2.0], [2.0, -19.0]])
    if what == "nan":
        bad = torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]])
    state = {**(batch.state or {}), "M": bad.double().expand(1, 1, 2, 2).contiguous()}
    examination = Examination(operator, batch.with_(state=state))
    for variant in devices.chosen(operator, (), "cpu"):
        outcome = run(operator, variant, examination.batch)
        with pytest.raises((OracleError, ValueError, AssertionError)):  # whoever notices first
            wanted = examination.wanted("o", variant)
            verdict = compare("o", outcome["o"], wanted, "float64", unit_roundoff("float64"))
            assert verdict.passed, verdict.message()


@PENALISED
def test_a_nan_direction_in_one_head_leaves_the_others_alone(operator, variant, setting, make, same_bits):
    batch = make(operator, B=2, T=66 if variant.kind == "sequence" else 5, K=4, V=3, H=2, options=setting)
    wanted = run(operator, variant, batch)
    u = batch.tensors["u"].clone()
    u[1, 3, 0, 2] = torch.nan
    got = run(operator, variant, batch.with_(tensors=batch.tensors | {"u": u}))
    for row, head in ((0, 0), (0, 1), (1, 1)):
        same_bits(got["o"][row, :, head], wanted["o"][row, :, head], f"row {row}, head {head}")
    assert bool(got["o"][1, 3:, 0].isnan().all()), "NaN must show from its token on"
