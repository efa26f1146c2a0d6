"""``linattest cost``, ``show`` and ``info``: what the records of the operators say of themselves."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from linattest.verify.commands.common import operators_named
from linattest.verify.complexity import LENGTHS, costs
from linattest.verify.report.costs import print_costs
from linattest.verify.report.pages import info_markdown, print_info, print_page


def cost(
    operators: Annotated[
        list[str] | None, typer.Argument(help="operators to count; all if none", metavar="[OPERATOR]...")
    ] = None,
    most: Annotated[int, typer.Option(min=1024, help="longest sequence")] = max(LENGTHS),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Count multiply-adds per token of the chunk-parallel forms and say how they grow with T."""
    lengths = [length for length in LENGTHS if length <= most]
    print_costs(Console(), costs(operators_named(operators or []), lengths), as_json)


def show(operator: Annotated[str, typer.Argument(help="an operator, as `linattest info` lists them")]) -> None:
    """What an operator is, and where to read about it: definition, variants, properties, files."""
    print_page(Console(), operators_named([operator])[0])


def info(
    markdown: Annotated[bool, typer.Option("--markdown", help="the README's table of what is verified")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """The operators, what is verified of them, and the environment."""
    if markdown:
        print(info_markdown())
    else:
        print_info(Console(), as_json)
