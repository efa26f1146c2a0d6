"""What a search found, and what a replay of it says, in a terminal and as JSON."""

from __future__ import annotations

import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from linattest.verify.environment import environment
from linattest.verify.records import finite
from linattest.verify.search.domain import Space
from linattest.verify.search.explore import MEASURED
from linattest.verify.search.objectives import OBJECTIVES
from linattest.verify.search.pursue import Result
from linattest.verify.search.witness import SCHEMA, Replayed, Witness

SHOWN = 20
"""Digits of an exact value that a terminal shows; the file has them all."""


def command_of(path: Path) -> str:
    """The command that checks a witness again."""
    return f"linattest search --replay {shlex.quote(str(path))}"


def print_result(console: Console, space: Space, result: Result) -> None:
    """One objective: what was reached, under which bounds, how it was checked, and how to check it again."""
    order = result.order
    words = OBJECTIVES[order.objective].words if order.objective in OBJECTIVES else MEASURED[order.objective]
    head = f"[bold]{space.operator.name} {order.objective}[/]: {words}"
    console.print(f"{head}; {result.tried} tried, {result.seconds:.0f} s", highlight=False, soft_wrap=True)
    for witness, path in result.kept:
        console.print("\n".join(_lines(space, result, witness, path)), highlight=False, soft_wrap=True)
    if result.refused:
        console.print(f"  [red]refused[/]: {escape(result.refused)}", highlight=False, soft_wrap=True)
    if not result.kept:
        best = "nothing" if result.best is None else f"{result.best:.6g}"
        wanted = "" if order.at_least is None else f", expected at least {order.at_least:g}"
        console.print(f"  [red]not found[/]: best {best}{wanted}", highlight=False)
    if result.interrupted:
        console.print("  interrupted: this is the best so far")


def _lines(space: Space, result: Result, witness: Witness, path: Path) -> list[str]:
    name, s = witness.objective, witness.case.structure
    if witness.exact is None:
        value = f"{witness.value:.6g} for {witness.variant if name == 'error' else 'the reference'}"
    else:
        value = (
            f"{witness.exact[:SHOWN]}... at {witness.digits} digits (relative radius {witness.radius:.0e}, proved; "
            f"float64 {witness.value!r})"
        )
    label = "shrunk" if witness.shrunk else "found"
    lines = [f"  [green]{label}[/] T={s.T} K={s.K} V={s.V}: {value}"]
    if name in OBJECTIVES:
        usual, why = OBJECTIVES[name].usual(space)
        if not witness.shrunk and Decimal(witness.exact or "0") > Decimal(usual):
            lines.append(f"    above {usual:g}, {why}")
        if not witness.shrunk and result.growth is not None:
            lines.append(f"    |S_t| grows like t^{result.growth:.1f} from T/4 to T")
    else:
        lines.append(f"    input: {escape(witness.case.describe())}")
    if not witness.shrunk:
        lines.append("    bounds: " + escape("; ".join(witness.bounds)))
    if witness.bits is not None:
        lines.append(f"    in multiples of 2^-{witness.bits}")
    return [*lines, f"    replay: {escape(command_of(path))}"]


def found_json(space: Space, results: list[Result]) -> dict[str, Any]:
    """The object that ``search --json`` prints (schema 1)."""
    return {
        "schema": SCHEMA,
        "operator": space.operator.name,
        "results": [_result_json(result) for result in results],
        "interrupted": any(result.interrupted for result in results),
        "environment": msgspec.to_builtins(environment()),
    }


def _result_json(result: Result) -> dict[str, Any]:
    return {
        "objective": result.order.objective,
        "at_least": result.order.at_least,
        "found": result.found,
        "best": None if result.best is None else finite(result.best),
        "tried": result.tried,
        "seconds": round(result.seconds, 2),
        "growth_exponent": result.growth,
        "refused": result.refused,
        "witnesses": [
            {**msgspec.to_builtins(witness), "file": str(path), "replay": command_of(path)}
            for witness, path in result.kept
        ],
    }


def print_replayed(console: Console, witness: Witness, result: Replayed) -> None:
    """Whether a witness stands, and its value now."""
    s = witness.case.structure
    what = f"{witness.case.operator} {witness.objective} T={s.T} K={s.K} V={s.V}"
    if result.exact is not None:
        value = (
            f"{result.exact.text} at {result.exact.digits} digits, relative radius {result.exact.radius:.0e} (proved)"
        )
    else:
        value = "no value" if result.value is None else f"{result.value:.6g}"
    mark = "[green]stands[/]" if result.stands else "[red]does not stand[/]"
    why = f"; {escape(result.why)}" if result.why else ""
    console.print(f"{what}: {mark}, {value}{why}", highlight=False, soft_wrap=True)


def replayed_json(witness: Witness, result: Replayed) -> dict[str, Any]:
    """The object that ``search --replay FILE --json`` prints (schema 1)."""
    return {
        "schema": SCHEMA,
        "stands": result.stands,
        "why": result.why,
        "value": None if result.value is None else finite(result.value),
        "exact": None if result.exact is None else result.exact.text,
        "digits": None if result.exact is None else result.exact.digits,
        "radius": None if result.exact is None else finite(result.exact.radius),
        "witness": msgspec.to_builtins(witness),
        "environment": msgspec.to_builtins(environment()),
    }
