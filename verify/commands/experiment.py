"""``linattest experiment``: the papers' experiments, rerun from recipes whose rule was written before."""

from __future__ import annotations

import difflib
import shlex
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from linattest.verify import devices
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK, check_device
from linattest.verify.executors import default_workers
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments import results
from linattest.verify.experiments.before import Kept, kept, unbuilt, unwritable
from linattest.verify.experiments.judging import judge
from linattest.verify.experiments.recipe import Recipe, RecipeError, Trained
from linattest.verify.experiments.results import Result
from linattest.verify.experiments.running import SLICE_SECONDS, Outcome, runs_of, terminable, train_all
from linattest.verify.experiments.settings import changed
from linattest.verify.experiments.simulations import simulated
from linattest.verify.experiments.text import Source, TextError, find
from linattest.verify.experiments.training import Progress as Reached
from linattest.verify.experiments.training import Run
from linattest.verify.report.summary import plural

CHECKPOINTS = Path(".cache/experiments")
LOG_SECONDS = 30.0
"""From line to line where there is no terminal."""

LANES, LANES_SECONDS = 4, 60.0
"""On a GPU: runs that a process works on at once, and seconds from checkpoint to checkpoint (captures take some)."""


def experiment(
    name: Annotated[str | None, typer.Argument(help="a recipe, by its claim; the list of them without")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="small sizes, seconds: checks the machinery, no claim")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="the recipe as it is (the default)")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="how many seeds; default: the recipe's")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    backend: Annotated[
        str | None, typer.Option(help="chunk (PyTorch) or triton (kernels), for every layer; default: triton on a GPU")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="PATH", help="a file or folder to model; default: Python's standard library")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="another size, e.g. shape.hidden_size=512")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
    lanes: Annotated[
        int | None, typer.Option(min=1, help="runs that a process works on at once; default: 4 with kernels on a GPU")
    ] = None,
    checkpoints: Annotated[Path, typer.Option(metavar="FOLDER", help="where full runs go on from")] = CHECKPOINTS,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="write the result, with curves, as JSON")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON instead of a table")] = False,
) -> None:
    """Train or simulate what a claim of the papers is about, and judge it by the recipe's rule.

    Full runs are resumed from their checkpoints. Exit code 0: the rule gave a verdict (or the quick form ran); 1: a
    run has no result; 3: the rule gives no verdict, or there is no such device.
    """
    console = Console(stderr=as_json)
    if name is None:
        given = {"--quick": quick, "--full": full, "--seeds": seeds, "--backend": backend, "--text": text}
        given |= {"--set": settings, "--lanes": lanes, "--output": output, "--json": as_json}
        raise _list(console, [option for option, value in given.items() if value])
    recipe = _set(_checked(name, quick, full, backend, output), settings or [])
    source = _source(recipe, text)
    check_device(console, device)
    backend = backend or ("chunk" if devices.kind(device) == "cpu" else "triton")
    lanes = lanes or (LANES if devices.kind(device) == "cuda" and backend == "triton" else 1)
    count = recipe.seeds if seeds is None else seeds
    todo = list[Run]()
    if isinstance(recipe, Trained):
        _check_models(recipe, backend, settings or [])
        todo = runs_of(recipe, count, device=device, backend=backend, text=source)
    if todo and not quick:
        _begin(todo, checkpoints)
    begun, runs, series = time.perf_counter(), list[Outcome](), dict[str, list[float]]()
    try:
        with terminable():
            if isinstance(recipe, Trained):
                # what a quick form did before is not what is to be checked: it starts from nothing
                with tempfile.TemporaryDirectory() if quick else nullcontext(checkpoints) as folder:
                    used = 1 if quick and devices.kind(device) == "cpu" else workers
                    runs = _train(todo, Path(folder), used, lanes)
            else:
                with console.status(recipe.about) if console.is_terminal else nullcontext():
                    series = simulated(recipe, count)
    except KeyboardInterrupt:
        _say_again(console, name, None if quick or not todo else kept(todo, checkpoints))
        raise typer.Exit(INTERRUPTED) from None
    verdict = judge(recipe, runs, series, quick=quick)
    found = results.result(
        recipe, verdict, quick=quick, seeds=count, device=device, seconds=time.perf_counter() - begun, runs=runs,
        series=series, text=source, settings=settings or (),
    )  # fmt: skip
    written = results.text_of(found)
    if output is not None:
        _write(output, written)
    if as_json:
        print(written, end="")
    else:
        results.show(console, found)
    raise typer.Exit(status_of(found))


def status_of(found: Result) -> int:
    """1 if a run has no result, 3 if a full form has no verdict, 0 otherwise."""
    if any(o.trouble for o in found.runs):
        return FAILED
    return NOTHING if found.form == "full" and found.verdict == "untested" else OK


def _checked(name: str, quick: bool, full: bool, backend: str | None, output: Path | None) -> Recipe:
    if quick and full:
        raise typer.BadParameter("contradicts --full", param_hint="--quick")
    if backend not in (None, "chunk", "triton"):
        raise typer.BadParameter(f"{backend!r}, expected chunk or triton", param_hint="--backend")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}", param_hint="--output")
    known = recipes.names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
        near = f" (close: {', '.join(close)})" if close else ""
        raise typer.BadParameter(f"no recipe {name!r}{near}; `linattest experiment` lists them", param_hint="NAME")
    try:
        return recipes.read(name, quick=quick)
    except RecipeError as error:
        raise _broken(error) from error


