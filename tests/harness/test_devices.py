"""Where variants run: what goes to a device and back, what is passed over and said so, kernels in the interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from linattest.verify import devices, registry
from linattest.verify.examination import Examination
from linattest.verify.examine import _property, examine, planned, runs
from linattest.verify.grids import Job, device_grid
from linattest.verify.inputs import LAYOUTS, Case, Structure, build, lay_out
from linattest.verify.properties.memory import CANARIES
from linattest.verify.spec import CARRIED_STATE, FEATURES, OPERANDS, Operator, Variant, kernels
from linattest.verify.subjects import provide

REGISTERED = registry.operator("linear")
LINEAR = dataclasses.replace(REGISTERED, variants=tuple(v for v in REGISTERED.variants if not v.kernel))
SMALL = Structure(T=20, K=4, V=4, B=2, H=2)

needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")


# --- a kernel of our own: a head of up to 64 tokens a program --------------------------------------------------


@triton.jit
def _attend(q, k, v, o, T, scale, W: tl.constexpr, C: tl.constexpr, LIMIT: tl.constexpr):
    """Rows [T, W] at T * W * program: o = scale tril(q k^T) v. The store's mask ends at ``LIMIT`` rows of C."""
    t, i = tl.arange(0, C), tl.arange(0, W)
    places = tl.program_id(0).to(tl.int64) * T * W + t[:, None] * W + i[None, :]
    live = (t < T)[:, None] & (i < W)[None, :]
    rows, keys, values = (tl.load(x + places, mask=live, other=0.0).to(tl.float32) for x in (q, k, v))
    scores = tl.where(t[:, None] >= t[None, :], tl.dot(rows, tl.trans(keys), input_precision="ieee"), 0.0)
    out = tl.dot(scores, values, input_precision="ieee") * scale
    tl.store(o + places, out, mask=(t < tl.minimum(T + LIMIT, C))[:, None] & (i < W)[None, :])


@torch.library.custom_op("linattest_tests::attend", mutates_args=())
def _launched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, beyond: int) -> torch.Tensor:
    """[B, T, H, W] each; float32, since the interpreter's casts truncate."""
    B, T, H, W = q.shape
    first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    o = torch.empty(B, H, T, W)
    if o.numel():
        launch: Any = _attend[(B * H,)]
        launch(*first, o, T, scale, W=W, C=64, LIMIT=beyond)
    return o.transpose(1, 2)


@_launched.register_fake
def _shape_of(q: torch.Tensor, *_: object) -> torch.Tensor:
    B, T, H, W = q.shape
    return q.new_empty(B, H, T, W, dtype=torch.float32).transpose(1, 2)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, beyond: int = 0, **_: object
) -> tuple[torch.Tensor, None]:
    """Linear attention of square heads, no normaliser, no state; ``beyond``: rows that are stored past the end."""
    return _launched(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, beyond).to(q.dtype), None


def misplaced(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, None]:
    return attend(*x, beyond=3, **given)


def wrong_scale(*x: torch.Tensor, **given: Any) -> tuple[torch.Tensor, None]:
    o, state = attend(*x, **given)
    return 1.01 * o, state


def a_kernel(function: Any = attend, **changes: Any) -> Variant:
    provide(f"tests:{function.__name__}", function)
    return Variant(
        name="triton", function=f"tests:{function.__name__}", supports=frozenset(),
        places=frozenset({"interpreter", "cuda"}), **changes,
    )  # fmt: skip


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch):
    """Linear attention with a kernel of ours among its variants: ``linear(function)``."""

    def of(function: Any = attend) -> Operator:
        operator = dataclasses.replace(LINEAR, variants=(*LINEAR.variants, a_kernel(function)))
        monkeypatch.setitem(registry.BY_NAME, "linear", operator)
        return operator

    return of


def case_of(**changes: Any) -> Case:
    known: dict[str, Any] = {"structure": SMALL, "dtype": "bfloat16", **changes}
    return Case(operator="linear", **known)


