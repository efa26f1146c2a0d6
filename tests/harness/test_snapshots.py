"""Snapshots: the worst of many records, floored; what counts as growth; a file that is read back as it was written."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linattest.verify import baselines, registry, snapshots
from linattest.verify.environment import environment
from linattest.verify.examine import runs
from linattest.verify.grids import fits
from linattest.verify.histories import SEEDS, STRUCTURES, jobs, keys
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import LOST, Record
from linattest.verify.snapshots import FLOOR, Entry, Fingerprint, Snapshot, compare, decode, encode, fold, merge

KEY = ("linear", "chunk", "float32", "random", "forward")


def record(ratio: float | None, seed: int = 0, **changes: Any) -> Record:
    """A passing forward record of linear attention's chunk form."""
    case = Case(operator="linear", structure=Structure(T=2, K=2, V=2), seed=seed, dtype="float32")
    given: dict[str, Any] = {
        "case": case, "variant": "chunk", "direction": "forward", "what": "o", "status": "pass", "ratio": ratio,
        "environment": environment(),
    }  # fmt: skip
    return Record(**(given | changes))


def snapshot(ratio: float, seeds: int = SEEDS, key: snapshots.Key = KEY, **changes: Any) -> Snapshot:
    """One entry."""
    operator, variant, dtype, family, direction = key
    entry = Entry(
        operator=operator, variant=variant, dtype=dtype, family=family, direction=direction,  # type: ignore[arg-type]
        ratio=max(FLOOR, ratio), measured=ratio, seed=1, case="0" * 16, seeds=seeds, **changes,
    )  # fmt: skip
    made = {operator: snapshots.Made(commit="abc", date="2026-01-01", source_hash="0")}
    return Snapshot(fingerprint=snapshots.fingerprint(environment()), made=made, entries=[entry])


def verdicts(before: Snapshot, now: Snapshot, registered: set[snapshots.Key] | None = None) -> list[str]:
    return [change.verdict for change in compare(before, now, {KEY} if registered is None else registered)]


# --- folding ------------------------------------------------------------------------------------------------------


def test_worst_of_all_seeds_is_kept_with_the_input_that_gave_it():
    records = [record(1.5), record(7.12345678, 3), record(7.12345678, 2), record(0.0, 4)]
    for order in (records, records[::-1]):
        (entry,) = fold(order).entries
        assert (entry.key, entry.measured, entry.ratio, entry.seeds) == (KEY, 7.12346, 7.12346, 4)
        assert (entry.seed, entry.case) == (2, records[2].case.key)


@pytest.mark.parametrize(("measured", "ratio"), [(0.0, 2.0), (1.99, 2.0), (2.0, 2.0), (2.01, 2.01)])
def test_small_ratios_are_floored(measured: float, ratio: float):
    (entry,) = fold([record(measured)]).entries
    assert (entry.measured, entry.ratio) == (measured, ratio)


def test_error_of_the_reference_hides_no_growth_of_a_variant():
    given = {"d q": 1.0, "d q.full": 2.5, "reference d q.full": 9.0}
    (entry,) = fold([record(9.0, direction="gradient", ratios=given)]).entries
    assert entry.measured == 2.5


def test_what_fails_is_not_kept_as_a_standard():
    gradient = record(1.0, direction="gradient")
    for failure in (record(31.0, 1, status="fail"), record(None, 1, status="fail"), record(None, 1, status="error")):
        assert [entry.direction for entry in fold([record(1.0), failure, gradient]).entries] == ["gradient"]


def test_known_failures_are_kept_and_those_without_a_number_are_counted():
    records = [record(50.0, 1, status="known"), record(3.0, 2), record(None, 7, status="known")]
    (entry,) = fold(records).entries
    assert (entry.measured, entry.known, entry.infinite, entry.seed) == (50.0, 2, 1, 7)
    assert decode(encode(fold(records)), "x").entries == [entry]


