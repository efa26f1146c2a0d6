"""What an experiment leaves behind: one strict JSON object, and a table of it for a terminal."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify import devices
from linattest.verify.claims.verdicts import Evidence, Verdict, Word
from linattest.verify.environment import Environment, environment
from linattest.verify.experiments.judging import best, counts, nats, states, wilson
from linattest.verify.experiments.recipe import Recipe, Trained
from linattest.verify.experiments.running import Outcome
from linattest.verify.experiments.text import Source
from linattest.verify.report.summary import plural

SCHEMA = 1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """``form`` "quick" says nothing of the claim. ``runs`` have curves; ``series`` are those of a simulation.

    ``text``: what was read, by its name and hash, if the task is text. ``settings``: what ``--set`` changed, and then
    the verdict is of the recipe in another size, never the claim's.
    """

    schema: int = SCHEMA
    experiment: str
    form: Literal["quick", "full"]
    verdict: Word
    evidence: tuple[Evidence, ...]
    seeds: int
    device: str
    date: str
    seconds: float
    environment: Environment
    recipe: Recipe
    runs: tuple[Outcome, ...] = ()
    series: dict[str, list[float]] = {}
    text: Source | None = None
    settings: tuple[str, ...] = ()


def result(
    recipe: Recipe, verdict: Verdict, *, quick: bool, seeds: int, device: str, seconds: float,
    runs: list[Outcome] | None = None, series: dict[str, list[float]] | None = None, text: Source | None = None,
    settings: Sequence[str] = (),
) -> Result:  # fmt: skip
    """The result, with today's date and this process's environment."""
    name = torch.cuda.get_device_name(device) if devices.kind(device) == "cuda" else device
    return Result(
        experiment=recipe.claim, form="quick" if quick else "full", verdict=verdict.word, evidence=verdict.evidence,
        seeds=seeds, device=device, date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3), environment=msgspec.structs.replace(environment(), device=name), recipe=recipe,
        runs=tuple(runs or ()), series=series or {}, text=text and text.anywhere, settings=tuple(settings),
    )  # fmt: skip


def text_of(found: Result) -> str:
    """Strict JSON: what is not finite is null."""
    return msgspec.json.format(msgspec.json.encode(found)).decode() + "\n"


def read(path: Path) -> Result:
    """A result that was written. Raises ``ValueError`` naming the file if it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path} is no result of an experiment: {error}") from error


# --- for a terminal ----------------------------------------------------------------------------------------------


def show(console: Console, found: Result) -> None:
    """The figures of every model and test (or of every series), then the rules, then the verdict."""
    console.print(_runs(found) if isinstance(found.recipe, Trained) else _series(found))
    if found.text:
        said = f"{found.text.name}, {found.text.size} bytes, sha256 {found.text.sha256[:12]}"
        console.print(f"text: {said}; perplexity is that of a byte", highlight=False, markup=False)
    for trouble in (o.trouble for o in found.runs if o.trouble):
        console.print(f"[red]no result[/]: {escape(trouble)}", highlight=False)
    for e in found.evidence:
        if e.kind != "measurement":
            console.print(e.text, highlight=False, markup=False)
    if found.form == "full":  # limits are of the full form's sizes
        measured = [e for e in found.evidence if e.kind == "measurement"]
        for e, state in zip(measured, states(found.recipe, found.runs, found.series), strict=True):
            console.print(f"{WORDS[state]}: {_said(e)}", highlight=False, markup=False)
    word, of = closing(found)
    console.print(f"[bold]{escape(word)}[/]{escape(of)}", highlight=False)


WORDS = {"holds": "holds", "fails": "does not hold", "open": "undecided"}
"""A condition's state in words: an interval that reaches over a limit tells nothing either way."""


def closing(found: Result) -> tuple[str, str]:
    """Whose verdict it is and which, and of what: one in another size is not called the claim's."""
    made = f"{found.form} form, {plural(found.seeds, 'seed')}"
    if not found.settings:
        return f"{found.experiment}: {found.verdict}", f" ({made})"
    said = f"set: {', '.join(found.settings)}; the claim's verdict is that of the recipe as it is"
    return f"{found.experiment} in another size: {found.verdict}", f" ({made}); {said}"


def _runs(found: Result) -> Table:
    table = Table(title=escape(found.recipe.about))
    assert isinstance(found.recipe, Trained)
    measured = ("perplexity", "by seed", "accuracy") if found.text else ("accuracy", "by seed", "rows all right")
    for column in ("model", "task", "test", "lr", *measured, "steps"):
        table.add_column(column)
    for task in found.recipe.tasks:
        for model in found.recipe.models:
            own = best(found.runs, model.name, task)
            for test in (task, *found.recipe.tests) if own else ():
                figures = _in_nats(own, test) if found.text else _in_answers(own, test)
                steps = " ".join(str(o.progress.step) for o in own if o.progress)
                table.add_row(model.name, task, test, f"{own[0].learning_rate:g}", *figures, steps)
    return table


def _in_answers(own: list[Outcome], test: str) -> tuple[str, str, str]:
    """Accuracy with its interval, by seed, and the share of whole rows."""
    right, asked = (sum(x) for x in zip(*(counts(o, test, "accuracy") for o in own), strict=True))
    share, low, high = wilson(right, asked)
    by_seed = " ".join(f"{a / b:.3f}" for a, b in (counts(o, test, "accuracy") for o in own))
    rows = [a / b for a, b in (counts(o, test, "exact") for o in own)]
    return f"{share:.3f} ({low:.3f} to {high:.3f})", by_seed, f"{np.mean(rows):.3f}"


def _in_nats(own: list[Outcome], test: str) -> tuple[str, str, str]:
    """Perplexity of the mean over seeds of nats, perplexity by seed, and accuracy."""
    found = [nats(o, test) for o in own]
    shares = [a / b for a, b in (counts(o, test, "accuracy") for o in own)]
    by_seed = " ".join(f"{x:.4g}" for x in np.exp(found))
    return f"{np.exp(np.mean(found)):.4g}", by_seed, f"{np.mean(shares):.3f}"


def _series(found: Result) -> Table:
    table = Table("series", "mean", "least", "most", title=escape(found.recipe.about))
    for name, values in found.series.items():
        table.add_row(name, *(f"{x:.4g}" for x in (np.mean(values), min(values), max(values))))
    return table


def _said(e: Evidence) -> str:
    """A rule, what was found and what the paper says, on a line."""
    values: dict[str, Any] = e.values
    limits = (
        " and ".join(f"{name.replace('_', ' ')} {x:g}" for name, x in e.limits.items()) or "the paper's figure there"
    )
    seen = "nothing"
    if "mean" in values:
        seen = f"{values['mean']:.4g} ({values['low']:.4g} to {values['high']:.4g})"
    paper = f"; the paper: {values['paper']:g}" if "paper" in values else ""
    return f"{e.text}: {seen}, expected {limits}{paper}"
