"""The HTML report: one file that needs no network, no font and no script of anyone else.

Text of records goes through Jinja's escaping; only the figures, which are made here, are put in as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import jinja2
import msgspec
from markupsafe import Markup

from linattest.verify.claims.record import Claims
from linattest.verify.drift import Drift
from linattest.verify.experiments.results import Result
from linattest.verify.records import Record
from linattest.verify.report import summary as summaries
from linattest.verify.report.experiments import sections, verdict
from linattest.verify.report.figures import COLOURS, describe, drift_figure, top
from linattest.verify.report.ledger import MEANINGS, ledger
from linattest.verify.report.locations import location
from linattest.verify.report.summary import Summary, badness, ratio_text, subject
from linattest.verify.tolerance import ORACLE_MARGIN, THRESHOLD

Group = TypeVar("Group", bound=Hashable)

TEMPLATES = Path(__file__).parent / "templates"

BANDS = (0.1, 1.0, 3.0, 10.0, THRESHOLD)
"""Upper ends of the colours of a ratio that passes, about half a decade each."""

FAILURES, CLOSE = 200, 20
"""Failures written out, and passing cases nearest to the threshold."""

LABEL, CELL, LINE, HEAD = 200, 62, 22, 26
"""Pixels of the heat map: the column of names, a cell's width and height, the row of lengths."""


@dataclass(frozen=True)
class Cell:
    """A ratio with its colour: ``band`` is 0 to 4 for what passes, else "fail" or "known".

    ``mark`` says in a character what the colour says, and ``note`` that some record is stale, or a known failure
    beside the one shown.
    """

    text: str
    band: str
    mark: str
    note: str
    title: str


def page(
    summary: Summary, drift: Drift | None = None, selftest: Mapping[str, Any] | None = None,
    diff: Mapping[str, Any] | None = None, claims: Claims | None = None, experiments: Sequence[Result] = (),
) -> str:  # fmt: skip
    """The whole page.

    Args:
        selftest, diff: what ``linattest selftest --json`` and ``diff --json`` print.
        claims: what ``linattest claims --output`` wrote.
        experiments: what ``linattest experiment --output`` wrote.
    """
    passing = sorted((r for r in summary.records if r.status == "pass"), key=badness, reverse=True)
    content: dict[str, Any] = {
        "summary": summary, "matrix": matrix(summary), "heat": heat(summary), "bands": band_names(),
        "failures": summary.failed[:FAILURES], "close": passing[:CLOSE],
        "drift": drift, "charts": charts(drift) if drift else [], "colours": COLOURS,
        "selftest": selftest, "diff": diff, "facts": facts(summary), "threshold": THRESHOLD, "margin": ORACLE_MARGIN,
        "ledger": ledger(claims) if claims else None, "experiments": sections(experiments),
    }  # fmt: skip
    return render("report.html.j2", content)


def ledger_page(claims: Claims | None, experiments: Sequence[Result] = ()) -> str:
    """The page of the claims ledger and of experiments, without records."""
    made = ledger(claims) if claims else None
    said = [made.verdict] if made else []
    bad = made is not None and bool(made.found.failed or made.outdated)
    content: dict[str, Any] = {
        "ledger": made, "experiments": sections(experiments),
        "verdict": ". ".join([*said, *([verdict(experiments)] if experiments else [])]),
        "bad": bad or any(o.trouble for x in experiments for o in x.runs),
    }  # fmt: skip
    return render("ledger.html.j2", content)


