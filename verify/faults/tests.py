"""Tests of the repository as checks: for faults that no operator's case can show (argument checks, layers)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that has ``tests``; an installed package has none."""


@dataclass(eq=False)
class Ran:
    """What pytest did: how many tests, the first that failed and its words, or why nothing can be said."""

    count: int = 0
    failed: str = ""
    message: str = ""
    broken: str = ""

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported has tested nothing."""
        if report.failed:
            self.broken = self.broken or f"{report.nodeid}: {report.longreprtext.strip().splitlines()[-1]}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A failure of the test itself counts; one of its fixtures says nothing."""
        self.count += report.when == "call"
        if not report.failed:
            return
        lines = [line[2:] for line in report.longreprtext.splitlines() if line.startswith("E ")]
        message = " ".join(" ".join(lines[:3]).split())
        if report.when == "call":
            self.failed, self.message = self.failed or report.nodeid, self.message or message
        else:
            self.broken = self.broken or f"{report.nodeid}: {message}"


def run_tests(checks: Iterable[str]) -> Ran:
    """Run tests in this very process until one fails; each check is a path, a node id, or a path and options.

    Never call it where tests run already: pytest does not nest.
    """
    ran = Ran()
    try:
        import pytest
    except ModuleNotFoundError:
        ran.broken = "pytest is not installed: pip install 'linattest[test]'"
        return ran
    if not (CHECKOUT / "tests").is_dir():
        ran.broken = f"no tests in {CHECKOUT}: this check needs a checkout"
        return ran
    os.chdir(CHECKOUT)
    os.environ["LINATTEST_PROFILE"] = "ci"  # the same examples every time
    quiet = "ignore::pytest.PytestAssertRewriteWarning"  # the package is imported before pytest could rewrite it
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", quiet]
    for check in checks:
        code = pytest.main([*options, *shlex.split(check)], plugins=[ran])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            ran.broken = ran.broken or f"pytest {check}: {pytest.ExitCode(code).name}"
        if ran.failed or ran.broken:
            break
    return ran