# --- which variants run where ------------------------------------------------------------------------------------


def test_kernels_are_declared_with_their_places_dtypes_and_terms():
    chunk, step = kernels("gla")
    assert (chunk.name, chunk.function) == ("triton", "linattest.kernels.gla:chunk")
    assert (step.name, step.kind, step.function) == ("triton-step", "step", "linattest.kernels.gla:step")
    assert chunk.kernel and chunk.staged == OPERANDS and "float64" not in chunk.dtypes
    assert step.staged == (CARRIED_STATE,) and step.supports == FEATURES
    assert [v.name for v in kernels("gla", "step")] == ["triton-step"]
    with pytest.raises(ValueError, match="expected 'chunk' or 'step'"):
        kernels("gla", "recurrent")
    with pytest.raises(ValueError, match="places \\['moon'\\]"):
        Variant(name="x", function="a:b", places=frozenset({"moon"}))


def test_on_a_cpu_a_kernel_runs_in_the_interpreter_where_it_is_named(linear: Any, monkeypatch: pytest.MonkeyPatch):
    operator = linear()
    monkeypatch.setenv(devices.SWITCH, "0")
    assert [v.name for v in devices.chosen(operator, (), "cpu")] == ["recurrent", "chunk", "step"]
    (left,) = devices.left_out([operator], (), "cpu")
    assert (left.operator, left.variant) == ("linear", "triton") and "needs a GPU (--device cuda)" in left.why
    assert devices.chosen(operator, ("triton",), "cpu") == []
    devices.interpret()
    assert [v.name for v in devices.chosen(operator, (), "cpu")] == ["recurrent", "chunk", "step"], "not unless named"
    assert [v.name for v in devices.chosen(operator, ("triton",), "cpu")] == ["triton"]
    assert "--variant triton" in devices.left_out([operator], (), "cpu")[0].why
    assert devices.left_out([operator], ("triton",), "cpu") == []
    assert [v.name for v in devices.chosen(operator, (), "cuda")] == ["recurrent", "chunk", "step", "triton"]


def test_what_runs_on_a_cpu_alone_is_left_out_on_a_gpu():
    only = dataclasses.replace(LINEAR.variant("chunk"), places=frozenset({"cpu"}))
    assert devices.obstacle(only, "cuda:1") == "runs on cpu alone, not on cuda"
    assert devices.obstacle(only, "cpu") == ""


def test_interpreter_gets_small_inputs_alone(linear: Any):
    operator, long = linear(), Structure(T=4096, K=4, V=4)
    plans = {
        (T.T, device): [v.name for v, _, _ in planned(operator, case_of(structure=T), ("triton",), False, device)]
        for T in (SMALL, long)
        for device in ("cpu", "cuda")
    }
    assert plans == {(20, "cpu"): ["triton"], (4096, "cpu"): [], (20, "cuda"): ["triton"], (4096, "cuda"): ["triton"]}


def test_grid_of_a_gpu_has_every_length_and_width_in_every_dtype():
    jobs = device_grid(registry.operator("gla"))
    cases = [job.case for job in jobs]
    assert {1, 63, 64, 65, 127, 200, 1000, 4096} <= {c.structure.T for c in cases}
    widths = {(c.structure.K, c.structure.V) for c in cases}
    assert {(64, 64), (128, 128), (128, 64), (16, 16), (1, 1), (7, 5), (100, 60), (256, 256)} <= widths
    assert (
        {c.dtype for c in cases} == {"bfloat16", "float16", "float32"} == {j.case.dtype for j in jobs if j.properties}
    )
    assert {c.structure.layout for c in cases} == set(LAYOUTS) and all(c.gradient for c in cases)
    assert any(c.structure.cu_seqlens and c.structure.T == 4096 for c in cases)


