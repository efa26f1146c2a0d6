"""What a run had and the next has not: timings that broke, checks that turned red, gates that are missing."""

from __future__ import annotations

from typing import Any

from linattest.verify.bench.sides import Key, Row, Side
from linattest.verify.crossover import DIRECTIONS, OURS

WHOLE = ("import", "inputs", "first call", "gate")
"""Steps of a run whose failure leaves no timing of ours in any direction."""

FIRST = "first call"

STEPS = ("inputs", FIRST, "gate", "checks", *DIRECTIONS)
"""Steps of a run that are ours, by what a failure names."""

SLOW_START = 1.5
"""How many times as long a first call (all of its compiling) may take before a comparison says so."""


def broken(a: Side, b: Side) -> list[str]:
    """What passed in A and does not in B: timings that B tried without success, checks, and timings without a gate."""
    found, known = dict[str, None](), {_step(failure) for failure in a.failures}
    for key in _timed(a):
        if key not in b.timings and (said := _failure(b, key)):
            found[f"{_place(key)}: {said['error']}"] = None
            known.add(_step(said))
    for key, after in b.checks.items():
        before = a.checks.get(key)
        if not after["ok"] and (before is None or before["ok"]):
            found[f"{_check(key)}: {'passed in A and not in B' if before else 'red, and not in A'}"] = None
    for key in _timed(b):
        operator, variant, _, direction, tokens, *_ = key
        if (operator, variant, direction, tokens) not in b.gates and direction != "decode":
            found[f"{_place(key)}: timed without a gate"] = None
    for failure in b.failures:
        if _step(failure) not in known and is_ours(str(failure["what"])):
            found[f"{_check(_step(failure))}: {failure['error']}"] = None
    return list(found)


def is_ours(what: str) -> bool:
    """Whether what failed is a step of ours: a rival's failure names it."""
    return what in STEPS or f" of {OURS}" in what


def _step(failure: Row) -> Key:
    return (failure["operator"], failure["variant"], failure["what"], failure["tokens"])


def gone(a: Side, b: Side) -> list[str]:
    """What A has and B did not try."""
    found = dict[str, None]()
    for key in _timed(a):
        if key not in b.timings and not _failure(b, key):
            found[_place(key)] = None
    for key in a.checks:
        if key not in b.checks:
            found[_check(key)] = None
    return list(found)


def slow_starts(a: Side, b: Side) -> list[str]:
    """First calls that take much longer: compiling is part of what a commit costs, and varies with the host."""
    found = list[str]()
    for key, before in a.checks.items():
        after = b.checks.get(key)
        if after is None or key[2] != FIRST:
            continue
        for direction, seconds in (after.get("value") or {}).items():
            was = (before.get("value") or {}).get(direction)
            if was and seconds > SLOW_START * was:
                found.append(f"{_check(key)}, {direction}: {was:.3g} s to {seconds:.3g} s")
    return found


def _timed(side: Side) -> list[Key]:
    return [key for key in side.timings if key[2] == OURS]


def _place(key: Key) -> str:
    operator, variant, _, direction, tokens, *_ = key
    return " ".join(filter(None, (operator, variant, direction))) + f", {_counted(tokens)}"


def _check(key: Key) -> str:
    operator, variant, what, tokens = key
    return " ".join(filter(None, (operator, variant))) + f", {what}" + (f", {_counted(tokens)}" if tokens else "")


def _counted(tokens: Any) -> str:
    return f"{tokens} token" + "s" * (tokens != 1)


def _failure(side: Side, key: Key) -> Row | None:
    """Why a timing of ours is missing: not a rival's failure, nor another direction's."""
    operator, variant, _, direction, tokens, *_ = key
    for failure in side.failures:
        what = str(failure["what"])
        if (
            (failure["operator"], failure["variant"]) == (operator, variant)
            and failure["tokens"] in (tokens, 0, *([1] if direction == "decode" else []))
            and (what in WHOLE or what == direction or what.endswith(f" of {OURS}, {direction}"))
        ):
            return failure
    return None
