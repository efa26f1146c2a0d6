"""What every measurement stands on: the machine, interleaved timings, graphs. Needs torch and nothing else of others.

Times are of blocks of calls between two events of the device (`perf_counter` on a CPU), each block begun on an idle
device. Blocks of all implementations take turns, so that a drift of the clocks meets all of them alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]

Call = Callable[[int], object]
"""One call; its number says which set of inputs it takes."""

BLOCK_MS = 2.0
"""A block has as many calls as fit in this time, at least one, at most `MOST_CALLS`."""

MOST_CALLS, LEAST_ROUNDS, MOST_ROUNDS = 50, 5, 21

SECONDS, QUICK_SECONDS = 0.4, 0.02
"""About how long all implementations of one comparison are timed."""


def resolve(path: str) -> Callable[..., Any]:
    """The function behind "module:name". Raises ``ImportError`` or ``AttributeError``."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


# --- the machine ---------------------------------------------------------------------------------------------------


def environment(device: torch.device) -> dict[str, Any]:
    """What the numbers depend on: versions, GPU, size of its cache."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": str(torch.__version__), "gpu": "none"}
    for package in ("triton", "fla-core", "flash-linear-attention"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if device.type == "cuda":
        properties: Any = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name, "capability": f"{properties.major}.{properties.minor}",
            "sms": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "driver": query("driver_version").get("driver_version"),
        }  # fmt: skip
    return found


def query(*fields: str) -> dict[str, str]:
    """What nvidia-smi says of the first GPU; nothing where it is missing or does not know a field."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (x.strip() for x in said.splitlines()[0].split(",")), strict=False)) if said else {}


def clocks(when: str) -> dict[str, Any]:
    """Clocks, power, temperature and what holds the clocks down, now."""
    seen = query("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
    reasons = query("clocks_event_reasons.active") or query("clocks_throttle_reasons.active")
    return {"when": when, **seen, "throttle": next(iter(reasons.values()), "unknown")}


def commit() -> str:
    """The checkout's commit, with "-dirty" where it has changes; "unknown" outside one."""
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head + ("-dirty" if changes.strip() else "")


def source_hash() -> str:
    """Hash of the implementations, kernels and benchmarks that were measured."""
    digest = hashlib.sha256()
    for folder in ("impls", "kernels", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Strict JSON, in one step: whoever reads the file finds a whole record."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(path)


# --- timing --------------------------------------------------------------------------------------------------------


def sampling(seconds: float) -> str:
    """How often a timing is repeated, in words: timings of other settings are another series."""
    return (
        f"blocks of {BLOCK_MS:g} ms, at most {MOST_CALLS} calls; {LEAST_ROUNDS} to {MOST_ROUNDS} rounds, "
        f"about {seconds:g} s"
    )


@dataclass(frozen=True)
class Timer:
    """Times calls on one device."""

    device: torch.device

    @property
    def cuda(self) -> bool:
        """Whether there are events, graphs and a cache of the device's own."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device is idle."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def wall(self, call: Callable[[], object]) -> float:
        """Seconds of one call as the host sees it, until the device is idle."""
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - begin

    def block(self, call: Call, first: int, count: int) -> float:
        """Milliseconds a call, over `count` calls on an idle device, from call number `first`."""
        self.wait()
        if not self.cuda:
            begin = time.perf_counter()
            for i in range(first, first + count):
                call(i)
            return (time.perf_counter() - begin) * 1e3 / count
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(first, first + count):
            call(i)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count

    def interleaved(self, calls: Mapping[str, Call], seconds: float) -> dict[str, list[float]]:
        """Milliseconds a call, for each implementation, a block a round; about `seconds` in all.

        Every implementation has as many rounds. A call is made twice before, to warm up and to see how long it takes.
        """
        if not calls:
            return {}
        cost: dict[str, float] = {}
        for name, call in calls.items():
            self.block(call, 0, 1)
            cost[name] = max(self.block(call, 1, 1), 1e-4)
        count = {name: max(1, min(MOST_CALLS, round(BLOCK_MS / ms))) for name, ms in cost.items()}
        one_round = sum(cost[name] * count[name] for name in calls) / 1e3
        rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / one_round)))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for r in range(rounds):
            for name, call in calls.items():
                times[name].append(self.block(call, r * count[name], count[name]))
        return times

    def graph(self, call: Call, sets: int, calls: int) -> tuple[Call, int]:
        """A CUDA graph of `calls` calls (a multiple of `sets`), as a call that replays it, and how many calls it has.

        Raises:
            RuntimeError: it cannot be captured.
        """
        calls = sets * max(1, calls // sets)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for i in range(min(calls, sets)):
                call(i)
        torch.cuda.current_stream(self.device).wait_stream(side)
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                call(i)
        return lambda _: graph.replay(), calls


def per_call(times: Sequence[float], calls: int) -> list[float]:
    """Times of graphs as times of their calls, six digits: what a record keeps."""
    return [float(f"{t / calls:.6g}") for t in times]


def median(times: Sequence[float]) -> float:
    """The median, six digits."""
    return float(f"{statistics.median(times):.6g}")


@contextlib.contextmanager
def no_synchronisation(cuda: bool) -> Iterator[None]:
    """Whatever waits for the device in here raises."""
    if not cuda:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# --- what the device can do ----------------------------------------------------------------------------------------


def rates(timer: Timer, dtype: torch.dtype, quick: bool) -> dict[str, float]:
    """Copy bandwidth (read and written bytes) in GB/s, and the rate of a matrix product in TFLOP/s."""
    numbers, n = (1 << 20, 256) if quick else (1 << 29, 8192)
    source = torch.zeros(numbers, dtype=dtype, device=timer.device)
    target = torch.empty_like(source)
    a = torch.randn(n, n, device=timer.device).to(dtype)
    times = timer.interleaved({"copy": lambda _: target.copy_(source), "matmul": lambda _: a @ a}, 0.5)
    moved = 2 * source.numel() * source.element_size()
    return {
        "copy_gb_per_s": round(moved / (median(times["copy"]) * 1e6), 1),
        "matmul_tflops": round(2 * n**3 / (median(times["matmul"]) * 1e9), 1),
    }