def test_properties_and_lost_jobs_make_no_entry():
    others = [record(9.0, direction="property", what="causality"), record(None, variant=LOST, status="error")]
    (entry,) = fold([record(1.0), *others]).entries
    assert entry.measured == 1.0


def test_records_of_two_machines_are_not_folded():
    other = msgspec.structs.replace(environment(), torch="1.0")
    with pytest.raises(ValueError, match="expected exactly one"):
        fold([record(1.0), record(1.0, environment=other)])
    with pytest.raises(ValueError, match=r"classes \[\]"):
        fold([])


# --- comparing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (5.0, 10.0, []),
        (5.0, 10.05, ["grew"]),
        (0.3, 4.0, []),
        (0.3, 4.02, ["grew"]),
        (10.0, 5.0, []),
        (10.0, 4.9, ["shrank"]),
        (4.0, 0.1, []),
        (4.1, 0.1, ["shrank"]),
    ],
)
def test_more_than_twice_the_floored_ratio_is_growth(before: float, now: float, expected: list[str]):
    assert verdicts(snapshot(before), snapshot(now)) == expected


def test_some_seeds_show_growth_but_not_shrinkage():
    assert verdicts(snapshot(10.0), snapshot(21.0, seeds=1)) == ["grew"]
    assert verdicts(snapshot(10.0), snapshot(0.1, seeds=SEEDS - 1)) == []


def test_known_failure_that_loses_its_number_grew():
    assert verdicts(snapshot(5.0), snapshot(5.0, seeds=1, infinite=1)) == ["grew"]
    assert verdicts(snapshot(5.0, infinite=3), snapshot(5.0, infinite=1)) == []
    assert verdicts(snapshot(5.0, infinite=3), snapshot(5.0)) == ["shrank"]


def test_new_and_gone_entries_are_told_from_what_was_not_run():
    other = (*KEY[:4], "gradient")
    assert verdicts(snapshot(5.0), snapshot(5.0, key=other), {KEY, other}) == ["new"]
    assert verdicts(snapshot(5.0), snapshot(5.0, key=other), {other}) == ["new", "gone"]


def test_changes_come_with_the_largest_first():
    keys = [KEY, (*KEY[:4], "gradient"), ("linear", "step", *KEY[2:])]
    before, now = (
        Snapshot(
            fingerprint=snapshot(1.0).fingerprint,
            entries=[snapshot(x, key=k).entries[0] for x, k in zip(r, keys, strict=True)],
        )
        for r in ([5.0, 5.0, 5.0], [11.0, 29.0, 1.0])
    )
    changes = compare(before, now, set(keys))
    assert [(c.verdict, c.key) for c in changes] == [("grew", keys[1]), ("grew", keys[0]), ("shrank", keys[2])]
    assert changes[0].factor == pytest.approx(5.8)


def test_update_replaces_whole_operators_but_what_fails():
    gla, gradient, names = ("gla", *KEY[1:]), (*KEY[:4], "gradient"), ("gla", "linear")
    old = merge(merge(snapshot(5.0), snapshot(6.0, key=gla), set(), names), snapshot(7.0, key=gla), set(), names)
    assert [(e.operator, e.ratio) for e in old.entries] == [("gla", 7.0), ("linear", 5.0)]
    new = merge(old, snapshot(9.0, key=gradient), set(), names)
    assert [(e.key, e.ratio) for e in new.entries] == [(gla, 7.0), (gradient, 9.0)]
    assert len(merge(old, snapshot(9.0, key=gradient), {KEY}, names).entries) == 3
    kept = merge(old, snapshot(9.0), set(), ["linear"])
    assert [e.operator for e in kept.entries] == list(kept.made) == ["linear"]
    other = msgspec.structs.replace(old.fingerprint, cpu="NONE")
    with pytest.raises(ValueError, match="cannot put"):
        merge(msgspec.structs.replace(old, fingerprint=other), old, set(), names)


