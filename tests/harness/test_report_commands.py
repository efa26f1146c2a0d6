"""The command that a report prints for a case runs a grid that has that case: no option of the run is dropped."""

from typing import Any

import msgspec
import pytest

from linattest.verify import registry
from linattest.verify.commands.verify import verify
from linattest.verify.grids import grid
from linattest.verify.records import LOST, Record
from linattest.verify.report.summary import command

RUNS: dict[str, dict[str, Any]] = {
    "quick": {"quick": True, "seed": 0}, "sample": {"seed": 0}, "full": {"full": True, "seed": 0},
    "quick-seed": {"quick": True, "seed": 4711}, "sample-seed": {"seed": 3}, "full-seed": {"full": True, "seed": 99},
}  # fmt: skip


def passed(case: Any, variant: str = "chunk") -> Record:
    return Record(case=case, variant=variant, direction="forward", what="o", status="pass", ratio=20.0)


def asked(words: list[str]) -> dict[str, Any]:
    """What `verify` would be told of its grid."""
    at = words.index("--seed") if "--seed" in words else None
    return {"quick": "--quick" in words, "full": "--full" in words, "seed": int(words[at + 1]) if at else 0}


@pytest.mark.parametrize("run", RUNS)
def test_the_command_of_a_case_runs_a_grid_that_has_it(run: str):
    for operator in registry.OPERATORS[:4]:
        for job in grid(operator, **RUNS[run]):
            words = command(passed(job.case)).split()
            assert words[:3] == ["linattest", "verify", operator.name] and words[3:5] == ["--variant", "chunk"]
            assert words[words.index("--dtype") + 1] == job.case.dtype
            assert job.case.key in {x.case.key for x in grid(operator, **asked(words))}
    assert set(asked([])) <= set(verify.__annotations__)


def test_the_options_of_the_run_are_in_it():
    job = grid(registry.operator("gla"), full=True, seed=99)[0]
    assert command(passed(job.case)).endswith(" --full --seed 99")
    assert "--variant" not in command(passed(job.case, LOST))


def test_a_case_of_no_grid_gets_no_command_that_would_not_run_it():
    case = grid(registry.operator("gla"))[0].case
    stranger = msgspec.structs.replace(case, structure=msgspec.structs.replace(case.structure, T=77))
    for odd in (stranger, msgspec.structs.replace(stranger, operator="unheard_of")):
        assert command(passed(odd)).startswith("# in no grid") and "--budget" in command(passed(odd))
    saved = msgspec.structs.replace(passed(stranger), replay="linattest verify --replay x.safetensors")
    assert command(saved) == saved.replay
