"""The measurements of one workload: gate, checks, timings. What fails is a row of the record, not the end of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import beside, gate, peers
from benchmarks.beside import Direction, Function
from benchmarks.checks import check
from benchmarks.common import BLOCK_MS, Call, Timer, median, per_call, resolve
from benchmarks.workloads import Shape, Tensors, Workload, call, first_of, output_of
from linattest.verify.poison import poisoned

OURS, SOFTMAX = "linattest", "softmax:"

KEPT, DROPPED = 1.3, 2.0
"""A softmax backend is interleaved up to so many times the time of the fastest, and not tried at longer lengths beyond
the second."""

FIRST = 15.0
"""Seconds that a first call may take, compilation included."""

MOST_SETS, PREFIX = 16, 256
"""Sets of inputs that take turns at most; tokens behind the state of a decode step."""


@dataclass
class Run:
    """What all measurements of a run share; ``record`` grows, ``save`` writes it."""

    timer: Timer
    shape: Shape
    room: Literal["kernels", "impls"]
    stages: frozenset[str]
    seconds: float
    l2_bytes: int
    record: dict[str, Any]
    save: Callable[[], None]
    dropped: set[tuple[str, str]] = field(default_factory=set)

    def add(self, table: str, workload: Workload, **row: Any) -> None:
        """One row of a table of the record."""
        self.record[table].append({"operator": workload.operator, "variant": workload.variant, **row})

    def attempt(self, workload: Workload, what: str, tokens: int, function: Callable[[], Any]) -> Any:
        """The answer, or ``None`` and a row of failures."""
        try:
            return function()
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0]
            self.add("failures", workload, what=what, tokens=tokens, error=f"{type(error).__name__}: {said}"[:300])
            if self.timer.cuda:
                with contextlib.suppress(RuntimeError):  # a broken device; the run sees that before it goes on
                    torch.cuda.empty_cache()
            return None


# --- one length ----------------------------------------------------------------------------------------------------


def at_length(run: Run, workload: Workload, T: int, *, thorough: bool) -> None:
    """Everything at T tokens; ``thorough``: the repeated runs too, which one length suffices for."""
    shape = replace(run.shape, T=T)
    function = resolve(workload.given or workload.function(run.room, "chunk"))
    inputs = workload.inputs(shape, 0)

    def ours(x: Tensors) -> Tensor:
        return output_of(call(function, workload, x))

    directions: list[Direction] = [d for d in ("forward", "forward+backward") if d in run.stages]
    first = run.attempt(workload, "first call", T, lambda: _first_calls(run, ours, inputs, directions))
    if first is None:
        run.save()
        return
    run.add("checks", workload, what="first call", tokens=T, ok=max(first.values()) <= FIRST, value=first)
    candidates: dict[str, Function] = {OURS: ours, **beside.others(run.room, workload, T)}
    peer = run.attempt(workload, "fla", T, lambda: peers.fla(workload.name)) if "peers" in run.stages else None
    if peer is not None:
        candidates[peer[0]] = peer[1]
    passed = run.attempt(workload, "gate", T, lambda: _gate(run, workload, candidates, inputs, directions)) or {}
    run.save()
    if "checks" in run.stages and passed.get((OURS, directions[-1])):
        run.attempt(workload, "checks", T, lambda: check(run, workload, ours, inputs, directions, thorough=thorough))
    for direction in directions:
        allowed = {name: f for name, f in candidates.items() if passed.get((name, direction))}
        if OURS in allowed:
            allowed |= beside.standing_on(run.room, workload)
            run.attempt(workload, direction, T, lambda d=direction, a=allowed: _time(run, workload, shape, d, a))
        run.save()


def _first_calls(run: Run, ours: Function, inputs: Tensors, directions: Sequence[Direction]) -> dict[str, float]:
    """Seconds of the first call in each direction: compilation included, where nothing was compiled before."""
    return {d: round(run.timer.wall(lambda d=d: runner(ours, [inputs], d)(0)), 2) for d in directions}


def _gate(
    run: Run, workload: Workload, candidates: Mapping[str, Function], inputs: Tensors, directions: Sequence[Direction]
) -> dict[tuple[str, str], bool]:
    """Which candidates may be timed in which direction."""
    backward = "forward+backward" in directions
    cotangent = cotangent_of(workload, inputs)
    want = gate.wanted(workload, inputs, cotangent if backward else None)
    passed: dict[tuple[str, str], bool] = {}
    tokens = first_of(inputs).shape[1]
    for name, function in candidates.items():
        for direction in beside.directions(name, directions):

            def answer(both: bool = direction != "forward", function: Function = function) -> dict[str, Tensor]:
                leaves = {n: x.detach().requires_grad_(both) for n, x in inputs.items()}
                with poisoned():
                    o = function(leaves)
                    return {"o": o} | (gate.gradients(o, leaves, cotangent) if both else {})

            got = run.attempt(workload, f"gate of {name}, {direction}", tokens, answer)
            verdict = gate.compare(want, got) if got else gate.Verdict(False, None, "it raised")
            passed[name, direction] = verdict.ok
            run.add(
                "gates", workload, implementation=name, direction=direction, tokens=tokens, ok=verdict.ok,
                worst=verdict.worst, message=verdict.message,
            )  # fmt: skip
    return passed


def cotangent_of(workload: Workload, inputs: Tensors) -> Tensor:
    """The gradient that comes from above: [B, T, H, D] as the output."""
    x = inputs.get("v", first_of(inputs))
    return torch.randn(x.shape, generator=torch.Generator(x.device).manual_seed(7), device=x.device).to(x.dtype)


def runner(function: Function, sets: Sequence[Tensors], direction: Direction) -> Call:
    """A call on the sets in turn: forward without a graph of gradients, or forward and the gradient of every input."""
    if direction == "forward":

        def forward(i: int) -> object:
            with torch.no_grad():
                return function(sets[i % len(sets)])

        return forward
    leaves = [{name: x.detach().requires_grad_() for name, x in inputs.items()} for inputs in sets]
    q = first_of(sets[0])  # of the output's shape: K = V
    upstream = torch.randn(q.shape, device=q.device).to(q.dtype)

    def both(i: int) -> object:
        x = leaves[i % len(leaves)]
        return torch.autograd.grad(function(x), list(x.values()), upstream, allow_unused=True)

    return both


# --- timings -------------------------------------------------------------------------------------------------------


def _time(run: Run, workload: Workload, shape: Shape, direction: Direction, ours: Mapping[str, Function]) -> None:
    """Ours, fla's and softmax's, in turn: plain, and as graphs with inputs in the L2 cache and not."""
    one = workload.inputs(shape, 0)
    moved = sum(x.nbytes for x in one.values()) + cotangent_of(workload, one).nbytes
    exceeded = moved > 2 * run.l2_bytes
    sets = 1 if exceeded else min(MOST_SETS, 2 * run.l2_bytes // moved + 2)
    inputs = [one, *(workload.inputs(shape, seed) for seed in range(1, sets))]
    attention = [peers.softmax_inputs(shape, seed) for seed in range(sets)]
    backends = _backends(run, workload, direction, attention[0]) if workload.attention else []
    warm = {name: runner(f, inputs[:1], direction) for name, f in ours.items()}
    warm |= {SOFTMAX + b: runner(peers.softmax(b), attention[:1], direction) for b in backends}
    floor = _floor(run, direction, one, moved)
    row = {"direction": direction, "tokens": shape.T, "floor_ms": floor}
    cost = _plain(run, workload, warm, row | {"l2": "exceeded" if exceeded else "warm"})
    if not run.timer.cuda:
        return
    _graphed(run, workload, warm, 1, cost, row | {"l2": "exceeded" if exceeded else "warm"})
    if sets > 1:
        cold = {name: runner(f, inputs, direction) for name, f in ours.items()}
        cold |= {SOFTMAX + b: runner(peers.softmax(b), attention, direction) for b in backends}
        _graphed(run, workload, cold, sets, cost, row | {"l2": "cold"})


def _floor(run: Run, direction: Direction, inputs: Tensors, moved: int) -> float:
    """Milliseconds to move every input in and every output out once at the copy bandwidth; a backward reads the inputs
    and the output's gradient, and writes as many gradients."""
    traffic = moved if direction == "forward" else 2 * moved + sum(x.nbytes for x in inputs.values())
    return float(f"{traffic / (run.record['rates']['copy_gb_per_s'] * 1e6):.4g}")


