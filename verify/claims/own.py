"""Modules of users' ledgers: found beside the ledger, loaded under names that no other module has.

A ledger may be called json.py or numpy.py, and two folders may each have a claims.py: by its file's name a module would
be taken for another that is there already.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def importable(home: str | None) -> Iterator[None]:
    """What lies in a user's folder can be imported meanwhile."""
    if home is not None:
        sys.path.insert(0, home)
    try:
        yield
    finally:
        if home in sys.path:
            sys.path.remove(home)


def module(name: str, home: str | None) -> ModuleType:
    """The module of a check: the file of that name in the user's folder if there is one, else what Python finds."""
    file = None if home is None or "." in name else Path(home) / f"{name}.py"
    return load(file) if file is not None and file.is_file() else importlib.import_module(name)


def load(file: Path) -> ModuleType:
    """The module that a file is now, executed once for each content. Raises what its code raises."""
    path = file.resolve()
    digest = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:16]
    name = f"{file.stem}_of_ledger_{digest}"
    if (known := sys.modules.get(name)) is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(found)
    except BaseException:
        del sys.modules[name]
        raise
    return found
