"""What is known of the operators, printed from their records: ``linattest show`` and ``linattest info``."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linattest.verify import registry
from linattest.verify.environment import ROOT, environment
from linattest.verify.grids import grid
from linattest.verify.spec import Operator


def definition(operator: Operator) -> str:
    """The page's own text: the docstring of the module that holds the record."""
    return inspect.cleandoc(importlib.import_module(operator.oracle.__module__).__doc__ or "")


def reading_list(operator: Operator) -> list[tuple[str, str]]:
    """(what, path from the repository's root) in the order one should read them; every file exists."""
    page = operator.oracle.__module__.removeprefix("linattest.").replace(".", "/") + ".py"
    places = [("the page: definition, oracle, record", page)]
    places += [("implementation" if path.startswith("impls/") else "also", path) for path in operator.reading]
    kernel = f"kernels/{operator.name}.py"
    if (ROOT / kernel).exists():
        places.append(("kernel", kernel))
    return places


def print_page(console: Console, operator: Operator) -> None:
    """Definition, signature, variants, properties, limitations, and the reading list."""
    console.print(f"[bold]{operator.name}[/]: {operator.title}\n")
    console.print(escape(definition(operator)) + "\n", highlight=False, soft_wrap=True)
    console.print(
        "[bold]Options[/]: "
        + (", ".join(f"{o.name}={o.derived or o.default}" for o in operator.options if o.passed) or "none"),
        highlight=False,
    )
    if axes := [o.name for o in operator.options if not o.passed]:
        console.print(f"[bold]Tried with and without[/] (no arguments): {', '.join(axes)}", highlight=False)
    table = Table("variant", "supports", "dtypes", title="Variants", title_justify="left")
    for variant in operator.variants:
        table.add_row(variant.name, ", ".join(sorted(variant.supports)), ", ".join(variant.dtypes))
    console.print(table)
    for variant in operator.variants:
        console.print(f"  {variant.name}: {variant.function}", highlight=False, soft_wrap=True)
    table = Table("property", "what must hold", title="Properties", title_justify="left")
    for tried in registry.properties(operator):
        table.add_row(tried.name, escape(tried.statement))
    console.print(table)
    for limitation in operator.limitations:
        console.print(f"[yellow]Limitation[/] of {limitation.variant}: {escape(limitation.why)} {limitation.link}")
    console.print("\n[bold]Reading list[/]")
    for what, path in reading_list(operator):
        console.print(f"  {path}  [dim]{what}[/]", highlight=False)
    for path in tests_of(operator):
        console.print(f"  {path}  [dim]tests that name it[/]", highlight=False)
    console.print(f"\nverify it: linattest verify {operator.name}", highlight=False)


def tests_of(operator: Operator) -> list[str]:
    """Test files of a checkout that name the operator (empty where the package is installed without them)."""
    root = Path((ROOT / "verify").resolve()).parent
    files = sorted((root / "tests").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in files if f'"{operator.name}"' in path.read_text()]


def info_markdown() -> str:
    """A table of what ``verify`` covers, for the README."""
    lines = ["| operator | variants | inputs | cases | value families | own properties |", "|---|---|---|---|---|---|"]
    for operator in registry.OPERATORS:
        jobs = grid(operator)
        cases = sum(
            sum(job.case.dtype in v.dtypes for v in operator.variants if not v.kernel) * (2 if job.case.gradient else 1)
            for job in jobs
        )
        lines.append(
            f"| `{operator.name}` | {', '.join(v.name for v in operator.variants)} | {len(jobs)} | {cases} | "
            f"{', '.join(operator.families)} | {', '.join(p.name for p in operator.properties) or '-'} |"
        )
    lines += ["", f"Properties of every operator: {', '.join(p.name for p in registry.GENERAL)}."]
    return "\n".join(lines)


def print_info(console: Console, as_json: bool) -> None:
    """The registry and the environment."""
    facts = msgspec.to_builtins(environment())
    if as_json:
        operators = {
            o.name: {
                "title": o.title,
                "variants": [v.name for v in o.variants],
                "properties": [p.name for p in registry.properties(o)],
            }
            for o in registry.OPERATORS
        }
        print(json.dumps({"schema": 1, "operators": operators, "environment": facts}, indent=2, allow_nan=False))
        return
    table = Table("operator", "what", "variants", "inputs", title="Operators", title_justify="left")
    for operator in registry.OPERATORS:
        variants = ", ".join(variant.name for variant in operator.variants)
        table.add_row(operator.name, operator.title, variants, str(len(grid(operator))))
    console.print(table)
    for name, value in facts.items():
        console.print(f"  {name}: {value}", highlight=False)
