"""JUnit XML: a test suite an operator, a test case a record."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from linattest.verify.records import Record
from linattest.verify.report.summary import Summary, command, title

ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write, not even escaped (section 2.2)."""


def junit(summary: Summary) -> str:
    """The document, as the common schema (Jenkins, GitLab, ``testmoapp/junitxml``) describes it."""
    root = ET.Element("testsuites", {"name": "linattest", **_counts(summary.records)})
    for operator in dict.fromkeys(operator for operator, _ in summary.subjects):
        records = [r for r in summary.records if r.case.operator == operator]
        suite = ET.SubElement(root, "testsuite", {"name": operator, **_counts(records)})
        properties = ET.SubElement(suite, "properties")
        stale = sum(summary.is_stale(r) for r in records)
        facts = {f"environment.{i}": str(e) for i, (e, _) in enumerate(summary.environments)} | {"stale": str(stale)}
        for name, value in facts.items():
            ET.SubElement(properties, "property", name=name, value=_legal(value))
        for record in records:
            _case(suite, record)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(records: Iterable[Record]) -> dict[str, str]:
    found = list(records)
    by = {name: sum(r.status == s for r in found) for name, s in (("failures", "fail"), ("errors", "error"))}
    counts = {"tests": len(found), **by, "skipped": sum(r.status == "known" for r in found)}
    return {name: str(n) for name, n in counts.items()} | {"time": f"{sum(r.seconds for r in found):.4f}"}


def _case(suite: ET.Element, record: Record) -> None:
    what = record.what if record.direction == "property" else ""
    case = ET.SubElement(
        suite, "testcase",
        classname=_legal(f"{record.case.operator}.{record.variant}.{record.case.dtype}"),
        name=_legal(f"{record.direction}{'/' if what else ''}{what} [{record.case.describe()}]"),
        time=f"{record.seconds:.4f}",
    )  # fmt: skip
    message = _legal(record.message)
    if record.status == "known":
        ET.SubElement(case, "skipped", message=message)
    elif record.failed:
        kind = "error" if record.status == "error" else "failure"
        element = ET.SubElement(case, kind, message=message, type=record.direction)
        element.text = _legal(f"{title(record)}\n{record.case.describe()}\n{record.message}\n{command(record)}")


def _legal(text: str) -> str:
    """Without the characters that XML cannot hold; U+FFFD says that there was one."""
    return ILLEGAL.sub("\ufffd", text)
