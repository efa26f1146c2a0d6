"""Records of `check` and `verify` as a side of a comparison: the worst error ratios, which need no GPU.

Ratios are told in parts of the threshold, as errors of the gates are of their limit; so the same rule says what grew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linattest.verify import records
from linattest.verify.records import Record
from linattest.verify.tolerance import THRESHOLD


def read(path: Path) -> dict[str, Any]:
    """The records of a file, as a record of ``gpu_run`` that has errors alone.

    Raises:
        ValueError: no record in it, or not one of this schema.
    """
    found = list(records.read(path))
    here = next((record.environment for record in found if record.environment), None)
    if here is None:
        raise ValueError(f"{path}: no record of `check --records` or `verify --records` in it")
    worst: dict[tuple[Any, ...], Record] = {}
    for record in found:
        key = _key(record)
        if key not in worst or _badness(record) > _badness(worst[key]):
            worst[key] = record
    environment = {name: getattr(here, name) for name in ("python", "torch", "triton", "numpy", "cpu")}
    return {
        "commit": here.commit, "started": "", "environment": environment | {"gpu": here.device},
        "settings": {"dtype": "every dtype", "B": 0, "H": 0, "D": 0, "sampling": "errors alone"},
        "timings": [], "checks": [], "failures": [], "gates": [_gate(*item) for item in worst.items()],
    }  # fmt: skip


def _key(record: Record) -> tuple[Any, ...]:
    """What two sides have in common: a property by its name, an error by its length."""
    variant = f"{record.variant} {record.case.dtype}"
    direction = f"{record.direction} {record.what}" if record.direction == "property" else record.direction
    return (record.case.operator, variant, direction, record.case.structure.T)


def _badness(record: Record) -> tuple[bool, float]:
    return (record.failed, record.ratio or 0.0)


def _gate(key: tuple[Any, ...], record: Record) -> dict[str, Any]:
    operator, variant, direction, tokens = key
    ratio = None if record.direction == "property" or record.ratio is None else record.ratio / THRESHOLD
    return {
        "operator": operator, "variant": variant, "direction": direction, "tokens": tokens,
        "implementation": "linattest", "ok": not record.failed, "worst": ratio, "message": record.message,
    }  # fmt: skip
