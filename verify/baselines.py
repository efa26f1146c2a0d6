"""Where a snapshot to compare with comes from: the package's own files, a revision of the checkout, or a file.

Of several, the one of this fingerprint class is taken, or else the nearest, which can only advise.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from linattest.verify.environment import ROOT
from linattest.verify.snapshots import Fingerprint, Snapshot, decode

FOLDER = (ROOT / "verify" / "data" / "snapshots").resolve()
"""Where snapshots are committed, one file a fingerprint class."""


class Missing(LookupError):
    """There is nothing to compare with; the message says what there is, or what to do."""


@dataclass(frozen=True)
class Baseline:
    """A snapshot, the words for where it is from, and whether it is of this machine's class."""

    snapshot: Snapshot
    source: str
    same: bool


def find(wanted: str | None, ours: Fingerprint) -> Baseline:
    """The baseline that somebody asked for.

    Args:
        wanted: a file, else a revision; ``None`` for the files of the package.

    Raises:
        ValueError: neither a file nor a revision, or no snapshot in it.
        Missing: no git, or the place has no snapshots.
    """
    if wanted is None:
        found = {f"{path.name}": path.read_bytes() for path in sorted(FOLDER.glob("*.json"))}
        where = "the package"
    elif Path(wanted).is_file():
        found, where = {wanted: Path(wanted).read_bytes()}, ""
    else:
        found, where = _of_revision(wanted), wanted
    if not found:
        raise Missing(f"{where} has no snapshots: `linattest diff --update` makes one of this machine's class")
    snapshots = {(f"{name} of {where}" if where else name): decode(text, name) for name, text in found.items()}
    source, snapshot = max(snapshots.items(), key=lambda item: item[1].fingerprint.shared(ours))
    return Baseline(snapshot, source, snapshot.fingerprint == ours)


def path_of(ours: Fingerprint) -> Path:
    """The file of the package for this class, whether it exists or not."""
    return FOLDER / f"{ours.name}.json"


def committed(ours: Fingerprint) -> Snapshot | None:
    """What the package has for exactly this class.

    Raises:
        ValueError: the file is no snapshot.
    """
    path = path_of(ours)
    return decode(path.read_bytes(), str(path)) if path.exists() else None


def _of_revision(revision: str) -> dict[str, bytes]:
    """The snapshots of a revision, by file name."""
    try:
        _git("rev-parse", "--git-dir")
    except (OSError, subprocess.CalledProcessError) as error:
        raise Missing(f"{revision!r} is no file, and revisions need git and a checkout of linattest") from error
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError as error:
        raise ValueError(f"{revision!r} is neither a file nor a revision of the checkout") from error
    listed = _git("ls-tree", "-z", "--name-only", commit, "./data/snapshots/").decode().split("\0")
    names = [Path(name).name for name in listed if name.endswith(".json")]
    return {name: _git("show", f"{commit}:./data/snapshots/{name}") for name in sorted(names)}


def _git(*arguments: str) -> bytes:
    """What git prints, in the folder of the harness."""
    command = ["git", "-C", str(FOLDER.parents[1]), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout
