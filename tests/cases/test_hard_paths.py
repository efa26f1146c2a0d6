"""The grid reaches the branches that easy inputs never take: a check that is never run cannot fail."""

import pytest

from linattest.impls import ridge_chunk
from linattest.verify import registry
from linattest.verify.examine import examine
from linattest.verify.grids import FAMILY, Job
from linattest.verify.inputs import Case

PENALISED = [o for o in registry.OPERATORS if "strong_penalty" in o.families]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("penalised", PENALISED, ids=lambda penalised: penalised.name)
def test_strong_penalties_take_the_fallback_and_the_refinement(penalised, dtype, monkeypatch: pytest.MonkeyPatch):
    seen = {"direct": 0, "refined": 0}
    direct, residual = ridge_chunk.solve_directly, ridge_chunk.residual

    def count_direct(f, X, Y, wrong):
        seen["direct"] += int(wrong.sum())
        direct(f, X, Y, wrong)

    def count_refined(f, X, Y):
        seen["refined"] += int((~f.easy & ~f.unsafe).sum())
        return residual(f, X, Y)

    monkeypatch.setattr(ridge_chunk, "solve_directly", count_direct)
    monkeypatch.setattr(ridge_chunk, "residual", count_refined)
    records = examine(Job(Case(operator=penalised.name, structure=FAMILY, dtype=dtype, family="strong_penalty")))
    assert not [record.message for record in records if record.failed]
    assert seen["direct"] > 0 and seen["refined"] > 0, seen
