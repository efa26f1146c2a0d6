"""GitHub annotations: workflow commands that show a failure beside the implementation's definition."""

from __future__ import annotations

from collections.abc import Iterator

from linattest.verify.records import Record
from linattest.verify.report.locations import location
from linattest.verify.report.sarif import rule
from linattest.verify.report.summary import Summary, command, plural

MOST = 10
"""GitHub shows this many errors of a step and drops the rest."""


def errors(summary: Summary) -> Iterator[str]:
    """One line an (operator, variant, rule) with failures: its worst case, and how many there are."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in summary.failed:
        groups.setdefault((record.case.operator, record.variant, rule(record)), []).append(record)
    for (operator, variant, name), records in list(groups.items())[:MOST]:
        where, worst = location(records[0]), records[0]
        place = {} if where is None else {"file": where.path, "line": str(where.line)}
        heading = {"title": f"{operator} {variant} {name}: {plural(len(records), 'case')} failed"}
        yield _command("error", place | heading, f"{worst.message}\n{worst.case.describe()}\n{command(worst)}")
    if len(groups) > MOST:
        rest = sum(len(records) for records in list(groups.values())[MOST:])
        yield _command("notice", {"title": "linattest"}, f"{plural(rest, 'more case')} failed; the report has them all")


def _command(name: str, properties: dict[str, str], message: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {given}::{_data(message)}"


def _data(text: str) -> str:
    """Escaped as the runner unescapes it (actions/toolkit, packages/core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
