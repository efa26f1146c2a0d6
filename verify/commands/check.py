"""``linattest check``: a function of yours, or a peer's, judged as an operator. It runs the given code.

Whatever can be refused without torch is refused before it is imported.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

import linattest.verify.operators as pages
from linattest.verify.commands.places import misplaced
from linattest.verify.peers import PEERS, Preset, named
from linattest.verify.spec import DTYPES, FEATURES
from linattest.verify.subject import Plain, Subject


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="module:function or FILE.py:function; with --peer the presets or operators, all if none",
            metavar="FUNCTION | [NAME]...",
        ),
    ] = None,
    as_: Annotated[str | None, typer.Option("--as", help="the operator it should be", metavar="OPERATOR")] = None,
    map_: Annotated[
        list[str] | None, typer.Option("--map", help="theirs=ours: an argument's name; =-ours negates")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value: a keyword it always gets")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="option=value of the operator that is held, e.g. gate=channel")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help=f"a feature that is not tried: {', '.join(sorted(FEATURES))}")
    ] = None,
    no_state: Annotated[bool, typer.Option("--no-state", help="the same as --without state")] = False,
    only_forward: Annotated[bool, typer.Option("--only-forward", help="the same as --without gradient")] = False,
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be repeated")] = None,
    any_dtype: Annotated[bool, typer.Option("--any-dtype", help="accept an output in another dtype")] = False,
    operands: Annotated[
        bool, typer.Option("--operands", help="operands of matrix products may be rounded, as for a tensor core")
    ] = False,
    head_first: Annotated[bool, typer.Option("--head-first", help="tensors are [B, H, T, ..]")] = False,
    transpose_state: Annotated[bool, typer.Option("--transpose-state", help="states are [.., V, K]")] = False,
    contiguous: Annotated[bool, typer.Option("--contiguous", help="make every input contiguous first")] = False,
    multiple_of: Annotated[int, typer.Option(min=1, help="T must be a multiple of this")] = 1,
    step: Annotated[bool, typer.Option("--step", help="it is a decode step of one token")] = False,
    device: Annotated[str, typer.Option(help="where tensors are moved before the call")] = "cpu",
    peer: Annotated[str | None, typer.Option(help=f"judge a peer's functions: {', '.join(PEERS)}")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a first impression")] = False,
    full: Annotated[bool, typer.Option("--full", help="every structure and family in every dtype")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a page")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="a broken promise beyond right values is wrong too")] = False,
    seed: Annotated[int, typer.Option(help="seed of the inputs")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; default: one a core")] = None,
    failures: Annotated[Path, typer.Option(help="folder for replay bundles")] = Path("linattest-failures"),
    records: Annotated[Path | None, typer.Option(help="add what was found to a file for `linattest report`")] = None,
    replay: Annotated[Path | None, typer.Option(help="run again what a replay bundle saved")] = None,
) -> None:
    """Judge a function of yours as an operator. This runs the given code.

    Forward, gradients and properties, in each dtype and feature that its signature takes; then what the fault looks
    like, in words. Exit code 0: right on all that was tried; 1: wrong; 2: it does not fit the operator.
    """
    console = Console(stderr=as_json)
    if replay is not None:
        if not replay.is_file():
            raise typer.BadParameter(f"no file {replay}", param_hint="--replay")
        from linattest.verify.commands.judging import again

        raise typer.Exit(again(console, replay, as_json))
    if quick and full:
        raise typer.BadParameter("contradicts --full", param_hint="--quick")
    left_out = _features([*(without or []), *["state"] * no_state, *["gradient"] * only_forward])
    dtypes = _dtypes(dtype or [])
    if peer is not None:
        if map_ or set_ or only or head_first or transpose_state or contiguous or step or operands or multiple_of > 1:
            raise typer.BadParameter("a peer's presets know how their functions are called", param_hint="--peer")
        presets = [_narrowed(preset, left_out, dtypes) for preset in _presets(peer, names or [], as_)]
    else:
        taken = set(FEATURES) - left_out
        presets = [
            Preset(
                names[0] if names else "",
                Subject(
                    function=_function(names), operator=_operator(as_), rename=_pairs("--map", map_),
                    fixed=_values("--set", set_), only=_values("--only", only), supports=tuple(sorted(taken)),
                    dtypes=dtypes, any_dtype=any_dtype, transpose_state=transpose_state,
                    layout="head-first" if head_first else "seq-first", contiguous=contiguous, multiple=multiple_of,
                    kind="step" if step else "sequence", device=device, operands=operands,
                ),
            )
        ]  # fmt: skip
    from linattest.verify.commands import judging

    if peer is not None:
        presets = judging.here(console, peer, presets)
    how: dict[str, Any] = {"quick": quick, "full": full, "seed": seed, "bundles": failures}
    said: dict[str, Any] = {"peer": peer, "as_json": as_json, "strict": strict, "workers": workers, "records": records}
    raise typer.Exit(judging.judge(console, presets, **said, **how))


def _narrowed(preset: Preset, left_out: set[str], dtypes: tuple[str, ...]) -> Preset:
    """A peer's preset without some features and dtypes."""
    subject = preset.subject
    kept = tuple(x for x in subject.dtypes if x in dtypes)
    if not kept:
        raise typer.BadParameter(f"{preset.name} takes {', '.join(subject.dtypes)}", param_hint="--dtype")
    supports = tuple(x for x in subject.supports if x not in left_out)
    return dataclasses.replace(preset, subject=msgspec.structs.replace(subject, supports=supports, dtypes=kept))


