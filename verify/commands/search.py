"""``linattest search``: drive an error, a norm or a condition up, and keep what was found as a witness."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK, operators_named
from linattest.verify.inputs import Scalar
from linattest.verify.report.search import found_json, print_replayed, print_result, replayed_json
from linattest.verify.search import measured
from linattest.verify.search.ascent import Progress as Tick
from linattest.verify.search.confirm import DIGITS, LEAST_DIGITS
from linattest.verify.search.domain import TIES, InfeasibleError, Space, Tie
from linattest.verify.search.explore import MEASURED
from linattest.verify.search.objectives import OBJECTIVES
from linattest.verify.search.pursue import Order, Result, pursue
from linattest.verify.search.witness import load, replay
from linattest.verify.spec import DTYPES, Operator

NAMES = (*OBJECTIVES, *MEASURED)


def search(
    operator: Annotated[str | None, typer.Argument(help="an operator, as `linattest info` lists them")] = None,
    maximise: Annotated[
        list[str] | None, typer.Option(help=f"what to drive up, one of {', '.join(NAMES)}; may be repeated")
    ] = None,
    at_least: Annotated[
        list[float] | None, typer.Option(help="what counts as found, one for each --maximise; also shrinks the find")
    ] = None,
    d: Annotated[int, typer.Option(min=1, help="key and value width (error, kappa: the largest)")] = 4,
    tokens: Annotated[int, typer.Option(min=1, help="length (error, kappa: the largest)")] = 64,
    u: Annotated[str, typer.Option(help="penalty directions: tied to the raw keys by one matrix, or free")] = "tied",
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of an option of the operator")] = None,
    variant: Annotated[str, typer.Option(help="whose error (error)")] = "chunk",
    dtype: Annotated[str, typer.Option(help="of the inputs (error, kappa)")] = "float32",
    seconds: Annotated[float, typer.Option(min=0, help="time for all objectives together")] = 120,
    starts: Annotated[int, typer.Option(min=1, help="random inputs from which ascent starts")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="most steps of ascent; cases tried are 5 times as many")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="seed of the starts")] = 0,
    digits: Annotated[int, typer.Option(min=LEAST_DIGITS, help="decimal digits of the check")] = DIGITS,
    save: Annotated[Path, typer.Option(help="folder for witnesses")] = Path("linattest-witnesses"),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    replay_: Annotated[Path | None, typer.Option("--replay", help="check a saved witness again")] = None,
) -> None:
    """Search bounded inputs for the largest error, memory, Jacobian or condition; check the find and save it."""
    console = Console(stderr=as_json)
    if replay_ is not None:
        raise typer.Exit(_replay(console, replay_, digits, as_json))
    if operator is None:
        raise typer.BadParameter("name an operator, or --replay FILE", param_hint="OPERATOR")
    chosen = operators_named([operator])[0]
    names, floors = _objectives(maximise or [], at_least or [])
    if set(names) & set(MEASURED) and (option or u != "tied"):
        raise typer.BadParameter(
            f"{sorted(MEASURED)} draw options and inputs themselves", param_hint="--option" if option else "--u"
        )
    space = _space(chosen, tokens, d, _options(chosen, option or []), u)
    _check_measured(chosen, variant, dtype)
    results: list[Result] = []
    end = time.monotonic() + seconds
    for turn, (name, floor) in enumerate(zip(names, floors, strict=True)):
        share = max(0.0, end - time.monotonic()) / (len(names) - turn)
        order = Order(name, floor, variant, dtype, share, starts, steps, seed, digits)
        try:
            with _progress(name) as tick:
                result = pursue(space, order, save, tick)
        except InfeasibleError as error:
            raise typer.BadParameter(str(error), param_hint="--maximise") from error
        except KeyboardInterrupt:
            console.print(f"{name}: interrupted before anything was found")
            raise typer.Exit(INTERRUPTED) from None
        results.append(result)
        if not as_json:
            print_result(console, space, result)
        if result.interrupted:
            break
    if as_json:
        print(json.dumps(found_json(space, results), indent=2, allow_nan=False))
    raise typer.Exit(_status(results))


def _status(results: list[Result]) -> int:
    if any(result.interrupted for result in results):
        return INTERRUPTED
    if not any(result.kept for result in results):
        return FAILED if any(result.tried for result in results) else NOTHING
    return OK if all(result.found for result in results) else FAILED


def _objectives(names: list[str], floors: list[float]) -> tuple[list[str], list[float | None]]:
    unknown = sorted(set(names) - set(NAMES))
    if unknown or not names:
        raise typer.BadParameter(f"{unknown or 'nothing'}, expected one of {list(NAMES)}", param_hint="--maximise")
    if floors and len(floors) != len(names):
        raise typer.BadParameter(f"{len(floors)} for {len(names)} objectives", param_hint="--at-least")
    return names, [*floors] if floors else [None] * len(names)


def _options(operator: Operator, given: list[str]) -> dict[str, Scalar]:
    known, options = {x.name: x for x in operator.options}, dict[str, Scalar]()
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or name not in known:
            raise typer.BadParameter(
                f"{text!r}, expected NAME=VALUE with one of {sorted(known)}", param_hint="--option"
            )
        options[name] = _scalar(text, value, known[name].default)
    return options


def _scalar(text: str, value: str, default: float | bool | str | None) -> Scalar:
    if isinstance(default, str):
        return value
    if isinstance(default, bool):
        if value not in ("True", "False"):
            raise typer.BadParameter(f"{text!r}, expected True or False", param_hint="--option")
        return value == "True"
    try:
        return float(value)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}, expected a number", param_hint="--option") from error


def _space(operator: Operator, tokens: int, d: int, options: dict[str, Scalar], u: str) -> Space:
    tie: Tie | None = next((x for x in get_args(Tie) if x == u), None)
    if tie is None:
        raise typer.BadParameter(f"{u!r}, expected one of {TIES}", param_hint="--u")
    try:
        space = Space(operator, tokens, d, d, options, tie)
        space.options  # noqa: B018  (options that contradict one another are refused here)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--option") from error
    if tie == "free" and not space.directions:
        raise typer.BadParameter(f"{operator.name} has no penalty direction", param_hint="--u")
    return space


def _check_measured(operator: Operator, variant: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r}, expected one of {DTYPES}", param_hint="--dtype")
    try:
        operator.variant(variant)
    except KeyError as error:
        raise typer.BadParameter(error.args[0], param_hint="--variant") from error


def _replay(console: Console, path: Path, digits: int, as_json: bool) -> int:
    """Check a witness again; the exit code says whether it stands."""
    if not path.exists():
        raise typer.BadParameter(f"no file {path}", param_hint="--replay")
    try:
        kept = load(path)
        ascended = kept.witness.engine == "ascent"
        result = replay(kept, digits) if ascended else measured.replay(path, kept)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--replay") from error
    if as_json:
        print(json.dumps(replayed_json(kept.witness, result), indent=2, allow_nan=False))
    else:
        print_replayed(console, kept.witness, result)
    return OK if result.stands else FAILED


@contextmanager
def _progress(name: str) -> Iterator[Tick]:
    """What a search calls after every step: the number of steps and the best value, on a terminal only."""
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task(name)
        yield lambda step, best: bar.update(task, description=f"{name}: {best:.6g} ({step} tried)")
