"""The script for GPU machines, run end to end on a CPU: what it records, and that no wrong result gets a time."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import beside, common, gate, gpu_run, measure, peers
from benchmarks.base import Measured, Tables
from benchmarks.workloads import WORKLOADS, Shape, call
from linattest.verify import registry
from linattest.verify.bench.gpu_records import read_records
from linattest.verify.crossover import crossovers


def run(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    output = tmp_path / "record.json"
    given = ["--device", "cpu", "--quick", "--output", str(output), "--commit", "abc", *options]
    if "--stages" not in options:
        given += ["--stages", "forward", "forward+backward", "decode", "checks"]
    return gpu_run.main(given), json.loads(output.read_text())


def test_whole_run_records_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, record = run(tmp_path, "--operators", "gla-head", "ccq-gated_delta_net")
    assert status == 0 and record["complete"] and record["stopped"] == "" and record["commit"] == "abc"
    assert record["rates"]["copy_gb_per_s"] > 0 and record["environment"]["torch"] == torch.__version__
    ours = [r for r in record["timings"] if r["implementation"] == "linattest"]
    assert {(r["operator"], r["direction"], r["tokens"]) for r in ours} == {
        (operator, direction, tokens)
        for operator in ("gla", "ccq")
        for direction in ("forward", "forward+backward", "decode")
        for tokens in (64, 128)
    }  # fmt: skip
    assert all(len(r["samples"]) >= 5 and min(r["samples"]) > 0 for r in record["timings"])
    rivals = {r["implementation"] for r in record["timings"]} - {"linattest"}
    backbone = {"backbone:gated_delta_net"}
    assert backbone < rivals <= backbone | {"softmax:flash", "softmax:math"}
    assert {c["what"] for c in record["checks"]} == {"first call", "equal bits in 20 runs"}
    assert all(g["ok"] and g["worst"] <= 1 for g in record["gates"]) and not record["failures"]
    crossed, uncrossed = crossovers(read_records(tmp_path)[0], draws=50)
    assert {r["direction"] for r in crossed + uncrossed} == {"forward", "forward+backward", "decode"}
    assert "gla head forward+backward" in capsys.readouterr().out


def test_level_weights_and_what_they_cost_are_measured_with_the_operator(tmp_path: Path):
    status, record = run(tmp_path, "--operators", "log_linear-mlp_softplus", "--lengths", "64")
    assert status == 0 and record["failures"] == []
    fixed = "backbone:level weights given"
    assert {(r["implementation"], r["direction"]) for r in record["timings"] if r["tokens"] == 64} >= {
        (name, d) for name in ("linattest", fixed) for d in ("forward", "forward+backward")
    }
    (count,) = (c["value"] for c in record["checks"] if c["what"] == "parameters")
    assert count == 7 * 14 + 14 * 7 + 7  # w1, w2 and b2 of seven levels
    assert all(g["worst"] > 0 for g in record["gates"])


def test_other_forms_of_an_operator_pass_the_gate_too_and_end_at_their_longest():
    vla = next(w for w in WORKLOADS if w.name == "vla")
    assert beside.others("impls", vla, 64) == {}
    assert set(beside.others("kernels", vla, 4096)) == {beside.LOOP, beside.SEQUENTIAL}
    assert set(beside.others("kernels", vla, 32768)) == {beside.SEQUENTIAL} and not beside.others("kernels", vla, 65536)
    assert beside.directions(beside.SEQUENTIAL, ["forward", "forward+backward"]) == ["forward"]
    inputs = vla.inputs(Shape(T=64, H=2, D=16, dtype=torch.float32), 0)
    want = gate.wanted(vla, inputs, None)
    loop = beside.others("kernels", vla, 64)[beside.LOOP]
    assert gate.compare(want, {"o": loop(inputs)}).ok
    assert not gate.compare(want, {"o": loop({**inputs, "k": inputs["q"]})}).ok


def test_a_record_of_another_shape_is_another_series():
    record = {"settings": {"B": 8, "H": 16, "D": 128, "dtype": "bfloat16", "sampling": Measured.sampling}}
    with pytest.raises(NotImplementedError, match="B, H, D"):
        Measured().fits(Tables(record), D=128, dtype="bfloat16")
    record["settings"]["B"] = 1
    Measured().fits(Tables(record), D=128, dtype="bfloat16")


def wrong(change: Callable[[torch.Tensor], torch.Tensor], only: str) -> Callable[[str], Callable[..., Any]]:
    """``resolve`` that gives wrong functions of ours to the run, and right ones to the gate."""

    def resolve(path: str) -> Callable[..., Any]:
        right = common.resolve(path)
        if not path.endswith(only):
            return right

        def function(*args: Any, **keywords: Any) -> Any:
            o, state = right(*args, **keywords)
            return change(o), state

        return function

    return resolve


def late(o: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(o.shape[1])[:, None, None] == o.shape[1] - 1, 2 * o, o)


@pytest.mark.parametrize(
    ("change", "only", "kept"),
    [
        (lambda o: o * 1.0001, ":chunk", {"decode"}),
        (lambda o: o + math.nan, ":chunk", {"decode"}),
        (late, ":chunk", {"decode"}),
        (lambda o: o * 1.0001, ":step", {"forward", "forward+backward"}),
        (lambda o: o.detach() + 0.5 * (o - o.detach()), ":chunk", {"forward", "decode"}),
    ],
    ids=["scale", "nan", "last token", "step", "gradient"],
)
def test_no_time_of_a_wrong_result(tmp_path: Path, monkeypatch, change, only, kept):
    monkeypatch.setattr(measure, "resolve", wrong(change, only))
    status, record = run(tmp_path, "--operators", "gla-head", "--lengths", "64")
    assert status == 1
    assert {r["direction"] for r in record["timings"] if r["implementation"] == "linattest"} == kept
    assert any(not g["ok"] for g in record["gates"])


def test_softmax_that_is_wrong_is_no_rival(tmp_path: Path, monkeypatch):
    right = peers.softmax
    monkeypatch.setattr(peers, "softmax", lambda name: lambda x: right(name)(x) * (1.01 if name == "flash" else 1.0))
    status, record = run(tmp_path, "--operators", "gla-head", "--stages", "forward", "--lengths", "64")
    assert status == 0 and {r["implementation"] for r in record["timings"]} == {"linattest", "softmax:math"}
    assert [f["what"] for f in record["failures"]] == ["softmax:flash"] and "ArithmeticError" in record["failures"][0][
        "error"
    ]


def test_peer_that_fails_is_recorded_and_fails_nothing(tmp_path: Path, monkeypatch):
    def fails(x: object) -> torch.Tensor:
        raise RuntimeError("no driver")

    monkeypatch.setattr(peers, "fla", lambda name: ("fla:f", fails))
    status, record = run(tmp_path, "--operators", "gla-head", "--stages", "forward", "peers", "--lengths", "64")
    assert status == 0 and [g["ok"] for g in record["gates"]] == [True, False]
    assert record["failures"][0]["error"] == "RuntimeError: no driver"


def test_peer_whose_backward_fails_is_timed_forward(tmp_path: Path, monkeypatch):
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, o):
            return o.clone()

        @staticmethod
        def backward(ctx, *grad_outputs):
            raise RuntimeError("refused on this compiler")

    right = measure.resolve("linattest.impls.gla:chunk")
    monkeypatch.setattr(peers, "fla", lambda name: ("fla:f", lambda x: Refuses.apply(right(**x)[0])))
    status, record = run(tmp_path, "--operators", "gla-head", "--stages", "forward", "forward+backward", "peers",
                         "--lengths", "64")  # fmt: skip
    assert status == 0
    assert {r["direction"] for r in record["timings"] if r["implementation"] == "fla:f"} == {"forward"}
    assert [f["what"] for f in record["failures"]] == ["gate of fla:f, forward+backward"]


def test_kernel_that_raises_is_recorded_and_nothing_is_measured(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(measure, "resolve", lambda path: lambda **_: 1 / 0)
    status, record = run(tmp_path, "--operators", "gla-head", "--lengths", "64")
    assert status == 1 and not record["timings"]
    assert "ZeroDivisionError" in record["failures"][0]["error"]


def test_spent_budget_and_interruption_keep_what_was_measured(tmp_path: Path, monkeypatch):
    status, record = run(tmp_path, "--operators", "gla-head", "--budget", "0")
    assert status == 3 and not record["complete"] and "budget of 0 s spent before gla-head, T = 64" in record["stopped"]

    right = gpu_run.at_length

    def interrupted(run: Any, workload: Any, T: int, *, thorough: bool) -> None:
        if T == 128:
            raise KeyboardInterrupt
        right(run, workload, T, thorough=thorough)

    monkeypatch.setattr(gpu_run, "at_length", interrupted)
    status, record = run(tmp_path, "--operators", "gla-head", "--stages", "forward")
    assert status == 130 and record["stopped"] == "interrupted"
    assert {r["tokens"] for r in record["timings"]} == {64}


def test_no_gpu_is_nothing_measured(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_run.main(["--output", str(tmp_path / "r.json")]) == 3 and not (tmp_path / "r.json").exists()
    with pytest.raises(SystemExit, match="2"):
        gpu_run.main(["--output", str(tmp_path / "none" / "r.json")])


@pytest.mark.parametrize("stage", ["forward+backward", "decode"])
def test_one_stage_alone(tmp_path: Path, stage: str):
    status, record = run(tmp_path, "--operators", "gla-head", "--lengths", "64", "--stages", stage)
    assert status == 0 and {r["direction"] for r in record["timings"]} == {stage}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_reference_passes_its_own_gate_in_bfloat16_and_its_inputs_are_the_operators(workload):
    shape = Shape(T=100, H=3, D=16, dtype=torch.bfloat16)
    inputs = workload.inputs(shape, 0)
    known = {x.name for x in registry.operator(workload.operator).inputs} | ({"d"} if workload.parameters else set())
    by_head = {name: x for name, x in inputs.items() if name not in workload.parameters}
    assert set(by_head) <= known and all(x.shape[:3] == (1, 100, 3) for x in by_head.values())
    cotangent = measure.cotangent_of(workload, inputs)
    want = gate.wanted(workload, inputs, cotangent)
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    o, _ = call(common.resolve(workload.function("impls", "chunk")), workload, leaves)
    got = {"o": o} | gate.gradients(o, leaves, cotangent)
    assert gate.compare(want, got).ok
    wrong = gate.compare(want, got | {"o": o * 1.05})
    assert not wrong.ok and wrong.message.startswith("o is off by")


def test_every_operator_with_kernels_has_a_workload():
    kernels = {o.name for o in registry.OPERATORS for v in o.variants if v.function.startswith("linattest.kernels.")}
    assert kernels <= {w.operator for w in WORKLOADS}


def test_sets_of_inputs_take_turns():
    seen = list[int]()
    turn = measure.runner(
        lambda x: seen.append(int(x["q"][0])) or x["q"], [{"q": torch.tensor([i])} for i in range(3)], "forward"
    )
    for i in range(5):
        turn(i)
    assert seen == [0, 1, 2, 0, 1]


def test_implementations_have_as_many_rounds_each():
    timer = common.Timer(torch.device("cpu"))
    times = timer.interleaved({"a": lambda _: None, "b": lambda _: sum(range(1000))}, 0.01)
    assert len(times["a"]) == len(times["b"]) >= 5 and timer.interleaved({}, 1.0) == {}
    assert common.median(times["b"]) > common.median(times["a"])
