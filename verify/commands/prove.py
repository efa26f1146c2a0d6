"""``linattest prove``: the statements that machines check, each beside a falsified twin."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, get_args

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from linattest.proofs_checks import catalogue, pins
from linattest.proofs_checks.proof import Method, Proof, Status
from linattest.verify.commands.common import FAILED, INTERRUPTED, NOTHING, OK, none_begins
from linattest.verify.environment import environment
from linattest.verify.executors import default_workers

SCHEMA = 1
TYPES = "proofs_checks/coq/types.toml and sentences.toml"


def prove(
    ids: Annotated[
        list[str] | None, typer.Argument(help="statements, or beginnings of their ids; all if none", metavar="[ID]...")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method; may be repeated")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes; default: one a core")] = default_workers(),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
    update: Annotated[
        bool,
        typer.Option("--update-pins", help="write what the tools were asked to proofs_checks/pins.toml, to be read"),
    ] = False,
) -> None:
    """Check every statement by machine (z3, sympy, Arb, every 16-bit input, Coq), and that each check refutes a wrong
    variant and asks what it asked before."""
    pinned = _pins()
    wanted, methods = _chosen(ids or []), _methods(method or [])
    start = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("statements", total=None)
            proofs = catalogue.run(
                lambda identity, how: how in methods and any(identity.startswith(x) for x in wanted),
                workers, lambda _: bar.advance(task),
            )  # fmt: skip
    except KeyboardInterrupt:
        _say("interrupted: nothing is kept; `linattest prove ID` checks some statements")
        raise typer.Exit(INTERRUPTED) from None
    if not proofs:
        _say(f"nothing to check: no statement of method {', '.join(methods)} begins with {', '.join(wanted)}")
    if update:
        proofs = _update(proofs, pinned)
    if as_json:
        print(json.dumps(to_json(proofs, time.perf_counter() - start), indent=2, allow_nan=False))
    else:
        _print(Console(), proofs)
    raise typer.Exit(status_of(proofs))


def _chosen(ids: list[str]) -> list[str]:
    known = [*catalogue.known_ids(), *(proof.id for proof in catalogue.gone())]
    unknown = [x for x in ids if not any(identity.startswith(x) for identity in known)]
    if unknown and not catalogue.broken():  # else it may be in the module that is gone, which the run then tells
        raise typer.BadParameter("; ".join(none_begins("statement", x, known) for x in unknown), param_hint="ID")
    return ids or [""]


def _methods(names: list[str]) -> tuple[str, ...]:
    known = get_args(Method)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise typer.BadParameter(f"no method {unknown}; known: {list(known)}", param_hint="--method")
    return tuple(names) or known


def _say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def _pins() -> dict[str, pins.Pin]:
    """The pins; a file that is broken is a failure, whatever was asked."""
    try:
        return pins.read()
    except ValueError as error:
        _say(f"{error}; restore it (for instance with git), or delete it and run `linattest prove --update-pins`")
        raise typer.Exit(FAILED) from error


def _update(proofs: list[Proof], before: dict[str, pins.Pin]) -> list[Proof]:
    """Pin what was asked of those that are proved and whose twins are refuted, and drop what is gone; the others keep
    what they had, and it is said why."""
    gone = {p.id for p in proofs if _is_gone(p)}
    new = {p.id: p.pin for p in proofs if p.status in ("proved", "changed") and p.twin_status == "refuted"}
    for p in proofs:
        if p.id not in new and p.id not in gone:
            twin = f" (its twin is {p.twin_status}, expected refuted)" if p.status in ("proved", "changed") else ""
            _say(f"{p.id}: not pinned, refused: {p.status}{twin}")
    known = [*catalogue.known_ids(), *before]
    after = {x: new.get(x) or before[x] for x in dict.fromkeys(known) if x not in gone and (x in new or x in before)}
    others = _update_types([p for p in proofs if p.method == "coq" and p.id in new], {before[x] for x in gone})
    try:
        pins.write(after)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {error.filename}: {error.strerror}", param_hint="--update-pins"
        ) from error
    renewed = [x for x, pin in new.items() if before.get(x) != pin]
    _say(
        f"{pins.FILE}: {len(renewed)} renewed, {len(gone)} gone, {len(after)} in all; {others} of Coq's types and files"
    )
    named = [*renewed, *sorted(gone)]
    types = f"what differs in {TYPES}" if others else ""
    _say(
        f"read each beside its words: {', '.join([*named, *filter(None, [types])])}" if named or others else "as it was"
    )
    return [_as_pinned(p) if p.id in new else p for p in proofs if p.id not in gone]


def _is_gone(proof: Proof) -> bool:
    return proof.evidence.get("changed", "").startswith("gone: ")


def _update_types(proofs: list[Proof], gone: set[pins.Pin]) -> int:
    """Write down what Coq's theorems and twins say now, and the sentences of their files; how many are others."""
    if not proofs and not any(pin.method == "coq" for pin in gone):
        return 0
    from linattest.proofs_checks.coq import compiler, sentences  # the first needs Linux or macOS

    says = {p.asked: p.evidence["type"] for p in proofs} | {p.twin_asked: p.evidence["twin's type"] for p in proofs}
    lost = {name for pin in gone if pin.method == "coq" for name in (pin.asked, pin.twin_asked)}
    try:
        others = compiler.write_types(says, lost)
        return others + len(sentences.write(sorted({name.partition(".")[0] for name in says}), compiler.ROOM))
    except (OSError, ValueError, compiler.CoqError) as error:
        raise typer.BadParameter(str(error), param_hint="--update-pins") from error


