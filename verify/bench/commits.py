"""Which commit a record is of: one that exists, that a published branch has, and whose sources were measured.

asv keys a result by its commit alone and leaves out, with a warning at most, what is on no branch it publishes; so
that is an error here, before anything is filed.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

HASH = re.compile(r"[0-9a-f]{7,40}")


class Misfit(ValueError):
    """A record that cannot be filed under the commit that was named; the message says what to do."""


@dataclass(frozen=True)
class Commit:
    """A commit by its whole hash, and when it was authored (milliseconds since 1970, as asv keeps it)."""

    hash: str
    date: int


def git(root: Path, *arguments: str) -> bytes:
    """What git prints; ``Misfit`` with its last words where it fails."""
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise Misfit("git is not installed: commits cannot be looked up") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise Misfit(f"git {arguments[0]}: {said[-1]}") from error


def named(found: Any, given: str | None) -> str:
    """The name of the commit: the one given, or else what the record says, if that is a commit and nothing beside it.

    Raises:
        Misfit: neither says.
    """
    if given is not None:
        return given
    said = str(found or "unknown")
    if not HASH.fullmatch(said):
        raise Misfit(f"the record's own commit is {said!r}: name the one whose sources were measured, --commit HASH")
    return said


def resolve(root: Path, name: str, branches: Sequence[str]) -> Commit:
    """The commit of that name.

    Args:
        root: the checkout.
        branches: one of them must have it on its first-parent line, which is what is published.

    Raises:
        Misfit: there is none, or no branch has it.
    """
    try:
        found = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    except Misfit as error:
        raise Misfit(f"no commit {name!r} in {root}: it must be there (git fetch?) before it is filed") from error
    for branch in branches:
        if found in git(root, "rev-list", "--first-parent", known(root, branch), "--").decode().split():
            return Commit(found, int(git(root, "show", "--no-patch", "--format=%at", found).decode()) * 1000)
    raise Misfit(
        f"commit {found[:12]} is not on the first-parent line of {' or '.join(branches)}, and only that is published: "
        "measure it again once it is merged, or name its branch in benchmarks/asv.conf.json"
    )


def known(root: Path, branch: str) -> str:
    """A branch as this checkout knows it: a checkout of one commit alone, as CI makes it, has no branch of its own.

    Raises:
        Misfit: it does not know it.
    """
    for name in (branch, f"origin/{branch}"):
        try:
            git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except Misfit:
            continue
        return name
    raise Misfit(f"{root} has neither a branch {branch!r} nor origin/{branch}, and only what is on it is published")


def source_hash(root: Path, commit: Commit, folders: Sequence[str]) -> str:
    """Hash of the Python files of these folders at a commit, as records have it of the files that were measured."""
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "--format=tar", commit.hash))) as tree:
        files = {PurePosixPath(m.name): m for m in tree.getmembers() if m.isfile() and m.name.endswith(".py")}
        digest = hashlib.sha256()
        for folder in folders:
            for path in sorted(path for path in files if path.parts[0] == folder):
                content = tree.extractfile(files[path])
                digest.update(path.name.encode() + (content.read() if content else b""))
    return digest.hexdigest()[:16]


def check_sources(root: Path, commit: Commit, measured: str, folders: Sequence[str]) -> None:
    """That the files which were measured are those of the commit.

    Raises:
        Misfit: they are not.
    """
    there = source_hash(root, commit, folders)
    if there != measured:
        raise Misfit(
            f"the record was made of other sources ({measured}) than commit {commit.hash[:12]} has in "
            f"{', '.join(folders)} ({there}): name the commit that was measured; --unverified files it nonetheless"
        )
