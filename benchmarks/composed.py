"""Log-linear attention together with what makes its level weights: an operator as a layer calls it.

Named ROOM_MAP_FORM, as ``Workload.function`` asks for them: ``kernels_mlp_softplus_chunk``. Each takes the operator's
inputs without ``level_weights``, the level features d [B, T, H, L] and the parameters of the map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from benchmarks.common import resolve

MAPS = {"linear": ("weight",), "mlp_softplus": ("w1", "b1", "w2", "b2"), "mlp_softmax": ("w1", "b1", "w2", "b2")}
"""Maps of level features and their parameters, in order; an absent b1 is None."""

WEIGHTS = {"kernels": "linattest.kernels.log_linear_weights", "impls": "linattest.impls.level_weights"}


def composed(room: str, name: str, form: str) -> Callable[..., Any]:
    """``form`` ("chunk" or "step") of the operator in ``room``, after the map ``name``."""

    def function(*, d: Tensor, **given: Any) -> Any:
        parameters = [given.pop(x, None) for x in MAPS[name]]
        weights = resolve(f"{WEIGHTS[room]}:{name}")(d, *parameters)
        return resolve(f"linattest.{room}.log_linear:{form}")(**given, level_weights=weights.to(given["q"].dtype))

    return function


def __getattr__(name: str) -> Callable[..., Any]:
    room, _, rest = name.partition("_")
    chosen, _, form = rest.rpartition("_")
    if room not in WEIGHTS or chosen not in MAPS or form not in ("chunk", "step"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return composed(room, chosen, form)
