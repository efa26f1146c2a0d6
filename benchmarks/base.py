"""What the benchmarks of the suite stand on: one measurement a commit, looked up by every one of them.

asv would start a process for each parameter, and time A in one and B in another. So ``setup_cache`` measures all in
one long-lived process (``gpu_run``: device, synchronisation, warm-up, interleaving, correctness before time), and a
``track_*`` is a look into its record. `linattest bench record` gives the same classes a record that was made elsewhere.

A class skips (``NotImplementedError``) what a record does not have, and raises where a gate was red or a call failed:
no time of a wrong result. Parameters are text and numbers, the same on every machine.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks import common, gpu_run
from benchmarks.measure import OURS
from benchmarks.workloads import WORKLOADS
from linattest.verify.bench.sides import sampling

OPERATORS = [workload.name for workload in WORKLOADS]
LENGTHS = sorted(gpu_run.LENGTHS)
LONG = ["forward", "forward+backward"]
DIRECTIONS = [*LONG, "decode"]
D, DTYPES = [128], list(gpu_run.DTYPES)
HEADS = {128: 16, 16: 2}
"""Heads at a width: those of a GPU's series, and of the part that a CPU does. A series has one row of a batch."""

MODES = {
    "plain": (False, ("warm", "exceeded")),
    "graph": (True, ("warm", "exceeded")),
    "graph, cold L2": (True, ("cold", "exceeded")),
}
"""Whether a call is replayed as a CUDA graph, and what the L2 cache holds (``Run`` in ``measure``)."""

RECORD = "LINATTEST_RECORD"
"""Names a record of ``gpu_run`` that `asv run` takes instead of measuring."""

Row = Mapping[str, Any]


class Failed(RuntimeError):
    """The record says that this was tried and gave no number."""

    expected = False


class Beyond(Failed):
    """There is no number because it lies beyond what was measured, which is no fault."""

    expected = True


@dataclass(frozen=True)
class Tables:
    """A record by what a benchmark asks for; ``record`` is the file's content."""

    record: Row
    timings: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    gates: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    checks: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    crossovers: list[list[dict[str, Any]]] = field(default_factory=list)


def name_of(row: Row) -> str:
    """The workload of a row, as parameters name it."""
    return f"{row['operator']}-{row['variant']}" if row["variant"] else str(row["operator"])


def kind_of(implementation: str) -> str:
    """ "linattest", "softmax" (whichever backend), "fla" or "backbone"."""
    return implementation.partition(":")[0]


class Recorded:
    """A benchmark that looks into a record; ``kind`` says of which command."""

    kind: ClassVar[str] = ""
    timeout = 7200.0
    params: ClassVar[Sequence[Sequence[str | int]]] = []
    param_names: ClassVar[Sequence[str]] = []

    def setup(self, tables: Tables, *values: str | int) -> None:
        """Find what these parameters ask for; its ``samples`` go into asv's statistics."""
        self.samples: Sequence[float] | None = None
        self.value = self.find(tables, **dict(zip(self.param_names, values, strict=True)))

    def find(self, tables: Tables, **asked: Any) -> float:
        """The number. Raises ``NotImplementedError`` for what was not measured, ``Failed`` for what failed."""
        raise NotImplementedError("a base class has nothing to find")


class Measured(Recorded):
    """What ``gpu_run`` measures; ``sampling`` is part of the version, since other settings make another series."""

    kind = "gpu_run"
    sampling: ClassVar[str] = common.sampling(common.SECONDS)
    version = f"1; {sampling}"

    def setup_cache(self) -> Tables:
        """One run for all benchmarks: on a GPU everything, elsewhere a small part on the CPU."""
        given = os.environ.get(RECORD)
        return self.read(json.loads(Path(given).read_text(encoding="utf-8")) if given else measured())

    @staticmethod
    def read(record: Row) -> Tables:
        """The tables of a record."""
        tables = Tables(record)
        for row in record["timings"]:
            if not row.get("samples"):
                continue
            place = (name_of(row), row["direction"], row["tokens"], row["graphed"], row["l2"])
            key = (*place, kind_of(row["implementation"]))
            if key not in tables.timings or row["ms"] < tables.timings[key]["ms"]:
                tables.timings[key] = row  # of softmax the fastest backend
        for row in record["gates"]:
            tables.gates[name_of(row), row["direction"], row["tokens"], kind_of(row["implementation"])] = row
        for row in record["checks"]:
            tables.checks[name_of(row), row["what"], row["tokens"]] = row
        return tables

    def fits(self, tables: Tables, *, D: int, dtype: str) -> None:
        """Skip a record of another shape or dtype, or with other repetitions than the series has."""
        settings, sampled = tables.record["settings"], sampling(tables.record)
        shape = tuple(settings[name] for name in ("B", "H", "D"))
        if (shape, settings["dtype"], sampled) != ((1, HEADS[D], D), dtype, self.sampling):
            raise NotImplementedError(f"the record has B, H, D = {shape}, {settings['dtype']}, {sampled}")

    def timing(self, tables: Tables, operator: str, direction: str, tokens: int, mode: str, implementation: str) -> Row:
        """One row of timings."""
        graphed, caches = MODES[mode]
        for l2 in caches:
            row = tables.timings.get((operator, direction, tokens, graphed, l2, implementation))
            if row is not None:
                return row
        raise self._missing(tables, operator, direction, tokens, implementation)

    @staticmethod
    def _missing(tables: Tables, operator: str, direction: str, tokens: int, implementation: str) -> Exception:
        """Why there is no number: what the run says of it, a red gate, or that it was not tried."""
        said = (
            row["error"] for row in tables.record["failures"]
            if name_of(row) == operator and row["tokens"] in (tokens, 0, *([1] if direction == "decode" else []))
            and _concerns(row, direction, implementation)
        )  # fmt: skip
        gate = tables.gates.get((operator, direction, 1 if direction == "decode" else tokens, implementation))
        red = f"the gate is red: {gate['message']}" if gate is not None and not gate["ok"] else None
        error = next(said, red)
        return Failed(error) if error else NotImplementedError("the record does not have it")


def _concerns(row: Row, direction: str, implementation: str) -> bool:
    """Whether a row of failures is why there is no time of an implementation in a direction."""
    what = str(row["what"])
    if implementation == OURS:
        return what in ("import", "inputs", "first call", "gate", direction) or what in (
            f"gate of {OURS}, {direction}", f"graph of {OURS}, {direction}",
        )  # fmt: skip
    tried = implementation == "fla" and what.startswith(("fla", "gate of fla", "graph of fla"))
    return tried and direction != "decode" and ("," not in what or what.endswith(f", {direction}"))


def measured() -> Row:
    """Run ``gpu_run`` here, on the GPU or for a small part on the CPU.

    Raises:
        RuntimeError: it measured nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        here = [] if torch.cuda.is_available() else ["--device", "cpu", "--quick"]
        status = gpu_run.main(["--output", str(output), *here])
        if status not in (0, 1):  # 1: something was red, and is so in the record
            raise RuntimeError(f"gpu_run ended with {status}: nothing measured")
        return json.loads(output.read_text(encoding="utf-8"))