def _set(recipe: Recipe, lines: list[str]) -> Recipe:
    try:
        return changed(recipe, lines)
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error


def _check_models(recipe: Trained, backend: str, settings: list[str]) -> None:
    """A size that no model can have is said once, before the runs: each would end by it."""
    if not (why := unbuilt(recipe, backend)):
        return
    if settings:
        raise typer.BadParameter(f"{'; '.join(settings)}: {why}", param_hint="--set")
    if backend == "triton" and not unbuilt(recipe, "chunk"):  # Triton is not installed, or has no such kernel
        raise typer.BadParameter(why, param_hint="--backend")
    raise _broken(RecipeError(f"{recipe.claim}.toml: {why}"))


def _begin(todo: list[Run], folder: Path) -> None:
    """Refuse a folder that no checkpoint can be written to; say what there is to go on from."""
    if why := unwritable(folder):
        raise typer.BadParameter(f"cannot write in {folder}: {why}", param_hint="--checkpoints")
    if there := kept(todo, folder):
        said = f"{folder}: {there.done} of {plural(there.runs, 'run')} done, {there.begun} to go on from a checkpoint, "
        said += f"{there.runs - there.done - there.begun} to begin"
        Console(stderr=True).print(said, markup=False, highlight=False, soft_wrap=True)


def _source(recipe: Recipe, path: Path | None) -> Source | None:
    """The text that a recipe reads, long enough for it, or none if it reads none."""
    if not (isinstance(recipe, Trained) and recipe.reads_text):
        if path is not None:
            reading = [n for n in recipes.names() if isinstance(r := recipes.read(n), Trained) and r.reads_text]
            raise typer.BadParameter(
                f"{recipe.claim} reads no text, expected one of {', '.join(reading)}", param_hint="--text"
            )
        return None
    try:
        found = find(path)
        runs_of(recipe, 1, text=found)
    except TextError as error:
        raise typer.BadParameter(str(error), param_hint="--text") from error
    return found


def _broken(error: RecipeError) -> typer.Exit:
    """A recipe of the package cannot be read, which is no mistake of who asks."""
    Console(stderr=True).print(f"the recipe is broken: {error}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(FAILED)


def _train(todo: list[Run], folder: Path, workers: int, lanes: int) -> list[Outcome]:
    """All runs, with one bar on a terminal: steps of all runs, the last point of the one that was heard of last. A log
    has a line of that now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        total = sum(max(1, run.training.steps) for run in todo)
        task: TaskID = bar.add_task("runs", total=total)
        reached, ended, said = dict[str, int](), set[str](), time.monotonic()

        def told(run: Run, found: Reached) -> None:
            nonlocal said
            reached[run.key] = max(1, run.training.steps) if found.done else found.step
            ended.update([run.key] if found.done else [])
            last = f"{len(ended)} of {len(todo)} runs; {run.name}: step {found.step}, "
            last += f"accuracy {found.curve[-1].accuracy:.3f}"
            bar.update(task, completed=sum(reached.values()), description=last)
            if bar.disable and time.monotonic() - said >= LOG_SECONDS:
                said = time.monotonic()
                console.print(
                    f"{sum(reached.values()) / total:.0%}, {last}", markup=False, highlight=False, soft_wrap=True
                )

        used = max(1, min(workers, -(-len(todo) // lanes)))
        return train_all(todo, folder, used, told, lanes=lanes, seconds=SLICE_SECONDS if lanes == 1 else LANES_SECONDS)


def _list(console: Console, given: list[str]) -> typer.Exit:
    """The recipes, where no option asks for a run of one."""
    if given:
        raise typer.BadParameter(
            "without NAME there is nothing to run; `linattest experiment` lists the recipes", param_hint=given[0]
        )
    try:
        console.print(_listed())
    except RecipeError as error:
        raise _broken(error) from error
    return typer.Exit(OK)


def _listed() -> Table:
    table = Table(title="linattest experiment NAME")
    table.add_column("experiment", no_wrap=True)
    for column in ("what", "models", "seeds", "runs"):
        table.add_column(column)
    for name in recipes.names():
        found = recipes.read(name)
        models, runs = "none is trained", "-"
        if isinstance(found, Trained):
            models, runs = str(len(found.models)), str(len(runs_of(found, found.seeds)))
        table.add_row(name, escape(found.about), models, str(found.seeds), runs)
    return table


def _say_again(console: Console, name: str, there: Kept | None) -> None:
    """What is kept, and how to go on; ``there`` is ``None`` for what keeps nothing."""
    what, again = "nothing is kept", shlex.join(["linattest", "experiment", name])
    if there:
        what = f"{there.done} of {plural(there.runs, 'run')} done, {there.begun} kept to the last slice; "
        what += f"`{again}` with the same options goes on"
    elif there is not None:
        what = f"nothing is kept yet: no run had a checkpoint; `{again}` with the same options begins anew"
    console.print("[yellow]interrupted[/]: " + escape(what), highlight=False, soft_wrap=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--output") from error
