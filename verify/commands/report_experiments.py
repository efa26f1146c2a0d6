"""What ``linattest report`` does with results of experiments: reads them, draws one, says how they ended."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import typer
from rich.console import Console

from linattest.verify.claims import trained
from linattest.verify.claims.record import Claims
from linattest.verify.commands.common import FAILED, NOTHING, OK
from linattest.verify.commands.experiment import status_of
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments.figures import figures
from linattest.verify.experiments.plotted import Figure
from linattest.verify.experiments.results import Result, closing
from linattest.verify.experiments.written import Judged, read_anew


def committed(claims: Claims, besides: Sequence[Result]) -> list[Result]:
    """Committed results of these claims, but of those that are there ``besides``.

    Only what a claim's check would take: the full form of the recipe that there is now. Raises as ``read_anew``.
    """
    known = set(recipes.names()) - {result.experiment for result in besides}
    paths = {o.id: trained.FOLDER / f"{o.id}.json" for o in claims.claims if o.id in known}
    found = {name: read_anew(path) for name, path in paths.items() if path.is_file()}
    return [x for name, x in found.items() if x.form == "full" and x.recipe == recipes.read(name)]


def ended(found: Sequence[Result]) -> int:
    """Say how each result ended; the exit code of all.

    It is 1 if a run of one has no result, 3 if one has no verdict, else 0.
    """
    console = Console(stderr=True, markup=False)
    for result in found:
        console.print(_said(result), highlight=False, soft_wrap=True)
    return worst([status_of(x) for x in found])


def _said(found: Result) -> str:
    """The verdict as it is judged now, what the file has if that differs, and why there is none."""
    said = "".join(closing(found))
    if isinstance(found, Judged) and found.stored != found.verdict:
        said += f"; the file says {found.stored}, its rules judge its runs anew"
    reasons = [e.text for e in found.evidence if e.kind == "reason"] if found.verdict == "untested" else []
    return ": ".join([said, *reasons])


def worst(codes: Sequence[int]) -> int:
    """Of exit codes the one that counts: a failure before what could not be told."""
    return next((code for code in (FAILED, NOTHING) if code in codes), OK)


def drawn(console: Console, found: Result, name: str | None) -> str:
    """One figure as an SVG document; without a ``name`` the first.

    A name that it has not is wrong usage; no figure at all, or no matplotlib, exit code 3.
    """
    made = figures(found)
    if not made:
        console.print(f"{found.experiment}: nothing to draw: no run is whole", highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING)
    chosen = _chosen(made, name)
    try:
        drawing = importlib.import_module("linattest.verify.report.experiment_figures")
    except ImportError as error:
        console.print(f"--svg needs the extra 'report' (pip install 'linattest[report]'): {error}", highlight=False)
        raise typer.Exit(NOTHING) from error
    others = [figure.name for figure in made if figure is not chosen]
    left = f"; --figure has others: {', '.join(others)}" if others else ""
    # which one, and not that it is there: the file is written after this, and may not be
    console.print(f"{found.experiment}: figure {chosen.name}{left}", highlight=False, soft_wrap=True)
    return drawing.picture(chosen, found.recipe.about)


def _chosen(made: Sequence[Figure], name: str | None) -> Figure:
    by_name = {figure.name: figure for figure in made}
    if name is not None and name not in by_name:
        raise typer.BadParameter(f"{name!r}, expected one of {', '.join(by_name)}", param_hint="--figure")
    return by_name[name] if name is not None else made[0]
