"""``linattest report``: what a campaign wrote, for a browser, a CI server, a pull request."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from linattest.verify import drift as drifts
from linattest.verify.claims.record import read as read_claims
from linattest.verify.commands.claims import say_different, say_stale, status_of
from linattest.verify.commands.common import FAILED, NOTHING, OK
from linattest.verify.commands.report_experiments import committed, drawn, ended, worst
from linattest.verify.experiments.results import Result
from linattest.verify.experiments.written import read_anew
from linattest.verify.report.github import errors
from linattest.verify.report.junit import junit as to_junit
from linattest.verify.report.markdown import markdown as to_markdown
from linattest.verify.report.sarif import sarif as to_sarif
from linattest.verify.report.summary import load

Found = TypeVar("Found")

Files = dict[str, tuple[Path | None, Callable[[], str]]]
"""By option: where to write, and what makes the text."""


def report(
    records: Annotated[
        list[Path] | None, typer.Option(help="what `verify --records` wrote; may be repeated, the later file wins")
    ] = None,
    drift: Annotated[Path | None, typer.Option(help="what `drift --output` wrote")] = None,
    selftest: Annotated[Path | None, typer.Option(help="what `selftest --json` printed")] = None,
    diff: Annotated[Path | None, typer.Option(help="what `diff --json` printed")] = None,
    claims: Annotated[
        Path | None, typer.Option(help="what `claims --output` wrote; with --html, records or not")
    ] = None,
    experiment: Annotated[
        list[Path] | None,
        typer.Option(help="what `experiment --output` wrote; may be repeated; with --html or --svg, records or not"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write one offline page")] = None,
    svg: Annotated[Path | None, typer.Option(help="write a figure of the one --experiment")] = None,
    figure: Annotated[str | None, typer.Option(help="which one --svg is; default: its first")] = None,
    junit: Annotated[Path | None, typer.Option(help="write JUnit XML")] = None,
    sarif: Annotated[Path | None, typer.Option(help="write SARIF 2.1.0")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write a summary for a pull request; - prints it")] = None,
    github: Annotated[bool, typer.Option("--github", help="print GitHub annotations")] = False,
) -> None:
    """Turn records into reports. The exit code is that of the records: 1 when one failed, or a claim differs.

    3 when verdicts on claims are stale. Experiments end as `experiment` did: 1 when a run has no result, 3 without a
    verdict.
    """
    console = Console(stderr=True, markup=False)
    summary = _given("--records", lambda: load(records or []))
    followed = _given("--drift", lambda: drifts.read(drift)) if drift else None
    ledger = _given("--claims", lambda: read_claims(claims)) if claims else None
    stale = say_stale(console, ledger) if ledger is not None else []
    if ledger is not None:
        say_different(console, ledger)
    shown = _given("--experiment", lambda: [read_anew(path) for path in experiment or []])
    _check_drawing(shown, html, svg, figure)
    extras = {name: _object(f"--{name}", path) for name, path in (("selftest", selftest), ("diff", diff)) if path}
    picture = None if svg is None else drawn(console, shown[0], figure)
    status = worst([ended(shown), status_of(ledger, stale) if ledger is not None else OK])
    if ledger is not None:
        shown += _given("--claims", lambda: committed(ledger, shown))
    files: Files = {"--svg": (svg, lambda: picture or "")}
    if (ledger is not None or shown) and not records:
        others = bool(drift or extras or junit or sarif or markdown or github)
        if others or (html is None and (svg is None or ledger)):
            raise typer.BadParameter(
                "without --records it makes a page: --html FILE and nothing else",
                param_hint="--claims" if ledger is not None else "--experiment",
            )
        files["--html"] = html, lambda: _page(console, lambda made: made.ledger_page(ledger, shown))
        _write_all(console, files)
        raise typer.Exit(status)
    if not summary.records:
        raise _nothing(console)
    if not (html or junit or sarif or markdown or github):
        raise typer.BadParameter(
            "name at least one: --html, --junit, --sarif, --markdown, --github", param_hint="report"
        )
    if markdown is not None and str(markdown) == "-":
        print(to_markdown(summary), end="")
        markdown = None
    for line in errors(summary) if github else ():
        print(line)
    console.print(summary.verdict, highlight=False)
    files |= {
        "--junit": (junit, lambda: to_junit(summary)),
        "--sarif": (sarif, lambda: to_sarif(summary)),
        "--markdown": (markdown, lambda: to_markdown(summary)),
    }
    given: dict[str, Any] = {"claims": ledger, "experiments": shown, **extras}
    files["--html"] = html, lambda: _page(console, lambda made: made.page(summary, followed, **given))
    _write_all(console, files)
    raise typer.Exit(FAILED if summary.failed else status)


def _nothing(console: Console) -> typer.Exit:
    console.print(
        "nothing to report: no record given; make some with `linattest verify --records FILE`, then "
        "`linattest report --records FILE --html report.html`",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return typer.Exit(NOTHING)


def _check_drawing(shown: Sequence[Result], html: Path | None, svg: Path | None, figure: str | None) -> None:
    """What says which figure, or which result, and would have no effect or more than one, is wrong usage."""
    if svg is not None and len(shown) != 1:
        raise typer.BadParameter(
            f"{len(shown)} of --experiment, expected one: a file is one figure", param_hint="--svg"
        )
    if figure is not None and svg is None:
        raise typer.BadParameter("without --svg FILE there is none", param_hint="--figure")
    if shown and html is None and svg is None:
        raise typer.BadParameter("with --html FILE or --svg FILE: nothing else has them", param_hint="--experiment")


def _write_all(console: Console, files: Files) -> None:
    """Every file that can be written; then each that cannot be is named with the reason, as wrong usage."""
    refused: list[Exception] = []
    for option, (path, make) in files.items():
        try:
            if path is not None:
                _write(option, path, make())
        except (typer.BadParameter, typer.Exit) as error:  # the others can be written all the same
            refused.append(error)
    unwritten = [error for error in refused if isinstance(error, typer.BadParameter)]
    for error in unwritten[:-1]:
        console.print(error.format_message(), style="red", highlight=False, soft_wrap=True)
    for error in [*refused, *unwritten][-1:]:
        raise error


def _page(console: Console, make: Callable[[ModuleType], str]) -> str:
    try:
        page = importlib.import_module("linattest.verify.report.page")
    except ImportError as error:
        console.print(f"--html needs the extra 'report' (pip install 'linattest[report]'): {error}", highlight=False)
        raise typer.Exit(NOTHING) from error
    return make(page)


def _given(option: str, get: Callable[[], Found]) -> Found:
    """What a file holds; a file that cannot be read, or holds something else, is a usage error."""
    try:
        return get()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {error.filename}: {error.strerror}", param_hint=option) from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _object(option: str, path: Path) -> dict[str, Any]:
    found = _given(option, lambda: json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path}: expected a JSON object, found {type(found).__name__}", param_hint=option)
    return found


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint=option) from error