# --- the file -----------------------------------------------------------------------------------------------------


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def test_file_has_an_entry_a_line_and_is_strict_json():
    made = fold([record(1.0), record(3.5, direction="gradient"), record(2.5, variant="step")])
    text = encode(made)
    assert json.loads(text, parse_constant=refuse)["schema"] == 1
    assert [json.loads(x.rstrip(","))["measured"] for x in text.splitlines() if "measured" in x] == [1.0, 3.5, 2.5]
    assert decode(text, "x") == made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"ratio":3.5', '"ratio":1.0'),
        ('"ratio":3.5', '"ratio":3.6'),
        ('"ratio":3.5', '"ratio":NaN'),
        ('"seeds":1', '"seeds":0'),
        ('"schema": 1', '"schema": 2'),
        ("}\n", ""),
    ],
)
def test_file_that_is_no_snapshot_is_refused_by_name(old: str, new: str):
    text = encode(fold([record(3.5)]))
    with pytest.raises(ValueError, match="spoilt.json is not a snapshot of schema 1"):
        decode(text.replace(old, new, 1) if new else text[:-20], "spoilt.json")


def test_repeated_entry_is_refused():
    one = fold([record(3.5)])
    with pytest.raises(ValueError, match="1 entries repeat a key"):
        decode(encode(msgspec.structs.replace(one, entries=one.entries * 2)), "x")


def test_class_is_the_instruction_set_or_the_gpu_and_the_versions():
    cpu = Fingerprint(arch="x86_64", cpu="AVX2", device="cpu", torch="2.13.0+cpu", triton=None)
    gpu = msgspec.structs.replace(cpu, device="NVIDIA H100 80GB", triton="3.9.0")
    assert cpu.name == "x86_64-avx2-torch-2.13.0-cpu-triton-none"
    assert gpu.name == "nvidia-h100-80gb-torch-2.13.0-cpu-triton-3.9.0"


# --- what is run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", registry.OPERATORS, ids=lambda operator: operator.name)
def test_every_variant_family_and_dtype_has_all_seeds(operator: Any):
    every = jobs(operator)
    seeds: dict[snapshots.Key, set[int]] = {}
    for job in every:
        assert fits(job.case.family, job.case.structure)
        for key in keys(operator, [job]):
            seeds.setdefault(key, set()).add(job.case.seed)
    for variant in (v for v in operator.variants if not v.kernel):
        directions = ("forward", "gradient") if "gradient" in variant.supports else ("forward",)
        wanted = {
            (operator.name, variant.name, d, f, x)
            for d in variant.dtypes
            for f in operator.families
            for x in directions
        }
        assert wanted <= set(seeds)
    assert all(found == set(range(SEEDS)) for found in seeds.values())
    quick = [job.case.key for job in jobs(operator, quick=True)]
    assert set(quick) <= {job.case.key for job in every} and keys(operator, jobs(operator, quick=True)) == set(seeds)


def test_inputs_reach_over_the_edges_of_a_chunk():
    assert any(s.T > 64 and s.cu_seqlens for s in STRUCTURES) and {1, 2, 64, 65} <= {s.T for s in STRUCTURES}
    variant = registry.operator("softmax").variant("sdpa-flash")
    assert any(runs(registry.operator("softmax"), variant, job.case) for job in jobs(registry.operator("softmax")))


@pytest.mark.parametrize("path", sorted(baselines.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_snapshot_has_every_entry_over_all_seeds(path: Path):
    held = decode(path.read_bytes(), path.name)
    assert path.stem == held.fingerprint.name
    wanted = {key for operator in registry.OPERATORS for key in keys(operator, jobs(operator))}
    assert sorted(wanted - set(held.by_key)) == [], "missing: `linattest diff --update --operator NAME` adds them"
    assert sorted(set(held.by_key) - wanted) == []
    cases = {job.case.key for operator in registry.OPERATORS for job in jobs(operator)}
    assert all(entry.seeds >= SEEDS for entry in held.entries)
    assert {entry.case for entry in held.entries} <= cases, "made of other inputs: `linattest diff --update`"
    assert set(held.made) == {operator.name for operator in registry.OPERATORS}
