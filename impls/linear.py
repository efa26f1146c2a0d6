"""Linear attention: a sum of outer products, read with the query, optionally normalised.

Definition, state S [K, V] per value head and, with `normalizer`, z [K] per key head:

    S_t = S_{t-1} + k_t v_t^T,                           o_t = scale * S_t^T q_t              (scale K ** -0.5)
    with normalizer:  z_t = z_{t-1} + k_t,               o_t = S_t^T q_t / max(z_t . q_t, eps)      (no scale)

Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 16 to 20; the normaliser's floor is that of the
VLA paper's ratio of recurrences. At the kink z . q = eps the floor counts as a constant (gradient 0 to z . q).

Chunk form: with Q, K, V the rows of one chunk that starts from S,  O = Q S + lower(Q K^T) V,  S' = S + K^T V.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, bound, features
from linattest.impls.bound import Bound, Core
from linattest.impls.features import WIDE


class LinearState(NamedTuple):
    """State of the normalised form: S [N, HV, K, V] and the key sum z [N, H, K]."""

    S: Tensor
    z: Tensor


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalizer: bool = False,
    eps: float = 1e-6,
    scale: float | None = None,
    initial_state: Tensor | LinearState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | LinearState | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float64, float32, bfloat16 or float16. With
    `normalizer`, q and k should be positive features and `scale` must be left alone. `initial_state` is
    S [N, HV, K, V], or LinearState(S, z [N, H, K]) with `normalizer`, float32 (float64 for float64 inputs).
    Returns o [B, T, HV, V] in v's dtype and the final state (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, offsets or numbers.
    Source: module docstring.
    """
    operator = bind(q, k, v, normalizer=normalizer, eps=eps, scale=scale)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalizer: bool = False,
    eps: float = 1e-6,
    scale: float | None = None,
    initial_state: Tensor | LinearState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | LinearState | None]:
    """Chunk-parallel form (module docstring); arguments and errors as in `recurrent`.

    `chunk_size` is a power of two.
    """
    size = arguments.check_chunk_size(chunk_size)
    operator = bind(q, k, v, normalizer=normalizer, eps=eps, scale=scale, chunk_size=size)
    return bound.run(operator, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalizer: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | LinearState | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor | LinearState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `recurrent`."""
    return bound.step(bind(q, k, v, normalizer=normalizer, eps=eps, scale=scale), initial_state)


def bind(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalizer: bool = False,
    eps: float = 1e-6,
    scale: float | None = None,
    chunk_size: int | None = None,
) -> Bound:
    """The operator, checked and widened: the token loop, or chunks of a (checked) `chunk_size`."""
    sizes = arguments.check_qkv(q, k, v)
    arguments.check_flag("normalizer", normalizer)
    floor = arguments.check_number("eps", eps, positive=True)
    factor = arguments.check_scale(scale, sizes.K)
    if normalizer and scale is not None and factor != 1:
        raise ValueError(f"scale is {scale}, expected None (or 1) with normalizer=True: the ratio has no scale")
    inputs = [features.heads_first(x, sizes.HV) for x in (q, k, v)]
    core = bound.form(chunk_size, recurrent_core, chunk_core)
    if not normalizer:
        return Bound(sizes, q, inputs, bound.reader(core), factor, bound.check_memory)
    return Bound(sizes, q, inputs, functools.partial(_ratio, core, floor, sizes.HV // sizes.H), 1.0, _check_state)


def _check_state(name: str, state: object, N: int, sizes: arguments.Sizes, like: Tensor) -> LinearState:
    arguments.check_state_tuple(name, state, LinearState)
    S, z = state  # type: ignore[misc]
    bound.check_memory(f"{name}.S", S, N, sizes, like)
    arguments.check_state(f"{name}.z", z, (N, sizes.H, sizes.K), "[N, H, K]", like)
    return LinearState(S, z)


def _ratio(
    core: Core, floor: float, groups: int, read: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None
) -> tuple[Tensor, LinearState]:
    S, z = state if state is not None else (None, None)
    numerator, S = core(read, k, v, S)
    denominator, z = normaliser(q[:, ::groups], k[:, ::groups], z, floor)
    return numerator / denominator.repeat_interleave(groups, dim=1), LinearState(S, z)


# --- cores: heads-first WIDE tensors, no scale ----------------------------------------------------------------


def normaliser(q: Tensor, k: Tensor, z: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """q, k [B, H, T, K], z [B, H, K] -> max(z_t . q_t, eps) as [B, H, T, 1], and the last z.

    Running sums of keys are plain prefix sums, so all forms share this. NaN passes through (`<=` is false for it).
    """
    B, H, T, K = k.shape
    z = k.new_zeros(B, H, K) if z is None else z
    if T == 0:
        return k.new_ones(B, H, 0, 1), z
    blocks = features.into_chunks(k, features.chunk_length(T, 64))
    inside = blocks.new_ones(blocks.shape[2], blocks.shape[2]).tril() @ blocks  # a running sum, faster than cumsum
    starts = features.prefix_sums(inside[:, :, -1], z.flatten(0, 1))
    dots = (features.from_chunks(starts[:, :-1, None] + inside, B, H, T) * q).sum(-1, keepdim=True)
    return torch.where(dots <= eps, eps, dots), starts[:, -1].reshape(z.shape)


def recurrent_core(q: Tensor, k: Tensor, v: Tensor, S: Tensor | None) -> tuple[Tensor, Tensor]:
    """q, k [B, H, T, K], v [B, H, T, V], state [B, H, K, V] or None."""
    S = zero_state(q, v) if S is None else S
    outputs = []
    for t in range(q.shape[2]):
        S = S + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append((q[:, :, t, None] @ S).squeeze(2))
    return (torch.stack(outputs, 2) if outputs else v), S


def zero_state(q: Tensor, v: Tensor) -> Tensor:
    """The WIDE zero state [B, H, K, V] for heads-first q and v."""
    return torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=WIDE, device=q.device)


def chunk_core(q: Tensor, k: Tensor, v: Tensor, S: Tensor | None, *, chunk_size: int = 64) -> tuple[Tensor, Tensor]:
    """As `recurrent_core`, chunk-parallel: every chunk's start is a prefix sum, so nothing is sequential."""
    B, H, T, _ = q.shape
    S = zero_state(q, v) if S is None else S
    if T == 0:
        return v, S
    C = features.chunk_length(T, chunk_size)
    Q, keys, values = (features.into_chunks(x, C) for x in (q, k, v))
    starts = features.prefix_sums(keys.mT @ values, S.flatten(0, 1))
    o = Q @ starts[:, :-1] + (Q @ keys.mT).tril() @ values
    return features.from_chunks(o, B, H, T), starts[:, -1].reshape(S.shape)
