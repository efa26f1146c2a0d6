"""The ridge solve: each token's vector through the inverse of a growing penalty matrix.

Definition, per head, lam0 > 0:

    M_t = M_{t-1} + u_t u_t^T,      y_t = (lam0 I + M_t)^{-1} x_t

The state is M [K, K], without lam0 I; an initial M is read as (M + M^T)/2. VLA's gain (x = k/|k|), recursive least
squares and the backward of both are this primitive.

The inverse amplifies rounding of M by cond(lam0 I + M_t), while rounding of u itself moves y far less (a repeated u
stays nearly rank one), so this is float64 work even for float32 inputs.

Source: VLA paper, section 2 (penalty matrix); the chunk form and the backward are in `ridge_chunk`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from linattest.impls import arguments, features, once, ridge_chunk
from linattest.impls.features import WIDE


def recurrent(
    x: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Token loop: a Cholesky factor of lam0 I + M_t for every token.

    x, u [B, T, H, K] of one dtype: float64, float32, bfloat16 or float16; `lam0` a number or a differentiable scalar
    or [H] tensor, > 0; `initial_state` M [N, H, K, K], float32 (float64 for float64 inputs), N = B or the number of
    packed sequences. Returns y [B, T, H, K] in x's dtype and the final M (None unless `output_final_state`).

    A matrix that is not positive definite (a negative initial M, or cond > 1e16) gives NaN for its tokens only.
    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, lam0 <= 0 or not finite,
    bad offsets. Source: module docstring.
    """
    return _run(recurrent_core, x, u, lam0, initial_state, output_final_state, cu_seqlens)


def chunk(
    x: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """Chunk-parallel form: one factorisation per chunk and a masked Woodbury update inside (see `ridge_chunk`).

    Arguments and errors as in `recurrent`; `chunk_size` is a power of two.
    """
    size = arguments.check_chunk_size(chunk_size)
    core = functools.partial(ridge_chunk.core, chunk_size=size, exact=features.is_wide(x))
    return _run(core, x, u, lam0, initial_state, output_final_state, cu_seqlens)


def step(x: Tensor, u: Tensor, *, lam0: float | Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One decode token ([B, 1, H, K]): (y, new M); the state passed in is not modified. Errors as `recurrent`."""
    arguments.check_rank("x", x)
    arguments.check_one_token(x.shape[1])
    y, state = recurrent(x, u, lam0=lam0, initial_state=initial_state, output_final_state=True)
    assert state is not None
    return y, state


@features.full_precision
def _run(core, x, u, lam0, initial_state, output_final_state, cu_seqlens):
    """Check, widen, run each sequence, round once."""
    B, T, H, K = arguments.check_rank("x", x).shape
    arguments.check_same("u", u, (B, T, H, K), "x's shape [B, T, H, K]", x, "x")
    arguments.check_widths(H=H, K=K)
    arguments.check_flag("output_final_state", output_final_state)
    arguments.check_lam0(lam0, H, x, like_name="x")
    offsets = arguments.check_cu_seqlens(cu_seqlens, B, T)
    if initial_state is not None:
        N = B if offsets is None else len(offsets) - 1
        arguments.check_state("initial_state", initial_state, (N, H, K, K), "[N, H, K, K]", x, "x")
    inputs = [features.heads_first(part) for part in (x, u)]
    core = functools.partial(core, lam=widen_lam0(lam0, B, H, x.device))
    y, M = features.over_sequences(core, inputs, features.to_state(initial_state, WIDE), offsets)
    final = features.to_state(M, arguments.compute_dtype(x.dtype)) if output_final_state else None
    return features.tokens_first(y, x.dtype), final


def widen_lam0(lam0: float | Tensor, B: int, H: int, device: torch.device) -> Tensor:
    """lam0 as a WIDE [B, H] tensor (a number keeps all its bits, a tensor its graph)."""
    return torch.as_tensor(lam0, dtype=WIDE, device=device).expand(B, H)


# --- core: heads-first WIDE tensors -------------------------------------------------------------------------


def recurrent_core(x: Tensor, u: Tensor, M: Tensor | None, *, lam: Tensor) -> tuple[Tensor, Tensor]:
    """x, u [B, H, T, K], M [B, H, K, K] or None, lam [B, H] -> y [B, H, T, K] and the final M, all WIDE."""
    if x.shape[2] == 0 and M is not None:  # no token, no reading: the state passes through
        return x, M
    M = symmetric_start(M, x)
    ridge = lam[..., None, None] * torch.eye(x.shape[-1], dtype=WIDE, device=x.device)
    outputs = []
    for t in range(x.shape[2]):
        row = u[:, :, t]
        M = M + row.unsqueeze(-1) * row.unsqueeze(-2)
        outputs.append(_Solve.apply(M + ridge, x[:, :, t]))
    return (torch.stack(outputs, 2) if outputs else x), M


def symmetric_start(M: Tensor | None, x: Tensor) -> Tensor:
    """(M + M^T)/2, or zeros [B, H, K, K] without an initial state."""
    if M is None:
        return torch.zeros(*x.shape[:2], x.shape[-1], x.shape[-1], dtype=WIDE, device=x.device)
    return (M + M.mT) / 2


class _Solve(torch.autograd.Function):
    """y = A^{-1} x for symmetric positive definite A [..., K, K], x [..., K].

    The backward is the adjoint solve, b = A^{-1} ybar: xbar = b, Abar = -(b y^T + y b^T)/2; differentiating the
    factorisation itself would only add rounding.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, x: Tensor) -> Tensor:
        factor = ridge_chunk.cholesky(A)
        y = torch.cholesky_solve(x.unsqueeze(-1), factor).squeeze(-1)
        ctx.save_for_backward(A, factor, y)
        return y

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, ...]:
        A, factor, y = ctx.saved_tensors
        with torch.no_grad():
            b = torch.cholesky_solve(upstream.unsqueeze(-1), factor).squeeze(-1)
            outer = b.unsqueeze(-1) * y.unsqueeze(-2)
            gradients = (-(outer + outer.mT) / 2, b)
        return once.once_only(gradients, A, y, upstream)
