"""Properties that are kernels' alone: each sees its planted fault, on a stand-in for what only a GPU has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linattest.verify import devices, registry
from linattest.verify.examination import Examination
from linattest.verify.examine import _property
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.properties import device, machine
from linattest.verify.records import Record
from linattest.verify.spec import Property
from linattest.verify.subjects import provide

LINEAR = registry.operator("linear")
STRUCTURE = Structure(T=6, K=4, V=4, B=2, H=2)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, **_: object) -> Any:
    """Linear attention without a state or a normaliser, in a few operations that a compiler can follow."""
    scores = torch.einsum("bthk,bshk->bhts", q.float(), k.float()).tril()
    o = torch.einsum("bhts,bshv->bthv", scores, v.float()) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return o.to(q.dtype), None


def attempt(tried: Property, function: Callable[..., Any]) -> Record:
    """The property on a function that passes for a kernel."""
    provide("tests:for a gpu", function)
    variant = dataclasses.replace(
        LINEAR.variant("chunk"), function="tests:for a gpu", supports=frozenset({"gradient"}),
        places=frozenset({"interpreter", "cuda"}),
    )  # fmt: skip
    case = Case(operator="linear", structure=STRUCTURE, dtype="bfloat16", gradient=False)
    return _property(Examination(LINEAR, build(LINEAR, case)), variant, tried)


class Recorder(TorchDispatchMode):
    """Operations as a graph records them: with the memory of their arguments and results, and Python's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Do them again, and put each result where it was."""
        for func, args, kwargs, result in self.done:
            again = func(*args, **kwargs)
            before, after = (x if isinstance(x, tuple | list) else (x,) for x in (result, again))
            for old, new in zip(before, after, strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def captured(function: Callable[[], Mapping[str, torch.Tensor]]) -> tuple[Mapping[str, torch.Tensor], Any]:
    """As ``devices.capture``, without a GPU."""
    with Recorder() as recorder:
        results = function()
    return results, recorder.replay


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU passes for a GPU with room; what is far is not far away."""
    monkeypatch.setattr(device, "on_gpu", lambda _: True)
    monkeypatch.setattr(device, "has_room", lambda _: True)
    monkeypatch.setattr(device, "FAR", 1 << 12)
    monkeypatch.setattr(devices, "capture", captured)


FAULTS = [(p, fault) for p in device.DEVICE for fault in p.faults]


@pytest.mark.parametrize(("tried", "fault"), FAULTS, ids=[p.name for p, _ in FAULTS])
def test_fault_turns_the_property_red(tried: Property, fault: Any):
    record = attempt(tried, fault(plain))
    assert record.status == "fail", f"{record.status}: {record.message}"
    right = attempt(tried, plain)
    assert right.status == "pass", right.message
    assert right.ratios["findings"], "nothing was tried, so nothing could fail"


def test_every_device_property_has_a_fault_and_is_tried_on_kernels_alone():
    assert all(p.faults and p in registry.GENERAL for p in device.DEVICE)
    case = Case(operator="linear", structure=STRUCTURE, dtype="bfloat16", gradient=False)
    for tried in device.DEVICE:
        record = _property(Examination(LINEAR, build(LINEAR, case)), LINEAR.variant("chunk"), tried)
        assert record.status == "pass" and record.ratios["findings"] == 0


def test_a_graph_needs_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert not device.on_gpu("cpu") and device.on_gpu("cuda:1") and not device.has_room("cpu")
    assert attempt(device.GRAPHED, plain).ratios["findings"] == 0


def test_a_gpu_is_asked_twenty_times(monkeypatch: pytest.MonkeyPatch):
    """A fault that shows once in fifteen runs is met by twenty, not by two."""
    runs = 0

    def rarely(*x: torch.Tensor, **given: Any) -> Any:
        nonlocal runs
        runs += 1
        o, state = plain(*x, **given)
        return (o * 2 if runs == 15 else o), state

    assert attempt(machine.REPEATABLE, rarely).status == "pass"
    runs = 0
    monkeypatch.setattr(machine.devices, "kind", lambda _: "cuda")
    assert attempt(machine.REPEATABLE, rarely).status == "fail"
