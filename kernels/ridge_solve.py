"""The running ridge solve in Triton: each token's vector through the inverse of a growing penalty matrix.

    M_t = M_{t-1} + u_t u_t^T,      y_t = (lam0 I + M_t)^{-1} x_t      (definition: `linattest.impls.ridge_solve`)

What is launched is in ridge_rule.py (sequences) and here (one token). The inverse amplifies rounding by the condition
of lam0 I + M_t: so half precision (ridge_walk.py) marks what it cannot do, and ridge_conjugate.py does that in float32.

Source: [VLA], section 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import launch, ridge_decode, ridge_rule
from linattest.kernels.library import Operation
from linattest.kernels.ridge_rule import Penalty


def chunk(
    x: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.ridge_solve.recurrent`.

    x, u [B, T, H, K] of one dtype: float32, bfloat16 or float16, K at most 256; `initial_state` M [N, H, K, K] float32.
    Returns y [B, T, H, K] in x's dtype and the final M (None unless `output_final_state`). `cu_seqlens` [N + 1] int32
    or int64, with B = 1. `lam0` is a number or a tensor [] or [H], floating, finite and above 0. Any strides, no
    copies.

    `validate` checks values too (lam0, offsets), which waits for the GPU. Without it a value out of its domain gives
    the right result or one that is not finite.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes = _check(x, u, lam0, validate)
    N = launch.check_packing(cu_seqlens, sizes, validate=validate)
    arguments.check_flag("output_final_state", output_final_state)
    _check_state(initial_state, N, sizes, x)
    y, final = SOLVE(x, u, lam_of(lam0, sizes.H), initial_state, cu_seqlens, number_of(lam0))
    return y, final if output_final_state else None


def step(
    x: Tensor, u: Tensor, *, lam0: float | Tensor, initial_state: Tensor | None = None, validate: bool = False
) -> tuple[Tensor, Tensor]:
    """One decode token ([B, 1, H, *]): (y, new M); the state passed in is not modified. Errors as `chunk`."""
    sizes = _check(x, u, lam0, validate)
    arguments.check_one_token(sizes.T)
    _check_state(initial_state, sizes.B, sizes, x)
    y, final = STEP(x, u, lam_of(lam0, sizes.H), initial_state, number_of(lam0))
    return y, final


def _check(x: Tensor, u: Tensor, lam0: float | Tensor, validate: bool) -> Sizes:
    B, T, H, K = arguments.check_rank("x", x).shape
    arguments.check_same("u", u, (B, T, H, K), "x's shape [B, T, H, K]", x, "x")
    arguments.check_widths(H=H, K=K)
    launch.check_dtype(x, "x")
    sizes = Sizes(B, T, H, H, K, K)
    launch.check_widths(sizes)
    arguments.check_lam0(lam0, H, x, values=arguments.check_flag("validate", validate), like_name="x")
    return sizes


def _check_state(state: Tensor | None, N: int, sizes: Sizes, like: Tensor) -> None:
    if state is not None:
        arguments.check_state("initial_state", state, (N, sizes.H, sizes.K, sizes.K), "[N, H, K, K]", like, "x")


def lam_of(lam0: float | Tensor, H: int) -> Tensor | None:
    """lam0 [H] float32, with its graph; None for a number."""
    return lam0.to(torch.float32).expand(H).contiguous() if isinstance(lam0, Tensor) else None


def number_of(lam0: float | Tensor) -> float:
    """lam0 if it is a number; 1 beside a tensor."""
    return 1.0 if isinstance(lam0, Tensor) else float(lam0)


def _forward(
    x: Tensor, u: Tensor, lam: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None, number: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    penalty, final = ridge_rule.penalty(u, lam, number, initial_state, cu_seqlens)
    y = ridge_rule.solve(penalty, x, wide=True)
    return y.to(x.dtype, copy=True), final, penalty.edges, y


def _backward(
    x: Tensor, u: Tensor, lam: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None, number: float,
    edges: Tensor, y: Tensor, dy: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    penalty = Penalty(u, lam, number, cu_seqlens, edges)
    dx, du, dlam, dinitial = ridge_rule.backward(penalty, y, dy, dfinal, initial_state)
    none = x.new_empty(0)
    return dx.to(x.dtype), du, none if lam is None else dlam, none if initial_state is None else dinitial


SOLVE = Operation("ridge_solve", _forward, _backward, tensors=4, public=2)


# --- one token -----------------------------------------------------------------------------------------------


def _step(
    x: Tensor, u: Tensor, lam: Tensor | None, initial_state: Tensor | None, number: float
) -> tuple[Tensor, Tensor, Tensor]:
    B, _, H, K = x.shape
    y, final = x.new_empty(x.shape, dtype=torch.float32), x.new_empty(B, H, K, K, dtype=torch.float32)
    launch.run(
        ridge_decode.ridge_step, B * H, y, final, x, u, lam,
        None if initial_state is None else initial_state.contiguous(), tuple(map(launch.strides, (y, x, u))), H, number,
        config=ridge_rule.one_token(K), K=K, BK=launch.width(K),
    )  # fmt: skip
    return y.to(x.dtype, copy=True), final, y


def _step_backward(
    x: Tensor, u: Tensor, lam: Tensor | None, initial_state: Tensor | None, number: float, y: Tensor,
    dy: Tensor | None, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = u.float()
    penalty, _ = ridge_rule.penalty(wide, lam, number, initial_state, None)
    upstream = None if dy is None else dy.float()
    dx, du, dlam, dinitial = ridge_rule.backward(penalty, y, upstream, dfinal, initial_state)
    none = x.new_empty(0)
    return (
        dx.to(x.dtype), du.to(u.dtype), none if lam is None else dlam, none if initial_state is None else dinitial
    )  # fmt: skip


STEP = Operation("ridge_solve_step", _step, _step_backward, tensors=4, public=2)