def _backends(run: Run, workload: Workload, direction: Direction, inputs: Tensors) -> list[str]:
    """The softmax backends worth a place: those near the fastest. Each is compared with float64 on its last rows."""
    tokens, kept = inputs["k"].shape[2], dict[str, float]()
    want = peers.softmax_reference(inputs)
    limit = gate.FACTOR * 4 * gate.UNIT[inputs["q"].dtype] * float(want.square().mean().sqrt())
    for name in peers.GPU_BACKENDS if run.timer.cuda else peers.CPU_BACKENDS:
        if (direction, name) in run.dropped:
            continue

        def once(name: str = name) -> float:
            function = peers.softmax(name)
            with torch.no_grad():
                off = float((function(inputs)[:, :1, -want.shape[2] :].double() - want).square().mean().sqrt())
            if not off <= limit:
                raise ArithmeticError(f"rms error {off:.3g}, at most {limit:.3g}")
            trial = runner(function, [inputs], direction)
            run.timer.block(trial, 0, 1)
            return run.timer.block(trial, 0, 1)

        ms = run.attempt(workload, SOFTMAX + name, tokens, once)
        if ms is not None:
            kept[name] = ms
    fastest = min(kept.values(), default=0.0)
    if tokens >= 8192:
        run.dropped |= {(direction, name) for name, ms in kept.items() if ms > DROPPED * fastest}
    return [name for name, ms in kept.items() if ms <= KEPT * fastest]


