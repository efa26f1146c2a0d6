"""The command line: one module of ``commands`` a subject, put together here.

Exit codes: 0 all as expected, 1 a failure or regression, 2 usage, 3 nothing measured or the environment
lacks what was asked, 130 interrupted.
"""

from __future__ import annotations

import typer

from linattest.verify.commands.check import check
from linattest.verify.commands.claims import claims
from linattest.verify.commands.diff import diff
from linattest.verify.commands.drift import drift
from linattest.verify.commands.pages import cost, info, show
from linattest.verify.commands.prove import prove
from linattest.verify.commands.report import report
from linattest.verify.commands.search import search
from linattest.verify.commands.selftest import selftest
from linattest.verify.commands.verify import verify

app = typer.Typer(
    help="Judge linear-attention operators against arbitrary-precision oracles.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

COMMANDS = (verify, claims, check, selftest, search, diff, drift, report, prove, cost, show, info)

for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Entry point."""
    app()
