"""Baselines: which snapshot is compared with, of the package's files, a revision's, or one that is named."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from linattest.verify import baselines
from linattest.verify.baselines import Missing, find
from linattest.verify.snapshots import Entry, Fingerprint, Snapshot, encode

OURS = Fingerprint(arch="x86_64", cpu="AVX2", device="cpu", torch="2.13.0", triton="3.9.0")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The package's snapshots, in a folder of the test's own."""
    path = tmp_path / "verify" / "data" / "snapshots"
    path.mkdir(parents=True)
    monkeypatch.setattr(baselines, "FOLDER", path)
    return path


def write(folder: Path, ratio: float = 2.0, of: Fingerprint = OURS) -> Snapshot:
    """A snapshot of one entry of this class, written to its file."""
    entry = Entry(
        operator="linear", variant="chunk", dtype="float32", family="random", direction="forward", ratio=ratio,
        measured=ratio, seed=0, case="0" * 16, seeds=40,
    )  # fmt: skip
    made = Snapshot(fingerprint=of, entries=[entry])
    (folder / f"{made.fingerprint.name}.json").write_text(encode(made))
    return made


def test_file_of_this_class_is_taken(folder: Path):
    others: list[dict[str, str | None]] = [{"cpu": "AAA"}, {"torch": "2.14.0"}, {"triton": None}, {"device": "GPU"}]
    for other in others:
        write(folder, of=msgspec.structs.replace(OURS, **other))
    held = write(folder)
    found = find(None, OURS)
    assert found.same and found.snapshot == held and found.source == f"{OURS.name}.json of the package"


def test_nearest_class_is_taken_where_there_is_none_of_this(folder: Path):
    """A device's own history is nearer than one of the same versions."""
    for other in ({"torch": "2.14.0"}, {"device": "GPU"}, {"arch": "arm64", "cpu": "SVE"}):
        write(folder, of=msgspec.structs.replace(OURS, **other))
    found = find(None, OURS)
    assert not found.same and found.snapshot.fingerprint.torch == "2.14.0"


def test_file_of_this_class_has_the_name_it_is_looked_for_by(folder: Path):
    assert baselines.committed(OURS) is None
    held = write(folder)
    assert baselines.path_of(OURS).exists() and baselines.committed(OURS) == held


def test_revision_is_read_from_git_and_not_from_the_folder(folder: Path, tmp_path: Path):
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "nothing")
    committed = write(folder, 5.0)
    git("add", "verify")
    git("commit", "-m", "snapshot")
    changed = write(folder, 7.0)
    assert find("HEAD", OURS).snapshot == committed and find(None, OURS).snapshot == changed
    assert find("HEAD", OURS).source == f"{OURS.name}.json of HEAD"
    assert find(str(baselines.path_of(OURS)), OURS).snapshot == changed
    with pytest.raises(Missing, match="HEAD~1 has no snapshots"):
        find("HEAD~1", OURS)
    for unknown in ("nosuch", "--all", "HEAD~2"):
        with pytest.raises(ValueError, match=f"'{unknown}' is neither a file nor a revision"):
            find(unknown, OURS)


def test_nothing_to_compare_with_says_what_to_do(folder: Path):
    with pytest.raises(Missing, match="the package has no snapshots: `linattest diff --update`"):
        find(None, OURS)
    with pytest.raises(Missing, match="'HEAD' is no file, and revisions need git and a checkout"):
        find("HEAD", OURS)


def test_file_that_is_no_snapshot_is_named(folder: Path):
    (folder / "spoilt.json").write_text("{}")
    with pytest.raises(ValueError, match="spoilt.json is not a snapshot"):
        find(None, OURS)
