"""One command on a machine with a GPU and no network: correctness, then speed, then a record.

    PYTHONPATH=src python -m benchmarks.gpu_run --output benchmarks/results/<machine>/<name>.json

Needs torch and Triton; flash-linear-attention is measured beside if it is installed. The record is written after every
step, so that whatever ends a run, what was measured is kept. Exit code 1: a gate was red or a check failed; 3: nothing
was measured; 130: interrupted. A call of ours that raises counts as a failed check, a rival's does not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from benchmarks.measure import OURS, SOFTMAX, Run, at_length, decode
from benchmarks.workloads import WORKLOADS, Shape, Workload
from linattest.verify.crossover import SCHEMA, crossovers

LENGTHS = (4096, 2048, 8192, 16384, 32768, 65536, 131072)
"""Tokens, those that decide a crossover first."""

SHAPE = (1, 16, 128)
"""Rows of a batch, heads and width of every series; other ones are for a look."""

STAGES = ("forward", "forward+backward", "decode", "checks", "peers")

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit code."""
    options = _options(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing measured (--device cpu tries the script out)", file=sys.stderr)
        return 3
    given, chosen = dict(options.function), set(options.operators or dict(options.function))
    workloads = [replace(w, given=given.get(w.name, "")) for w in WORKLOADS]
    workloads = [w for w in workloads if not chosen or {w.name, w.operator} & chosen]
    with _fresh_cache(options.keep_cache):
        run = _prepare(options, device)
        begin = time.perf_counter()
        try:
            run.record["stopped"] = _measure(run, options, workloads, begin)
        except KeyboardInterrupt:
            run.record["stopped"] = "interrupted"
        run.record["complete"] = not run.record["stopped"]
        run.record["seconds"] = round(time.perf_counter() - begin, 1)
        run.record["clocks"].append(common.clocks("end"))
        run.save()
    _report(run.record)
    return _status(run.record)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = sorted({name for w in WORKLOADS for name in (w.name, w.operator)})
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the record's file")
    parser.add_argument(
        "--operators", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}; default: all"
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    parser.add_argument("--lengths", nargs="+", type=int, metavar="T", help=f"tokens; default: {LENGTHS}")
    parser.add_argument(
        "--function", nargs="+", type=_function, default=[], metavar="NAME=MODULE:FUNCTION",
        help="measure this function in the place of ours, without decode; the only ones where --operators is not given",
    )  # fmt: skip
    for name, size in zip(("--batch", "--heads", "--width"), SHAPE, strict=True):
        parser.add_argument(name, type=int, default=size, metavar="N", help=f"{name[2:]} on a GPU; default: {size}")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin nothing new after this time")
    parser.add_argument("--quick", action="store_true", help="short lengths and few repetitions, to try the script out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: impls stand in for the kernels")
    parser.add_argument("--commit", help="what is measured, where git does not say")
    parser.add_argument(
        "--keep-cache", action="store_true", help="use Triton's own cache: first calls are no compilations"
    )
    options = parser.parse_args(arguments)
    if not options.output.parent.is_dir():
        parser.error(f"--output: no folder {options.output.parent}")
    return options


def _function(text: str) -> tuple[str, str]:
    """The name of a workload, and the path of a function that takes its inputs."""
    name, _, path = text.partition("=")
    if name not in {w.name for w in WORKLOADS} or not all(path.partition(":")[::2]):
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected NAME=MODULE:FUNCTION, NAME of {[w.name for w in WORKLOADS]}"
        )
    return name, path


@contextlib.contextmanager
def _fresh_cache(keep: bool) -> Iterator[None]:
    """Nothing is compiled yet: a first call compiles. Triton reads the variable when it compiles."""
    if keep:
        yield
        return
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before


def _prepare(options: argparse.Namespace, device: torch.device) -> Run:
    """The record as far as it is known before anything is timed, and written."""
    cpu = device.type == "cpu"
    sizes = {"B": 1, "H": 2, "D": 16} if cpu else {"B": options.batch, "H": options.heads, "D": options.width}
    dtype = torch.float32 if cpu else DTYPES[options.dtype]
    shape, timer = Shape(T=0, dtype=dtype, device=device, **sizes), common.Timer(device)
    here = common.environment(device)
    seconds = common.QUICK_SECONDS if options.quick else common.SECONDS
    record: dict[str, Any] = {
        "schema": SCHEMA, "kind": "gpu_run", "commit": options.commit or common.commit(),
        "source_hash": common.source_hash(), "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": False, "stopped": "running", "seconds": 0.0, "environment": here,
        "settings": {**sizes, "dtype": str(dtype).removeprefix("torch."), "quick": options.quick,
                     "stages": sorted(options.stages), "functions": dict(options.function),
                     "sampling": common.sampling(seconds)},
        "clocks": [common.clocks("begin")], "rates": {}, "gates": [], "checks": [], "timings": [], "failures": [],
    }  # fmt: skip
    run = Run(
        timer=timer, shape=shape, room="impls" if cpu else "kernels", stages=frozenset(options.stages),
        seconds=seconds, l2_bytes=here.get("l2_bytes", 1 << 20), record=record,
        save=lambda: common.write(options.output, record),
    )  # fmt: skip
    record["rates"] = common.rates(timer, dtype, options.quick)
    run.save()
    return run


