"""Records and a repository for tests of what is filed, compared and published.

The numbers are those of a record from a GPU; commits are a small repository's own, so that a shallow clone of this
one suffices. No record made here leaves the temporary folder.
"""

import copy
import importlib
import math
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linattest.verify.bench.gpu_records import read_records

Record = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
"""Not by the package's place, which is a scratch copy where a planted fault is tried."""

with pytest.MonkeyPatch.context() as patch:
    # A suite is found by its folder's name: from here on that is this one, not what a test's repository has.
    patch.syspath_prepend(CHECKOUT)
    importlib.import_module("benchmarks.base")


@pytest.fixture(scope="session")
def gpu_record() -> Record:
    """What was measured of one operator on a GPU, its commit left to the test."""
    record = read_records(CHECKOUT / "benchmarks" / "results")[0]
    first = next(row for row in record["timings"] if row["implementation"] == "linattest")
    workload = (first["operator"], first["variant"])
    for table in ("timings", "gates", "checks", "failures"):
        record[table] = [row for row in record[table] if (row["operator"], row["variant"]) == workload]
    return record | {"commit": "unknown", "source_hash": "0" * 16}


@pytest.fixture(scope="session")
def rerun(gpu_record: Record) -> Callable[..., Record]:
    """The record as another run would have it: each series drawn again from its blocks and shifted as a whole by about
    1 %; ``slower`` and ``error`` are factors on ours."""

    def make(seed: int, slower: float = 1.0, error: float = 1.0, drift: float = 1.0, noise: float = 0.01) -> Record:
        draw, record = random.Random(seed), copy.deepcopy(gpu_record)
        for row in record["timings"]:
            ours = row["implementation"] == "linattest"
            factor = drift * math.exp(draw.gauss(0, noise)) * (slower if ours else 1)
            row["samples"] = [factor * x for x in draw.choices(row["samples"], k=len(row["samples"]))]
            row["ms"] = sorted(row["samples"])[len(row["samples"]) // 2]
        for row in record["gates"]:
            if row["implementation"] == "linattest":
                row["worst"] *= error
        return record

    return make


class Repository:
    """A repository with a suite's configuration: six commits on main, one on a branch that is not published."""

    def __init__(self, root: Path, commits: list[str] | None = None, side: str = "") -> None:
        self.root, self.commits, self.side = root, commits or [], side

    def fill(self) -> None:
        """Make the commits."""
        self.git("init", "-q", "-b", "main")
        for folder in ("impls", "kernels", "verify", "benchmarks"):
            (self.root / folder / "deeper").mkdir(parents=True)
        for name in ("asv.conf.json", "__init__.py"):
            shutil.copy(CHECKOUT / "benchmarks" / name, self.root / "benchmarks")
        self.commits = [self.commit(f"speed = {i}\n") for i in range(6)]
        self.git("checkout", "-q", "-b", "side")
        self.side = self.commit("speed = 99\n")
        self.git("checkout", "-q", "main")

    def git(self, *arguments: str) -> str:
        """What git prints."""
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        """A commit with a changed source; its hash."""
        for path in ("impls/a.py", "kernels/deeper/b.py", "kernels/deeper.py", "verify/c.py"):
            (self.root / path).write_text(text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """See ``Repository``; nothing is to be written into it."""
    made = Repository(tmp_path_factory.mktemp("repository"))
    made.fill()
    return made


@pytest.fixture
def repository(filled: Repository, tmp_path: Path) -> Repository:
    """A copy of it."""
    shutil.copytree(filled.root, tmp_path / "repository")
    return Repository(tmp_path / "repository", filled.commits, filled.side)
