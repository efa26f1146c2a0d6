"""``linattest bench record`` and ``bench run``: measurements, filed by commit."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from linattest.verify.bench import commits, kinds
from linattest.verify.bench.commits import Misfit
from linattest.verify.bench.paths import CHECKOUT, RESULTS, SCRATCH
from linattest.verify.commands.codes import INTERRUPTED, NOTHING, OK


def record(
    file: Annotated[
        list[Path],
        typer.Argument(
            help="what gpu_run, selftest --json, claims --output, diff --output or compile --json wrote",
            metavar="FILE...",
        ),
    ],
    commit: Annotated[
        str | None, typer.Option(metavar="HASH", help="whose sources were measured; default: what the record says")
    ] = None,
    machine: Annotated[str | None, typer.Option(help="the folder's name; default: by the GPU or the processor")] = None,
    results: Annotated[Path, typer.Option(help="asv's folder of results")] = RESULTS,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="do not ask whether the commit has the sources that were measured")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")] = False,
) -> None:
    """File records as results of asv, under RESULTS/MACHINE, by commit.

    The commit must exist and be on the published branch, and its sources those that were measured. Of a parameter that
    failed the result is null, and the reason is told.
    """
    console = Console(stderr=as_json)
    for path in file:  # all or none: what cannot be read is said before anything is filed
        _read(path)
    filed = [_filed(console, path, commit, machine, results, verified=not unverified) for path in file]
    if as_json:
        print(json.dumps({"schema": 1, "filed": filed}, indent=2, allow_nan=False))


def _filed(
    console: Console, path: Path, name: str | None, machine: str | None, results: Path, *, verified: bool
) -> dict[str, Any]:
    """File one record, and say so; what does not fit is wrong usage, and nothing of it is filed."""
    filing = _filing(console)
    try:
        source = _read(path)
        conf = filing.configuration(CHECKOUT, results.absolute())
        found = commits.resolve(CHECKOUT, commits.named(source.commit, name), conf.branches)
        if verified and source.folders:
            commits.check_sources(CHECKOUT, found, source.source_hash, source.folders)
        folder = kinds.slug(machine or source.machine)
        done = filing.file(conf, source, found, filing.discover(conf), folder)
        kept = (
            filing.keep(source, path, found, results, folder, verified=verified) if source.kind == "gpu_run" else None
        )
    except (Misfit, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    except OSError as error:
        raise typer.BadParameter(f"cannot use {error.filename}: {error.strerror}", param_hint="FILE") from error
    places = " and ".join(str(x) for x in (done.path, kept) if x)
    console.print(f"{done.numbers} numbers of {found.hash[:12]} filed in {places}", highlight=False, soft_wrap=True)
    groups: dict[tuple[str, str], list[str]] = {}
    for at, why in done.failures.items():
        groups.setdefault((at.partition("(")[0], why), []).append(at)
    for (name, why), at in groups.items():
        text = f"failed in {len(at)} of {name}, first {at[0].removeprefix(name)}: {why}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    return {
        "file": str(path), "kind": source.kind, "commit": found.hash, "machine": folder, "path": str(done.path),
        "record": str(kept) if kept else None, "numbers": done.numbers, "failures": done.failures,
    }  # fmt: skip


def _read(path: Path) -> kinds.Source:
    try:
        return kinds.read(path)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    except OSError as error:
        raise typer.BadParameter(f"cannot use {error.filename}: {error.strerror}", param_hint="FILE") from error


def _filing(console: Console) -> ModuleType:
    try:
        return importlib.import_module("linattest.verify.bench.filing")
    except ImportError as error:
        console.print(f"this needs the extra 'bench' (pip install 'linattest[bench]'): {error}", highlight=False)
        raise typer.Exit(NOTHING) from error


def run(
    operator: Annotated[list[str] | None, typer.Option(help="only this one, as gla or gla-head; repeatable")] = None,
    stage: Annotated[list[str] | None, typer.Option(help="only this stage of gpu_run; repeatable")] = None,
    length: Annotated[list[int] | None, typer.Option(min=1, help="only this many tokens; repeatable")] = None,
    dtype: Annotated[str | None, typer.Option(help="of the inputs on a GPU; default: bfloat16")] = None,
    budget: Annotated[float | None, typer.Option(min=1, help="seconds after which nothing new begins")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: a GPU if there is one")] = None,
    results: Annotated[
        Path | None, typer.Option(help="asv's folder of results; default: benchmarks/results, on a CPU .cache/bench")
    ] = None,
    commit: Annotated[str | None, typer.Option(metavar="HASH", help="what is measured, where git does not say")] = None,
) -> None:
    """Measure this checkout in one process and file the record; on a CPU a small part, with `impls` for kernels.

    A checkout with changes is measured, and its record kept, but filed under no commit.
    """
    console = Console()
    if not (CHECKOUT / "benchmarks" / "gpu_run.py").is_file():
        console.print(f"no benchmarks in {CHECKOUT}: they are part of a checkout", highlight=False)
        raise typer.Exit(NOTHING)
    if device not in (None, "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r}, expected cpu or cuda", param_hint="--device")
    here = device or ("cuda" if torch.cuda.is_available() else "cpu")
    given = [*_options("--operators", operator), *_options("--stages", stage), *_options("--lengths", length)]
    given += [x for name, value in (("--dtype", dtype), ("--budget", budget), ("--commit", commit)) if value is not None
              for x in (name, str(value))]  # fmt: skip
    given += ["--device", "cpu", "--quick"] if here == "cpu" else []
    if here == "cpu" and device is None:
        console.print("no GPU: the part that a CPU can do, in .cache/bench", highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        status = _measure([*given, "--output", str(path)])
        if status not in (OK, 1) or not path.is_file():
            raise typer.Exit(status)
        where = results or (RESULTS if here == "cuda" else SCRATCH)
        _file_or_keep(console, path, where)
    raise typer.Exit(status)


def _options(name: str, values: list[Any] | None) -> list[str]:
    return [name, *map(str, values)] if values else []


def _measure(arguments: list[str]) -> int:
    """``gpu_run`` in a process of its own: its exit code."""
    command = [sys.executable, "-m", "benchmarks.gpu_run", *arguments]
    try:
        return subprocess.run(command, cwd=CHECKOUT, check=False).returncode
    except KeyboardInterrupt:
        return INTERRUPTED


def _file_or_keep(console: Console, path: Path, results: Path) -> None:
    """File what was measured of a commit; what cannot be filed is kept, so that nothing measured is lost."""
    content = json.loads(path.read_text(encoding="utf-8"))
    said = str(content["commit"])
    try:
        if commits.HASH.fullmatch(said):
            _filed(console, path, None, None, results, verified=True)
            return
        why = f"git says {said!r}"
    except (typer.BadParameter, typer.Exit) as error:
        why = error.message if isinstance(error, typer.BadParameter) else "asv is missing"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    kept = SCRATCH / f"{str(content['started'])[:19].replace(':', '')}-{said[:8]}.json"
    kept.write_bytes(path.read_bytes())
    console.print(
        f"kept in {kept}, and filed under no commit: {why}. `linattest bench record FILE --commit HASH` files it once "
        "a commit has these sources; `linattest bench compare` takes it as it is",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip
