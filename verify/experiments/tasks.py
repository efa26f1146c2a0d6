"""Synthetic tasks as data: settings, and a pure function from (settings, seed) to tokens, targets and a mask.

A task's ``draw`` makes rows of tokens [rows, T], the token that each position should predict [rows, T] (``IGNORED``
where nothing is asked), and the mask of what is asked. Whatever is asked can be derived from the tokens of the same
row up to that position: ``solvers`` does so by a lookup table, without sharing code with what is here, and
``checked`` refuses a batch that it does not answer entirely. (Generators of other projects drew fillers that repeat a
row's keys, so that a key had two values: HazyResearch/zoology#29.)

Text (``Text``) is the exception: nothing is to be derived, the next byte is to be predicted; what ``checked`` asks of
it is said there.

Seeds: training, validation and test rows come of streams that never meet (``generator``).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from linattest.impls.lm import IGNORED
from linattest.verify.experiments import text

Array = np.ndarray
TRAIN, VALIDATION, TEST = range(3)
"""Streams of random numbers; the third number of a seed."""


class Drawn(NamedTuple):
    """tokens, targets: int64 [rows, T]; mask: bool [rows, T], where something is asked."""

    tokens: Array
    targets: Array
    mask: Array


def generator(seed: int, stream: int, index: int = 0) -> np.random.Generator:
    """Random numbers of one batch: those of other seeds, streams and indices are independent of them."""
    return np.random.default_rng([seed, stream, index])


def check(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raise ``ValueError`` naming the setting, unless least <= value (<= most)."""
    if value < least or (most is not None and value > most):
        expected = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {value}, expected {expected}")


class _Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name"):
    """What all tasks share; ids 0 to vocab_size - 1."""

    vocab_size: int = 128

    @property
    def tokens(self) -> int:
        """T, tokens in a row."""
        raise NotImplementedError

    @property
    def anywhere(self) -> _Task:
        """The task without what depends on the machine: of which a run's hash is made."""
        return self

    def draw(self, rng: np.random.Generator, rows: int) -> Drawn:
        """Rows of the task. Roles of the ids are those of ``roles``."""
        raise NotImplementedError


