"""SARIF 2.1.0: a rule a direction or property, a result a failing record, at the implementation's definition."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

import linattest
from linattest.verify import registry
from linattest.verify.records import LOST, Record
from linattest.verify.report.locations import location
from linattest.verify.report.summary import Summary, command, title
from linattest.verify.tolerance import THRESHOLD

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"

DIRECTIONS = {
    "forward": f"Outputs and final states are within {THRESHOLD:g} times the unavoidable error of the exact values.",
    "gradient": f"Every gradient is within {THRESHOLD:g} times the unavoidable error of the certified one.",
    "harness": "The case can be judged at all.",
}

LEVELS = {"fail": "error", "error": "error", "known": "note"}


def sarif(summary: Summary) -> str:
    """The log, as JSON. Failures and errors are of level ``error``, known failures are ``note``."""
    results = [*summary.failed, *summary.known]
    rules = sorted({rule(record) for record in results})
    run = {
        "tool": {"driver": {
            "name": "linattest",
            "version": linattest.__version__,
            "rules": [{"id": name, "shortDescription": {"text": statement(name)}} for name in rules],
        }},
        "columnKind": "unicodeCodePoints",
        "results": [_result(record, rules) for record in results],
        "properties": {
            "cases": len(summary.records),
            "stale": len(summary.stale),
            "environments": [msgspec.to_builtins(environment) for environment, _ in summary.environments],
        },
    }  # fmt: skip
    return json.dumps({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def rule(record: Record) -> str:
    """The direction, or the name of the property."""
    return record.what if record.direction == "property" or record.variant == LOST else record.direction


def statement(name: str) -> str:
    """What a rule demands, in a sentence."""
    known = {p.name: p.statement for operator in registry.OPERATORS for p in registry.properties(operator)}
    return {**known, **DIRECTIONS}.get(name, name)


def _result(record: Record, rules: list[str]) -> dict[str, Any]:
    text = f"{title(record)}: {record.message} Input: {record.case.describe()}. Repeat it: {command(record)}"
    result: dict[str, Any] = {
        "ruleId": rule(record),
        "ruleIndex": rules.index(rule(record)),
        "level": LEVELS[record.status],
        "message": {"text": text},
        "partialFingerprints": {"linattestCase/v1": hashlib.sha256("\n".join(record.key).encode()).hexdigest()},
        "properties": {"ratio": record.ratio, "case": msgspec.to_builtins(record.case)},
    }
    where = location(record)
    if where is not None:
        path = Path(where.path)
        inside = {"uri": quote(where.path), "uriBaseId": "%SRCROOT%"}
        artifact = {"uri": path.as_uri()} if path.is_absolute() else inside
        region = {"startLine": where.line}
        result["locations"] = [{"physicalLocation": {"artifactLocation": artifact, "region": region}}]
    return result
