"""What other commands find at a commit, from what they write as JSON: none of it needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.base import Failed, Recorded, Row, Tables
from linattest.verify import registry
from linattest.verify.claims.verdicts import WORDS
from linattest.verify.spec import DTYPES


class Command(Recorded):
    """A command of ``linattest`` whose answer is the record."""

    version = "1"

    @staticmethod
    def read(record: Row) -> Tables:
        """The answer as it is."""
        return Tables(record)


def answer(*command: str, option: str = "--json") -> Tables:
    """Run ``linattest COMMAND`` and read what it prints with --json, or writes with --output.

    Raises:
        RuntimeError: it gave no answer (exit code neither 0 nor 1).
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answer.json"
        more = [option] if option == "--json" else [option, str(output)]
        done = subprocess.run([sys.executable, "-m", "linattest", *command, *more], stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"linattest {' '.join(command)} ended with {done.returncode}")
        text = done.stdout if option == "--json" else output.read_text(encoding="utf-8")
        return Command.read(json.loads(text))


class Detection(Command):
    """Of the planted faults, how many are caught."""

    kind = "selftest"

    def setup_cache(self) -> Tables:
        """All faults: up to 15 minutes on two cores."""
        return answer("selftest")

    def find(self, tables: Tables, **asked: Any) -> float:
        """In per cent."""
        if tables.record.get("interrupted") or not tables.record["planted"]:
            raise Failed("the self-test was interrupted")
        return 100.0 * tables.record["caught"] / tables.record["planted"]

    def track_detection(self, tables: Tables) -> float:
        """As ``find``."""
        return self.value

    track_detection.unit = "%"  # pyright: ignore[reportFunctionMemberAccess]


class Claims(Command):
    """How many of the papers' claims have each verdict, and how many differ from the ledger."""

    kind = "claims"
    unit = "claims"
    params: ClassVar[Any] = [[*WORDS, "different"]]
    param_names = ["verdict"]

    def setup_cache(self) -> Tables:
        """About two minutes on two cores."""
        return answer("claims")

    def find(self, tables: Tables, **asked: Any) -> float:
        """The count."""
        return tables.record["counts"][asked["verdict"]]

    def track_claims(self, tables: Tables, verdict: str) -> float:
        """As ``find``."""
        return self.value


class Ratios(Command):
    """The worst error ratio over all value families, against the oracle; 30 is the threshold."""

    kind = "snapshot"
    unit = "roundoffs"
    params: ClassVar[Any] = [
        [o.name for o in registry.OPERATORS], sorted({v.name for o in registry.OPERATORS for v in o.variants}),
        list(DTYPES), ["forward", "gradient"],
    ]  # fmt: skip
    param_names = ["operator", "variant", "dtype", "direction"]

    def setup_cache(self) -> Tables:
        """One seed each, about a minute on two cores."""
        return answer("diff", "--quick", option="--output")

    def find(self, tables: Tables, **asked: Any) -> float:
        """Of the entries of a snapshot."""
        found = [row["measured"] for row in tables.record["entries"] if all(row[n] == x for n, x in asked.items())]
        if not found:
            raise NotImplementedError("the snapshot does not have it")
        return max(found)

    def track_error_ratio(self, tables: Tables, *values: Any) -> float:
        """As ``find``."""
        return self.value


class Builds(Command):
    """What an operator's kernels need, compiled in bfloat16 at 128 by 128; no GPU is asked."""

    kind = "compiled"
    params: ClassVar[Any] = [
        [o.name for o in registry.OPERATORS if any(v.kernel for v in o.variants)], ["chunk", "step"], [80, 90, 100],
    ]  # fmt: skip
    param_names = ["operator", "function", "arch"]

    def setup_cache(self) -> Tables:
        """The sample of `linattest compile --quick`, about two minutes."""
        return answer("compile", "--quick")

    def setup(self, tables: Tables, *values: Any) -> None:
        """The builds of all settings of a function."""
        operator, function, arch = values
        begin = f"{operator}.{function} bfloat16 128x128"
        self.rows = [
            r for r in tables.record["kernels"] if r["arch"] == arch and f"{r['call']} ".startswith(f"{begin} ")
        ]
        if not self.rows:
            raise NotImplementedError("the compile record does not have it")
        if errors := [row["error"] for row in self.rows if row.get("error")]:
            raise Failed(errors[0])

    def track_registers(self, tables: Tables, *values: Any) -> float:
        """The most that a thread of one kernel holds."""
        return max(row.get("registers", 0) for row in self.rows)

    def track_spills(self, tables: Tables, *values: Any) -> float:
        """Bytes a thread, of all kernels together."""
        return sum(row.get("spills", 0) for row in self.rows)

    def track_compile_seconds(self, tables: Tables, *values: Any) -> float:
        """From nothing to binaries, of all kernels together."""
        return sum(row.get("seconds", 0.0) for row in self.rows)

    track_registers.unit = "registers"  # pyright: ignore[reportFunctionMemberAccess]
    track_spills.unit = "bytes"  # pyright: ignore[reportFunctionMemberAccess]
    track_compile_seconds.unit = "seconds"  # pyright: ignore[reportFunctionMemberAccess]
