"""Nothing a campaign found is lost: records, resumption, deaths, interruptions, strict JSON."""

import dataclasses
import errno
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from linattest.impls import linear
from linattest.verify import campaign as campaigns
from linattest.verify import registry
from linattest.verify.campaign import Campaign, run_campaign
from linattest.verify.commands.common import status_of
from linattest.verify.environment import environment
from linattest.verify.examine import examine
from linattest.verify.executors import InProcess
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Journal, Key, Record, append, canonical, read
from linattest.verify.report.terminal import to_json

ROOT = Path(__file__).parents[2]
LINEAR = registry.operator("linear")
Result = tuple[torch.Tensor, Any]


def raises(*x: torch.Tensor, **given: Any) -> Result:
    raise FloatingPointError("planted")


def dies(*x: torch.Tensor, **given: Any) -> Result:
    os._exit(7)


def wrong(*x: torch.Tensor, **given: Any) -> Result:
    o, state = linear.chunk(*x, **given)
    return 1.01 * o, state


def edits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
    result = linear.chunk(q, k, v.clone(), **given)
    v.detach().mul_(2)
    return result


def planted(function: Callable[..., Result]) -> dict[str, Any]:
    """The registry's entry with this function as the chunk variant."""
    name = f"{__name__}:{function.__name__}"
    variants = (dataclasses.replace(v, function=name) if v.name == "chunk" else v for v in LINEAR.variants)
    return {"linear": dataclasses.replace(LINEAR, variants=tuple(variants))}


def plant_death() -> None:
    """What a worker does first: its registry gets the variant that ends the process."""
    registry.BY_NAME |= planted(dies)


def job(seed: int = 0, **sizes: Any) -> Job:
    knobs: dict[str, Any] = {"T": 4, "K": 2, "V": 2, **sizes}
    return Job(Case(operator="linear", structure=Structure(**knobs), seed=seed, gradient=False))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Result]], None]]:
    yield lambda function: monkeypatch.setitem(registry.BY_NAME, "linear", planted(function)["linear"])


# --- resumption -------------------------------------------------------------------------------------------------


def keys_of(records: list[Record]) -> list[Key]:
    return sorted(record.key for record in records)


class Counting(InProcess):
    """How many jobs were run."""

    submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


def test_resumed_campaign_skips_what_is_done(tmp_path: Path):
    path, jobs, counting = tmp_path / "records.jsonl", [job(seed) for seed in range(3)], Counting()
    first = run_campaign(jobs[:2], InProcess(), output=path)
    shown: list[Record] = []
    whole = run_campaign(jobs, counting, output=path, resume=True, progress=shown.extend)
    assert counting.submitted == 1 and len(whole.records) == 9
    assert shown == whole.records and canonical(whole.records[:6]) == canonical(first.records)
    assert canonical(read(path)) == canonical(whole.records) == canonical(run_campaign(jobs, InProcess()).records)


def test_resumption_with_other_options_runs_what_is_absent(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    run_campaign([job()], InProcess(), variants=("chunk",), output=path)
    for jobs, variants, runs, records in (
        ([job()], ("chunk",), 0, 1),
        ([job(1)], ("chunk",), 1, 1),
        ([job()], ("chunk", "step"), 1, 2),
        ([job()], ("step",), 0, 1),
        ([job()], (), 1, 3),
    ):
        counting = Counting()
        campaign = run_campaign(jobs, counting, variants=variants, output=path, resume=True)
        assert (counting.submitted, len(campaign.records)) == (runs, records)
    kept = list(read(path))
    assert len(kept) == len(set(keys_of(kept))) == 4


@pytest.mark.parametrize(
    ("change", "made_of"),
    [
        ({"torch": "1.0"}, {}), ({"device": "cuda"}, {}), ({}, {"sources": "another"}),
        ({"source_hash": "another"}, {"sources": ""}),
    ],
)  # fmt: skip
def test_records_of_another_environment_are_made_anew(tmp_path: Path, change: dict[str, str], made_of: dict[str, str]):
    path, counting = tmp_path / "records.jsonl", Counting()
    made = run_campaign([job()], InProcess()).records
    there = msgspec.structs.replace(environment(), **change)
    before = [msgspec.structs.replace(r, environment=there, message="stale", **made_of) for r in made]
    append(path, before)
    campaign = run_campaign([job()], counting, output=path, resume=True)
    assert counting.submitted == 1 and len(campaign.records) == len(made)
    assert [r.message for r in (*campaign.records, *read(path))] == [""] * 2 * len(made)


def test_failure_survives_resumption(tmp_path: Path, plant: Any):
    """A job with an error among its records is run again whole; a failed one stays failed."""
    for function, status, runs in ((raises, "error", 1), (wrong, "fail", 0)):
        path, jobs, counting = tmp_path / f"{status}.jsonl", [job()], Counting()
        plant(function)
        before = run_campaign(jobs, InProcess(), output=path)
        assert [r.status for r in before.failed] == [status]
        after = run_campaign(jobs, counting, output=path, resume=True)
        assert [r.status for r in after.failed] == [status] and counting.submitted == runs
        assert len(after.records) == len(before.records) == len(list(read(path)))


def test_job_cut_in_the_middle_is_run_again(tmp_path: Path):
    path, jobs = tmp_path / "records.jsonl", [job()]
    whole = run_campaign(jobs, InProcess(), output=path)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:2])[:-20])
    after = run_campaign(jobs, InProcess(), output=path, resume=True)
    assert keys_of(after.records) == keys_of(whole.records) == keys_of(list(read(path)))


