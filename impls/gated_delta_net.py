"""Gated DeltaNet: a state that decays, then corrects what it stores under the token's key.

Definition, state S [K, V] per value head, log gate g <= 0, beta any real (usually in [0, 1]), scale K ** -0.5 by
default:

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,      o_t = scale * S_t^T q_t

Keys are used as given: callers normalise them. It is the `delta_scan` with erase = k, write = beta k and gate g: the
decay comes before the correction, so a token is compared with the decayed state.

Source: [GatedDeltaNet].
"""

from __future__ import annotations

import functools

from torch import Tensor

from linattest.impls import arguments, bound, delta_scan, features
from linattest.impls.bound import Bound, Core


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float64, float32, bfloat16 or float16;
    g, beta [B, T, HV] of that dtype or float32; `initial_state` S [N, HV, K, V], float32 (float64 for float64
    inputs), N = B or the number of packed sequences. Returns o [B, T, HV, V] in v's dtype and the final state (None
    unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, a positive or NaN gate, a
    beta that is not finite, bad offsets. Source: module docstring.
    """
    return bound.run(bind(q, k, v, g, beta, scale=scale), initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form (the UT transform of `delta_scan`); arguments and errors as in `recurrent`.

    `chunk_size` is a power of two.
    """
    operator = bind(q, k, v, g, beta, scale=scale, chunk_size=arguments.check_chunk_size(chunk_size))
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    return bound.step(bind(q, k, v, g, beta, scale=scale), initial_state)


def bind(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    chunk_size: int | None = None,
) -> Bound:
    """The operator, checked and widened: the token loop, or chunks of a (checked) `chunk_size`."""
    B, T, _, HV, K, _ = sizes = arguments.check_qkv(q, k, v)
    for name, x in (("g", g), ("beta", beta)):
        arguments.check_per_head(name, x, {"[B, T, HV]": (B, T, HV)}, q)
    arguments.check_gate_values("g", g)
    arguments.check_finite_values("beta", beta)
    factor = arguments.check_scale(scale, K)
    inputs = [features.heads_first(x, HV) for x in (q, k, v, g, beta)]
    core = functools.partial(_core, delta_scan.form(chunk_size, q))
    return Bound(sizes, q, inputs, core, factor, bound.check_memory)


def _core(
    walk: Core, read: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One sequence: q, k [B, HV, T, K], v [B, HV, T, V], g, beta [B, HV, T], all WIDE. Erase k, write beta k."""
    return walk(read, k, k * beta.unsqueeze(-1), v, g, S)
