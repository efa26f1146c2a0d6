"""CCQ in Triton: any memory, read with a query from which the common directions of its keys have been taken.

    q~_t = q_t - lam_t Sigma_t q_t,       o_t = read(S_t, q~_t)         (definition: `linattest.impls.ccq`)

Two operations one after the other: `covariance_contract`, then the backbone's own kernels with q~ for q. So S_t is bit
for bit the backbone's, and so is o_t where lam_t = 0. q~ is handed over in q's dtype: one rounding beyond those of
the two.

VLA's denominator reads with q itself. Normalised linear attention is refused.

Source: [CCQ], section 2.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.kernels import covariance_contract, delta_net, gated_delta_net, gla, linear, vla
from linattest.kernels.covariance_contract import CovState

BACKBONES = ("linear", "gla", "delta_net", "gated_delta_net", "vla")
"""Each is a module of this package, with `chunk` and `step`."""

NOT_GIVEN = ("q", "k", "v", "read", "initial_state", "output_final_state", "cu_seqlens", "validate")
"""What a backbone's functions take and CCQ passes on itself."""


class CCQState(NamedTuple):
    """The covariance's state (H heads) and the backbone's own."""

    cov: CovState
    backbone: Any


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    backbone: str,
    cov_g: Tensor | None = None,
    weight: Tensor | None = None,
    scale: float | None = None,
    initial_state: CCQState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
    **backbone_args: Any,
) -> tuple[Tensor, CCQState | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.ccq.recurrent`.

    q, k [B, T, H, K], v [B, T, HV, V], lam, cov_g, weight [B, T, H]; what the backbone takes beyond q, k, v goes by
    name. `initial_state` is CCQState(CovState, the backbone's state). Returns o [B, T, HV, V] in v's dtype and the
    final state (None unless `output_final_state`).

    Raises NotImplementedError for `normalizer` of linear attention; TypeError or ValueError (naming the argument) for
    what the backbone does not take, and as `covariance_contract.chunk` and the backbone do.

    `validate` as in `covariance_contract.chunk`.
    """
    module = _module(backbone, backbone_args)
    cov, memory = _parts(initial_state)
    options = {"cu_seqlens": cu_seqlens, "output_final_state": output_final_state, "validate": validate}
    clean, cov = covariance_contract.chunk(q, k, lam, cov_g=cov_g, weight=weight, initial_state=cov, **options)
    read = _reading(backbone, q, clean, scale)
    o, memory = module.chunk(k=k, v=v, **read, **backbone_args, initial_state=memory, **options)
    return o, CCQState(cov, memory) if cov is not None else None


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    backbone: str,
    cov_g: Tensor | None = None,
    weight: Tensor | None = None,
    initial_state: CCQState | None = None,
    scale: float | None = None,
    validate: bool = False,
    **backbone_args: Any,
) -> tuple[Tensor, CCQState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`."""
    inputs = {"q": q, "k": k, "v": v, "lam": lam, "cov_g": cov_g, "weight": weight, **backbone_args}
    if _narrow_gradients(inputs, q):  # those of k come from two sides: they are added before they are rounded
        wide = {name: x.float() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        o, state = step(**wide, backbone=backbone, initial_state=initial_state, scale=scale, validate=validate)
        return o.to(v.dtype), state
    module = _module(backbone, backbone_args)
    cov, memory = _parts(initial_state)
    clean, cov = covariance_contract.wide_step(
        q, k, lam, cov_g=cov_g, weight=weight, initial_state=cov, validate=validate
    )
    options = {**backbone_args, "initial_state": memory, "validate": validate}
    if backbone == "vla":
        o, memory = module.step(k=k, v=v, **_reading(backbone, q, clean, scale), **options)
    else:
        o, memory = module.read_step(clean, q, k, v, scale=scale, **options)
    return o, CCQState(cov, memory)


def _narrow_gradients(inputs: dict[str, Any], q: Tensor) -> bool:
    """Whether gradients are asked of inputs that are all of q's dtype, and that not float32."""
    tensors = [x for name, x in inputs.items() if isinstance(x, Tensor) and name != "lam0"]
    narrow = q.dtype in (torch.bfloat16, torch.float16) and all(x.dtype == q.dtype for x in tensors)
    return narrow and torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _module(backbone: str, given: dict[str, Any]) -> Any:
    """The backbone's kernels; TypeError for an argument that they do not take or that is missing."""
    arguments.check_choice("backbone", backbone, BACKBONES)
    module, takes = _backbone(backbone)
    for x in given:
        if x not in takes:
            expected = f"it takes {', '.join(takes)}" if takes else "it takes nothing more"
            raise TypeError(f"{x} is not an argument of ccq with backbone {backbone!r}: {expected}")
    for x, default in takes.items():
        if x not in given and default is inspect.Parameter.empty:
            raise TypeError(f"{x} is missing: ccq with backbone {backbone!r} needs it")
    if backbone == "linear" and given.get("normalizer"):
        raise NotImplementedError(
            "normalizer is True: its denominator reads with q itself, which no kernel of linear attention does yet: "
            "use linattest.impls.ccq"
        )
    return module


MODULES = {"linear": linear, "gla": gla, "delta_net": delta_net, "gated_delta_net": gated_delta_net, "vla": vla}


@functools.cache
def _backbone(name: str) -> tuple[Any, dict[str, Any]]:
    """A backbone's module, and what it takes beyond NOT_GIVEN and the scale: name -> default."""
    module = MODULES[name]
    given = {*NOT_GIVEN, "scale"}
    return module, {n: p.default for n, p in inspect.signature(module.chunk).parameters.items() if n not in given}


def _reading(backbone: str, q: Tensor, clean: Tensor, scale: float | None) -> dict[str, Any]:
    """What a backbone reads with, and the output's scale, which VLA has not."""
    if backbone != "vla":
        return {"q": clean, "scale": scale}
    if scale is not None and arguments.check_number("scale", scale) != 1:
        raise ValueError(f"scale is {scale}, expected None (or 1): VLA has no output scale")
    return {"q": q, "read": clean}


def _parts(state: Any) -> tuple[Any, Any]:
    if state is None:
        return None, None
    arguments.check_state_tuple("initial_state", state, CCQState)
    return state
