"""How much arithmetic the chunk forms do, counted: linear in T, or T log T for a tree of states."""

from __future__ import annotations

import pytest
import torch

from linattest.verify import registry
from linattest.verify.complexity import LENGTHS, costs, count, growth
from linattest.verify.grids import settings
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.spec import Operator

CHOSEN = [
    pytest.param(o, options, id=" ".join([o.name, *(f"{k}={v}" for k, v in options.items())]))
    for o in registry.OPERATORS
    for options in settings(o)
]


def order(operator: Operator) -> str:
    """What the record promises: no state but a cache, a tree of buckets, or states of a fixed size."""
    if not operator.states:
        return "T^2"
    return "T log T" if any(x.domain == "buckets" for x in operator.states) else "T"


@pytest.mark.parametrize(("operator", "options"), CHOSEN)
def test_work_grows_as_promised_and_the_fit_explains_it(operator: Operator, options: dict[str, object]):
    """T = 256 .. 16384 (softmax to 4096), narrow heads: the counts are those of any width's loops."""
    lengths = LENGTHS if operator.states else LENGTHS[:5]
    found = growth(operator, operator.variant("chunk"), options, lengths=lengths, width=4)  # type: ignore[arg-type]
    assert found.order == order(operator), found
    assert found.misfit < 0.01, found


def test_a_quadratic_form_is_told_from_a_linear_one():
    operator = registry.operator("linear")
    token_loop, masked = operator.variant("recurrent"), registry.operator("softmax").variant("recurrent")
    assert growth(operator, token_loop, lengths=LENGTHS[:3], width=4).order == "T"
    assert growth(registry.operator("softmax"), masked, lengths=LENGTHS[:3], width=4).order == "T^2"


@pytest.mark.parametrize(("T", "K", "V"), [(64, 8, 4), (128, 16, 16)])
def test_the_count_of_linear_attention_is_the_formula(T: int, K: int, V: int):
    """A chunk of C = 64: C^2 K scores, C^2 V reads, C K V for the sum and C K V for the read; T V for the scale."""
    operator = registry.operator("linear")
    batch = build(operator, Case(operator="linear", structure=Structure(T=T, K=K, V=V)))
    C = 64
    assert count(operator, operator.variant("chunk"), batch) == T * (C * (K + V) + 2 * K * V + V)


def test_what_is_counted_is_what_torch_does():
    """A triangular solve and a factorisation, by their textbook counts."""
    from linattest.verify.complexity import MULTIPLY_ADDS, FlopCounterMode

    a = torch.eye(8, dtype=torch.float64).expand(3, 8, 8) * 2
    with FlopCounterMode(display=False, custom_mapping=MULTIPLY_ADDS) as counter:
        torch.linalg.solve_triangular(a, torch.ones(3, 8, 5, dtype=torch.float64), upper=False)
    assert counter.get_total_flops() // 2 == 3 * 5 * 8 * 9 // 2
    with FlopCounterMode(display=False, custom_mapping=MULTIPLY_ADDS) as counter:
        torch.linalg.cholesky_ex(a)
    assert counter.get_total_flops() // 2 == 3 * 8 * 9 * 10 // 6


def test_vla_costs_a_few_times_linear_attention():
    """The ratio is printed by ``linattest cost``; here only that it is a constant, and which one."""
    found = {row.operator: row for row in costs([registry.operator(x) for x in ("linear", "vla")], LENGTHS[:3])}
    ratio = [v / l for v, l in zip(found["vla"].per_token.values(), found["linear"].per_token.values(), strict=True)]
    print(f"vla / linear: {ratio[0]:.3f}")
    assert max(ratio) == pytest.approx(min(ratio), rel=1e-6) and 2 < ratio[0] < 5
