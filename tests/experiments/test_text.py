"""Text: what is read, blocks that share no byte, rows that ask for the byte that follows; faults in them are caught."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from linattest.impls.lm import IGNORED
from linattest.verify.experiments import text
from linattest.verify.experiments.solvers import checked
from linattest.verify.experiments.tasks import (
    ROLES,
    TEST,
    TRAIN,
    VALIDATION,
    Drawn,
    Task,
    Text,
    generator,
    roles,
)
from linattest.verify.experiments.text import TextError, bounds, find, read

STREAMS = pytest.mark.parametrize("stream", [TRAIN, VALIDATION, TEST], ids=["train", "validation", "test"])


@pytest.fixture(autouse=True)
def anew() -> None:
    """What another test read is read again."""
    read.cache_clear()


@pytest.fixture(scope="module")
def task() -> Text:
    """Rows of 16 to 48 bytes of the standard library."""
    return Text(length=16, most=3).reading(find())


def of_times(task: Text, times: int, *, whole: bool = False) -> Text:
    return msgspec.structs.replace(task, times=times, whole=whole)


# --- what is read ------------------------------------------------------------------------------------------------


def test_without_a_path_it_is_the_standard_library_the_same_every_time():
    found = find()
    assert found == find() and found.path == "" and found.name.startswith("Python ")
    content = read(found)
    assert len(content) == found.size == text.STANDARD_BYTES and hashlib.sha256(content).hexdigest() == found.sha256
    assert b"_Feature" in content[:10_000]  # __future__.py, the first


def test_a_folder_is_its_text_files_in_order(tmp_path: Path):
    (tmp_path / "below").mkdir()
    files = {"b.txt": b"two", "a.md": b"one", "below/c.TXT": b"three", "d.png": b"no", ".e.txt": b"no"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = find(tmp_path)
    assert read(found) == b"one\ntwo\nthree" and found.size == 13 and found.name == tmp_path.name
    other = find(tmp_path / "d.png")  # a file that is named is read, whatever its suffix
    assert read(other) == b"no" and other.anywhere.path == "" and other.anywhere.sha256 == other.sha256


def test_a_text_that_is_none_is_named_and_what_was_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TextError, match=f"no file or folder {tmp_path}/gone, expected text"):
        find(tmp_path / "gone")
    (tmp_path / "x.png").touch()
    with pytest.raises(TextError, match=f"folder {tmp_path} has no text, expected a file that ends in .*txt"):
        find(tmp_path)
    (tmp_path / "x.txt").touch()
    with pytest.raises(TextError, match=f"{tmp_path}/x.txt is empty"):
        find(tmp_path / "x.txt")
    monkeypatch.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(TextError, match=f"cannot read {tmp_path}/x.txt: Permission denied"):
        find(tmp_path / "x.txt")


def test_a_python_without_sources_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(TextError, match=f"{tmp_path} has no .*, expected the sources of Python's standard library"):
        find()


def test_a_text_that_changed_is_refused(tmp_path: Path):
    (tmp_path / "x.txt").write_bytes(b"before")
    found = find(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(b"after")
    with pytest.raises(TextError, match=f"x.txt has sha256 .*, expected {found.sha256}: it is another text"):
        read(found)


def test_a_text_too_short_for_the_longest_row_is_refused(tmp_path: Path):
    (tmp_path / "x.txt").write_bytes(b"x" * 979)
    given = Text(length=16, most=3)
    with pytest.raises(TextError, match="x.txt has 979 bytes, expected at least 980: the longest rows have 49"):
        given.reading(find(tmp_path / "x.txt"))
    (tmp_path / "x.txt").write_bytes(b"x" * 980)
    enough = of_times(given.reading(find(tmp_path / "x.txt")), 3)
    assert all(enough.draw(generator(0, stream), 2).tokens.shape == (2, 48) for stream in (TRAIN, VALIDATION, TEST))


# --- blocks and rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 19, 20, 1000, 4_194_304, 538_000_001])
def test_blocks_are_nine_tenths_and_twice_a_twentieth_and_share_nothing(size: int):
    train, validation, test = bounds(size)
    assert train[0] == 0 and train[1] == validation[0] and validation[1] == test[0] and test[1] == size
    assert abs(train[1] - 0.9 * size) <= 1 and abs(validation[1] - 0.95 * size) <= 1


@STREAMS
def test_rows_are_of_their_streams_block_and_of_the_settings_alone(task: Text, stream: int):
    assert task.source is not None
    first, last = bounds(task.source.size)[stream]
    block = read(task.source)[first:last]
    drawn, again = (of_times(task, 3).draw(generator(7, stream, 2), 64) for _ in range(2))
    assert all((a == b).all() for a, b in zip(drawn, again, strict=True))
    rows = [bytes([*row, targets[-1]]) for row, targets in zip(*(x.tolist() for x in drawn[:2]), strict=True)]
    assert all(row in block for row in rows) and len(set(rows)) > 60
    others = [task.draw(generator(*x), 64).tokens for x in ((8, stream, 2), (7, stream, 3), (7, (stream + 1) % 3, 2))]
    assert all((x != drawn.tokens[:, -16:]).any(1).mean() > 0.9 for x in others)


def test_tests_of_all_lengths_ask_for_the_same_bytes_with_more_before_them(task: Text):
    drawn = {n: of_times(task, n).draw(generator(0, TEST), 32) for n in (1, 2, 3)}
    whole = of_times(task, 3, whole=True).draw(generator(0, TEST), 32)
    for n, one in drawn.items():
        assert one.tokens.shape == (32, 16 * n) == (32, of_times(task, n).tokens)
        assert (one.targets[:, -16:] == drawn[1].targets).all() and (one.tokens == whole.tokens[:, -16 * n :]).all()
        assert one.mask[:, -16:].all() and not one.mask[:, :-16].any() and (one.targets[~one.mask] == IGNORED).all()
    assert whole.mask.all() and (whole.targets[:, :-1] == whole.tokens[:, 1:]).all()


def test_bytes_have_no_role_but_filler(task: Text):
    assert (roles(task, task.draw(generator(0, TEST), 2).tokens) == ROLES.index("filler")).all()


# --- planted faults ----------------------------------------------------------------------------------------------


@STREAMS
@pytest.mark.parametrize("times", [1, 3])
def test_what_is_drawn_passes_the_check(task: Text, stream: int, times: int):
    for given in (of_times(task, times), of_times(task, times, whole=True)):
        drawn = given.draw(generator(0, stream), 8)
        assert checked(given, drawn) is drawn


SHIFTS = {"not shifted": 0, "shifted by two": 2, "shifted backwards": -1}


@pytest.mark.parametrize("by", SHIFTS.values(), ids=list(SHIFTS))
def test_targets_that_are_not_the_next_byte_are_caught(task: Text, by: int):
    drawn = task.draw(generator(0, TRAIN), 8)
    wrong = Drawn(drawn.tokens, np.roll(drawn.tokens, -by, axis=1), drawn.mask)
    with pytest.raises(ValueError, match=r"row 0 asks for \d+ at position 0, which is not the byte that follows"):
        checked(task, wrong)


@pytest.mark.parametrize("last", [0, IGNORED, 256])
def test_a_last_target_that_the_text_has_not_is_caught(task: Text, last: int):
    """The row does not have it: the text must."""
    drawn = task.draw(generator(0, TRAIN), 8)
    drawn.targets[3, -1] = last
    with pytest.raises(ValueError, match=f"row 3 asks for {last} at position 15, which is not the byte that follows"):
        checked(task, drawn)


OVERLAPS = {
    "train and validation": ((0, 901), (900, 950), (950, 1000)),
    "train and test": ((0, 900), (900, 950), (850, 900)),
    "validation and test": ((0, 900), (900, 960), (950, 1000)),
}


@pytest.mark.parametrize(("names", "ends"), OVERLAPS.items(), ids=list(OVERLAPS))
def test_blocks_that_overlap_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, ends: tuple[tuple[int, int], ...]
):
    (tmp_path / "x.txt").write_bytes(bytes(range(250)) * 4)
    given = Text(length=4).reading(find(tmp_path / "x.txt"))
    drawn = given.draw(generator(0, TRAIN), 8)
    assert checked(given, drawn) is drawn
    monkeypatch.setattr(text, "bounds", lambda _: ends)
    with pytest.raises(ValueError, match=f"its blocks {names} share bytes, expected each byte in one"):
        checked(given, drawn)


# --- settings ----------------------------------------------------------------------------------------------------

BAD = [
    ({"length": 16, "vocab_size": 128}, "vocab_size is 128, expected 256: tokens are bytes"),
    ({"length": 0}, "length is 0, expected at least 1"),
    ({"length": 16, "most": 0}, "most is 0, expected at least 1"),
    ({"length": 16, "times": 6}, "times is 6, expected 1 to 5"),
    ({}, "length"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
def test_a_setting_out_of_range_is_named(given: dict[str, object], said: str):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert({"name": "text"} | given, Task)


def test_without_a_text_or_with_other_random_numbers_nothing_is_drawn(task: Text):
    with pytest.raises(ValueError, match="the task has no text, expected one: runs_of"):
        Text(length=16).draw(generator(0, TEST), 1)
    for sown in (0, [0, 3, 0]):
        with pytest.raises(ValueError, match=r"rng was made of .*, expected \[seed, stream, index\]"):
            task.draw(np.random.default_rng(sown), 1)
