"""Linear attention in Triton: the decay scan without a gate.

    S_t = S_{t-1} + k_t v_t^T,      o_t = scale * S_t^T q_t         (definition: `linattest.impls.linear`)

The gate is one zero, read by every token; what is launched is in decay.py and, for one token, in gla.py.

Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 16 to 20.
"""

from __future__ import annotations

from torch import Tensor

from linattest.impls import arguments
from linattest.kernels import gla


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalizer: bool = False,
    eps: float = 1e-6,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.linear.recurrent`.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float32, bfloat16 or float16; widths 1 to 256;
    `initial_state` S [N, HV, K, V] float32. Returns o [B, T, HV, V] in v's dtype and the final state (None unless
    `output_final_state`). `scale` None is K**-0.5. `cu_seqlens` [N + 1] int32 or int64, with B = 1. `validate` checks
    offsets too, which waits for the GPU. `eps` belongs to `normalizer`.

    Raises NotImplementedError for `normalizer`; TypeError or ValueError (naming the argument) for wrong types, dtypes
    (float64 too), shapes, devices, widths; RuntimeError on a CPU outside of Triton's interpreter.
    """
    return gla.chunk(
        q, k, v, _no_gate(q, k, v, normalizer), scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens, validate=validate,
    )  # fmt: skip


def step(
    q: Tensor, k: Tensor, v: Tensor, *, initial_state: Tensor | None = None, normalizer: bool = False,
    eps: float = 1e-6, scale: float | None = None, validate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`."""
    return read_step(
        q, q, k, v, initial_state=initial_state, normalizer=normalizer, eps=eps, scale=scale, validate=validate
    )


def read_step(
    read: Tensor, q: Tensor, k: Tensor, v: Tensor, *, initial_state: Tensor | None = None, normalizer: bool = False,
    eps: float = 1e-6, scale: float | None = None, validate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`step`, but `read` (like q, or float32) reads the memory in q's place."""
    gate = _no_gate(q, k, v, normalizer)
    return gla.read_step(read, q, k, v, gate, initial_state=initial_state, scale=scale, validate=validate)


def _no_gate(q: Tensor, k: Tensor, v: Tensor, normalizer: bool) -> Tensor:
    """A zero for every token of every value head [B, T, HV], in the memory of one."""
    if arguments.check_flag("normalizer", normalizer):
        raise NotImplementedError(
            "normalizer is True: its denominator reads with q itself, which no kernel does yet: use "
            "linattest.impls.linear"
        )
    B, T, _, HV, _, _ = arguments.check_qkv(q, k, v)
    return q.new_zeros(()).expand(B, T, HV)