class Mqar(_Task, frozen=True, kw_only=True, tag="mqar"):
    """Multi-query associative recall: k1 v1 .. kn vn, fillers, (SEP), then every key once more, in another order.

    At each of these last keys its value is asked. Keys are distinct, of the lower half of the ids; values of the upper
    half. ``separator``: the form of [VLA], whose last id is SEP and where nothing is filled up unless ``length`` says
    so; without, the form of [AdaptiveDecay]. Fillers are any ids but the row's own keys (and SEP).
    """

    pairs: int
    length: int | None = None
    separator: bool = True

    def __post_init__(self) -> None:
        check("vocab_size", self.vocab_size, 4)
        check("pairs", self.pairs, 1, self.vocab_size // 2)
        if self.length is not None:
            check("length", self.length, self._needed)

    @property
    def _needed(self) -> int:
        return 3 * self.pairs + self.separator

    @property
    def tokens(self) -> int:
        """T = 3 pairs + 1 with a separator, unless ``length`` says more."""
        return self._needed if self.length is None else self.length

    def draw(self, rng: np.random.Generator, rows: int) -> Drawn:
        """As ``_Task.draw``."""
        n, half, end = self.pairs, self.vocab_size // 2, self.vocab_size - self.separator
        shuffled = rng.permuted(np.tile(np.arange(half), (rows, 1)), axis=1)
        keys, others = shuffled[:, :n], shuffled[:, n:]
        values = rng.integers(half, end, (rows, n))
        order = rng.permuted(np.tile(np.arange(n), (rows, 1)), axis=1)
        stored = np.stack([keys, values], -1).reshape(rows, 2 * n)
        fill = fillers(rng, others, np.arange(half, end), self.tokens - self._needed)
        sep = np.full((rows, int(self.separator)), end)
        tokens = np.concatenate([stored, fill, sep, np.take_along_axis(keys, order, 1)], 1)
        return asked(tokens, np.take_along_axis(values, order, 1))


def fillers(rng: np.random.Generator, unused_keys: Array, values: Array, count: int) -> Array:
    """[rows, count] ids, each of the row's unused keys or of all values: never a key of the row."""
    rows, free = unused_keys.shape
    pick = rng.integers(0, free + len(values), (rows, count))
    return np.take_along_axis(np.concatenate([unused_keys, np.tile(values, (rows, 1))], 1), pick, 1)


class Copy(_Task, frozen=True, kw_only=True, tag="copy"):
    """x1 .. xn SEP x1 .. x(n-1), where from SEP on the next x is asked; length = 2 n, SEP is the last id."""

    length: int

    def __post_init__(self) -> None:
        check("vocab_size", self.vocab_size, 2)
        check("length", self.length, 2)
        if self.length % 2:
            raise ValueError(f"length is {self.length}, expected an even number: what is copied, twice")

    @property
    def tokens(self) -> int:
        """T = length."""
        return self.length

    def draw(self, rng: np.random.Generator, rows: int) -> Drawn:
        """As ``_Task.draw``."""
        content = rng.integers(0, self.vocab_size - 1, (rows, self.length // 2))
        sep = np.full((rows, 1), self.vocab_size - 1)
        return asked(np.concatenate([content, sep, content[:, :-1]], 1), content)


class SelectiveCopy(_Task, frozen=True, kw_only=True, tag="selective_copy"):
    """``items`` ids at random places among noise (id 0), then as many markers (last id): the ids, in their order."""

    items: int
    length: int

    def __post_init__(self) -> None:
        check("vocab_size", self.vocab_size, 3)
        check("items", self.items, 1)
        check("length", self.length, 2 * self.items)

    @property
    def tokens(self) -> int:
        """T = length."""
        return self.length

    def draw(self, rng: np.random.Generator, rows: int) -> Drawn:
        """As ``_Task.draw``."""
        before = self.length - self.items
        places = np.sort(rng.permuted(np.tile(np.arange(before), (rows, 1)), axis=1)[:, : self.items], axis=1)
        content = rng.integers(1, self.vocab_size - 1, (rows, self.items))
        noise = np.zeros((rows, before), dtype=np.int64)
        np.put_along_axis(noise, places, content, 1)
        markers = np.full((rows, self.items), self.vocab_size - 1)
        return asked(np.concatenate([noise, markers], 1), content)


class Passkey(_Task, frozen=True, kw_only=True, tag="passkey"):
    """A needle in a haystack: hay, NEEDLE d1 .. dm, hay, QUERY d1 .. d(m-1), where from QUERY on the next d is asked.

    Digits are ids 0 to 9, NEEDLE and QUERY the last two ids, hay the others: a phrase of ``phrase`` ids, drawn anew for
    every row and said over and over (S-NIAH-1's noise), or with ``phrase`` 0 random ids. The depth is uniform.
    """

    digits: int = 5
    length: int
    phrase: int = 8

    def __post_init__(self) -> None:
        check("vocab_size", self.vocab_size, 13)
        check("digits", self.digits, 1)
        check("length", self.length, 2 * self.digits + 1)
        check("phrase", self.phrase, 0)

    @property
    def tokens(self) -> int:
        """T = length."""
        return self.length

    def draw(self, rng: np.random.Generator, rows: int) -> Drawn:
        """As ``_Task.draw``."""
        m, count = self.digits, self.length - 2 * self.digits - 1
        hay = rng.integers(10, self.vocab_size - 2, (rows, self.phrase or count))
        hay = hay[:, np.arange(count) % hay.shape[1]] if count else hay[:, :0]
        key = rng.integers(0, 10, (rows, m))
        needle = np.concatenate([np.full((rows, 1), self.vocab_size - 2), key], 1)
        # each row's needle at its own depth: where the ids lie in (hay, needle) put one after the other
        depth = rng.integers(0, count + 1, (rows, 1))
        at = np.arange(count + m + 1)
        source = np.where(at < depth, at, np.where(at <= depth + m, count + at - depth, at - m - 1))
        context = np.take_along_axis(np.concatenate([hay, needle], 1), source, 1)
        query = np.full((rows, 1), self.vocab_size - 1)
        return asked(np.concatenate([context, query, key[:, :-1]], 1), key)


class Text(_Task, frozen=True, kw_only=True, tag="text"):
    """Bytes of a text, each to predict the next; rows of ``times`` * ``length`` bytes from the stream's own block.

    Only the last ``length`` bytes of a row are asked, unless it is ``whole``. Rows end anywhere where one of ``most``
    * ``length`` bytes would end: so tasks that differ in ``times`` ask, of the same random numbers, for the same bytes,
    and what differs is how much stands before them. ``source``: the text, which no recipe has (``reading`` gives it).
    """

    vocab_size: int = 256
    length: int
    times: int = 1
    most: int = 5
    whole: bool = False
    source: text.Source | None = None

    def __post_init__(self) -> None:
        if self.vocab_size != 256:
            raise ValueError(f"vocab_size is {self.vocab_size}, expected 256: tokens are bytes")
        check("length", self.length, 1)
        check("most", self.most, 1)
        check("times", self.times, 1, self.most)

    @property
    def tokens(self) -> int:
        """T = times * length."""
        return self.times * self.length

    @property
    def anywhere(self) -> Text:
        """Without the text's path; its hash stays."""
        return msgspec.structs.replace(self, source=self.source and self.source.anywhere)

    def reading(self, source: text.Source) -> Text:
        """The task on this text. Raises ``TextError`` if one of its blocks is shorter than the longest row."""
        text.check_room(source, self._needed)
        return msgspec.structs.replace(self, source=source)

    @property
    def _needed(self) -> int:
        return self.most * self.length + 1

    def draw(self, rng: np.random.Generator, rows: int) -> Drawn:
        """As ``_Task.draw``, of random numbers that ``generator`` made: their stream says which block is read.

        Raises ``ValueError`` without a text or for other random numbers, ``TextError`` as ``text.read``.
        """
        if self.source is None:
            raise ValueError("the task has no text, expected one: runs_of(recipe, seeds, text=text.find())")
        block = text.block_of(self.source, rng)
        ends = rng.integers(self._needed, len(block) + 1, (rows, 1))
        row = block[ends + np.arange(-self.tokens - 1, 0)]
        tokens, following = row[:, :-1], row[:, 1:]
        return asked(tokens, following if self.whole else following[:, -self.length :])


Task = Mqar | Copy | SelectiveCopy | Passkey | Text


def asked(tokens: Array, answers: Array) -> Drawn:
    """A batch in which the last positions of each row ask for these answers."""
    targets = np.full(tokens.shape, IGNORED, dtype=np.int64)
    targets[:, tokens.shape[1] - answers.shape[1] :] = answers
    return Drawn(tokens.astype(np.int64), targets, targets != IGNORED)


def roles(task: Task, tokens: Array) -> Array:
    """What each token is, int64 [rows, T] into ``ROLES``: for maps of what a model does with which token.

    Bytes of a text are fillers all.
    """
    names = np.full(tokens.shape, ROLES.index("filler"))
    n = task.pairs if isinstance(task, Mqar) else 0
    if isinstance(task, Mqar):
        names[:, 0 : 2 * n : 2], names[:, 1 : 2 * n : 2] = ROLES.index("key"), ROLES.index("value")
        names[:, -n:] = ROLES.index("query")
    elif isinstance(task, Passkey):
        names[tokens < 10] = ROLES.index("value")
        names[tokens == task.vocab_size - 2] = ROLES.index("key")
        names[:, -task.digits :] = ROLES.index("query")
    elif isinstance(task, SelectiveCopy):
        names[(tokens > 0) & (tokens < task.vocab_size - 1)] = ROLES.index("value")
        names[tokens == task.vocab_size - 1] = ROLES.index("query")
    elif isinstance(task, Copy):
        names[:, : task.length // 2], names[:, task.length // 2 :] = ROLES.index("value"), ROLES.index("query")
    return names


ROLES = ("key", "value", "filler", "query")
