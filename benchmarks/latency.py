"""Milliseconds a call, beside softmax attention and flash-linear-attention in the same run, and what they come to."""

from __future__ import annotations

from typing import Any

from benchmarks import common
from benchmarks.base import DIRECTIONS, DTYPES, LENGTHS, LONG, MODES, OPERATORS, Beyond, D, Measured, Tables
from benchmarks.measure import OURS
from linattest.verify.crossover import crossovers


class Latency(Measured):
    """On a GPU; "softmax" is the fastest backend at that length."""

    unit = "ms"
    params = [OPERATORS, DIRECTIONS, LENGTHS, D, DTYPES, [OURS, "softmax", "fla"], list(MODES)]
    param_names = ["operator", "direction", "tokens", "D", "dtype", "implementation", "mode"]

    def find(self, tables: Tables, **asked: Any) -> float:
        """The median."""
        self.fits(tables, D=asked.pop("D"), dtype=asked.pop("dtype"))
        row = self.timing(tables, **asked)
        self.samples = row["samples"]
        return row["ms"]

    def track_latency(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value


class CPU(Latency):
    """The part that any machine can do: `impls` on short inputs, against softmax on the same processor."""

    sampling = common.sampling(common.QUICK_SECONDS)
    version = f"1; {sampling}"
    params = [OPERATORS, DIRECTIONS, [64, 128], [16], ["float32"], [OURS, "softmax"], ["plain"]]


class Floor(Measured):
    """How many times as long as moving every input in and every output out once, at the copy bandwidth of the run."""

    unit = "times the floor"
    params = [OPERATORS, LONG, LENGTHS, D, DTYPES]
    param_names = ["operator", "direction", "tokens", "D", "dtype"]

    def find(self, tables: Tables, **asked: Any) -> float:
        """Of the graphed time with warm caches: the device's share."""
        self.fits(tables, D=asked.pop("D"), dtype=asked.pop("dtype"))
        row = self.timing(tables, **asked, mode="graph", implementation=OURS)
        return row["ms"] / row["floor_ms"]

    def track_floor_ratio(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value


class Crossover(Measured):
    """Tokens from which on an operator is faster than the fastest softmax, and the ends of the 95 % interval."""

    unit = "tokens"
    params = [OPERATORS, DIRECTIONS, D, DTYPES, list(MODES)]
    param_names = ["operator", "direction", "D", "dtype", "mode"]

    def find(self, tables: Tables, **asked: Any) -> float:
        """The crossover; the rows behind ``low`` and ``high`` are kept for the other two."""
        self.fits(tables, D=asked.pop("D"), dtype=asked.pop("dtype"))
        if not tables.crossovers:
            tables.crossovers.extend(crossovers(tables.record))
        graphed, caches = MODES[asked["mode"]]
        crossed, uncrossed = (
            [
                row for row in rows
                if _name(row) == asked["operator"] and row["direction"] == asked["direction"]
                and row["graphed"] == graphed and row["l2"] == caches[0]
            ]
            for rows in tables.crossovers
        )  # fmt: skip
        if uncrossed:
            raise Beyond(f"{uncrossed[0]['ratio']:g} times as slow as softmax at {uncrossed[0]['longest']} tokens")
        if not crossed:
            raise NotImplementedError("the record does not have it")
        self.row = crossed[0]
        return self.row["tokens"]

    def track_crossover(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value

    def track_crossover_low(self, tables: Tables, *values: Any) -> float:
        """The lower end."""
        return self.row["low"]

    def track_crossover_high(self, tables: Tables, *values: Any) -> float:
        """The upper end; none where it may lie beyond what was measured."""
        if self.row["high"] is None:
            raise Beyond("the interval has no upper end within the lengths that were measured")
        return self.row["high"]


def _name(row: dict[str, Any]) -> str:
    return f"{row['operator']}-{row['variant']}" if row["variant"] else row["operator"]
