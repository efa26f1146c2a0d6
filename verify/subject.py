"""A user's own function, described as data: where it is, as which operator it is judged, how it wants its arguments.

The description travels to worker processes and into replay bundles; the function itself never does.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from linattest.verify.spec import DTYPES, FEATURES

Plain = float | bool | str | None

LOCAL = "<given>"
"""The module of a function that was handed over as an object: it is known in its own process only."""

NO_DEVICE = "Triton is not supported on current platform"
"""What flash-linear-attention says on a machine without a GPU; its plain PyTorch needs none."""

_HANDED_OVER: dict[str, Callable[..., Any]] = {}


class SubjectError(ValueError):
    """A description that cannot be used: nothing to import, or a signature that does not fit the operator."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A function under test.

    ``function`` is "module:name", "path/to/file.py:name", or "<given>:name". ``rename`` maps their argument to the
    operator's (``"gk": "g"``); a leading ``-`` passes the negative. ``fixed`` are keywords that they always get,
    ``only`` the operator's options that are held, ``drop`` inputs that are 0 and not passed. ``multiple`` is what T
    must be a multiple of. ``any_dtype`` accepts an output of another dtype than the inputs'. ``operands`` allows for
    operands of matrix products rounded to the type, as our own kernels feed them to a tensor core (given.py).
    """

    function: str
    operator: str
    rename: Mapping[str, str] = {}
    fixed: Mapping[str, Plain] = {}
    only: Mapping[str, float | bool | str] = {}
    drop: tuple[str, ...] = ()
    supports: tuple[str, ...] = tuple(sorted(FEATURES))
    dtypes: tuple[str, ...] = DTYPES
    kind: Literal["sequence", "step"] = "sequence"
    layout: Literal["seq-first", "head-first"] = "seq-first"
    transpose_state: bool = False
    contiguous: bool = False
    any_dtype: bool = False
    operands: bool = False
    multiple: int = 1
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.function.rpartition(":")[2]

    @property
    def variant(self) -> str:
        """The name under which records list it: never one of the operator's own variants."""
        slug = "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-_")
        return f"given-{slug or 'function'}"

    @property
    def key(self) -> str:
        """What tells two descriptions apart."""
        return msgspec.json.encode(self, order="deterministic").decode()


def hand_over(function: Callable[..., Any]) -> str:
    """Keep a function of this process; the answer names it in a ``Subject``."""
    name = getattr(function, "__qualname__", type(function).__name__).rpartition(".")[2].strip("<>")
    path, number = f"{LOCAL}:{name}", 1
    while _HANDED_OVER.get(path, function) is not function:
        number += 1
        path = f"{LOCAL}:{name}{number}"
    _HANDED_OVER[path] = function
    return path


def load(path: str) -> Callable[..., Any]:
    """Import the function behind a path. This runs the module's code.

    Raises:
        SubjectError: says which part cannot be found.
    """
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name:
        raise SubjectError(f"function={path!r}, expected 'module:function' or 'path/to/file.py:function'")
    if place == LOCAL:
        if path not in _HANDED_OVER:
            raise SubjectError(
                f"{name} was handed over as an object and is unknown in this process: put it into a module, "
                "then name it as 'module:function'"
            )
        return _HANDED_OVER[path]
    found: Any = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            callables = sorted(x for x in vars(found) if not x.startswith("_") and callable(getattr(found, x)))
            raise SubjectError(f"{place} has no {part!r}; it has {', '.join(callables) or 'no public callable'}")
        found = getattr(found, part)
    if not callable(found):
        raise SubjectError(f"{path} has type {type(found).__name__}, expected a function")
    return found


def source(path: str) -> str:
    """Where a function is written: "file:line", the file from the present folder if it is below it; empty if unknown.

    What ``functools.wraps`` or ``partial`` wraps is what is meant. Raises as ``load``.
    """
    found: Any = load(path)
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(found)
    try:
        file, line = inspect.getsourcefile(found), inspect.getsourcelines(found)[1]
    except (TypeError, OSError):  # an object with __call__: its class may be known
        try:
            file, line = inspect.getsourcefile(type(found)), inspect.getsourcelines(type(found))[1]
        except (TypeError, OSError):
            return ""
    place = Path(file or "").absolute()
    here = Path.cwd()
    return f"{place.relative_to(here).as_posix() if place.is_relative_to(here) else place}:{max(line, 1)}"


def _import_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NO_DEVICE, category=UserWarning)
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise SubjectError(f"no module {missing!r} on the path, which starts at {here}") from error
        raise SubjectError(f"importing {name!r} needs the module {missing!r}, which is not installed") from error
    except Exception as error:
        raise SubjectError(f"importing {name!r} raised {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> Any:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise SubjectError(f"no file {path}")
    name = f"_linattest_given_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SubjectError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # what it imports beside itself
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SubjectError(f"running {path} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module
