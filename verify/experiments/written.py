"""Results that were written, for a report: their word is not taken, the rules that they hold judge them anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from linattest.verify.claims.verdicts import Word
from linattest.verify.experiments import results
from linattest.verify.experiments.judging import judge
from linattest.verify.experiments.results import Result


class Judged(Result, frozen=True, kw_only=True):
    """A result with the verdict that its rules give now; ``stored`` is the word that its file has."""

    stored: Word


def read_anew(path: Path) -> Judged:
    """A result with the verdict and the evidence of its own rules and runs.

    Raises:
        ValueError: it is no result, or of another version or another claim's recipe, or its runs lack what a rule asks
            for; the file is named.
        OSError: the file cannot be read.
    """
    found = results.read(path)
    if found.schema != results.SCHEMA:
        raise ValueError(f"{path}: schema={found.schema}, expected {results.SCHEMA}: another version wrote it")
    if found.experiment != found.recipe.claim:
        raise ValueError(
            f"{path}: experiment is {found.experiment!r}, expected {found.recipe.claim!r}: its recipe is of that claim"
        )
    try:
        verdict = judge(found.recipe, found.runs, found.series, quick=found.form == "quick")
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: its runs lack what a rule asks for: {error}") from error
    fields: dict[str, Any] = msgspec.structs.asdict(found)
    fields.update(verdict=verdict.word, evidence=verdict.evidence, stored=found.verdict)
    return Judged(**fields)
