"""Gated linear attention: a sum of outer products that forgets at the rate of its gates.

Definition, state S [K, V] per value head, log gate g <= 0, scale K ** -0.5 by default:

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,      o_t = scale * S_t^T q_t

g is one number per value head (simple GLA, Mamba-2) or one per key channel (GLA); its rank tells which. The gate of a
token acts on the state before that token is added. It is the `decay_scan`.

Sources: [GLA] for a number per channel, [Mamba2] for one per head.
"""

from __future__ import annotations

from torch import Tensor

from linattest.impls import arguments, bound, decay_scan, features
from linattest.impls.bound import Bound


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float64, float32, bfloat16 or float16;
    g [B, T, HV] or [B, T, H, K] of that dtype or float32; `initial_state` S [N, HV, K, V], float32 (float64 for
    float64 inputs), N = B or the number of packed sequences. Returns o [B, T, HV, V] in v's dtype and the final state
    (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, a positive or NaN gate,
    bad offsets. Source: module docstring.
    """
    return bound.run(bind(q, k, v, g, scale=scale), initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form (see `decay_scan`); arguments and errors as in `recurrent`.

    `chunk_size` is a power of two; float64 inputs get at most 16.
    """
    operator = bind(q, k, v, g, scale=scale, chunk_size=arguments.check_chunk_size(chunk_size))
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, initial_state: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    return bound.step(bind(q, k, v, g, scale=scale), initial_state)


def bind(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float | None = None, chunk_size: int | None = None
) -> Bound:
    """The operator, checked and widened: the token loop, or chunks of a (checked) `chunk_size`."""
    B, T, H, HV, K, _ = sizes = arguments.check_qkv(q, k, v)
    arguments.check_per_head("g", g, {"[B, T, HV]": (B, T, HV), "[B, T, H, K]": (B, T, H, K)}, q)
    arguments.check_gate_values("g", g)
    factor = arguments.check_scale(scale, K)
    inputs = [features.heads_first(x, HV) for x in (q, k, v, g)]
    return Bound(sizes, q, inputs, bound.reader(decay_scan.form(chunk_size, q)), factor, bound.check_memory)
