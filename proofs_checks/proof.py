"""What a machine-checked statement is: the statement, what it assumes, how it is checked, and a twin that must fall.

A statement is checked by a function that answers ``proved``, ``refuted``, ``unknown`` or ``skipped``. Beside it stands
its falsified twin: a wrong variant of the same statement, given to the same tool, that the tool must refute. A tool
that proves everything is so found out: a statement whose twin stands is ``unknown``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

Status = Literal["proved", "refuted", "unknown", "skipped"]
Method = Literal["smt", "symbolic", "enclosure", "exhaustive", "coq"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool says of one statement; ``evidence`` is a witness, an enclosure, a count: whatever a reader checks."""

    status: Status
    evidence: dict[str, str] = {}
    tool: str = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one statement, as ``linattest prove --json`` prints it; ``seconds`` counts statement and twin."""

    id: str
    statement: str
    assumptions: str
    method: Method
    status: Status
    twin: str
    twin_status: Status
    seconds: float
    tool: str
    evidence: dict[str, str] = {}

    @property
    def stands(self) -> bool:
        """Whether the statement is proved and its falsified twin rejected."""
        return self.status == "proved" and self.twin_status == "refuted"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement to be checked, and its falsified twin (in words, and for the same tool)."""

    id: str
    statement: str
    assumptions: str
    method: Method
    check: Callable[[], Answer]
    twin: str
    twin_check: Callable[[], Answer]

    def __post_init__(self) -> None:
        for field in ("id", "statement", "assumptions", "twin"):
            if not getattr(self, field):
                raise ValueError(f"Statement {self.id!r}: {field} is empty")


def prove(statement: Statement) -> Proof:
    """Check a statement and its twin. A tool's exception is an unknown, with the exception as evidence."""
    start = time.perf_counter()
    answer, twin = _ask(statement.check), _ask(statement.twin_check)
    status, evidence = answer.status, answer.evidence
    if status == "proved" and twin.status != "refuted":
        status, evidence = "unknown", evidence | {"twin": f"{twin.status}, expected refuted: the check cannot fail"}
    return Proof(
        id=statement.id, statement=statement.statement, assumptions=statement.assumptions, method=statement.method,
        status=status, twin=statement.twin, twin_status=twin.status, seconds=round(time.perf_counter() - start, 3),
        tool=answer.tool, evidence=evidence,
    )  # fmt: skip


def _ask(check: Callable[[], Answer]) -> Answer:
    try:
        return check()
    except Exception as error:
        return Answer(status="unknown", evidence={"error": f"{type(error).__name__}: {error}"})
