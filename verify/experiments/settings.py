"""A recipe in another size: `--set` of the command. A claim's verdict is that of the recipe as it is."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from linattest.verify.experiments.recipe import Recipe, RecipeError, Shape, Trained, Training, laid_over

SETTABLE = ("shape", "tasks", "tests", "training")
"""What may be set. Rules may not: they are those that were written before."""

EXPECTED = "expected KEY=VALUE, VALUE as in TOML (text in quotes)"


def changed(made: Recipe, lines: Sequence[str]) -> Recipe:
    """The recipe with other settings, each a line of TOML, "training.steps = 10"; or the recipe itself without any.

    Its scope is not the recipe's any more: it says what was set.

    Raises:
        RecipeError: a line that is no TOML or sets what there is not; with all of them it is no recipe.
    """
    if not lines:
        return made
    table: dict[str, Any] = msgspec.to_builtins(made)
    for line in lines:
        try:
            above = _parsed(line)
            _check_keys(made, above)
        except ValueError as error:
            raise RecipeError(f"{line}: {error}") from error
        table = laid_over(table, above)
    try:
        return msgspec.convert(table | {"scope": f"In another size: {', '.join(lines)}"}, Recipe)
    except (msgspec.ValidationError, ValueError) as error:
        raise RecipeError(f"{'; '.join(lines)}: {error}") from error


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(line)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{EXPECTED}: {error}") from error
    if not found or line.lstrip().startswith("["):  # a comment or a table's head sets nothing
        raise ValueError(EXPECTED)
    return found


# --- keys --------------------------------------------------------------------------------------------------------


def _check_keys(made: Recipe, above: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a key that there is not, with those that there are."""
    _check("sets", above, SETTABLE)
    if not isinstance(made, Trained):
        raise ValueError(f"{made.claim} trains nothing, expected no --set: it has no sizes")
    for name, kind in (("shape", Shape), ("training", Training)):
        _check(f"sets {name}.", above.get(name, {}), kind.__struct_fields__)
    for name, tasks in (("tasks", made.tasks), ("tests", made.tests)):
        given = above.get(name, {})
        whole = {key for key, x in _items(given) if isinstance(x, dict) and "name" in x}  # one that is new, and which
        _check(f"sets {name}.", given, [*tasks, *whole])
        for key, own in _items(given):
            if key not in whole:
                known = [x for x in tasks[key].__struct_fields__ if x != "source"]  # the text is --text's
                _check(f"sets {name}.{key}.", own, known)


def _check(where: str, given: Any, known: Iterable[str]) -> None:
    known = list(known)
    for key, _ in _items(given):
        if key not in known:
            said = f"{where}{key}" if where.endswith(".") else f"{where} {key!r}"
            raise ValueError(f"{said}, expected one of {', '.join(known) or 'none: the recipe has none'}")


def _items(given: Any) -> list[tuple[str, Any]]:
    """The keys and values of a table; of what is none, nothing: reading the recipe says what it should be."""
    return list(given.items()) if isinstance(given, dict) else []
