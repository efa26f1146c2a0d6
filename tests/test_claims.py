"""Checks of the ledger, with small parameters: a planted fault, or a proof that does not stand, takes the verdict away.

`make claims` computes every verdict with the parameters of the ledger; CI runs it beside the tests. Here proofs stand
or fall as a fixture says.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from linattest.proofs_checks.proof import Proof, Statement
from linattest.verify.claims import ccq, ccq_reads, gather, ledger, levels, vla_cost, vla_memory, vla_penalty
from linattest.verify.claims import exact as balls
from linattest.verify.claims import vla_stability as stability
from linattest.verify.claims.ledger import Row

SMALL: dict[str, dict[str, Any]] = {
    "vla.sherman-morrison": {"steps": 5000, "widths": (1, 2)},
    "vla.minimiser": {"seeds": 3},
    "vla.bounded-state": {"lengths": (16, 32, 64), "steps": 20, "plateau": (64, 128)},
    "vla.gradient-flow": {"seeds": 3},
    "vla.linear-growth": {"lengths": (64, 256, 1024), "seeds": 5},
}
CHECKED = [row for row in ledger.read() if row.check is not None]


def verdict(row: Row) -> str:
    module, name = row.function
    return getattr(importlib.import_module(module), name)(**SMALL.get(row.id, {})).word


@pytest.fixture
def proofs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every machine proof has the status of the parameter ("proved" by default), which it returns."""
    status: Any = getattr(request, "param", "proved")

    def checked(s: Statement) -> Proof:
        return Proof(
            id=s.id, statement=s.statement, assumptions=s.assumptions, method=s.method, status=status, twin=s.twin,
            twin_status="refuted", seconds=0.0, tool="",
        )  # fmt: skip

    monkeypatch.setattr(gather, "_checked", checked)
    return status


PROVED = [row for row in CHECKED if row.expected in ("proved", "corrected")]


@pytest.mark.parametrize("proofs", ["proved", "unknown", "refuted"], indirect=True)
@pytest.mark.parametrize("row", PROVED, ids=lambda row: row.id)
def test_nothing_is_proved_by_a_proof_that_does_not_stand(row: Row, proofs: str):
    assert (verdict(row) == row.expected) == (proofs == "proved")


@pytest.mark.usefixtures("proofs")
@pytest.mark.parametrize("proofs", ["skipped"], indirect=True)
def test_without_coq_less_is_claimed(monkeypatch: pytest.MonkeyPatch):
    named = gather._look_up
    monkeypatch.setattr(gather, "_look_up", lambda identity, *, coq: named(identity, coq=True))
    found = gather.in_coq("vla.sherman-morrison")
    assert [e.lacks for e in found] == ["coq"] and "for want of Coq" in found[0].text
    assert not gather.in_coq("lam.fenwick.coq-levels", needed=False)[0].lacks


def test_no_such_statement_is_no_proof():
    assert not gather.proof("vla.no-such").stands and not gather.in_coq("vla.no-such")[0].stands


# --- witnesses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [stability.STATE, stability.JACOBIAN, stability.PRODUCT])
def test_witness_replays_at_sixty_digits(name: str):
    found = gather.witness(name)
    assert found.stands and found.digits is not None and found.digits >= 60


def test_tests_and_package_have_the_same_witnesses():
    ours = Path(__file__).parent / "cases" / "witnesses"
    for path in gather.folder().iterdir():
        assert path.read_bytes() == (ours / path.name).read_bytes(), path.name


@pytest.mark.usefixtures("proofs")
def test_spoilt_witness_refutes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in gather.folder().iterdir():
        shutil.copy(path, tmp_path)
    spoilt = tmp_path / f"{stability.PRODUCT}.safetensors"
    content = bytearray(spoilt.read_bytes())
    content[-3] ^= 64  # the exponent of the last number
    spoilt.write_bytes(content)
    monkeypatch.setattr(gather, "WITNESSES", str(tmp_path))
    found = gather.witness(stability.PRODUCT)
    assert not found.stands and found.text
    (tmp_path / f"{stability.JACOBIAN}.safetensors").unlink()
    assert not gather.witness(stability.JACOBIAN).stands


