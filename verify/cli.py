"""The command line: one module of ``commands`` a subject, put together here.

Exit codes: 0 all as expected, 1 a failure or regression, 2 usage, 3 nothing measured or the environment
lacks what was asked, 130 interrupted.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = {
    "verify": "verify", "claims": "claims", "check": "check", "selftest": "selftest", "search": "search",
    "diff": "diff", "drift": "drift", "report": "report", "prove": "prove", "compile": "compile",
    "sanitize": "sanitize", "bench": "bench", "experiment": "experiment", "cost": "pages", "show": "pages",
    "info": "pages",
}  # fmt: skip
"""By command: the module of ``commands`` whose function of that name it is, imported when the command is asked for."""


class _OnDemand(TyperGroup):
    """Its commands are made when they are asked for: a misspelt one, or a misfit, need not wait for torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        """As click's: the names, in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As click's: the command, or ``None``."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"linattest.verify.commands.{COMMANDS[cmd_name]}")
        found = getattr(module, cmd_name)
        if isinstance(found, typer.Typer):  # a command of commands
            return get_command(found)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(found)
        return get_command(alone)


app = typer.Typer(
    cls=_OnDemand, help="Judge linear-attention operators against arbitrary-precision oracles.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip


@app.callback()
def _every_command() -> None:  # pyright: ignore[reportUnusedFunction]
    pass


def main() -> None:
    """Entry point."""
    app()
