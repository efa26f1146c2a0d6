"""What a worker does with one job, and how its answer comes home: records, and the replay bundles of failures."""

from __future__ import annotations

import shlex
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from linattest.verify.environment import source_hash
from linattest.verify.executors import check_sources
from linattest.verify.grids import Job
from linattest.verify.records import Record

Judge = Callable[[Job, tuple[str, ...], Path | None], list[Record]]


class Answer(msgspec.Struct, frozen=True):
    """What a worker sends: the records of a job, and the replay bundles of its failures by the path they had there."""

    records: list[Record]
    bundles: dict[str, bytes] = {}


_ALONE = threading.Lock()
"""The oracle's precision belongs to the process, so a worker with several threads does one job at a time."""


def work(judge: Judge, job: Job, variants: tuple[str, ...], keep: bool, sources: str | None = None) -> Answer:
    """Run one job where this is called. ``sources`` is the hash that this place must have, if it may be another.

    Raises:
        Unavailable: it has another.
    """
    with _ALONE:
        if sources is not None:
            check_sources(source_hash(), sources, "a worker")
            torch.set_num_threads(1)
        if not keep:
            return Answer(judge(job, variants, None))
        with tempfile.TemporaryDirectory() as folder:
            records = judge(job, variants, Path(folder))
            return Answer(records, {str(path): path.read_bytes() for path in Path(folder).iterdir()})


def come_home(answer: Answer, folder: Path | None) -> list[Record]:
    """The records, with their bundles in a folder of this machine and the commands that replay them from there."""
    records = list(answer.records)
    if folder is None:
        return records
    for there, content in answer.bundles.items():
        here = folder / Path(there).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            here.write_bytes(content)
            note = f"--replay {shlex.quote(str(here))}"
        except OSError as error:  # the failure matters more than its bundle
            note = f"(no bundle: {error})"
        command = {r.key: r.replay.partition("--replay ")[0] if note.startswith("--") else "" for r in records}
        records = [
            msgspec.structs.replace(r, replay=command[r.key] + note) if there in r.replay else r for r in records
        ]
    return records