def test_interruption_keeps_what_was_found(tmp_path: Path):
    def stop(records: list[Record]) -> None:
        raise KeyboardInterrupt

    campaign = run_campaign([job(), job(1)], InProcess(), output=tmp_path / "records.jsonl", progress=stop)
    assert campaign.interrupted and campaign.records
    assert list(read(tmp_path / "records.jsonl")) == campaign.records


def test_full_disk_stops_the_campaign_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(journal: Journal, records: list[Record]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "records.jsonl")

    monkeypatch.setattr(Journal, "append", full)
    counting = Counting(width=1)
    campaign = run_campaign([job(), job(1)], counting, output=tmp_path / "records.jsonl")
    assert "cannot write records" in campaign.stopped and "No space left" in campaign.stopped
    assert counting.submitted == 1 and len(campaign.records) == 3 and status_of(campaign) == 1


# --- variants and processes that break --------------------------------------------------------------------------


def test_variant_that_raises_is_an_error_and_the_others_are_judged(plant: Any):
    plant(raises)
    records = examine(job())
    assert {r.variant: r.status for r in records} == {"recurrent": "pass", "chunk": "error", "step": "pass"}
    (error,) = (r for r in records if r.failed)
    assert error.message == "FloatingPointError: planted" and error.ratio is None


def test_variant_that_edits_its_inputs_spoils_no_other(plant: Any):
    plant(edits)
    assert [(r.variant, r.message) for r in examine(job()) if r.failed and r.variant != "chunk"] == []


@contextmanager
def deadly(workers: int) -> Iterator[Executor]:
    """Workers whose registry has the variant that ends the process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=plant_death) as pool:
        yield pool


def test_process_that_dies_is_an_error_and_the_campaign_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT)  # a worker imports this module by its name
    jobs = [job(), job(1)]
    with deadly(1) as pool, monkeypatch.context() as patch:
        patch.setattr(campaigns, "local_executor", deadly)  # the second attempt dies as well
        campaign = run_campaign(jobs, pool, output=tmp_path / "records.jsonl")
    assert {r.case.key for r in campaign.failed} == {j.case.key for j in jobs}
    assert all(r.status == "error" and r.message == "its process died" for r in campaign.failed)
    with deadly(1) as pool:  # now only the first attempt dies: the jobs are done in processes of their own
        assert not run_campaign(jobs, pool, output=tmp_path / "records.jsonl", resume=True).failed
    assert not any(r.failed for r in read(tmp_path / "records.jsonl"))


# --- the report -------------------------------------------------------------------------------------------------


def test_json_is_strict_whatever_went_wrong(plant: Any):
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    plant(raises)
    campaign = Campaign(records=examine(job()))
    campaign.records += [msgspec.structs.replace(r, status="fail", ratio=None) for r in examine(job(1), ("recurrent",))]
    for some in (campaign, Campaign()):
        found = json.loads(json.dumps(to_json(some), allow_nan=False), parse_constant=refuse)
        assert found["failed"] == len(some.failed) and found["cases"] == len(some.records)
    assert {row["variant"]: row["ratio"] for row in to_json(campaign)["worst"]}["chunk"] is None
