"""What ``gpu_run`` finds beside times: memory at the peak, errors on the timed inputs, seconds of a first call."""

from __future__ import annotations

from typing import Any

from benchmarks import common
from benchmarks.base import DTYPES, LENGTHS, LONG, OPERATORS, D, Failed, Measured, Row, Tables
from benchmarks.measure import OURS


class Checked(Measured):
    """One direction at one length."""

    params = [OPERATORS, LONG, LENGTHS, D, DTYPES]
    param_names = ["operator", "direction", "tokens", "D", "dtype"]

    def check(self, tables: Tables, operator: str, what: str, tokens: int, D: int, dtype: str) -> Row:
        """One row of checks."""
        self.fits(tables, D=D, dtype=dtype)
        row = tables.checks.get((operator, what, tokens))
        if row is None:
            raise NotImplementedError("the record does not have it")
        return row


class Memory(Checked):
    """Bytes at the peak of a call, inputs included; gradients too where there is a backward."""

    unit = "bytes"

    def find(self, tables: Tables, **asked: Any) -> float:
        """The peak."""
        return self.check(tables, what=f"peak memory, {asked.pop('direction')}", **asked)["value"]["peak"]

    def track_peak_memory(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value


class FirstCall(Checked):
    """Seconds of the first call, with an empty compile cache."""

    unit = "seconds"

    def find(self, tables: Tables, **asked: Any) -> float:
        """Of this direction."""
        direction = asked.pop("direction")
        seconds = self.check(tables, what="first call", **asked)["value"]
        if direction not in seconds:
            raise NotImplementedError("the record does not have it")
        return seconds[direction]

    def track_compile_seconds(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value


class Errors(Checked):
    """The worst root mean square error on the timed inputs, in parts of what the gate allows; above 1 is wrong."""

    unit = "of the limit"

    def find(self, tables: Tables, **asked: Any) -> float:
        """What the gate measured, also where it was red."""
        self.fits(tables, D=asked["D"], dtype=asked["dtype"])
        row = tables.gates.get((asked["operator"], asked["direction"], asked["tokens"], OURS))
        if row is None:
            raise NotImplementedError("the record does not have it")
        if row["worst"] is None:
            raise Failed(row["message"])
        return row["worst"]

    def track_error_ratio(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value


class ErrorsCPU(Errors):
    """The part that any machine can do."""

    sampling = common.sampling(common.QUICK_SECONDS)
    version = f"1; {sampling}"
    params = [OPERATORS, LONG, [64, 128], [16], ["float32"]]
