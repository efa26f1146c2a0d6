"""A scratch copy of the package with one edit in it: everything is a link but the file that is edited.

    with planted(fault) as tree:
        subprocess.run([sys.executable, "-m", "pytest", ...], env=surroundings(tree))

A Python process started with ``surroundings(tree)`` imports ``linattest`` from ``tree``, edit included, wherever it
runs and whatever is installed; the checkout is never touched. The oracle's cache is shared with it, since a cached
value depends on an operator's page and the inputs alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from linattest.verify.environment import ROOT
from linattest.verify.faults.bank import Fault

PACKAGE = "linattest"


@contextmanager
def planted(fault: Fault | None, under: Path | None = None) -> Iterator[Path]:
    """A folder to import the edited package from (the unedited one for ``None``), removed at the end.

    Args:
        under: where to make it; the system's temporary folder by default.

    Raises:
        BankError: the edit does not apply to today's source.
    """
    edits = {} if fault is None else {fault.file: fault.applied()}
    tree = Path(tempfile.mkdtemp(prefix="linattest-fault-", dir=under))
    try:
        build(tree, edits)
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def build(tree: Path, edits: dict[str, str]) -> None:
    """Make ``tree/linattest``: real folders down to the edited files, links to everything else."""
    target = tree / PACKAGE
    target.mkdir()
    for entry in ROOT.iterdir():
        if entry.suffix == ".py":  # a copy: through a link, Python would take the checkout for the package's place
            shutil.copy(entry, target / entry.name)
        elif entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry.resolve())
    for name, source in edits.items():
        folder = target
        for part in Path(name).parent.parts:
            folder = folder / part
            _open(folder)
        edited = target / name
        edited.unlink(missing_ok=True)
        edited.write_text(source, encoding="utf-8")


def _open(folder: Path) -> None:
    """Replace a link to a folder by a folder of links."""
    if not folder.is_symlink():
        return
    original = folder.resolve()
    folder.unlink()
    folder.mkdir()
    for entry in original.iterdir():
        if entry.name != "__pycache__":
            (folder / entry.name).symlink_to(entry)


def surroundings(tree: Path) -> dict[str, str]:
    """The environment of a process that imports the package from ``tree``: one thread, no compiled files left."""
    paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    return dict(
        os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONDONTWRITEBYTECODE="1", PYTHONSAFEPATH="1",
        OMP_NUM_THREADS="1",
    )  # fmt: skip


def imports_from(tree: Path) -> None:
    """Stop unless this very process has the package of ``tree``.

    Raises:
        RuntimeError: another one is imported, so that nothing said here would be about the edit.
    """
    place = Path(sys.modules[PACKAGE].__file__ or "").parent
    if place.resolve() != (tree / PACKAGE).resolve():
        raise RuntimeError(f"{PACKAGE} is imported from {place}, expected {tree / PACKAGE}")
