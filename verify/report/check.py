"""The verdict on a user's function: what was tried, what is wrong, what it looks like, how to run it again."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any

import msgspec

from linattest.verify import registry
from linattest.verify.check import Result
from linattest.verify.environment import environment
from linattest.verify.evidence import badness
from linattest.verify.preparation import SUPPORTS
from linattest.verify.records import SCHEMA, Record
from linattest.verify.spec import DTYPES

MOST_CASES = 4
"""Failing cases printed in full: the worst of each kind."""

WIDTH = 110
"""Columns of a page, unless told otherwise: no more than this is well read."""


def page(result: Result, width: int = WIDTH) -> str:
    """The whole page as text, folded at ``width``; its first line is the verdict."""
    lines = [*([] if result.died else _tried(result)), *_promises(result)]
    for i, found in enumerate(result.diagnoses, start=1):
        lines += ["", f"{i}. {found.fault}", f"   evidence: {found.evidence}"]
        lines += [f"   look at: {found.suggestion}"]
    for record in worst_cases(result.failed):
        what = " ".join(dict.fromkeys((record.direction, record.what)))
        lines += ["", f"{what}, {record.case.describe()}"]
        lines += [f"   {record.message}"]
        lines += [f"   {record.replay}"] if record.replay else []
    shown = len(worst_cases(result.failed))
    if len(result.failed) > shown:
        lines += ["", f"... and {len(result.failed) - shown} more failing checks (--json lists all)"]
    return "\n".join([verdict(result), *(part for line in lines for part in _folded(line, width))])


def verdict(result: Result) -> str:
    """One line: wrong, or right on everything tried."""
    name, operator, count = result.subject.function, result.subject.operator, len(result.records)
    if result.interrupted:
        return f"INTERRUPTED: {name} as {operator}: {len(result.failed)} of {count} checks failed so far"
    if result.died:
        return f"WRONG: {name} as {operator}: the process that called it died before anything was judged"
    if not count:
        return f"NOTHING TRIED: {name} as {operator}"
    if result.failed:
        return f"WRONG: {name} as {operator}: {len(result.failed)} of {count} checks failed"
    if result.broken:
        return f"RIGHT in every value: {name} as {operator}; not kept of {count} checks: {', '.join(result.broken)}"
    return f"RIGHT on all {count} checks tried: {name} as {operator}"


def _tried(result: Result) -> list[str]:
    counts = Counter(record.direction for record in result.records)
    dtypes = [d for d in DTYPES if any(r.case.dtype == d for r in result.records)]
    words = [SUPPORTS[x] for x in SUPPORTS if x in result.subject.supports and x != "gradient"]
    inputs = len({record.case.key for record in result.records})
    kinds = {"forward": "outputs", "gradient": "gradients", "property": "properties"}
    tried = ", ".join(f"{counts[kind]} {word}" for kind, word in kinds.items() if counts[kind])
    lines = [
        f"tried: {inputs} inputs ({tried}) in {', '.join(dtypes) or 'no dtype'}"
        + (f"; {', '.join(words)}" * bool(words))
    ]
    unseen = [d for d in result.subject.dtypes if d not in dtypes and result.records]
    left_out = [f"{d}, which these inputs leave out (--dtype {d}, or no --quick, has them)" for d in unseen]
    for title, said in (("not tried", result.not_tried + left_out), ("note", result.notes)):
        for line in said:
            lines += [f"{title}: {line}"]
    return lines


def _promises(result: Result) -> list[str]:
    """What is not kept beyond right values, each with its first case; --strict makes it wrong.

    Of a function that is wrong, the names alone: most are what the fault looks like in other runs.
    """
    if result.failed and result.broken:
        return [f"not kept either: {', '.join(result.broken)} (--json counts them)"]
    said = {p.name: p.statement for p in registry.properties(registry.operator(result.subject.operator))}
    lines: list[str] = []
    for name, records in result.broken.items():
        statement = said.get(name, "T = 0 gives an empty output and the state that came in")
        first = records[0]
        lines += ["", f"not kept: {name} ({statement}), {len(records)} times"]
        lines += [f"   {first.case.describe()}: {first.message}"]
        lines += [f"   {first.replay}"] if first.replay else []
    return lines + ["decide whether your callers rely on it; --strict counts it as wrong"] * bool(lines)


def _folded(line: str, width: int) -> list[str]:
    """A line in parts of a width, the next ones indented further; never a command, which is there to be copied."""
    if not line.strip() or line.lstrip().startswith("linattest "):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.lstrip(), width, initial_indent=indent, subsequent_indent=indent + "   ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def worst_cases(failed: list[Record]) -> list[Record]:
    """The worst failure of each direction and dtype: wrong values before errors, at most four."""
    found: dict[tuple[str, str], Record] = {}
    for record in sorted(failed, key=badness, reverse=True):
        found.setdefault((record.direction, record.case.dtype), record)
    return list(found.values())[:MOST_CASES]


def to_json(result: Result) -> dict[str, Any]:
    """The object that ``check --json`` prints (schema 1)."""
    return {
        "schema": SCHEMA,
        "function": result.subject.function,
        "operator": result.subject.operator,
        "source": next((record.source for record in result.records), ""),
        "passed": result.passed,
        "checks": len(result.records),
        "failed": len(result.failed),
        "broken_promises": {name: len(records) for name, records in result.broken.items()},
        "supports": sorted(result.subject.supports),
        "dtypes": list(result.subject.dtypes),
        "not_tried": result.not_tried,
        "notes": result.notes,
        "diagnoses": msgspec.to_builtins(result.diagnoses),
        "failures": [
            {
                "dtype": r.case.dtype, "what": r.direction, "output": r.what, "case": r.case.describe(),
                "ratio": r.ratio, "message": r.message, "replay": r.replay,
            }
            for r in result.failed
        ],
        "seconds": round(result.seconds, 2),
        "interrupted": result.interrupted,
        "environment": msgspec.to_builtins(environment()),
    }  # fmt: skip