def _measure(run: Run, options: argparse.Namespace, workloads: Sequence[Workload], begin: float) -> str:
    """Measure workload by workload; why it ended early, or ""."""
    lengths = options.lengths or ((64, 128) if not run.timer.cuda else (2048, 4096) if options.quick else LENGTHS)
    long = bool(run.stages & {"forward", "forward+backward"})
    steps = [*(lengths if long else []), *([0] if "decode" in run.stages else [])]
    for workload in workloads:
        missing = _missing(run, workload)
        if missing:
            run.add("failures", workload, what="import", tokens=0, error=missing)
            continue
        for T in [T for T in steps if T or not workload.given]:
            spent = time.perf_counter() - begin
            if options.budget is not None and spent > options.budget:
                return f"budget of {options.budget:g} s spent before {workload.name}, {f'T = {T}' if T else 'decode'}"
            print(f"{spent:6.0f} s  {workload.name}  {f'T = {T}' if T else 'decode'}", file=sys.stderr, flush=True)
            if T:
                thorough = lengths[0] == T
                run.attempt(workload, "inputs", T, lambda w=workload, n=T, t=thorough: at_length(run, w, n, thorough=t))
            else:
                run.attempt(workload, "decode", 1, lambda w=workload: decode(run, w, sorted(lengths)))
            try:
                run.timer.wait()
            except RuntimeError as error:  # an illegal access: nothing can be measured in this process any more
                return f"the device failed in {workload.name}, T = {T}: {str(error).splitlines()[0]}"
        run.record["clocks"].append(common.clocks(workload.name))
        run.save()
    return ""


def _missing(run: Run, workload: Workload) -> str:
    """Why the workload has no functions to time; "" if it has."""
    try:
        for path in [workload.given] if workload.given else [workload.function(run.room, n) for n in ("chunk", "step")]:
            common.resolve(path)
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- what is printed -----------------------------------------------------------------------------------------------


def _report(record: dict[str, Any]) -> None:
    """A short table last: milliseconds, graphed where there are graphs, and what failed."""
    rows = [
        r for r in record["timings"] if r["l2"] != "cold" and (r["graphed"] or record["environment"]["gpu"] == "none")
    ]
    print(f"\n{'':44} {'T':>7} {'ours':>9} {'softmax':>9} {'fla':>9} {'floor':>8}   ms")
    keys = sorted({(r["operator"], r["variant"], r["direction"], r["tokens"]) for r in rows})
    for key in keys:
        here = {
            r["implementation"]: r for r in rows if (r["operator"], r["variant"], r["direction"], r["tokens"]) == key
        }
        rivals = [r["ms"] for name, r in here.items() if name.startswith(SOFTMAX)]
        theirs = [r["ms"] for name, r in here.items() if name.startswith("fla:")]
        ours = here.get(OURS, {})
        cells = [ours.get("ms"), min(rivals, default=None), min(theirs, default=None), ours.get("floor_ms")]
        shown = " ".join("-".rjust(9) if x is None else f"{x:9.4f}" for x in cells)
        print(f"{' '.join(key[:3]):44} {key[3]:7} {shown}")
    for row in crossovers(record)[0]:
        if row["l2"] == "warm":
            what = f"{row['operator']} {row['variant']} {row['direction']}{' graphed' if row['graphed'] else ''}"
            print(f"crossover {what}: {row['tokens']} tokens ({row['low']} to {row['high'] or '?'}), {row['softmax']}")
    for row in _red(record):
        print(f"FAIL: { {name: x for name, x in row.items() if name != 'ok'} }")
    seen: set[tuple[str, ...]] = set()
    for row in record["failures"]:
        key = (row["operator"], row["variant"], row["what"], row["error"])
        if key not in seen:
            print(f"failed: {' '.join(key[:3])}, T = {row['tokens']}: {row['error'][:160]}")
        seen.add(key)
    if record["stopped"]:
        print(f"stopped: {record['stopped']}")


def _status(record: dict[str, Any]) -> int:
    if record["stopped"] == "interrupted":
        return 130
    if _red(record) or _ours_failed(record) or record["stopped"].startswith("the device"):
        return 1
    return 0 if any(r["implementation"] == OURS for r in record["timings"]) else 3


def _ours_failed(record: dict[str, Any]) -> bool:
    """Whether a call of ours raised: what rivals fail at names them."""
    steps = ("inputs", "first call", "gate", "checks", *STAGES[:2])
    return any(row["what"] in steps or f" of {OURS}" in row["what"] for row in record["failures"])


def _red(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Gates of ours and checks that failed; a peer's failure is its own."""
    gates = [row for row in record["gates"] if row["implementation"] == OURS]
    return [row for row in [*gates, *record["checks"]] if not row["ok"]]


if __name__ == "__main__":
    sys.exit(main())
