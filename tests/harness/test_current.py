"""A record is stale when what made it has changed, and not when something else has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from linattest.verify import registry
from linattest.verify.campaign import run_campaign
from linattest.verify.current import sources
from linattest.verify.environment import environment
from linattest.verify.executors import InProcess
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import append
from linattest.verify.report.summary import load
from linattest.verify.sources import ROOT, hash_of

JOB = Job(Case(operator="linear", structure=Structure(T=4, K=2, V=2), gradient=False))


def test_what_other_operators_are_made_of_makes_nothing_anew(tmp_path: Path):
    path, there = tmp_path / "records.jsonl", msgspec.structs.replace(environment(), source_hash="another")
    made = [
        msgspec.structs.replace(r, environment=there, message="kept") for r in run_campaign([JOB], InProcess()).records
    ]
    append(path, made)
    assert [r.message for r in run_campaign([JOB], InProcess(), output=path, resume=True).records] == ["kept"] * len(
        made
    )
    assert not load([path]).stale
    append(path, [msgspec.structs.replace(r, sources="another") for r in made])
    assert len(load([path]).stale) == len(made)


@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ("kernels/vla_rule.py", {"vla"}), ("kernels/delta_rule.py", {"vla", "delta_scan", "delta_net", "ccq"}),
        ("impls/delta_scan.py", {"vla", "gla"}), ("verify/oracle.py", {"vla", "gla"}), ("verify/campaign.py", set()),
    ],
)  # fmt: skip
def test_what_a_verdict_depends_on(monkeypatch: pytest.MonkeyPatch, changed: str, anew: set[str]):
    def kernels() -> dict[str, str]:
        hash_of.cache_clear()
        return {o.name: sources(o.variant("triton")) for o in registry.OPERATORS if o.name != "softmax"}

    before, read_bytes = kernels(), Path.read_bytes
    end = tuple(Path(changed).parts)
    monkeypatch.setattr(Path, "read_bytes", lambda self: read_bytes(self) + b"#" * (self.parts[-2:] == end))
    after = kernels()
    monkeypatch.undo()
    hash_of.cache_clear()
    moved = {name for name in before if before[name] != after[name]}
    assert anew <= moved and bool(moved) == bool(anew)
    assert changed != "kernels/vla_rule.py" or moved <= {"vla", "ccq"}


def test_modules_that_are_hashed_import_by_names_that_can_be_read():
    """But for layers, whose operators `experiments.models.modules` names."""
    made = [
        path.name for room in ("impls", "kernels") for path in (ROOT / room).glob("*.py")
        if "import_module" in path.read_text() or "__import__" in path.read_text()
    ]  # fmt: skip
    assert made == ["layer_parts.py"]
