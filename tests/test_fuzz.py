"""No case that Hypothesis draws makes any variant of any operator miss its error budget; nor does any saved one."""

from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, note, settings
from hypothesis import strategies as st

from linattest.verify import registry
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record
from linattest.verify.spec import Operator
from linattest.verify.strategies import Saved, cases, read_saved
from linattest.verify.subjects import resolve

# A case takes about half a second, most of it the oracle: `ci` and `dev` draw 12 an operator, `nightly` 250.
EXAMPLES = max(1, settings().max_examples // 2)
FILE = Path(__file__).parent / "cases" / "examples.jsonl"
SAVED = read_saved(FILE)


def with_small_chunks(operator: Operator) -> Operator:
    """Add to each variant that takes ``chunk_size`` one of 16, so that short sequences have chunk edges."""
    small = tuple(
        replace(variant, name=f"{variant.name}-16", options={**variant.options, "chunk_size": 16})
        for variant in operator.variants
        if "chunk_size" in signature(resolve(variant.function)).parameters
    )
    return replace(operator, variants=operator.variants + small)


def judged(case: Case) -> list[Record]:
    """The records of a case, those of the variants with small chunks too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BY_NAME, case.operator, with_small_chunks(registry.operator(case.operator)))
        return examine(Job(case))


def failures(records: list[Record]) -> str:
    """What failed, a line each."""
    return "\n".join(f"{r.status} {r.variant} {r.direction} {r.what}: {r.message}" for r in records if r.failed)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("name", [operator.name for operator in registry.OPERATORS])
def test_no_drawn_case_fails(name: str, data: st.DataObject):
    operator = registry.operator(name)
    case = data.draw(cases(operator, tokens=40, width=12, heads=2), label="case")
    failed = failures(judged(case))
    note(f"{case.describe()}\nto keep it, a line of {FILE.name}: {Saved(why='...', case=case).line()}")
    assert not failed, failed


@pytest.mark.parametrize("saved", SAVED, ids=[f"{n}-{x.case.operator}" for n, x in enumerate(SAVED, start=1)])
def test_no_saved_case_fails(saved: Saved):
    failed = failures(judged(saved.case))
    assert not failed, f"{saved.why}: {saved.case.describe()}\n{failed}"


def test_every_operator_has_saved_cases():
    assert {saved.case.operator for saved in SAVED} == set(registry.BY_NAME)


def test_a_wrong_line_and_one_that_is_there_twice_are_named(tmp_path: Path):
    path, line = tmp_path / "examples.jsonl", SAVED[0].line()
    for text, words in (('{"why": "no case"}', "examples.jsonl:2: .*missing"), (line, "examples.jsonl:2: .*already")):
        path.write_text(f"{line}\n{text}\n")
        with pytest.raises(ValueError, match=words):
            read_saved(path)


@pytest.mark.parametrize("tokens", [0, 17])
def test_a_failing_case_shrinks_to_the_smallest_of_its_kind(tokens: int):
    """What Hypothesis would print of a fault that shows from so many tokens on."""
    operator = registry.operator("gla")
    case = find(
        cases(operator), lambda case: tokens <= case.structure.T, settings=settings(derandomize=True, database=None)
    )
    assert case == Case(
        operator="gla", structure=Structure(T=tokens, K=2, V=2), dtype="float64", family="random", seed=0, options={},
        gradient=False,
    )  # fmt: skip


@pytest.mark.parametrize("profile", ["dev", "ci", "nightly"])
def test_profiles_have_no_deadline_and_only_ci_repeats_itself(profile: str):
    """``dev`` remembers what failed, ``ci`` draws the same every time, ``nightly`` draws twenty times as much."""
    given = settings.get_profile(profile)
    assert given.deadline is None
    assert given.derandomize == (given.database is None) == (profile == "ci")
    assert given.max_examples == settings.get_profile("dev").max_examples * (20 if profile == "nightly" else 1)
