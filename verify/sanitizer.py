"""NVIDIA's compute-sanitizer over small launches of every kernel: accesses out of bounds, races in shared memory.

The tool runs `small_calls` in a process of its own for each operator. torch's caching allocator is off there, so that
a tensor's memory ends where the tensor does. Memcheck is first shown the planted fault of `planted_store`: a tool that
does not see it (a driver that it cannot attach to, say) has judged nothing. Racecheck has no planted fault: the
compiler puts in the barriers whose lack would be one.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from linattest.verify.environment import Environment, environment

SCHEMA = 1
Tool = Literal["memcheck", "racecheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck")
NAME = "compute-sanitizer"
FOUND = 86
"""Exit code that the tool is asked for where it found something."""

SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
CALLS = re.compile(r"^(\d+) calls$", re.MULTILINE)
EXCERPT = 30


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One tool on one operator. ``errors``: how many it counted, ``None`` where it has no summary; then ``trouble``."""

    tool: Tool
    operator: str
    calls: int
    errors: int | None
    seconds: float
    trouble: str = ""

    @property
    def clean(self) -> bool:
        """Whether calls were made, to their end, and nothing was found."""
        return self.errors == 0 and not self.trouble and self.calls > 0


class Sanitized(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--output`` writes. ``sees_planted``: whether memcheck saw a write behind the end of a tensor."""

    schema: int = SCHEMA
    tool_version: str
    sees_planted: bool | None
    quick: bool
    findings: tuple[Finding, ...]
    environment: Environment


def find() -> Path | None:
    """The tool: on PATH, beside CUDA, or of the wheel nvidia-cuda-sanitizer-api."""
    homes = [os.environ[x] for x in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(x)]
    for folder in (None, *(f"{home}/bin" for home in (*homes, "/usr/local/cuda"))):
        if (there := shutil.which(NAME, path=folder)) is not None:
            return Path(there)
    for package in ("nvidia-cuda-sanitizer-api", "nvidia-cuda-sanitizer-api-cu12"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == NAME and os.access(path := Path(str(file.locate())), os.X_OK):
                return path
    return None


def version(tool: Path) -> str:
    """What it says of itself, in a line."""
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    return next((line for line in reversed(said.stdout.splitlines()) if "Version" in line), "").strip()


def look(tool: Path, kind: Tool, operator: str, device: str, *, quick: bool) -> Finding:
    """One tool over one operator's small launches."""
    return _judged(tool, kind, operator, [operator, *(["--quick"] if quick else [])], device)


def sees_planted(tool: Path, device: str) -> bool:
    """Whether memcheck counts the planted fault."""
    return bool(_judged(tool, "memcheck", "planted", ["--planted"], device).errors)


def _judged(tool: Path, kind: Tool, operator: str, args: Sequence[str], device: str) -> Finding:
    command = [tool, "--tool", kind, "--error-exitcode", str(FOUND), "--print-limit", "10", sys.executable, "-m"]
    command += ["linattest.verify.small_calls", "--device", device, *args]
    begun = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    output = done.stdout + done.stderr
    counted, calls = SUMMARY.findall(output), CALLS.search(output)
    errors = sum(map(int, counted)) if counted else None
    trouble = "" if done.returncode == 0 and errors == 0 else "\n".join(output.splitlines()[-EXCERPT:])
    return Finding(
        tool=kind, operator=operator, calls=int(calls[1]) if calls else 0, errors=errors,
        seconds=round(time.perf_counter() - begun, 1), trouble=trouble,
    )  # fmt: skip


def sanitized(tool: Path, planted: bool | None, findings: Sequence[Finding], *, quick: bool) -> Sanitized:
    """All of it, with this process's environment."""
    return Sanitized(
        tool_version=version(tool), sees_planted=planted, quick=quick, findings=tuple(findings),
        environment=environment(),
    )  # fmt: skip
