"""Text as bytes: a file, a folder, or without either what ships with Python; its hash, and the blocks it is cut into.

The first 90% of the bytes are trained on, the next 5% are for validation, the last 5% for tests: one block each, so
that no byte is in two of them. (Of a folder that are its last files, which are of a kind with the others or not.)
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

SUFFIXES = (".json", ".jsonl", ".md", ".py", ".raw", ".rst", ".tokens", ".txt")
"""What is read of a folder; WikiText is .tokens or .raw, LongBench .jsonl. A file that is named itself may be any."""

STANDARD_BYTES = 4 << 20
"""So much is read of the standard library."""


class TextError(ValueError):
    """A text that cannot be used; the message names the path and what was expected."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which text: the last part of its path, its bytes, the sha256 of them all. ``path`` "": the standard library."""

    name: str
    size: int
    sha256: str
    path: str = ""

    @property
    def anywhere(self) -> Source:
        """The same text without its place: for what is kept or hashed, which holds on other machines too."""
        return msgspec.structs.replace(self, path="")


class Blocks(NamedTuple):
    """Three blocks of a text, uint8 [bytes], in the order of the streams of ``tasks``."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def find(path: Path | None = None) -> Source:
    """The text of a file or folder; without a path the sources of Python's standard library.

    Of a folder: all files with a text's suffix (``SUFFIXES``), also in folders below, in the order of their relative
    paths, a newline between two; nothing whose name begins with a dot.

    Raises:
        TextError: no such path, one that cannot be read, a folder without text, no byte at all.
    """
    place = "" if path is None else str(path.absolute())
    content = _joined(_files(place), place)
    name = f"Python {platform.python_version()} standard library" if path is None else path.absolute().name
    return Source(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest(), path=place)


@lru_cache(maxsize=1)
def read(source: Source) -> bytes:
    """All bytes of the text, read once a process.

    Raises:
        TextError: as ``find``, or the text is not what it was.
    """
    content = _joined(_files(source.path), source.path)
    if (now := hashlib.sha256(content).hexdigest()) != source.sha256:
        raise TextError(
            f"text {source.path or source.name} has sha256 {now}, expected {source.sha256}: it is another text than "
            "when the run was begun"
        )
    return content


def blocks(source: Source) -> Blocks:
    """The text, cut in three. Raises ``TextError`` as ``read``."""
    content = np.frombuffer(read(source), np.uint8)
    return Blocks(*(content[first:last] for first, last in bounds(len(content))))


def bounds(size: int) -> tuple[tuple[int, int], ...]:
    """Where each block of a text of so many bytes begins and ends (exclusive)."""
    first, second = size * 18 // 20, size * 19 // 20
    return (0, first), (first, second), (second, size)


def block_of(source: Source, rng: np.random.Generator) -> np.ndarray:
    """The block, uint8 [bytes], of the stream for which ``tasks.generator`` made these random numbers.

    Raises:
        ValueError: they are not of it.
        TextError: as ``read``.
    """
    sown = getattr(rng.bit_generator.seed_seq, "entropy", None)
    if not isinstance(sown, list) or len(sown) != 3 or sown[1] not in range(len(Blocks._fields)):
        raise ValueError(f"rng was made of {sown}, expected [seed, stream, index], as tasks.generator does")
    return blocks(source)[sown[1]]


def check_room(source: Source, row: int) -> None:
    """Raise ``TextError`` if the shorter blocks, a 20th of the text, are shorter than a row of so many bytes."""
    if source.size < 20 * row:
        raise TextError(
            f"text {source.path or source.name} has {source.size} bytes, expected at least {20 * row}: the longest "
            f"rows have {row}, and a 20th of the text is for tests"
        )


def _files(place: str) -> list[Path]:
    if not place:
        folder = Path(sysconfig.get_paths()["stdlib"])
        # what the build of this Python wrote differs from machine to machine
        files = sorted(p for p in folder.glob("*.py") if not p.name.startswith("_sysconfigdata"))
        if not files:
            raise TextError(f"{folder} has no *.py, expected the sources of Python's standard library: give a text")
        return files
    path = Path(place)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TextError(f"no file or folder {path}, expected text")
    found = sorted(
        (p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file() and not _hidden(p, path)),
        key=lambda p: p.relative_to(path).as_posix(),
    )
    if not found:
        raise TextError(f"folder {path} has no text, expected a file that ends in {', '.join(SUFFIXES)}")
    return found


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _joined(files: list[Path], place: str) -> bytes:
    parts: list[bytes] = []
    for file in files:
        try:
            parts.append(file.read_bytes())
        except OSError as error:
            raise TextError(f"cannot read {file}: {error.strerror}") from error
    content = b"\n".join(parts)
    if not content.strip(b"\n"):
        raise TextError(f"{place} is empty, expected text")
    return content if place else content[:STANDARD_BYTES]
