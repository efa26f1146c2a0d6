"""What ``linattest check`` does once its arguments are known to be well formed: the part that needs torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from linattest.verify.check import Result, examine_subject
from linattest.verify.commands.codes import FAILED, INTERRUPTED, NOTHING, OK
from linattest.verify.commands.common import with_progress
from linattest.verify.examine import replay as replay_bundle
from linattest.verify.executors import default_workers, local_executor
from linattest.verify.peers import Preset, missing, runnable
from linattest.verify.records import Record, append
from linattest.verify.report.check import WIDTH, page, to_json
from linattest.verify.subject import SubjectError

WARNING = "This runs the given code, with your rights:"


@contextmanager
def aside() -> Iterator[None]:
    """What the given code prints goes to stderr meanwhile, that of processes started here too: stdout is the page's."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def judge(
    console: Console, presets: list[Preset], *, peer: str | None, as_json: bool, strict: bool, workers: int | None,
    records: Path | None = None, **knobs: Any,
) -> int:  # fmt: skip
    """Judge functions one after another, each page printed when it is there; the exit code of them all.

    ``records`` gets what was found, for ``linattest report``; whether it can be written is tried before anything runs.
    """
    _add(records, [])
    results = [_judge(console, preset, workers or default_workers(), strict, **knobs) for preset in presets]
    _add(records, [record for result in results for record in result.kept()])
    if as_json:
        found = [to_json(result) for result in results]
        print(
            json.dumps(
                found[0] if peer is None else {"schema": 1, "peer": peer, "subjects": found}, indent=2, allow_nan=False
            )
        )
    return status(results)


def _add(path: Path | None, records: list[Record]) -> None:
    try:
        if path is not None:
            append(path, records)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror or error}", param_hint="--records") from error


def status(results: list[Result]) -> int:
    """The exit code of what was judged."""
    if any(result.interrupted for result in results):
        return INTERRUPTED
    if any(result.failed or result.died for result in results):
        return FAILED
    return OK if results and all(result.records for result in results) else NOTHING


def again(console: Console, path: Path, as_json: bool) -> int:
    """Run a bundle again; the exit code says whether it still fails."""
    say(console, f"{WARNING} the function that {path} names")
    try:
        with aside():
            records = replay_bundle(path)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--replay") from error
    for record in records:
        text = record.message if record.failed else f"passes now, ratio {record.ratio}"
        say(console, f"{'WRONG' if record.failed else 'RIGHT'}: {record.variant} {record.direction}: {text}")
    if as_json:
        print(json.dumps({"schema": 1, "records": msgspec.to_builtins(records)}, indent=2, allow_nan=False))
    return FAILED if any(record.failed for record in records) else OK if records else NOTHING


def say(console: Console, text: str) -> None:
    """Print a line as it is: no markup, no folding."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _judge(console: Console, preset: Preset, workers: int, strict: bool, **knobs: Any) -> Result:
    """One function, its page printed."""
    say(console, f"{WARNING} {preset.subject.function}")
    try:
        with aside(), local_executor(workers) as executor:
            result = examine_subject(
                preset.subject, executor, watch=lambda jobs, run: with_progress(console, jobs, run), **knobs
            )
    except SubjectError as error:
        raise typer.BadParameter(str(error), param_hint=preset.subject.function) from error
    except BrokenProcessPool:
        result = Result(preset.subject, died=True)
    result.notes += preset.known
    result.strict = strict
    say(console, page(result, min(WIDTH, console.width)) + "\n")
    return result


def here(console: Console, peer: str, chosen: list[Preset]) -> list[Preset]:
    """Those of a peer's presets that can run on this machine; exit code 3 if none can."""
    if package := missing(peer):
        say(console, f"--peer {peer} needs the package {package}: pip install {package}")
        raise typer.Exit(NOTHING)
    for preset in chosen:
        if not runnable(preset):
            say(console, f"not tried: {preset.name} ({preset.subject.function}) needs a GPU")
    found = [preset for preset in chosen if runnable(preset)]
    if not found:
        raise typer.Exit(NOTHING)
    return found
