"""Binaries: what one depends on, where it is kept, and the compilation of all that a call will need, at once.

Triton's own way from a launch to a binary costs more host time than a small kernel runs, and makes binaries for numbers
that kernels do not care for. Here a binary is known by its constants and what the arguments' memory looks like. Where
one is missing, whatever the running operation will need beside it is compiled in the same moment, in threads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor

if TYPE_CHECKING:
    from linattest.kernels.launch import Config


class Launch(NamedTuple):
    """One launch as a recorder sees it: kernel, grid, arguments in order, constants, how it is built."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    config: Config


class _Here(threading.local):
    """Of this thread: the list that launches go to instead of being made, the innermost one; and the operation that
    runs, and its inputs, until something that it needs was missing."""

    recorder: list[Launch] | None = None
    running: tuple[Callable[..., Any], tuple[Any, ...]] | None = None


here = _Here()


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Launches of this thread are appended to the list that this yields, and not made: tensors may be of the meta
    device."""
    before, launches = here.recorder, list[Launch]()
    here.recorder = launches
    try:
        yield launches
    finally:
        here.recorder = before


_built: dict[Any, tuple[Any, tuple[Any, ...], Any]] = {}
"""Binary, constants in the order of the signature, and the kernel, which must live on for its id to be its own."""

COUNTS = frozenset({"sizes", "H", "HV", "each", "programs", "HEIGHT"})
"""Parameters that are numbers of things; the first of several is that of tokens. Triton builds anew where such a number
becomes divisible by 16, for nothing: every other length of a sequence would cost a compilation of all kernels. That
it is 1 is worth knowing (of heads that share keys: a division), and of tokens that they are whole sixteens (masks)."""


def start(
    kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any], config: Config, index: int
) -> None:
    """Launch what was built for such arguments on the current device, whose number is `index`, or have it built."""
    key = _key(kernel, args, constants, config, index)
    built = _built.get(key)
    if built is None:
        _look_ahead(index)
        built = _built.get(key) or _keep(key, kernel, args, constants, config)
    binary, tail, _ = built
    binary[(programs, 1, 1)](*args, *tail)


def _key(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], config: Config, index: int) -> tuple[Any, ...]:
    kinds = [*map(_kind, args)]
    for place in _places(kernel):
        kinds[place] = _like(args[place])
    return (id(kernel), index, config, *constants.values(), *kinds)


def _keep(key: Any, kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], config: Config) -> Any:
    """Build, under the variables that such a build needs, and keep."""
    with _set(environment(constants, config)):
        return _compile(key, kernel, args, constants, config)


def _compile(key: Any, kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], config: Config) -> Any:
    binary = kernel.warmup(*general(kernel, args), grid=(1,), **constants, **config.options)
    _built[key] = built = binary, tuple(constants[name] for name in kernel.arg_names[len(args) :]), kernel
    return built


def general(kernel: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments that a kernel is built for, numbers of things by what stands for all that it is built alike for."""
    found = list(args)
    for place in _places(kernel):
        found[place] = _like(found[place])
    return found


_known_places: dict[int, tuple[int, ...]] = {}


def _places(kernel: Any) -> tuple[int, ...]:
    found = _known_places.get(id(kernel))
    if found is None:
        found = tuple(i for i, name in enumerate(kernel.arg_names) if name in COUNTS)
        _known_places[id(kernel)] = found
    return found


def _like(x: Any) -> Any:
    return (_tokens(x[0]), *map(_count, x[1:])) if isinstance(x, tuple) else _count(x)


def _count(x: int) -> int:
    """1 or not, in 32 bits or not."""
    return 1 if x == 1 else 3 if x.bit_length() <= 31 else (1 << 40) + 1


def _tokens(x: int) -> int:
    """Divisible by 16 or not, too."""
    return _count(x) if x & 15 else 16 if x.bit_length() <= 31 else 1 << 40


# --- ahead -------------------------------------------------------------------------------------------------------


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that can be asked what it will launch: run again where launches are recorded, it says so."""

    @functools.wraps(function)
    def run(*inputs: Any) -> Any:
        before, here.running = here.running, (function, inputs)
        try:
            return function(*inputs)
        finally:
            here.running = before

    return run


def _look_ahead(index: int) -> None:
    """Compile what the running operation will need, if there is one and it was not asked before.

    What fails here (memory for results that nobody takes, a kernel that does not compile) will fail where it belongs.
    """
    running, here.running = here.running, None
    if running is None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return
    function, inputs = running
    try:
        with recording() as launches:
            function(*inputs)
    except Exception:
        return
    groups: dict[tuple[tuple[str, str], ...], dict[Any, Launch]] = {}
    for one in launches:
        key = _key(one.kernel, one.args, one.constants, one.config, index)
        if key not in _built:
            groups.setdefault(tuple(environment(one.constants, one.config).items()), {})[key] = one
    for variables, missing in groups.items():
        with _set(dict(variables)), ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool:
            list(pool.map(functools.partial(_attempt, index), missing.items()))


def _attempt(index: int, item: tuple[Any, Launch]) -> None:
    key, one = item
    place = torch.cuda.device(index) if torch.cuda.is_available() else contextlib.nullcontext()
    with contextlib.suppress(Exception), place:
        _compile(key, one.kernel, one.args, one.constants, one.config)


# --- what a binary depends on ------------------------------------------------------------------------------------


def _kind(x: Any) -> Any:
    """What Triton builds for: the type of an argument, whether it is 1 or divisible by 16, how a tensor is aligned."""
    kind = x.__class__
    if kind is int:
        return "1" if x == 1 else (x & 15 == 0, x.bit_length() > 31)
    if isinstance(x, tuple):
        known = _known.get(id(x))
        return tuple([_kind(y) for y in x]) if known is None else known[1]
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() & 15 == 0
    return ("constant", x.value) if kind is triton.language.constexpr else kind


_known: dict[int, tuple[Any, Any]] = {}
"""Tuples and their kinds by identity, which they keep since they are kept: to look at their numbers at every launch
would cost more host time than all else."""


ROOM = 4096
"""Tuples that are kept before all are forgotten."""


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make the tuple for some numbers one time; its kind is known then. ROOM of them, for shapes may go on changing."""
    made: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(make)
    def get(*numbers: Any) -> Any:
        found = made.get(numbers)
        if found is None:
            if len(made) >= ROOM:
                for x in made.values():
                    del _known[id(x)]
                made.clear()
            made[numbers] = found = make(*numbers)
            _known[id(found)] = found, tuple([_kind(y) for y in found])
        return found

    return get


TILES = ("BK", "BV", "BLOCK", "ROWS", "R")
"""Constants of kernels that are widths of tiles."""


def environment(constants: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Variables that Triton compiles under, by a kernel's constants and how it is built.

    Products with a tile narrower than 64 do without Hopper's warpgroup instructions: what Triton 3.6 and its assembler
    make of them reads outside of shared memory there, and gives wrong numbers or a fault (seen for tiles whose rows are
    32 and 64 bytes, and for some of 128, with four warps and with eight). Wide tiles of float32 have them: without,
    kernels spill ten times as much. A kernel of half precision that was seen right with them at 64 channels and more,
    or wrong where the rule would let it have them, says so in its config.
    """
    wide = constants.get("STAGE") == triton.language.float32 or constants.get("PRECISION") == "tf32x3"
    narrow = any(constants.get(name, 64) < 64 for name in TILES)
    seen = config.warpgroups is True and not wide and constants.get("BK", 64) >= 64
    without = config.warpgroups is False or (narrow and not seen)
    return {"DISABLE_MMA_V3": "1"} if without else {}


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
