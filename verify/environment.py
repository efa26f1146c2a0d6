"""What a number depends on: commit, sources, versions, machine. One block, the same in every report."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec
import torch

import linattest

ROOT = Path(linattest.__file__).resolve().parent
"""The package's folder; sources are found through it wherever it is installed."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a record is keyed by, beside its case.

    ``interpreted``: a kernel ran in Triton's interpreter, which says nothing about a GPU's rounding. The last two are
    how a kernel was compiled, ``None`` for what is no kernel.
    """

    linattest: str
    commit: str
    source_hash: str
    python: str
    torch: str
    triton: str | None
    numpy: str
    mpmath: str
    flint: str
    system: str
    cpu: str
    device: str = "cpu"
    interpreted: bool = False
    enable_fp_fusion: bool | None = None
    input_precision: str | None = None


@cache
def environment() -> Environment:
    """The environment of this process. ``commit`` ends in ``-dirty`` when the checkout has changes."""
    return Environment(
        linattest=linattest.__version__,
        commit=commit(),
        source_hash=source_hash(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=version("triton"),
        numpy=version("numpy") or "none",
        mpmath=version("mpmath") or "none",
        flint=version("python-flint") or "none",
        system=f"{platform.system()} {platform.machine()}",
        cpu=torch.backends.cpu.get_cpu_capability(),
    )


def version(package: str) -> str | None:
    """Version of an installed package, ``None`` without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """The checkout's commit, ``"unknown"`` outside one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str((ROOT / "verify").resolve()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@cache
def source_hash() -> str:
    """Hash of every implementation and kernel source: records with another hash are stale."""
    digest = hashlib.sha256()
    for folder in ("impls", "kernels", "verify"):
        for path in sorted((ROOT / folder).resolve().rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
