"""``linattest bench compare``: two commits, or two records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from linattest.verify.bench.compare import FACTOR, Comparison
from linattest.verify.bench.compare import compare as compared
from linattest.verify.bench.paths import RESULTS
from linattest.verify.bench.showing import print_comparison, to_json, to_markdown
from linattest.verify.bench.sides import common, find, sides
from linattest.verify.commands.codes import FAILED, NOTHING, OK


def compare(
    a: Annotated[
        str, typer.Argument(help="a record of gpu_run, records of check or verify (.jsonl), or a commit", metavar="A")
    ],
    b: Annotated[str, typer.Argument(help="the same; it is judged against A", metavar="B")],
    factor: Annotated[float, typer.Option(help="ratio of times, or of memory, up to which nothing changed")] = FACTOR,
    results: Annotated[Path, typer.Option(help="folder with records of gpu_run")] = RESULTS,
    everything: Annotated[bool, typer.Option("--all", help="also what is the same or ambiguous")] = False,
    markdown: Annotated[Path | None, typer.Option(help="write a comment for a pull request; - prints it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Faster, slower, the same or ambiguous, with intervals that hold together; and whether errors grew.

    Exit code 1: something is slower than A by more than the factor, an error grew to more than twice its size, a peak
    of memory grew by more than the factor, or a call, gate or check that passed in A does not in B. 3: nothing could be
    told, as without rivals that were timed in both.
    """
    if not factor > 1:
        raise typer.BadParameter(f"{factor:g}, expected a ratio above 1", param_hint="--factor")
    pairs = _pairs(a, b, results, factor)
    console = Console(stderr=as_json or str(markdown) == "-")
    for found in pairs:
        print_comparison(console, found, everything)
    if markdown is not None:
        _write(markdown, to_markdown(pairs))
    if as_json:
        print(json.dumps(to_json(pairs), indent=2, allow_nan=False))
    if any(found.failed for found in pairs):
        raise typer.Exit(FAILED)
    raise typer.Exit(OK if any(found.told for found in pairs) else NOTHING)


def _pairs(a: str, b: str, results: Path, factor: float) -> list[Comparison]:
    try:
        both = [sides(name, find(name, results)) for name in (a, b)]
        return [compared(*pair, factor) for pair in common(*both)]
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="A B") from error


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--markdown") from error
