"""`prove` ends when it is told to, with its workers and what they started, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from linattest.verify.cli import main; main()", "prove"]
LINUX = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks into /proc")


def children(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found += [int(stat.parent.name), *children(int(stat.parent.name))]
    return found


def busy(process: subprocess.Popen[str], count: int) -> list[int]:
    """Wait until it has so many processes under it."""
    end = time.monotonic() + 60
    while len(found := children(process.pid)) < count:
        assert process.poll() is None and time.monotonic() < end, "nothing runs"
        time.sleep(0.1)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_prove_ends_with_its_workers(number: signal.Signals, tmp_path: Path):
    settings = {**os.environ, "LINATTEST_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*COMMAND, "--workers", "2"], cwd=tmp_path, env=settings, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started = busy(process, 3)  # two workers, and what multiprocessing has beside them
    time.sleep(2)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    end = time.monotonic() + 10
    while left := [pid for pid in started if alive(pid)]:
        assert time.monotonic() < end, f"{left} live on"
        time.sleep(0.1)
    if number == signal.SIGINT:
        assert process.returncode == 130 and "interrupted: nothing is kept" in said and "Traceback" not in said
    else:
        assert process.returncode == -signal.SIGTERM