def _presets(peer: str, names: list[str], as_: str | None) -> tuple[Preset, ...]:
    """A peer's presets of these names."""
    if peer not in PEERS:
        raise typer.BadParameter(f"no peer {peer!r}; known: {', '.join(PEERS)}", param_hint="--peer")
    if as_ is not None:
        raise typer.BadParameter("a peer's presets know their operators", param_hint="--as")
    try:
        return named(peer, names)
    except KeyError as error:
        raise typer.BadParameter(error.args[0], param_hint="NAME") from error


def _function(names: list[str] | None) -> str:
    """The one name that was given. What is no file and no module is refused here; nothing is imported yet."""
    if not names or len(names) > 1:
        raise typer.BadParameter(f"{len(names or [])} functions given, expected one", param_hint="FUNCTION")
    if words := misplaced(names[0]):
        raise typer.BadParameter(words, param_hint="FUNCTION")
    return names[0]


def _operator(name: str | None) -> str:
    if name is None:
        raise typer.BadParameter("needs --as OPERATOR: which operator should it be?", param_hint="--as")
    known = sorted(page.name for page in pkgutil.iter_modules(pages.__path__))
    if name not in known:
        raise typer.BadParameter(f"no operator {name!r}; known: {', '.join(known)}", param_hint="--as")
    return name


def _dtypes(names: list[str]) -> tuple[str, ...]:
    unknown = sorted(set(names) - set(DTYPES))
    if unknown:
        raise typer.BadParameter(f"no dtype {unknown}; known: {list(DTYPES)}", param_hint="--dtype")
    return tuple(names) or DTYPES


def _features(names: list[str]) -> set[str]:
    unknown = sorted(set(names) - FEATURES)
    if unknown:
        raise typer.BadParameter(f"no feature {unknown}; known: {sorted(FEATURES)}", param_hint="--without")
    return set(names)


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or []]
    for left, sign, right in pairs:
        if not (left and sign and right):
            raise typer.BadParameter(f"{left + sign + right!r}, expected name=value", param_hint=option)
    return {left: right for left, _, right in pairs}


def _values(option: str, given: list[str] | None) -> dict[str, Any]:
    return {name: _plain(text) for name, text in _pairs(option, given).items()}


def _plain(text: str) -> Plain:
    """A value from the command line: None, true or false, a number, else the text itself."""
    words: dict[str, Plain] = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
