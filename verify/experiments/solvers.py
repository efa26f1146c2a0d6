"""Each task answered by a lookup table, from the tokens alone: what a generator asks must be there to be found.

Nothing here is shared with the generators of ``tasks``: a solver reads a row from left to right as a model does, and
has no answer (``NONE``) where the tokens leave none, or more than one. Of a text nothing can be derived: there the
target must be the byte that follows, and the blocks apart.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from linattest.verify.experiments import text
from linattest.verify.experiments.tasks import Copy, Drawn, Mqar, Passkey, SelectiveCopy, Task, Text

NONE = -1
"""No answer, or several."""

Row = list[int]


def recall(task: Mqar, row: Row, t: int) -> int:
    """What followed the token at ``t`` whenever it came before."""
    found = {row[s + 1] for s in range(t - 1) if row[s] == row[t]}
    return found.pop() if len(found) == 1 else NONE


def copy(task: Copy, row: Row, t: int) -> int:
    """The token as far from the start as ``t`` is from the only separator."""
    seps = [s for s in range(t + 1) if row[s] == task.vocab_size - 1]
    return row[t - seps[0]] if len(seps) == 1 and t - seps[0] < seps[0] else NONE


def selective_copy(task: SelectiveCopy, row: Row, t: int) -> int:
    """The token of that number among those that are neither noise nor marker."""
    marker = task.vocab_size - 1
    content = [x for x in row[:t] if x not in (0, marker)]
    place = row[:t].count(marker)
    return content[place] if row[t] == marker and place < len(content) else NONE


def passkey(task: Passkey, row: Row, t: int) -> int:
    """The digit behind the only needle, as far from it as ``t`` is from the query."""
    needle, query = task.vocab_size - 2, task.vocab_size - 1
    needles, queries = ([s for s in range(t + 1) if row[s] == x] for x in (needle, query))
    if len(needles) != 1 or len(queries) != 1:
        return NONE
    place = needles[0] + 1 + t - queries[0]
    return row[place] if place < queries[0] and row[place] < 10 else NONE


SOLVERS: dict[type, Callable[[Any, Row, int], int]] = {
    Mqar: recall, Copy: copy, SelectiveCopy: selective_copy, Passkey: passkey,
}  # fmt: skip


def solve(task: Task, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The answers [rows, T] at every position of the mask, ``NONE`` elsewhere and where there is none."""
    answers = np.full(tokens.shape, NONE)
    for n, t in np.argwhere(mask):
        answers[n, t] = SOLVERS[type(task)](task, tokens[n, : t + 1].tolist(), int(t))
    return answers


def checked(task: Task, drawn: Drawn) -> Drawn:
    """The batch, every target of which a lookup table finds; of a text, the byte that follows.

    Raises:
        ValueError: a target that the tokens before it do not give (or that does not follow them in the text), with its
            row and position; blocks of a text that share bytes.
        TextError: the text cannot be read any more.
    """
    if isinstance(task, Text):
        return _follows(task, drawn)
    answers = solve(task, drawn.tokens, drawn.mask)
    wrong = np.argwhere(drawn.mask & (answers != drawn.targets))
    if len(wrong):
        n, t = wrong[0]
        found = "no answer, or several" if answers[n, t] == NONE else str(answers[n, t])
        raise ValueError(
            f"task {task}: row {n} asks for {drawn.targets[n, t]} at position {t}, where its tokens give {found}; "
            f"{len(wrong)} of {int(drawn.mask.sum())} targets cannot be derived from the input"
        )
    return drawn


def _follows(task: Text, drawn: Drawn) -> Drawn:
    """A batch of a text: each target is the token after it, and the last one is what the text has there."""
    assert task.source is not None
    for one, other in combinations(text.Blocks._fields, 2):
        a, b = (getattr(text.blocks(task.source), name) for name in (one, other))
        if np.shares_memory(a, b):  # blocks are parts of one array
            raise ValueError(
                f"task {task.anywhere}: its blocks {one} and {other} share bytes, expected each byte in one"
            )
    content = text.read(task.source)
    for n, (row, targets, mask) in enumerate(zip(*(x.tolist() for x in drawn), strict=True)):
        for t in (t for t in range(len(row)) if mask[t]):
            if t + 1 < len(row):
                right = targets[t] == row[t + 1]
            else:  # a row may occur more than once, and go on in more than one way
                right = 0 <= targets[t] < 256 and bytes([*row, targets[t]]) in content
            if not right:
                raise ValueError(
                    f"task {task.anywhere}: row {n} asks for {targets[t]} at position {t}, "
                    "which is not the byte that follows"
                )
    return drawn