# --- planted faults ----------------------------------------------------------------------------------------------


def _memory_moved(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **given: Any) -> Any:
        o, state = function(*args, **given)
        moved = state.backbone + 1e-7 if isinstance(state.backbone, torch.Tensor) else state.backbone
        return o, state._replace(backbone=moved)

    return wrong


def _output_moved(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **given: Any) -> Any:
        o, state = function(*args, **given)
        return o * (1 + 1e-6), state

    return wrong


def _memory_doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **given: Any) -> Any:
        o, state = function(*args, **given)
        return o, state._replace(S=2 * state.S)

    return wrong


FAULTS: list[tuple[Callable[..., Any], dict[str, Any], Any, str, Callable[..., Any]]] = [
    (ccq.write_untouched, {"seeds": 1}, ccq.ccq, "chunk", _memory_moved),
    (ccq.identity, {"seeds": 1}, ccq.ccq, "chunk", _output_moved),
    (ccq.recurrent, {}, ccq.covariance_contract, "recurrent", _output_moved),
    (levels.reduction, {"seeds": 2}, levels.log_linear, "chunk", _output_moved),
    (levels.params, {}, levels, "_share", lambda f: lambda *x: 10 * f(*x)),
    (levels.levels, {}, levels, "_sizes", lambda f: lambda t: f(t) + 1),
    (vla_cost.cost, {"lengths": (256,)}, vla_cost, "_formulas", lambda f: lambda *x: f(*x) + 1),
    (vla_cost.scan, {"lengths": (1, 16)}, vla_cost.vla, "scan", _output_moved),
    (vla_cost.constant_memory, {}, vla_cost, "_state_size", lambda f: lambda T, d: T * d),
    (vla_memory.state_norm_table, {}, vla_memory, "table_norm", lambda f: lambda *x, **y: 2 * f(*x, **y)),
    (vla_memory.plateau, {}, vla_memory.vla, "recurrent", _memory_doubled),
    (vla_memory.linear_growth, {"lengths": (64, 256)}, vla_memory, "_slopes", lambda f: lambda *x: f(*x) + 1),
    (vla_penalty.shrinking, {}, vla_penalty, "_negative", lambda f: lambda x: f(-x)),
    (vla_penalty.recency, {"seeds": 3}, vla_penalty, "_penalty", lambda f: lambda u: u),
    (vla_penalty.minimiser, {"seeds": 3}, balls, "minimiser", lambda f: lambda M, k, v: balls.recursion(
        k, v, k, vla_penalty.LAM0)[-1].S),
    (vla_memory.capacity, {"seeds": 2}, balls, "norm", lambda f: lambda x: f(x) * 0 + 1e-60),
    (vla_memory.routing, {"seeds": 2}, balls, "dot", lambda f: lambda x, y: f(x, y) * 0),
    (stability.gradient_flow, {"seeds": 2}, stability, "witness", lambda f: lambda name: gather.witness("gone")),
    (ccq_reads.dense_directions, {}, ccq_reads, "_margin", lambda f: lambda k, q: 1),
    (ccq_reads.softmax_competition, {}, ccq_reads, "contracted", lambda f: lambda k, q, lam: f(k, q, -lam)),
]  # fmt: skip


@pytest.mark.usefixtures("proofs")
@pytest.mark.parametrize(("check", "small", "owner", "name", "fault"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_fault_takes_the_verdict_away(
    check: Callable[..., Any], small: dict[str, Any], owner: Any, name: str, fault: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    row = next(row for row in CHECKED if row.function == (check.__module__, check.__name__))
    assert check(**small).word == row.expected, "without the fault"
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    found = check(**small)
    assert found.word != row.expected or not all(e.stands for e in found.evidence)