def render(template: str, content: dict[str, Any]) -> str:
    """A template of ``templates/`` with its content; text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    tools: dict[str, Any] = {
        "asset": lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8")),
        "command": summaries.command, "location": location, "plural": summaries.plural, "ratio_text": ratio_text,
        "title": summaries.title, "words": MEANINGS,
    }  # fmt: skip
    return environment.get_template(template).render(tools | content)


class Cells(Generic[Group]):
    """The cells of a table of ratios, by group: the worst record of each, and whether a known failure is beside it."""

    def __init__(self, summary: Summary, key: Callable[[Record], Group]) -> None:
        self.worst = summary.worst_by(key)
        self.known = {key(record) for record in summary.known}
        self.stale = {key(record) for record in summary.stale} if summary.mixed else set[Group]()

    def __getitem__(self, group: Group) -> Cell | None:
        """How a group looks; ``None`` for what was not run."""
        record = self.worst.get(group)
        if record is None:
            return None
        band, mark = ("fail", "✗ ") if record.failed else ("known", "! ") if record.status == "known" else ("", "")
        band = band or str(sum((record.ratio or 0.0) >= bound for bound in BANDS[:-1]))
        note = (" !" if group in self.known and band != "known" else "") + ("†" if group in self.stale else "")
        about = f"{summaries.title(record)}: {record.status}, {record.case.describe()}"
        return Cell(ratio_text(record), band, mark, note, about)


def matrix(summary: Summary) -> list[dict[str, Any]]:
    """A row an operator and variant: a cell a dtype for forward and for gradient, then properties."""
    cells = Cells(summary, lambda r: (*subject(r), r.case.dtype, r.direction))
    rows: list[dict[str, Any]] = []
    for operator, variant in summary.subjects:
        tried = [r for r in summary.records if subject(r) == (operator, variant) and r.direction == "property"]
        rows.append(
            {
                "operator": operator,
                "variant": variant,
                "span": sum(name == operator for name, _ in summary.subjects),
                "first": not rows or rows[-1]["operator"] != operator,
                "cells": [cells[operator, variant, d, x] for d in summary.dtypes for x in ("forward", "gradient")],
                "tried": len(tried),
                "failed": sum(r.failed for r in tried),
                "known": sum(r.status == "known" for r in tried),
            }
        )
    return rows


def heat(summary: Summary) -> dict[str, Any]:
    """The worst forward or gradient ratio by operator, variant and length, with where to draw it."""
    judged = Summary([r for r in summary.records if r.direction != "property"], 0, summary.source_hash)
    lengths = sorted({r.case.structure.T for r in judged.records})
    cells = Cells(judged, lambda r: (*subject(r), r.case.structure.T))
    rows = [
        {
            "name": f"{operator} {variant}",
            "y": HEAD + LINE * i,
            "cells": [(LABEL + CELL * j, cells[operator, variant, T]) for j, T in enumerate(lengths)],
        }
        for i, (operator, variant) in enumerate(judged.subjects)
    ]
    return {
        "rows": rows, "lengths": [(LABEL + CELL * j, T) for j, T in enumerate(lengths)],
        "width": LABEL + CELL * len(lengths), "height": HEAD + LINE * len(rows) + 2,
        "label": LABEL, "cell": CELL, "line": LINE, "head": HEAD,
    }  # fmt: skip


def band_names() -> list[tuple[str, str]]:
    """(band, what it stands for), for the legend."""
    ends = [f"{x:g}" for x in BANDS]
    low = [f"below {ends[0]}", *(f"{a} to {b}" for a, b in zip(ends, ends[1:], strict=False))]
    return [*((str(i), text) for i, text in enumerate(low)), ("known", "known failure"), ("fail", "failed")]


def charts(drift: Drift) -> list[dict[str, Any]]:
    """A figure and its numbers for every operator of a drift file."""
    most = top(drift.rows)
    found: list[dict[str, Any]] = []
    for operator in dict.fromkeys(row.operator for row in drift.rows):
        rows = [row for row in drift.rows if row.operator == operator]
        figure = drift_figure(operator, rows, most)
        found.append({"operator": operator, "svg": figure, "text": describe(operator, rows), "table": _lines(rows)})
    return found


def _lines(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """A line a form and dtype: its error at each length."""
    forms = dict.fromkeys((row.variant, row.dtype) for row in rows)
    lengths = sorted({row.tokens for row in rows})
    by = {(row.variant, row.dtype, row.tokens): row for row in rows}
    return [
        {"variant": v, "dtype": d, "lengths": lengths, "rows": [by.get((v, d, tokens)) for tokens in lengths]}
        for v, d in forms
    ]


def facts(summary: Summary) -> list[tuple[str, list[str]]]:
    """The environment block: (name, its value in each environment of the records)."""
    found = [msgspec.to_builtins(environment) for environment, _ in summary.environments]
    names = list(found[0]) if found else []
    return [(name.replace("_", " "), ["none" if e[name] is None else str(e[name]) for e in found]) for name in names]
