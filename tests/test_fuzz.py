"""No case that Hypothesis draws makes any variant of any operator miss its error budget."""

from dataclasses import replace
from inspect import signature

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from linattest.verify import registry
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.spec import Operator
from linattest.verify.strategies import cases
from linattest.verify.subjects import resolve

# A case takes about half a second, most of it the oracle: `ci` and `dev` draw 12 an operator, `nightly` 250.
EXAMPLES = max(1, settings().max_examples // 2)


def with_small_chunks(operator: Operator) -> Operator:
    """Add to each variant that takes ``chunk_size`` one of 16, so that short sequences have chunk edges."""
    small = tuple(
        replace(variant, name=f"{variant.name}-16", options={**variant.options, "chunk_size": 16})
        for variant in operator.variants
        if "chunk_size" in signature(resolve(variant.function)).parameters
    )
    return replace(operator, variants=operator.variants + small)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("name", [operator.name for operator in registry.OPERATORS])
def test_no_drawn_case_fails(name: str, data: st.DataObject):
    operator = with_small_chunks(registry.operator(name))
    case = data.draw(cases(operator, tokens=40, width=12, heads=2), label="case")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BY_NAME, name, operator)
        records = examine(Job(case))
    note(case.describe())
    failed = [f"{r.status} {r.variant} {r.direction} {r.what}: {r.message}" for r in records if r.failed]
    assert not failed, "\n".join([case.describe(), *failed])