def _plain(run: Run, workload: Workload, calls: Mapping[str, Call], row: Mapping[str, Any]) -> dict[str, float]:
    """Ordinary calls, launches included; the median of each."""
    times = run.timer.interleaved(calls, run.seconds)
    for name, some in times.items():
        samples = per_call(some, 1)
        run.add("timings", workload, implementation=name, **row, graphed=False, ms=median(samples), samples=samples)
    run.save()
    return {name: median(some) for name, some in times.items()}


def _graphed(
    run: Run,
    workload: Workload,
    calls: Mapping[str, Call],
    sets: int,
    cost: Mapping[str, float],
    row: Mapping[str, Any],
) -> None:
    """The same, captured in CUDA graphs: what the device alone takes. A token loop has too many launches for one."""
    graphs: dict[str, tuple[Call, int]] = {}
    for name, one in calls.items():
        if name == beside.LOOP:
            continue
        several = max(1, min(20, round(BLOCK_MS / cost[name])))
        what = f"graph of {name}, {row['direction']}"
        captured = run.attempt(
            workload, what, row["tokens"], lambda o=one, n=several: run.timer.graph(o, sets, max(n, sets))
        )
        if captured is not None:
            graphs[name] = captured
    times = run.timer.interleaved({name: replay for name, (replay, _) in graphs.items()}, run.seconds)
    for name, some in times.items():
        samples = per_call(some, graphs[name][1])
        run.add("timings", workload, implementation=name, **row, graphed=True, ms=median(samples), samples=samples)
    run.save()


# --- decode --------------------------------------------------------------------------------------------------------


def decode(run: Run, workload: Workload, lengths: Sequence[int]) -> None:
    """One step, whose cost does not depend on what came before, beside one row of softmax over T keys."""
    levels = max(lengths).bit_length() + 1
    chunk, step = (resolve(workload.function(run.room, name)) for name in ("chunk", "step"))
    before = replace(run.shape, T=min(PREFIX, min(lengths)), levels=levels)
    with torch.no_grad():
        _, state = call(chunk, workload, workload.inputs(before, 0), output_final_state=True)
        token = workload.inputs(replace(before, T=1), 1)
        begin = time.perf_counter()
        verdict = gate.decode(workload, step, token, state, run.shape.dtype)
    first = {"decode, gate included": round(time.perf_counter() - begin, 2)}
    run.add("checks", workload, what="first call", tokens=1, ok=max(first.values()) <= FIRST, value=first)
    run.add("gates", workload, implementation=OURS, direction="decode", tokens=1, ok=verdict.ok, worst=verdict.worst,
            message=verdict.message)  # fmt: skip
    if not verdict.ok:
        return
    for T in lengths:
        cache = peers.softmax_inputs(replace(run.shape, T=T), 0, queries=1)
        calls = {OURS: runner(lambda x: call(step, workload, x, initial_state=state)[0], [token], "forward")}
        names = peers.GPU_BACKENDS if run.timer.cuda else peers.CPU_BACKENDS
        for name in names if workload.attention else ():
            trial = runner(peers.softmax(name), [cache], "forward")
            if (
                run.attempt(workload, f"{SOFTMAX}{name}, decode", T, lambda t=trial: run.timer.block(t, 0, 1))
                is not None
            ):
                calls[SOFTMAX + name] = trial
        held = 2 * cache["k"].nbytes
        row = {"direction": "decode", "tokens": T, "l2": "exceeded" if held > 2 * run.l2_bytes else "warm"}
        cost = _plain(run, workload, calls, row)
        if run.timer.cuda:
            _graphed(run, workload, calls, 1, cost, row)
