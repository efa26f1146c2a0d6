"""Nothing a campaign found is lost: records, resumption, deaths, interruptions, strict JSON."""

import dataclasses
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
from linattest.verify.campaign import Campaign, resume, run_campaign
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record, append, read
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


class Inline(Executor):
    """Runs a job when it is submitted, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Result]], None]]:
    yield lambda function: monkeypatch.setitem(registry.BY_NAME, "linear", planted(function)["linear"])


# --- records ---------------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_written(tmp_path: Path):
    records = examine(job()) + examine(job(1, initial_state=True, cu_seqlens=(0, 1, 3)))
    awkward = msgspec.structs.replace(records[0], ratio=None, ratios={"o": None}, message="line\nbreak, \u2028, é")
    append(tmp_path / "deep" / "records.jsonl", records)
    append(tmp_path / "deep" / "records.jsonl", [awkward])
    assert list(read(tmp_path / "deep" / "records.jsonl")) == [*records, awkward]


@pytest.mark.parametrize("cut", [1, 2, 50, -1])
def test_last_line_cut_short_is_passed_over(tmp_path: Path, cut: int):
    path, records = tmp_path / "records.jsonl", examine(job())
    append(path, records)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.split(b"\n")[0][:cut])
    assert list(read(path)) == records


def test_records_after_a_line_cut_short_are_kept(tmp_path: Path):
    """A resumed campaign goes on in the same file."""
    path, records = tmp_path / "records.jsonl", examine(job())
    append(path, records)
    path.write_bytes(path.read_bytes()[:-20])
    append(path, records)
    assert list(read(path)) == [*records[:-1], *records]


def test_damaged_line_before_the_last_is_an_error_that_names_it(tmp_path: Path):
    path, records = tmp_path / "records.jsonl", examine(job())
    append(path, records)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:30], *lines[2:]]))
    with pytest.raises(ValueError, match="records.jsonl, line 2"):
        list(read(path))


# --- resumption -------------------------------------------------------------------------------------------------


def test_resumed_campaign_skips_what_is_done(tmp_path: Path):
    path, jobs = tmp_path / "records.jsonl", [job(seed) for seed in range(3)]
    first = run_campaign(jobs[:2], Inline(), output=path)
    campaign, left = resume(path, jobs)
    assert left == jobs[2:]
    assert sorted(campaign.records, key=lambda r: r.key) == sorted(first.records, key=lambda r: r.key)
    assert resume(tmp_path / "none.jsonl", jobs)[1] == jobs


def test_changed_source_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, jobs = tmp_path / "records.jsonl", [job()]
    run_campaign(jobs, Inline(), output=path)
    monkeypatch.setattr(campaigns, "source_hash", lambda: "another")
    campaign, left = resume(path, jobs)
    assert left == jobs and not campaign.records


def test_failure_survives_resumption(tmp_path: Path, plant: Any):
    """A job with an error among its records is run again whole; a failed one stays failed."""
    for function, status in ((raises, "error"), (wrong, "fail")):
        path, jobs = tmp_path / f"{status}.jsonl", [job()]
        plant(function)
        before = run_campaign(jobs, Inline(), output=path)
        assert [r.status for r in before.failed] == [status]
        campaign, left = resume(path, jobs)
        after = run_campaign(left, Inline(), output=path, campaign=campaign)
        assert [r.status for r in after.failed] == [status]
        assert len(after.records) == len(before.records)


def test_job_cut_in_the_middle_is_run_again(tmp_path: Path):
    path, jobs = tmp_path / "records.jsonl", [job()]
    whole = run_campaign(jobs, Inline(), output=path)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:2])[:-20])
    campaign, left = resume(path, jobs)
    after = run_campaign(left, Inline(), output=path, campaign=campaign)
    assert sorted(r.variant for r in after.records) == sorted(r.variant for r in whole.records)


def test_interruption_keeps_what_was_found(tmp_path: Path):
    def stop(records: list[Record]) -> None:
        raise KeyboardInterrupt

    campaign = run_campaign([job(), job(1)], Inline(), output=tmp_path / "records.jsonl", progress=stop)
    assert campaign.interrupted and campaign.records
    assert list(read(tmp_path / "records.jsonl")) == campaign.records


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
    assert resume(tmp_path / "records.jsonl", jobs)[1] == jobs
    with deadly(1) as pool:  # now only the first attempt dies: the jobs are done in processes of their own
        assert not run_campaign(jobs, pool).failed


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
