"""Variational linear attention in Triton: delta-rule writes along a gain that a running penalty matrix shapes.

    M_t = M_{t-1} + u_t u_t^T,    y_t = (lam0 I + M_t)^{-1} k^_t,    a_t = y_t/|y_t|   (gain="raw": a_t = y_t)
    S_t = S_{t-1} + a_t (v_t - S_{t-1}^T k^_t)^T,        z_t = z_{t-1} + k_t
    o_t = S_t^T q_t / max(z_t . q_t, eps)                (normalizer=False: o_t = S_t^T q_t); no scale

with k^ = k/|k|. Definition in full: `linattest.impls.vla`. What is launched is in vla_rule.py; one token's device code
in ridge_decode.py.

Source: [VLA], section 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import delta_rule, launch, vla_rule
from linattest.kernels.library import Operation
from linattest.kernels.ridge_solve import lam_of, number_of
from linattest.kernels.vla_rule import Inputs, Kept, State


class VLAState(NamedTuple):
    """S [N, H, K, V], M [N, H, K, K] (without lam0 I), z [N, H, K] (also kept, unread, with normalizer=False)."""

    S: Tensor
    M: Tensor
    z: Tensor


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    initial_state: VLAState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    read: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, VLAState | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.vla.recurrent`.

    q, k, u [B, T, H, K], v [B, T, H, V] of one dtype: float32, bfloat16 or float16; widths 1 to 256; `initial_state` a
    VLAState of float32 tensors. Returns o [B, T, H, V] in v's dtype and the final state (None unless
    `output_final_state`). `cu_seqlens` [N + 1] int32 or int64, with B = 1. `lam0` is a number or a tensor [] or [H],
    floating, finite and above 0; `gain` is "unit" (a_t of length 1) or "raw". Any strides, no copies. `read` [B, T, H,
    K] reads S in q's place, which is then in the denominator alone (CCQ).

    `validate` checks values too (lam0, offsets), which waits for the GPU. Without it a value out of its domain gives
    the right result or one that is not finite.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes, floor = _check(q, k, v, u, read, lam0, normalizer, eps, gain, validate)
    N = launch.check_packing(cu_seqlens, sizes, validate=validate)
    arguments.check_flag("output_final_state", output_final_state)
    state = check_state(initial_state, N, sizes, q)
    o, *final = SCAN(
        q, k, v, u, read, lam_of(lam0, sizes.H), *state, cu_seqlens, number_of(lam0), gain == "unit", floor
    )  # fmt: skip
    return o, VLAState(*final) if output_final_state else None


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lam0: float | Tensor = 0.1,
    normalizer: bool = True,
    eps: float = 1e-6,
    gain: str = "unit",
    initial_state: VLAState | None = None,
    scale: float | None = None,
    read: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, VLAState]:
    """One decode token ([B, 1, H, *]): (o, new state); the state passed in is not modified. Errors as `chunk`.

    `scale` is there because other operators' steps have it: None or 1, since VLA has no output scale.
    """
    sizes, floor = _check(q, k, v, u, read, lam0, normalizer, eps, gain, validate)
    arguments.check_one_token(sizes.T)
    if scale is not None and arguments.check_number("scale", scale) != 1:
        raise ValueError(f"scale is {scale}, expected None (or 1): VLA has no output scale")
    state = check_state(initial_state, sizes.B, sizes, q)
    o, *final = STEP(q, k, v, u, read, lam_of(lam0, sizes.H), *state, number_of(lam0), gain == "unit", floor)
    return o, VLAState(*final)


def _check(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, read: Tensor | None, lam0: float | Tensor, normalizer: bool, eps: float,
    gain: str, validate: bool,
) -> tuple[Sizes, float | None]:  # fmt: skip
    """Sizes, and the floor of the denominators (None without)."""
    sizes = arguments.check_qkv(q, k, v, grouped=False)
    arguments.check_same("u", u, (sizes.B, sizes.T, sizes.H, sizes.K), "q's shape [B, T, H, K]", q)
    if read is not None:  # of one token it may be what a contraction computed in float32
        like = read if sizes.T == 1 and read.dtype == torch.float32 else q
        arguments.check_same("read", read, (sizes.B, sizes.T, sizes.H, sizes.K), "q's shape [B, T, H, K]", like)
    launch.check_dtype(q)
    launch.check_widths(sizes)
    arguments.check_lam0(lam0, sizes.H, q, values=arguments.check_flag("validate", validate))
    arguments.check_choice("gain", gain, ("unit", "raw"))
    floor = arguments.check_number("eps", eps, positive=True)
    return sizes, floor if arguments.check_flag("normalizer", normalizer) else None


def check_state(state: object, N: int, sizes: Sizes, like: Tensor, name: str = "initial_state") -> State:
    """The three tensors of a VLAState for N sequences; three times None for None."""
    if state is None:
        return State(None, None, None)
    H, K, V = sizes.H, sizes.K, sizes.V
    arguments.check_state_tuple(name, state, VLAState)
    S, M, z = state  # type: ignore[misc]
    arguments.check_state(f"{name}.S", S, (N, H, K, V), "[N, H, K, V]", like)
    arguments.check_state(f"{name}.M", M, (N, H, K, K), "[N, H, K, K]", like)
    arguments.check_state(f"{name}.z", z, (N, H, K), "[N, H, K]", like)
    return State(S, M, z)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, read: Tensor | None, lam: Tensor | None, S: Tensor | None,
    M: Tensor | None, z: Tensor | None, cu_seqlens: Tensor | None, number: float, unit: bool, eps: float | None,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:  # fmt: skip
    o, final, kept = vla_rule.forward(Inputs(q, k, v, u, read, lam, number, unit, eps, cu_seqlens), State(S, M, z))
    return o, *final, *kept[:-1], *kept.delta  # pyright: ignore[reportReturnType]  (ten, not any number)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, read: Tensor | None, lam: Tensor | None, S: Tensor | None,
    M: Tensor | None, z: Tensor | None, cu_seqlens: Tensor | None, number: float, unit: bool, eps: float | None,
    erase: Tensor, write: Tensor, lengths: Tensor, divisor: Tensor, penalties: Tensor, sums: Tensor, tm: Tensor,
    reads: Tensor, factors: Tensor, maps: Tensor,
    do: Tensor | None, dS: Tensor | None, dM: Tensor | None, dz: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    delta = delta_rule.Saved(tm, reads, factors, maps)
    kept = Kept(erase, write, lengths, divisor, penalties, sums, delta)
    x, initial = Inputs(q, k, v, u, read, lam, number, unit, eps, cu_seqlens), State(S, M, z)
    found, none = vla_rule.backward(x, initial, kept, do, State(dS, dM, dz)), q.new_empty(0)
    dread, dlam = none if found.read is None else found.read, none if lam is None else found.lam
    dS, dM, dz = (none if x is None else gradient for x, gradient in zip((S, M, z), found[-3:], strict=True))
    return found.q, found.k, found.v, found.u, dread, dlam, dS, dM, dz


SCAN = Operation("vla", _forward, _backward, tensors=9, public=4)


# --- one token -----------------------------------------------------------------------------------------------


def _step(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, read: Tensor | None, lam: Tensor | None, S: Tensor | None,
    M: Tensor | None, z: Tensor | None, number: float, unit: bool, eps: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return vla_rule.step(Inputs(q, k, v, u, read, lam, number, unit, eps, None), State(S, M, z))


def _step_backward(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, read: Tensor | None, lam: Tensor | None, S: Tensor | None,
    M: Tensor | None, z: Tensor | None, number: float, unit: bool, eps: float | None,
    do: Tensor | None, dS: Tensor | None, dM: Tensor | None, dz: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As of a sequence of one token, in float32."""
    wide = (x if x is None else x.float() for x in (q, k, v, u, read))
    x, initial, none = Inputs(*wide, lam, number, unit, eps, None), State(S, M, z), q.new_empty(0)
    _, _, kept = vla_rule.forward(x, initial)
    found = vla_rule.backward(x, initial, kept, None if do is None else do.float(), State(dS, dM, dz))
    dread = none if read is None or found.read is None else found.read.to(read.dtype)
    dlam = none if lam is None else found.lam
    dS, dM, dz = (none if x is None else gradient for x, gradient in zip((S, M, z), found[-3:], strict=True))
    dq, dk, dv, du = (gradient.to(q.dtype) for gradient in (found.q, found.k, found.v, found.u))
    return dq, dk, dv, du, dread, dlam, dS, dM, dz


STEP = Operation("vla_step", _step, _step_backward, tensors=9, public=4)
