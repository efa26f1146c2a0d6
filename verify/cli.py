"""The command line: one module of ``commands`` a subject, put together here.

Exit codes: 0 all as expected, 1 a failure or regression, 2 usage, 3 nothing measured or the environment
lacks what was asked, 130 interrupted.
"""

from __future__ import annotations

import typer

from linattest.verify.commands.pages import cost, info, show
from linattest.verify.commands.verify import verify

app = typer.Typer(
    help="Judge linear-attention operators against arbitrary-precision oracles.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

COMMANDS = (verify, cost, show, info)

for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Entry point."""
    app()
