"""What a machine-checked statement is: the statement, what it assumes, how it is checked, and a twin that must fall.

A statement is checked by a function that answers ``proved``, ``refuted``, ``unknown`` or ``skipped``. Beside it stands
its falsified twin: a wrong variant of the same statement, given to the same tool, that the tool must refute. A tool
that proves everything is so found out: a statement whose twin stands is ``unknown``.

Both are one question, ``ask``, with other arguments: ``right`` and ``wrong``. The tool's answer says what it was asked,
and ``pins.toml`` has what it was asked when the words beside it were read last: another question is ``changed``, which
is no pass, however well it is proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from linattest.proofs_checks import pins

Status = Literal["proved", "refuted", "unknown", "skipped", "changed"]
Method = Literal["smt", "symbolic", "enclosure", "exhaustive", "coq"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool says of one statement, and what it was asked, in full (or, if that is long, with its hash).

    ``evidence`` is a witness, an enclosure, a count: whatever a reader checks. ``changed``: in what the question is
    another than the one that the tool itself has pinned, as Coq's theorems are in coq/types.toml.
    """

    status: Status
    evidence: dict[str, str] = {}
    tool: str = ""
    asked: str = ""
    changed: str = ""


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
    asked: str = ""
    twin_asked: str = ""

    @property
    def pin(self) -> pins.Pin:
        """What is to be pinned."""
        return pins.Pin(
            method=self.method, statement=self.statement, assumptions=self.assumptions, asked=self.asked,
            twin=self.twin, twin_asked=self.twin_asked,
        )  # fmt: skip

    @property
    def stands(self) -> bool:
        """Whether the statement is proved and its falsified twin rejected."""
        return self.status == "proved" and self.twin_status == "refuted"


@dataclass(frozen=True, kw_only=True, eq=False)
class Statement:
    """A statement to be checked, ``ask(*right)``, and its falsified twin, ``ask(*wrong)``, both in words too.

    ``mend``: what to do where it is refuted, for what rests on a file.

    Raises ``ValueError`` for words that are missing, and for a twin with the statement's own arguments.
    """

    id: str
    statement: str
    assumptions: str
    method: Method
    ask: Callable[..., Answer]
    right: tuple[Any, ...]
    twin: str
    wrong: tuple[Any, ...]
    mend: str = ""

    def __post_init__(self) -> None:
        for field in ("id", "statement", "assumptions", "twin"):
            if not getattr(self, field):
                raise ValueError(f"Statement {self.id!r}: {field} is empty")
        if repr(self.right) == repr(self.wrong):
            raise ValueError(f"Statement {self.id!r}: right and wrong are both {self.right!r}")


def prove(statement: Statement, pinned: Mapping[str, pins.Pin] | None = None) -> Proof:
    """Check a statement and its twin against what is pinned (by default: by ``pins.toml``).

    A tool's exception is an unknown, with the exception as evidence. The words are compared where Coq is not installed
    too; what its theorems say is compared by coq/compiler.py.
    """
    start = time.perf_counter()
    answer, twin = _ask(statement, statement.right), _ask(statement, statement.wrong)
    status, evidence = answer.status, answer.evidence
    if status == "proved" and twin.status != "refuted":
        status, evidence = "unknown", evidence | {"twin": f"{twin.status}, expected refuted: the check cannot fail"}
    if status in ("refuted", "unknown") and statement.mend:
        evidence = evidence | {"what to do": statement.mend}
    if statement.method == "coq":  # a twin is a theorem too, with a type of its own
        evidence = (
            {"not compared": twin.evidence["not compared"]} | evidence if "not compared" in twin.evidence else evidence
        )
        evidence = evidence | ({"twin's type": twin.evidence["type"]} if "type" in twin.evidence else {})
    proof = Proof(
        id=statement.id, statement=statement.statement, assumptions=statement.assumptions, method=statement.method,
        status=status, twin=statement.twin, twin_status=twin.status, seconds=round(time.perf_counter() - start, 3),
        tool=answer.tool, evidence=evidence, asked=answer.asked, twin_asked=twin.asked,
    )  # fmt: skip
    if not answer.asked:
        return proof
    said = (pins.difference(statement.id, proof.pin, pins.read() if pinned is None else pinned), answer.changed)
    of_twin = f"twin: {twin.changed}" if twin.changed not in ("", answer.changed) else ""  # one file is told of once
    why = "; ".join(x for x in (*said, of_twin) if x)
    why += _what_to_do(statement.id, status) if why else ""
    changed: Status = "changed" if status in ("proved", "skipped") else status
    return msgspec.structs.replace(proof, status=changed, evidence=evidence | {"changed": why}) if why else proof


def _what_to_do(identity: str, status: Status) -> str:
    """About a difference: a pin is renewed where the statement is proved, and nowhere else."""
    if status == "proved":
        return pins.meant(identity)
    if status == "skipped":
        return f"{pins.meant(identity)}, where the tool is installed"
    return f"; the statement is {status}, which is never pinned: mend that first"


def _ask(statement: Statement, given: tuple[Any, ...]) -> Answer:
    try:
        answer = statement.ask(*given)
        if statement.method == "coq" or answer.status not in ("proved", "refuted"):
            return answer
        if not answer.asked:
            raise ValueError("the answer does not say what was asked, so no pin can be compared with it")
        made = "" if statement.method == "smt" else f"\nby {pins.code(statement.ask)}"  # z3's formula is all it is
        judged = f"\nwith {tools}" if (tools := pins.tools(statement.ask)) else ""
        answer = msgspec.structs.replace(answer, asked=f"{answer.asked}{made}{judged}")
    except (Exception, SystemExit) as error:
        return Answer(status="unknown", evidence={"error": f"{type(error).__name__}: {error}"})
    return answer
