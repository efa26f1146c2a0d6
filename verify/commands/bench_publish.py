"""``linattest bench publish``: the dashboard."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from linattest.verify.bench.commits import Misfit
from linattest.verify.bench.paths import CHECKOUT, RESULTS, SITE
from linattest.verify.commands.codes import FAILED, NOTHING


def publish(
    results: Annotated[Path, typer.Option(help="asv's folder of results, with the records")] = RESULTS,
    output: Annotated[Path, typer.Option(help="folder of the pages")] = SITE,
) -> None:
    """Write the dashboard: a landing page that needs no network, and asv's pages of every number over the commits.

    Exit code 1: a result is of a commit that is not on the published branch, where nobody would see it.
    """
    console = Console()
    try:
        site = importlib.import_module("linattest.verify.bench.site")
    except ImportError as error:
        console.print(
            f"this needs the extras 'bench' and 'report' (pip install 'linattest[bench,report]'): {error}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(NOTHING) from error
    if not any(results.rglob("*.json")):
        console.print(f"nothing measured in {results}", highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING)
    try:
        done = site.publish(CHECKOUT, results.absolute(), output.absolute())
    except (Misfit, ValueError) as error:
        console.print(str(error), style="red", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(FAILED) from error
    except OSError as error:
        raise typer.BadParameter(f"cannot write {error.filename}: {error.strerror}", param_hint="--output") from error
    for text in done.outdated:
        console.print(
            f"not shown, since it is of another version of its benchmark: {text}", highlight=False, soft_wrap=True
        )
    console.print(
        f"{done.page}: {done.records} records; asv's pages have {len(done.commits)} commits", highlight=False,
        soft_wrap=True,
    )  # fmt: skip
