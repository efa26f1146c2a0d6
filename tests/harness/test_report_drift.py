"""Drift is measured against what is right, says what that is, and sees a form that drifts."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from linattest.impls import linear
from linattest.verify import drift, registry
from linattest.verify.commands.drift import drift as command
from linattest.verify.inputs import Batch, Case, Structure, build
from linattest.verify.numbers import MpContext
from linattest.verify.report.figures import drift_figure, top
from linattest.verify.spec import Operator

APP = typer.Typer()
APP.command()(command)
RIGHT = 1.0
"""Roundoffs in root mean square: no result rounded once has more."""


def batch_of(operator: Operator, tokens: int) -> Batch:
    structure = Structure(T=tokens, K=drift.WIDTH, V=drift.WIDTH)
    return build(operator, Case(operator=operator.name, structure=structure, gradient=False))


def low_state(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, Any]:
    """Linear attention whose state is rounded to bfloat16 after every 16 tokens."""
    rows: list[torch.Tensor] = []
    state: Any = given.pop("initial_state", None)
    for piece in zip(*(t.split(16, dim=1) for t in x), strict=True):
        o, state = linear.chunk(*piece, initial_state=state, **given)
        state = state.bfloat16().to(state.dtype)
        rows.append(o)
    return torch.cat(rows, dim=1), state


@pytest.mark.parametrize("operator", registry.OPERATORS, ids=lambda o: o.name)
def test_every_operator_is_followed_and_rounds_once(operator: Operator):
    (rows,) = drift.measure(operator, (100,))
    assert {row.dtype for row in rows} >= {"float64", "float32"}
    for row in rows:
        assert row.tokens == 100 and row.truth == ("float64" if row.dtype == "bfloat16" else "proved")
        assert row.error is not None and (row.error < RIGHT or row.dtype == "float64"), row
        assert (row.state_error is None) == (not operator.states)


@pytest.mark.parametrize("name", ["linear", "delta_net", "vla"])
def test_fifty_digits_lie_where_balls_prove(name: str):
    """Where balls reach, mpmath at 50 digits has their value to more than float64 can tell."""
    operator = registry.operator(name)
    batch = batch_of(operator, 300)
    proved = drift.exact(operator, batch)
    digits, _ = drift._answer(operator, batch, MpContext(drift.DIGITS_BITS), "50 digits")
    assert proved.truth == "proved"
    for part, hi in proved.hi.items():
        gap = (digits.hi[part] - hi) + (digits.lo[part] - proved.lo[part])
        assert np.max(np.abs(gap)) <= 2.0**-90 * np.max(np.abs(hi)), part


def test_balls_that_grew_too_wide_are_not_called_proof(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift, "ENCLOSED", 0)
    narrow, wide = (drift.exact(o, batch_of(o, 700)) for o in map(registry.operator, ("linear", "delta_net")))
    assert (narrow.truth, wide.truth) == ("proved", "50 digits")


def test_a_float64_run_is_not_judged_by_another(monkeypatch: pytest.MonkeyPatch):
    """Beyond the oracle's reach an operator without a state is judged by its float64 token loop."""
    monkeypatch.setattr(drift, "ENCLOSED", 99)
    stateless = next(o for o in registry.OPERATORS if not o.states)
    (rows,) = drift.measure(stateless, (100,))
    assert {(row.dtype, row.truth) for row in rows} == {("float32", "float64"), ("bfloat16", "float64")}
    assert list(drift.measure(stateless, (drift.QUADRATIC + 1,))) == []


def test_a_state_in_low_precision_is_seen_to_drift(monkeypatch: pytest.MonkeyPatch):
    """The planted form is right at its first token and wrong by thousands of roundoffs at its last."""
    right = registry.operator("linear")
    monkeypatch.setattr(linear, "low_state", low_state, raising=False)
    form = dataclasses.replace(right.variant("chunk"), name="low", function="linattest.impls.linear:low_state")
    planted = dataclasses.replace(right, variants=(right.variant("recurrent"), form))
    found = {(r.dtype, r.tokens): r for rows in drift.measure(planted, (100, 1000)) for r in rows if r.variant == "low"}
    for tokens in (100, 1000):
        row = found["float32", tokens]
        assert row.error is not None and row.state_error is not None
        assert row.error > 1000 and row.state_error > 1000


def test_what_is_not_finite_is_null_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    row = drift.Row(
        operator="linear", variant="chunk", dtype="float32", tokens=100, error=None, state_error=None,
        truth="proved", seconds=0.0,
    )  # fmt: skip
    monkeypatch.setattr("linattest.verify.commands.drift.measure", lambda *_: iter([[row]]))
    result = CliRunner().invoke(APP, ["linear", "--json", "--output", str(tmp_path / "d.json")])
    assert result.exit_code == 1 and drift.read(tmp_path / "d.json").rows == [row]
    assert json.loads(result.stdout, parse_constant=lambda word: pytest.fail(word))["rows"][0]["error"] is None
    assert "not finite" in CliRunner().invoke(APP, ["linear"]).stdout
    assert "not finite" in drift_figure("linear", [row], 10.0)


def test_an_interruption_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    real = drift.measure

    def interrupted(operator: Operator, lengths: list[int]) -> Any:
        if operator.name == "gla":
            raise KeyboardInterrupt
        return real(operator, lengths)

    monkeypatch.setattr("linattest.verify.commands.drift.measure", interrupted)
    given = ["linear", "gla", "--most", "100", "--output", str(tmp_path / "d.json")]
    assert CliRunner().invoke(APP, given).exit_code == 130
    assert {row.operator for row in drift.read(tmp_path / "d.json").rows} == {"linear"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["linea"], "linea"), (["--most", "99"], "--most"), (["--output", "/nonexistent/x"], "/nonexistent")],
)
def test_usage_errors_name_what_is_wrong(arguments: list[str], named: str):
    result = CliRunner().invoke(APP, arguments, env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})
    assert result.exit_code == 2 and named in result.stderr


@pytest.mark.parametrize("change", [{"schema": 2}, {"rows": 1}, None])
def test_a_file_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any] | None):
    path = tmp_path / "drift.json"
    given = msgspec.to_builtins(drift.collect([])) | (change or {})
    path.write_text("garbage" if change is None else json.dumps(given))
    with pytest.raises(ValueError, match="drift.json"):
        drift.read(path)


def test_too_short_a_sequence_is_an_error():
    with pytest.raises(ValueError, match="tokens=10, expected at least 64"):
        list(drift.measure(registry.operator("linear"), (10,)))


def test_a_figure_has_room_for_the_largest_error_and_ids_of_its_own():
    rows = [
        drift.Row(
            operator="a", variant=v, dtype="float32", tokens=n, error=e, state_error=None, truth="proved", seconds=0.0
        )
        for v in ("x", "y") for n, e in ((100, 0.0), (1000, 123.0))
    ]  # fmt: skip
    assert top(rows) == 1000.0 and top([]) == 10.0
    one, other = (drift_figure(name, rows, top(rows)) for name in ("one", "other"))
    assert one.count("<svg") == 1 and "<title" in one and "currentColor" in one and "#010203" not in one
    ids = [{part.split('"')[0] for part in svg.split(' id="')[1:]} for svg in (one, other)]
    assert ids[0] and not ids[0] & ids[1]
