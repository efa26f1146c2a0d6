"""The file of records: nothing written is lost, nothing is in it twice, one campaign at a time writes to it."""

import errno
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import LOST, InUse, Journal, Record, append, canonical, read


@pytest.fixture(scope="module")
def found() -> list[Record]:
    case = Case(operator="linear", structure=Structure(T=4, K=2, V=2), gradient=False)
    return examine(Job(case))


def test_records_come_back_as_they_were_written(tmp_path: Path, found: list[Record]):
    packed = Structure(T=4, K=2, V=2, initial_state=True, cu_seqlens=(0, 1, 3))
    records = found + examine(Job(Case(operator="linear", structure=packed, seed=1)))
    awkward = msgspec.structs.replace(records[0], ratio=None, ratios={"o": None}, message="line\nbreak, \u2028, é")
    append(tmp_path / "deep" / "records.jsonl", records)
    append(tmp_path / "deep" / "records.jsonl", [awkward])
    assert list(read(tmp_path / "deep" / "records.jsonl")) == [*records, awkward]


@pytest.mark.parametrize("cut", [1, 2, 50, -1])
def test_last_line_cut_short_is_passed_over(tmp_path: Path, cut: int, found: list[Record]):
    path = tmp_path / "records.jsonl"
    append(path, found)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.split(b"\n")[0][:cut])
    assert list(read(path)) == found


def test_records_after_a_line_cut_short_are_kept(tmp_path: Path, found: list[Record]):
    """A resumed campaign goes on in the same file."""
    path = tmp_path / "records.jsonl"
    append(path, found)
    path.write_bytes(path.read_bytes()[:-20])
    append(path, found)
    assert list(read(path)) == [*found[:-1], *found]


def test_damaged_line_before_the_last_is_an_error_that_names_it(tmp_path: Path, found: list[Record]):
    path = tmp_path / "records.jsonl"
    append(path, found)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:30], *lines[2:]]))
    for look in (lambda: list(read(path)), lambda: Journal(path, unique=True)):
        with pytest.raises(ValueError, match=r"records.jsonl, line 2"):
            look()


def test_every_append_is_on_disk_when_it_returns(tmp_path: Path, found: list[Record]):
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        for i, record in enumerate(found, start=1):
            journal.append([record])
            assert list(read(path)) == found[:i]


def test_unique_journal_keeps_the_last_record_of_a_key(tmp_path: Path, found: list[Record]):
    """What runs again takes the place of what it was: an old one, an error, the note that all was lost."""
    path, (first, *rest) = tmp_path / "records.jsonl", found
    older = msgspec.structs.replace(first, message="older", status="error")
    lost = msgspec.structs.replace(first, variant=LOST, what="harness", status="error")
    append(path, [older, *rest, lost])
    with Journal(path, unique=True) as journal:
        assert set(journal.held) == {r.key for r in (older, *rest, lost)}
        assert list(read(path)) == [older, *rest, lost]  # until there is a better one
        journal.append([first])
    assert list(read(path)) == [*rest, first]
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_duplicates_of_an_earlier_run_go_when_the_file_is_closed(tmp_path: Path, found: list[Record]):
    path = tmp_path / "records.jsonl"
    append(path, [*found, *found])
    Journal(path, unique=True).close()
    assert canonical(read(path)) == canonical(found)
    append(path, found)  # a plain one keeps every run
    assert len(list(read(path))) == 2 * len(found)


@pytest.mark.parametrize("unique", [False, True])
def test_second_writer_is_refused_until_the_first_is_done(tmp_path: Path, unique: bool, found: list[Record]):
    path = tmp_path / "records.jsonl"
    append(path, [*found, *found])
    with Journal(path, unique=unique):
        for _ in range(2):
            with pytest.raises(InUse, match=r"another campaign is writing to .*records.jsonl"):
                Journal(path)
    Journal(path).close()


def test_failed_append_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[Record]):
    """The disk is full after a part of the second line."""
    path = tmp_path / "records.jsonl"

    class Full(io.FileIO):
        room = 1500

        def write(self, data: Any) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = super().write(bytes(data)[: self.room])
            self.room -= written
            return written

    append(path, found[:1])
    monkeypatch.setattr("linattest.verify.records.io.FileIO", Full)
    with Journal(path) as journal, pytest.raises(OSError, match="No space left"):
        journal.append(found)
    assert path.read_bytes().endswith(b"\n") and list(read(path)) == found[:1]


def test_what_is_no_regular_file_is_refused():
    with pytest.raises(OSError, match="/dev/null is no regular file"):
        Journal(Path("/dev/null"))
