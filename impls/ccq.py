"""CCQ: any memory, read with a query from which the common directions of its keys have been taken.

Definition, on a backbone whose memory S_t is read with q_t, per key head, lam_t a number per token:

    Sigma_t = covariance of k_s, s <= t   (optionally weighted and forgetting: `covariance_contract`)
    q~_t = q_t - lam_t Sigma_t q_t,       o_t = read(S_t, q~_t)

Only reading changes: the memory is bit for bit the backbone's own, and where lam_t = 0 so is the output. Sigma is the
covariance of k as passed. On a ratio of recurrences (`vla`, `linear` with `normalizer`) only the numerator reads with
q~: o_t = S_t^T q~_t / max(z_t . q_t, eps) with the original q, since z . q~ falls below eps on most tokens.

Source: [CCQ], section 2; the ratio's rule is ours.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from linattest.impls import (
    arguments,
    bound,
    covariance_contract,
    delta_net,
    features,
    gated_delta_net,
    gla,
    linear,
    vla,
)
from linattest.impls.bound import Bound, Core
from linattest.impls.covariance_contract import CovState

BACKBONES: dict[str, Callable[..., Bound]] = {
    "linear": linear.bind,
    "gla": gla.bind,
    "delta_net": delta_net.bind,
    "gated_delta_net": gated_delta_net.bind,
    "vla": vla.bind,
}


class CCQState(NamedTuple):
    """The covariance's state (H heads) and the backbone's own."""

    cov: CovState
    backbone: Any


def recurrent(
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
    **backbone_args: Any,
) -> tuple[Tensor, CCQState | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    `backbone` is "linear", "gla", "delta_net", "gated_delta_net" or "vla"; `backbone_args` are its tensors and options
    beyond q, k, v (`g`, `beta`, `u`, `normalizer`, `lam0`, ...), and shapes, dtypes and `scale` are as there.
    lam and, optionally, cov_g (log forgetting, <= 0) and weight (>= 0) are [B, T, H], q's dtype or float32.
    `initial_state` is CCQState(CovState, the backbone's state). Returns o [B, T, HV, V] in v's dtype and the final
    state (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for an unknown backbone, arguments that it lacks or does not
    take, and whatever the backbone and `covariance_contract` refuse. Source: module docstring.
    """
    operator = bind(None, q, k, v, lam, backbone, cov_g, weight, scale, backbone_args)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


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
    chunk_size: int = 64,
    **backbone_args: Any,
) -> tuple[Tensor, CCQState | None]:
    """Chunk-parallel form: that of `covariance_contract`, then that of the backbone.

    Arguments and errors as in `recurrent`; `chunk_size` is a power of two.
    """
    size = arguments.check_chunk_size(chunk_size)
    operator = bind(size, q, k, v, lam, backbone, cov_g, weight, scale, backbone_args)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


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
    **backbone_args: Any,
) -> tuple[Tensor, CCQState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    operator = bind(None, q, k, v, lam, backbone, cov_g, weight, scale, backbone_args)
    return bound.step(operator, initial_state)


def bind(
    chunk_size: int | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    backbone: str,
    cov_g: Tensor | None,
    weight: Tensor | None,
    scale: float | None,
    backbone_args: dict[str, Any],
) -> Bound:
    """The operator, checked and widened: the backbone's `Bound` with another core around its core.

    A `chunk_size` in `backbone_args` is one that the caller gave to a form without chunks: refused like any stranger.
    """
    arguments.check_choice("backbone", backbone, tuple(BACKBONES))
    _check_names(backbone, backbone_args)
    inner = BACKBONES[backbone](q, k, v, **backbone_args, scale=scale, chunk_size=chunk_size)
    covariance_contract.check_arguments(lam, cov_g, weight, q)
    given = {"lam": lam, "cov_g": cov_g, "weight": weight}
    extra = {name: features.heads_first(x) for name, x in given.items() if x is not None}
    contract = bound.form(chunk_size, covariance_contract.recurrent_core, covariance_contract.chunk_core)
    return inner._replace(
        inputs=[*inner.inputs, *extra.values()],
        core=functools.partial(_core, inner.core, contract, tuple(extra), inner.sizes.HV // inner.sizes.H),
        check_state=functools.partial(_check_state, inner),
    )


def _check_names(backbone: str, given: dict[str, Any]) -> None:
    """TypeError for an argument that the backbone does not take or that it misses."""
    takes = inspect.signature(BACKBONES[backbone]).parameters
    names = [name for name in takes if name not in ("q", "k", "v", "scale", "chunk_size")]
    for name in given:
        if name not in names:
            expected = f"it takes {', '.join(names)}" if names else "it takes nothing more"
            raise TypeError(f"{name} is not an argument of ccq with backbone {backbone!r}: {expected}")
    for name in names:
        if name not in given and takes[name].default is inspect.Parameter.empty:
            raise TypeError(f"{name} is missing: ccq with backbone {backbone!r} needs it")


def _check_state(inner: Bound, name: str, state: object, N: int, sizes: arguments.Sizes, like: Tensor) -> CCQState:
    arguments.check_state_tuple(name, state, CCQState)
    cov, memory = state  # type: ignore[misc]
    covariance_contract.check_state(cov, N, sizes.H, sizes.K, like, f"{name}.cov")
    return CCQState(CovState(*cov), inner.check_state(f"{name}.backbone", memory, N, sizes, like))


def _core(
    backbone: Core, contract: Core, names: tuple[str, ...], groups: int, read: Tensor, *rest: Any
) -> tuple[Tensor, CCQState]:
    """One sequence: read [B, HV, T, K], the backbone's inputs (q and k first), those called `names`, the state."""
    *inputs, state = rest
    inputs, extra = inputs[: -len(names)], dict(zip(names, inputs[-len(names) :], strict=True))
    cov, memory = (None, None) if state is None else state
    q, k = (x[:, ::groups].contiguous() for x in (read, inputs[1]))  # one of each group: the key heads
    clean, cov = contract(q, k, extra["lam"], extra.get("cov_g"), extra.get("weight"), cov)
    o, memory = backbone(clean.repeat_interleave(groups, dim=1), *inputs, memory)
    return o, CCQState(cov, memory)
