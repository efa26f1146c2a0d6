"""A recipe in another size: `--set` of the command. A claim's verdict is that of the recipe as it is."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import msgspec

from linattest.verify.experiments.recipe import Recipe, RecipeError, laid_over

SETTABLE = ("shape", "tasks", "tests", "training")
"""What may be set. Rules may not: they are those that were written before."""


def changed(made: Recipe, lines: Sequence[str]) -> Recipe:
    """The recipe with other settings, each a line of TOML, "training.steps = 10"; or the recipe itself without any.

    Raises:
        RecipeError: a line that is no TOML or sets none of ``SETTABLE``; with all of them it is no recipe.
    """
    table: dict[str, Any] = msgspec.to_builtins(made)
    try:
        for line in lines:
            above = tomllib.loads(line)
            if strange := sorted(set(above) - set(SETTABLE)):
                raise ValueError(f"sets {strange[0]!r}, expected one of {', '.join(SETTABLE)}")
            table = laid_over(table, above)
        return msgspec.convert(table, Recipe) if lines else made
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise RecipeError(f"{'; '.join(lines)}: {error}") from error
