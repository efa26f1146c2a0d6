"""Policy for every test: one thread a worker, Triton's interpreter where there is no GPU, profiles for Hypothesis,
poisoned allocations, a header."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from linattest.verify import devices, grids
from linattest.verify.poison import poisoned
from linattest.verify.spec import Operator

# Triton reads it when it is imported, which nothing above does.
if devices.missing("cuda"):
    assert devices.interpreting() or "triton" not in sys.modules, "Triton is imported already, not to be interpreted"
    devices.interpret()

# Workers of xdist share the machine's cores; torch's own threads would only contend with them.
torch.set_num_threads(1)

# No deadline: an oracle's first call computes what later calls read from the cache.
# Where CI is set Hypothesis starts from a profile of its own that repeats itself: say what ours are.
settings.register_profile(
    "dev", deadline=None, max_examples=25, print_blob=True, derandomize=False,
    database=DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples"),
)  # fmt: skip
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, database=None)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=500)
PROFILE = os.environ.get("LINATTEST_PROFILE", "ci" if os.environ.get("CI") else "dev")
settings.load_profile(PROFILE)  # `--hypothesis-profile NAME` is read later, and wins


def pytest_configure(config: pytest.Config) -> None:
    """Ask MKL for equal bits, before its first product, unless what is run is timed: `-m serial`, as `make test` does.

    It rounds by where an operand lies in memory, on some processors (AMD's: one head's bits then depend on another's).
    Asked not to, its products take 2.5 times as long.
    """
    if config.option.markexpr != "serial" and not all("test_speed" in path for path in config.args):
        os.environ.setdefault("MKL_CBWR", "COMPATIBLE")


def pytest_report_header() -> list[str]:
    """Print what a failure depends on besides the code."""

    def version(package: str) -> str:
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            return f"no {package}"

    packages = ", ".join(version(p) for p in ("torch", "triton", "mpmath", "python-flint", "numpy", "hypothesis"))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none (Triton interprets kernels)"
    return [
        f"linattest: Python {platform.python_version()}, {packages}",
        f"linattest: {platform.system()} {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, "
        f"GPU {gpu}, Hypothesis profile {PROFILE!r} (LINATTEST_PROFILE)",
    ]


@pytest.fixture(scope="session", autouse=True)
def poisoned_allocations() -> Iterator[None]:
    """Make a launcher's unwritten output show: what ``torch.empty`` and its kin return holds NaN (verify/poison.py)."""
    with poisoned():
        assert torch.empty(1).isnan().all() and torch.ones(1).new_empty(1).isnan().all()
        yield


@pytest.fixture(scope="session")
def in_turn() -> Callable[[Operator, int], list[Mapping[str, float | bool | str]]]:
    """``in_turn(operator, turn)``: the option setting of the defaults, and one of the others, another each turn."""

    def of(operator: Operator, turn: int) -> list[Mapping[str, float | bool | str]]:
        first, *others = grids.settings(operator)
        return [first, *([others[turn % len(others)]] if others else [])]

    return of
