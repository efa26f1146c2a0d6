"""A failure can be run again: bundles hold the very inputs, and say what failed."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from linattest.impls import linear
from linattest.verify import registry
from linattest.verify.examine import examine, replay
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import load_bundle

LINEAR = registry.operator("linear")
Result = tuple[torch.Tensor, Any]


def wrong(*x: torch.Tensor, **given: Any) -> Result:
    o, state = linear.chunk(*x, **given)
    return 1.01 * o, state


REPLAYED = [
    {},
    {"T": 9, "initial_state": True, "layout": "guarded", "cu_seqlens": (0, 3, 3, 8)},
    {"B": 2, "H": 2, "group": 2, "layout": "transposed"},
]


# its chunk is wrong, its name and its other variants are the registered ones
PLANTED = dataclasses.replace(
    LINEAR,
    variants=tuple(
        dataclasses.replace(v, function=f"{__name__}:wrong") if v.name == "chunk" else v for v in LINEAR.variants
    ),
)


def a_case(**sizes: Any) -> Case:
    knobs: dict[str, Any] = {"T": 4, "K": 2, "V": 2, **sizes}
    return Case(operator="linear", structure=Structure(**knobs), seed=5)


@pytest.mark.parametrize("sizes", REPLAYED, ids=["plain", "packed", "grouped"])
def test_bundle_replays_to_the_same_failure_and_passes_when_mended(sizes: Any, tmp_path: Path):
    case = msgspec.structs.replace(a_case(**sizes), options={"scale": -2.0}, gradient=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BY_NAME, "linear", PLANTED)
        failed = [r for r in examine(Job(case), ("chunk",), tmp_path / "failures") if r.failed]
        assert {r.direction for r in failed} == {"forward", "gradient"}
        bundles = [Path(r.replay.removeprefix("linattest verify --replay ")) for r in failed]
        for record, path in zip(failed, bundles, strict=True):
            (again,) = replay(path)
            assert (again.status, again.ratios, again.message) == ("fail", record.ratios, record.message)
    assert [record.status for path in bundles for record in replay(path)] == ["pass", "pass"]
    bundle, tensors = load_bundle(bundles[0])
    assert bundle.case == case and bundle.message == failed[0].message
    assert set(tensors["input"]) == {"q", "k", "v"} and set(tensors["cotangent"]) == {"o", "state.S"}


def test_what_is_no_bundle_is_refused(tmp_path: Path):
    path = tmp_path / "garbage.safetensors"
    path.write_bytes(b"garbage")
    with pytest.raises(ValueError, match="garbage.safetensors is not a replay bundle"):
        replay(path)
