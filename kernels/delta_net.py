"""DeltaNet in Triton: the delta scan with erase = k, write = beta k and no gate, beta k being made nowhere.

    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,      o_t = scale S_t^T q_t     (S [K, V] per value head)

Keys are used as given: callers normalise them. What is launched is in delta_rule.py and delta_scan.py.

Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length".
"""

from __future__ import annotations

from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import delta_scan
from linattest.kernels.delta_rule import Operands


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.delta_net.recurrent`.

    q, k [B, T, H, K], v [B, T, HV, V] (HV a multiple of H) of one dtype: float32, bfloat16 or float16; widths 1 to 256;
    beta [B, T, HV] of that dtype or float32; `initial_state` S [N, HV, K, V] float32. Returns o [B, T, HV, V] in v's
    dtype and the final state (None unless `output_final_state`). `scale` None is K**-0.5. `cu_seqlens` [N + 1] int32 or
    int64, with B = 1. Any strides, no copies.

    `validate` checks values too (beta, offsets), which waits for the GPU.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes = _check(q, k, v, beta, validate)
    x = Operands(q, k, None, v, None, beta)
    return delta_scan.run(x, sizes, scale, initial_state, output_final_state, cu_seqlens, validate)


def step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, initial_state: Tensor | None = None, scale: float | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`."""
    return read_step(q, q, k, v, beta, initial_state=initial_state, scale=scale, validate=validate)


def read_step(
    read: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, initial_state: Tensor | None = None,
    scale: float | None = None, validate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`step`, but `read` (like q, or float32) reads the memory in q's place."""
    sizes = _check(q, k, v, beta, validate)
    return delta_scan.run_step(Operands(read, k, None, v, None, beta), sizes, scale, initial_state)


def _check(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, validate: bool) -> Sizes:
    B, T, _, HV, _, _ = sizes = arguments.check_qkv(q, k, v)
    arguments.check_per_head("beta", beta, {"[B, T, HV]": (B, T, HV)}, q)
    if arguments.check_flag("validate", validate):
        arguments.check_finite_values("beta", beta)
    return sizes
