"""What is looked at before any run begins: whether models can be built, where checkpoints go, which are there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linattest.verify.experiments import models
from linattest.verify.experiments.recipe import Trained
from linattest.verify.experiments.training import Run, finished, state_of


def unbuilt(recipe: Trained, backend: str) -> str:
    """The first model that cannot be built, and what it said; "" if all can. Each run would end by that, one by one."""
    vocab_size = next(iter(recipe.tasks.values())).vocab_size
    for model in recipe.models:
        try:
            models.build(model, recipe.shape, vocab_size, recipe.longest, seed=0, backend=backend)
        except Exception as error:  # whatever a layer raises, and torch where memory does not suffice
            return f"model {model.name}: {error or type(error).__name__}"
    return ""


def unwritable(folder: Path) -> str:
    """Why no file can be written in a folder, "" if one can; the folder is made."""
    if folder.exists() and not folder.is_dir():
        return "it is a file, expected a folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".tried-"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


@dataclass(frozen=True)
class Kept:
    """Of so many ``runs``: how many are ``done``, and how many have a checkpoint that they go on from."""

    runs: int
    done: int
    begun: int

    def __bool__(self) -> bool:
        return self.done + self.begun > 0


def kept(runs: Sequence[Run], folder: Path) -> Kept:
    """What earlier runs left in the folder; what cannot be decoded, and is begun anew, does not count."""
    found = [_kept(run.key, folder) for run in runs]
    return Kept(len(runs), found.count("done"), found.count("begun"))


def _kept(key: str, folder: Path) -> str:
    try:
        if finished(folder / f"{key}.json") is not None:
            return "done"
        return "begun" if state_of(folder / f"{key}.pt", "cpu") is not None else ""
    except OSError:  # its run will say so
        return ""
