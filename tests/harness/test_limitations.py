"""Known failures as data: one that no longer fails is told, a rare one may hide, a larger one is another failure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from linattest.impls import linear
from linattest.verify import registry
from linattest.verify.campaign import Campaign
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.spec import Limitation

LINEAR = registry.operator("linear")
JOB = Job(Case(operator="linear", structure=Structure(T=4, K=2, V=2), gradient=False))
KNOWN = Limitation(variant="chunk", why="a reason")


def off(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, Any]:
    o, state = linear.chunk(*x, **given)
    return 1.01 * o, state


def campaign(
    patch: pytest.MonkeyPatch, limitation: Limitation, wrong: bool = False, properties: bool = False
) -> Campaign:
    """A whole campaign over one case of the chunk form, right or off by a hundredth, with this limitation alone."""
    chunk = LINEAR.variant("chunk")
    if wrong:
        chunk = dataclasses.replace(chunk, function=f"{__name__}:off")
    variants = tuple(chunk if v.name == "chunk" else v for v in LINEAR.variants)
    operator = dataclasses.replace(LINEAR, variants=variants, limitations=(limitation,))
    patch.setitem(registry.BY_NAME, "linear", operator)
    patch.setattr(registry, "OPERATORS", (operator,))
    return Campaign(records=examine(dataclasses.replace(JOB, properties=properties), ("chunk",)), complete=True)


def test_a_known_failure_is_known_and_not_stale(monkeypatch: pytest.MonkeyPatch):
    found = campaign(monkeypatch, KNOWN, wrong=True)
    assert [r.status for r in found.records] == ["known"] and not found.stale_limitations and not found.failed


def test_a_known_failure_that_passes_is_stale_unless_it_is_rare(monkeypatch: pytest.MonkeyPatch):
    assert campaign(monkeypatch, KNOWN).stale_limitations == ["linear chunk: a reason"]
    assert not campaign(monkeypatch, dataclasses.replace(KNOWN, rare=True, most=1e3)).stale_limitations


def test_a_failure_above_the_known_one_fails(monkeypatch: pytest.MonkeyPatch):
    for rare in (False, True):
        found = campaign(monkeypatch, dataclasses.replace(KNOWN, rare=rare, most=31.0), wrong=True)
        assert [r.status for r in found.records] == ["fail"]


def test_what_fails_on_some_processors_only_is_never_stale_and_is_of_a_property(monkeypatch: pytest.MonkeyPatch):
    bits = Limitation(variant="chunk", why="bits", directions=("property",), properties=("linearity",))
    assert campaign(monkeypatch, bits, properties=True).stale_limitations == ["linear chunk: bits"]
    local = dataclasses.replace(bits, local=True)
    assert not campaign(monkeypatch, local, properties=True).stale_limitations
    wrong = campaign(monkeypatch, local, wrong=True, properties=True)
    assert {r.what for r in wrong.records if r.status == "known"} <= {"linearity"} and wrong.failed
    with pytest.raises(ValueError, match="local, and of no property"):
        Limitation(variant="chunk", why="a reason", local=True)


def test_a_rare_one_needs_a_bound():
    with pytest.raises(ValueError, match="rare, and without most"):
        Limitation(variant="chunk", why="a reason", rare=True)