def _as_pinned(proof: Proof) -> Proof:
    evidence = {name: text for name, text in proof.evidence.items() if name != "changed"}
    return msgspec.structs.replace(proof, status="proved", evidence=evidence)


def status_of(proofs: list[Proof]) -> int:
    """0 if everything stands, 1 if something is refuted, unknown or changed, 3 if a tool is missing, or nothing."""
    if any(not proof.stands and proof.status != "skipped" for proof in proofs):
        return FAILED
    return NOTHING if not proofs or any(proof.status == "skipped" for proof in proofs) else OK


def to_json(proofs: list[Proof], seconds: float) -> dict[str, object]:
    """The contract of ``prove --json``."""
    return {
        "schema": SCHEMA,
        "warnings": warnings(proofs),
        "proofs": msgspec.to_builtins(proofs),
        "seconds": round(seconds, 3),
        "environment": msgspec.to_builtins(environment()),
    }


def warnings(proofs: list[Proof]) -> list[str]:
    """What was not compared, though everything may be proved."""
    said = [p for p in proofs if "not compared" in p.evidence]
    if not said:
        return []
    return [
        f"NOT COMPARED: what {len(said)} of Coq's statements say ({', '.join(p.id for p in said)}): "
        + said[0].evidence["not compared"]
    ]


def _print(console: Console, proofs: list[Proof]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("status", "statement", "twin", "s"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for proof in proofs:
        colour = "green" if proof.stands else "yellow" if proof.status == "skipped" else "red"
        table.add_row(
            f"[{colour}]{proof.status}[/]", f"{proof.id}\n[dim]{proof.statement}[/]", proof.twin_status,
            f"{proof.seconds:.1f}",
        )  # fmt: skip
    if proofs:
        console.print(table)
    for proof in (p for p in proofs if not p.stands):
        said = "; ".join(f"{name}: {text}" for name, text in proof.evidence.items())
        console.print(f"[bold]{proof.id}[/]: {proof.status}, twin {proof.twin_status or 'none'}; {escape(said)}")
    for text in warnings(proofs):
        console.print(text, style="bold yellow", highlight=False, markup=False, soft_wrap=True)
    counts = {s: sum(p.status == s for p in proofs) for s in get_args(Status)}
    console.print(
        ", ".join(f"{n} {s}" for s, n in counts.items()) + f"; {sum(p.stands for p in proofs)} twins rejected"
    )