# --- there and back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_moved_tensor_keeps_strides_offset_and_what_lies_around_it(layout: str):
    x = lay_out(torch.arange(24.0).view(2, 3, 4), layout)
    for y in (x, x[1:], x[:, :1].expand(x.shape)):
        there = devices.moved(y, "cpu")
        assert (there.stride(), there.storage_offset()) == (y.stride(), y.storage_offset())
        assert torch.equal(there, y) and there.untyped_storage().nbytes() == y.untyped_storage().nbytes()
        assert there.data_ptr() != y.data_ptr()
        around = devices.whole(there), devices.whole(y)
        assert torch.equal(around[0].isnan(), around[1].isnan())


def test_a_batch_is_placed_whole_and_once():
    operator = registry.operator("vla")
    structure = Structure(T=7, K=3, V=3, H=2, cu_seqlens=(0, 3, 7), initial_state=True, layout="guarded")
    batch = build(operator, Case(operator="vla", structure=structure))
    batch = batch.with_(options={**batch.options, "lam0": torch.tensor(0.1)})
    there = devices.place(batch, "meta")
    groups: list[Mapping[str, Any]] = [there.tensors, there.state or {}, there.cotangents]
    assert all(x.device.type == "meta" for group in groups for x in group.values())
    assert there.cu_seqlens is not None and there.cu_seqlens.device.type == "meta"
    lam0 = there.options["lam0"]
    assert isinstance(lam0, torch.Tensor) and lam0.device.type == "meta"
    assert there.options["eps"] == batch.options["eps"]
    assert all(x.stride() == batch.tensors[name].stride() for name, x in there.tensors.items())
    assert devices.place(there, "meta") is there and devices.place(batch, "cpu") is batch


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.missing("cpu") == "" and "no GPU" in devices.missing("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.missing("cuda:1") == "" and "GPUs 0 to 1" in devices.missing("cuda:2")


# --- kernels in the interpreter ------------------------------------------------------------------------------------


@needs_interpreter
def test_a_kernel_is_judged_in_the_interpreter_and_its_records_say_so(linear: Any):
    linear()
    records = examine(Job(case_of(), properties=True), ("triton",))
    assert {r.variant for r in records} == {"triton"} and len(records) > 12
    assert [f"{r.what}: {r.message}" for r in records if r.failed] == []
    assert all(r.environment and r.environment.interpreted and r.environment.device == "cpu" for r in records)
    tried = {r.what for r in records if r.ratios.get("findings")}
    assert {"canaries", "poisoned-allocations", "layout", "repeatable", "causality"} <= tried
    (ours, *_) = examine(Job(case_of()), ("chunk",))
    assert ours.environment and not ours.environment.interpreted


@needs_interpreter
def test_a_kernel_that_is_wrong_is_red(linear: Any):
    linear(wrong_scale)
    (record,) = examine(Job(case_of()), ("triton",))
    assert record.status == "fail" and record.what == "o"


@needs_interpreter
def test_a_kernel_that_writes_past_the_end_meets_a_canary(linear: Any):
    """That property alone: elsewhere it would overwrite what others own."""
    for function, status in ((attend, "pass"), (misplaced, "fail")):
        operator = linear(function)
        examination = Examination(operator, build(operator, case_of()))
        record = _property(examination, operator.variant("triton"), CANARIES)
        assert record.status == status and record.ratios["findings"], record.message


def test_kernels_get_only_the_settings_that_they_serve():
    ccq = registry.operator("ccq")
    structure = Structure(T=8, K=4, V=4)

    def judged_by(**options: str | bool) -> set[str]:
        case = Case(operator="ccq", structure=structure, options=options)
        return {variant.name for variant in ccq.variants if runs(ccq, variant, case)}

    assert {"triton", "triton-step"} <= judged_by(backbone="gated_delta_net")
    assert {"triton", "triton-step"} <= judged_by()
    assert {"triton", "triton-step"} <= judged_by(backbone="vla")
    assert judged_by(backbone="linear", normalizer=True) == {"recurrent", "chunk", "step"}
