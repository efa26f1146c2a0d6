"""The table of detection power is measured: it grows and shrinks with the judge, and it can fail."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import msgspec
import pytest
import torch
from rich.console import Console

from linattest.verify import injections, measure, registry
from linattest.verify.inputs import build, resolve_options
from linattest.verify.power import (
    ERRORS,
    PLAIN,
    RELATIVE,
    STRUCTURED,
    Bench,
    Row,
    _adjustable,
    _smallest,
    cases,
    power_table,
    richest,
    rows_of,
)
from linattest.verify.report.power import complaint, print_power
from linattest.verify.spec import DTYPES, Operator
from linattest.verify.tolerance import THRESHOLD, unit_roundoff

CHEAP = ("linear", "delta_net", "gla")


def bench(name: str, dtype: str, T: int = 16) -> Bench:
    operator = registry.operator(name)
    return Bench(operator, build(operator, cases(operator, dtype, T, PLAIN)[0]))


@cache
def table(name: str, dtype: str = "bfloat16", T: int = 16) -> list[Row]:
    return power_table([registry.operator(name)], [dtype], lengths=(T,), seeds=1)


def required(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.required]


@pytest.mark.parametrize("dtype", DTYPES)
def test_larger_errors_than_the_smallest_seen_are_seen_and_smaller_ones_are_not(dtype: str):
    case = bench("delta_net", dtype)
    for name, spoil in _adjustable(case):
        smallest = _smallest(case, spoil).smallest
        assert smallest is not None, name
        assert all(case.judge(spoil(e)).by for e in ERRORS if e >= smallest), name
        assert not case.judge(spoil(smallest / 2)).by, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_error_of_zero_is_never_seen(dtype: str):
    case = bench("gla", dtype)
    assert [name for name, spoil in _adjustable(case) if case.judge(spoil(0.0)).by] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_in_pieces_is_no_fault_by_itself(dtype: str):
    case = bench("delta_net", dtype)
    pieces = injections._in_pieces(range(17), lambda _t, _before, after: after)
    assert not case.judge(injections.run_wrong(case.operator, case.batch, pieces)).by


@pytest.mark.parametrize("T", [16, 64])
@pytest.mark.parametrize("name", CHEAP)
def test_what_is_required_is_seen(name: str, T: int):
    found = required(table(name, T=T))
    casts = {f"{dtype} state{way}" for dtype in ("bfloat16", "float16") for way in ("", ", hidden")[: 1 + (T == 64)]}
    gates = {f"{x} x 1.02" for x in {"linear": [], "delta_net": ["beta"], "gla": ["g"]}[name]}
    assert {row.injection for row in found} == casts | gates | {"scale x 1.01"}
    assert [complaint(row) for row in found if row.failed] == []


def test_a_hidden_cast_is_seen_in_the_output_alone():
    (row,) = [
        row for row in table("delta_net", T=64) if row.family == PLAIN and row.injection == "float16 state, hidden"
    ]
    assert row.by == ("o",)


def test_no_more_is_seen_than_rounding_lets_through():
    """In one element an error below a roundoff of the output cannot be told from its last rounding for sure."""
    for row in table("delta_net"):
        if row.injection == f"{RELATIVE} o in one element":
            assert row.smallest is not None and row.smallest >= unit_roundoff("bfloat16") / 4, row
        if row.injection == f"{RELATIVE} o":
            assert row.smallest is not None and row.smallest < unit_roundoff("bfloat16"), row


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_right_answer_is_called_wrong(dtype: str):
    rows = [row for name in CHEAP for row in table(name, dtype) if row.right]
    assert {row.family for row in rows} == {PLAIN, STRUCTURED}
    assert [row for row in rows if row.seen or row.failed] == []


def test_a_judge_that_passes_everything_fails_the_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "THRESHOLD", float("inf"))
    rows = rows_of("delta_net", "bfloat16", (16,), 1)
    assert required(rows) and all(row.failed for row in required(rows))
    assert {row.smallest for row in rows} == {None}
    assert "is not seen" in complaint(required(rows)[0])


def test_a_judge_that_passes_nothing_fails_the_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "THRESHOLD", -1.0)
    failed = [row for row in rows_of("linear", "bfloat16", (16,), 1) if row.failed]
    assert failed and all(row.right for row in failed)
    assert "the right answer is called wrong" in complaint(failed[0])


def test_a_blunter_judge_sees_less(monkeypatch: pytest.MonkeyPatch):
    sharp = {(r.family, r.injection): r.smallest for r in table("linear", "float32") if r.smallest is not None}
    monkeypatch.setattr(measure, "THRESHOLD", 64 * THRESHOLD)
    blunt = {(r.family, r.injection): r.smallest for r in rows_of("linear", "float32", (16,), 1)}
    grown = [(blunt[key] or 1.0) / size for key, size in sharp.items()]
    assert min(grown) >= 16, grown


@pytest.mark.parametrize("operator", registry.OPERATORS, ids=lambda operator: operator.name)
def test_every_operator_is_tried_with_all_that_it_has(operator: Operator):
    """What is required comes from the record, so that no wrong can fall out of the table unnoticed."""
    batch = build(operator, cases(operator, "bfloat16", 4, PLAIN)[0])
    found = {
        w.name for w in injections.wrongs(operator, batch, injections.run_wrong(operator, batch)) if w.required_from
    }
    options = resolve_options(operator, richest(operator))
    gates = sum(x.domain in {"log_gate", "beta", "rate", "level"} for x in operator.inputs_of(options))
    assert sum(name.endswith(" x 1.02") for name in found) == gates
    assert sum(name.endswith(" x 1.01") for name in found) == ("scale" in options)
    assert sum(" state" in name for name in found) == (4 if operator.states else 0)
    assert len(found) == gates + ("scale" in options) + (4 if operator.states else 0)


def test_a_wrong_needs_what_goes_wrong():
    names = {row.injection for row in table("linear")}
    assert not [name for name in names if "1.02" in name or "ignored" in name]
    assert not [row.injection for row in table("softmax") if "state" in row.injection]


def test_the_richest_setting_has_as_many_gates_as_any():
    for operator in registry.OPERATORS:
        counts = [
            sum(x.domain in injections.OPEN for x in operator.inputs_of(resolve_options(operator, given)))
            for given in (richest(operator), *operator.grid)
        ]
        assert counts[0] == max(counts), operator.name


def test_rows_are_strict_json_and_sorted():
    rows = table("gla")
    text = json.dumps(msgspec.to_builtins(rows), allow_nan=False)
    assert msgspec.json.decode(text, type=list[Row]) == rows
    keys = [(r.T, r.family, r.direction, r.injection) for r in rows]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)


def test_an_executor_gives_the_same_rows():
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as executor:
        rows = power_table(
            [registry.operator("linear")], ["bfloat16"], lengths=(16,), seeds=1, executor=executor,
            progress=lambda done, count: told.append((done, count)),
        )  # fmt: skip
    assert rows == table("linear") and told == [(1, 1)]


def test_the_worst_seed_counts():
    rows = rows_of("linear", "bfloat16", (16,), 3)
    one = {r.injection: r.smallest for r in table("linear") if r.family == PLAIN and r.smallest}
    three = {r.injection: r.smallest for r in rows if r.family == PLAIN and r.smallest}
    assert all(three[name] >= one[name] for name in one) and three != one


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": (1,)}, "lengths="),
        ({"seeds": 0}, "seeds=0"),
        ({"dtypes": ("float8",)}, "float8"),
    ],
)
def test_impossible_requests_are_refused(given: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        power_table([registry.operator("linear")], **given)  # type: ignore[arg-type]


def test_report_says_what_is_not_seen():
    rows = table("gla")
    (first, *_) = required(rows)
    blind = [msgspec.structs.replace(row, seen=False, ratio=1.0) if row is first else row for row in rows]
    console = Console(file=io.StringIO(), width=100)
    print_power(console, blind)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert complaint(msgspec.structs.replace(first, seen=False, ratio=1.0)) in text
    assert "T = 16" in text and "gla" in text


def test_a_cast_rounds_floating_tensors_alone():
    state = {"S": torch.tensor([1 + 2.0**-9]), "position": torch.tensor([257])}
    cast = injections._cast(state, "bfloat16")
    assert cast["S"].item() == 1.0 and cast["position"].item() == 257
