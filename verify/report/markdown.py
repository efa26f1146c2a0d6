"""A summary for a pull request, in GitHub's Markdown."""

from __future__ import annotations

import html
import re

from linattest.verify.records import Record
from linattest.verify.report.summary import Summary, command, plural, ratio_text, subject, title
from linattest.verify.tolerance import THRESHOLD

LONG = 12
"""More operators and variants than this, and the table has only those that failed or are known to fail."""

MOST = 20
"""Failures that are written out; a comment has room for 65 536 characters."""

MESSAGE = 1_000
"""Characters of a message."""


def markdown(summary: Summary) -> str:
    """Counts, the worst ratio of each operator and variant, failures with their commands, the environment."""
    counts = (
        f"**{plural(len(summary.records), 'case')}**, {summary.count('fail')} failed, {summary.count('error')} errors, "
        f"{plural(len(summary.known), 'known failure')}; {summary.certified} of "
        f"{plural(summary.gradients, 'gradient')} certified by the oracle"
    )
    lines = ["### linattest", "", f"{'❌' if summary.failed else '✅'} {summary.verdict}", "", counts, ""]
    if summary.stale:
        lines += [f"⚠️ {plural(len(summary.stale), 'record')} made from other sources than the present ones.", ""]
    lines += _table(summary)
    if left := summary.not_run:
        named = "; ".join(f"{_prose(operator)} {', '.join(map(_prose, names))}" for operator, names in left.items())
        lines += [f"Not run, {plural(sum(map(len, left.values())), 'variant')} of these operators: {named}.", ""]
    if summary.failed:
        lines += [f"<details><summary>{plural(len(summary.failed), 'failure')}, and how to repeat them</summary>", ""]
        lines += [line for record in summary.failed[:MOST] for line in _failure(record)]
        if len(summary.failed) > MOST:
            lines += [f"... and {len(summary.failed) - MOST} more.", ""]
        lines += ["</details>", ""]
    for environment, count in summary.environments:
        facts = (
            f"commit {environment.commit}, sources {environment.source_hash}, torch {environment.torch}, "
            f"Triton {environment.triton or 'none'}, {environment.system} {environment.cpu}, {environment.device}"
        )
        lines.append(f"<sub>{plural(count, 'record')}: {_prose(facts)}</sub>")
    return "\n".join(lines) + "\n"


def _table(summary: Summary) -> list[str]:
    worst = summary.worst_by(lambda r: (*subject(r), r.case.dtype))
    known = {(*subject(r), r.case.dtype) for r in summary.known}
    shown = summary.subjects
    if len(shown) > LONG:
        bad = {subject(r) for r in (*summary.failed, *summary.known)}
        shown = [s for s in shown if s in bad]
    hidden = len(summary.subjects) - len(shown)
    note = [f"{plural(hidden, 'operator variant')} without a failure not shown.", ""] if hidden else []
    if not shown:
        return note
    header = ["operator", "variant", *summary.dtypes]
    rows = [header, ["---", "---", *["---:"] * len(summary.dtypes)]]
    for operator, variant in shown:
        keys = [(operator, variant, dtype) for dtype in summary.dtypes]
        rows.append([_prose(operator), _prose(variant), *(_ratio(worst.get(key), key in known) for key in keys)])
    caption = f"Worst error ratio (at most {THRESHOLD:g}); ❌ failed; ⚠️ a known failure, alone or beside it:"
    return [caption, "", *(f"| {' | '.join(row)} |" for row in rows), "", *note]


def _ratio(record: Record | None, known: bool) -> str:
    """The worst ratio, with a mark before it; a known failure is marked though the ratio shown is another's."""
    if record is None:
        return ""
    return ("❌ " if record.failed else "") + ("⚠️ " if known else "") + ratio_text(record)


def _failure(record: Record) -> list[str]:
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", command(record)) or [""]))
    message = record.message if len(record.message) <= MESSAGE else record.message[:MESSAGE] + " ..."
    return [
        f"- {_prose(title(record))}: {_prose(message)}",
        "",
        f"  {fence}",
        f"  {_line(command(record))}",
        f"  {fence}",
        "",
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """Plain text on one line: nothing in it is markup, the border of a cell, or a mention."""
    escaped = re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", html.escape(_line(text), quote=False))
    return escaped.replace("@", "@\u200b")
