"""Where a checkout keeps its measurements; an installed package has none."""

from __future__ import annotations

from linattest.verify.environment import ROOT

CHECKOUT = (ROOT / "verify").resolve().parent
"""The repository."""

RESULTS = CHECKOUT / "benchmarks" / "results"
"""The committed records, and asv's results made of them."""

SCRATCH = CHECKOUT / ".cache" / "bench"
"""What is measured on a CPU, or of sources that no commit has."""

SITE = CHECKOUT / ".asv" / "html"
"""The published dashboard."""
