"""What computing the ledger leaves behind: an outcome a claim, in one versioned object for output, file and report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from linattest.verify.claims.verdicts import WORDS, Evidence, Word
from linattest.verify.environment import Environment, environment

SCHEMA = 1
LONGEST = 200
"""Characters of the numbers of what does not stand."""


Columns = dict[str, list[float | None]]
"""A table: columns of equal length, by name. ``None``: not measured."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure as data: its tables, and its name, by which a report knows how to draw it."""

    name: str
    tables: dict[str, Columns]

    def __post_init__(self) -> None:
        for name, columns in self.tables.items():
            sizes = {key: len(column) for key, column in columns.items()}
            if len(set(sizes.values())) > 1:
                raise ValueError(f"figure {self.name!r}, table {name!r}: columns of {sizes}, expected one length")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A row with its verdict; ``verdict`` is ``None`` where the check raised (``error``). ``hash`` is of ``sources``.

    ``excused``: tools that it needs are not installed (``lacks``), and the ledger does not say what holds without them.
    ``ledger``: the file of a user's claim.
    """

    id: str
    paper: str
    statement: str
    where: str
    scope: str
    verdict: Word | None
    expected: Word
    evidence: tuple[Evidence, ...]
    sources: tuple[str, ...]
    hash: str
    figure: Figure | None = None
    ledger: str = ""
    stale: tuple[str, ...] = ()
    error: str | None = None
    lacks: tuple[str, ...] = ()
    excused: bool = False
    seconds: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether it is not what the ledger expects: another verdict, an error, stale files, evidence that fell."""
        fallen = any(not e.stands and not e.lacks for e in self.evidence)
        return self.verdict != self.expected or self.error is not None or bool(self.stale) or fallen

    @property
    def command(self) -> str:
        """What computes it again."""
        return f"linattest claims {self.id}{of_ledgers([self])}"

    @property
    def difference(self) -> str:
        """What is not as the ledger says, in one line; empty if nothing."""
        error = self.error or ""
        raised = error if error.startswith("no answer: ") else error and f"the check raised {error}"
        found = "no verdict" if self.verdict is None else repr(self.verdict)
        said = "" if self.verdict == self.expected else f"{found}, the ledger says {self.expected!r}"
        fallen = [f"does not stand: {e.text}{_why(e)}" for e in self.evidence if not e.stands and not e.lacks]
        return "; ".join(x for x in (raised, said, *fallen, *(f"stale: {x}" for x in self.stale)) if x)


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What ``linattest claims --output`` writes."""

    schema: int = SCHEMA
    claims: list[Outcome]
    seconds: float
    environment: Environment

    @property
    def failed(self) -> list[Outcome]:
        """What differs from the ledger, and not only because a tool is not installed."""
        return [o for o in self.claims if o.differs and (o.stale or not o.excused)]

    @property
    def counts(self) -> dict[str, int]:
        """How many have each verdict, how many differ from the ledger, and how many raised."""
        found = {word: sum(o.verdict == word for o in self.claims) for word in WORDS}
        different, errors = sum(o.differs for o in self.claims), sum(o.error is not None for o in self.claims)
        return found | {"different": different, "errors": errors}

    def to_json(self) -> dict[str, Any]:
        """The contract of ``claims --json``: the fields, whether each claim differs, and the counts."""
        claims = [_strict(msgspec.to_builtins(o)) | {"differs": o.differs} for o in self.claims]
        return msgspec.to_builtins(self) | {"claims": claims, "counts": self.counts}


def collect(outcomes: Sequence[Outcome], seconds: float) -> Claims:
    """The outcomes with the environment they were computed in."""
    return Claims(claims=list(outcomes), seconds=round(seconds, 3), environment=environment())


def read(path: Path) -> Claims:
    """What ``linattest claims --output`` wrote.

    Raises:
        OSError: no file that can be read.
        ValueError: not such a file, or of another schema.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Claims)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}; expected what `linattest claims --output` writes") from error
    if found.schema != SCHEMA:
        raise ValueError(f"{path}: schema={found.schema}, expected {SCHEMA}")
    return found


def of_ledgers(outcomes: Sequence[Outcome]) -> str:
    """The options with which `linattest claims` computes these claims: none for the papers'."""
    return "".join(f" --ledger {shlex.quote(x)}" for x in dict.fromkeys(o.ledger for o in outcomes) if x)


def _why(e: Evidence) -> str:
    """A proof's reason, a figure's limit and by how much it is missed, a count's or witness's numbers."""
    if why := e.values.get("why") or e.broken_limit:
        return f" ({why})"
    said = ", ".join(f"{name} {value}" for name, value in e.values.items())
    return f" ({said})" if e.kind in ("count", "witness") and said and len(said) <= LONGEST else ""


def _strict(x: Any) -> Any:
    """JSON has no word for infinity and NaN: ``null``."""
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if isinstance(x, dict):
        return {str(name): _strict(value) for name, value in x.items()}
    return [_strict(value) for value in x] if isinstance(x, list | tuple) else x
