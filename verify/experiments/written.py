"""Results that were written, for a report: their word is not taken, the rules that they hold judge them anew."""

from __future__ import annotations

from pathlib import Path

import msgspec

from linattest.verify.experiments import results
from linattest.verify.experiments.judging import judge
from linattest.verify.experiments.results import Result


def read_anew(path: Path) -> Result:
    """A result with the verdict and the evidence of its own rules and runs.

    Raises:
        ValueError: it is no result, or of another version, or its runs lack what a rule asks for; the file is named.
        OSError: the file cannot be read.
    """
    found = results.read(path)
    if found.schema != results.SCHEMA:
        raise ValueError(f"{path}: schema={found.schema}, expected {results.SCHEMA}: another version wrote it")
    try:
        verdict = judge(found.recipe, found.runs, found.series, quick=found.form == "quick")
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: its runs lack what a rule asks for: {error}") from error
    return msgspec.structs.replace(found, verdict=verdict.word, evidence=verdict.evidence)
