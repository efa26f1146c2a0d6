"""The covariance contraction in Triton: each query loses its component along the running covariance of the keys.

Definition, per head, for the weighted and forgetting covariance Sigma_t of the keys up to t:

    q~_t = q_t - lam_t Sigma_t q_t      (q_t itself, bit by bit, where lam_t = 0)

Definition and state in full: `linattest.impls.covariance_contract`. The device code is in covariance_scan.py
(equations), covariance_outputs.py and covariance_decode.py; the gradients start in
covariance_backward.py.

Sources: [CCQ], section 2; [ChanGolubLeVeque83].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments
from linattest.impls.arguments import Sizes
from linattest.kernels import (
    configs,
    covariance_backward,
    covariance_decode,
    covariance_outputs,
    covariance_scan,
    launch,
)
from linattest.kernels.launch import CHUNK, Config
from linattest.kernels.library import Operation


class CovState(NamedTuple):
    """count [N, H], reference [N, H, K], mean [N, H, K] (relative to the reference), scatter [N, H, K, K]; float32."""

    count: Tensor
    reference: Tensor
    mean: Tensor
    scatter: Tensor


def chunk(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    *,
    cov_g: Tensor | None = None,
    weight: Tensor | None = None,
    initial_state: CovState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    validate: bool = False,
) -> tuple[Tensor, CovState | None]:
    """Chunk-parallel form on a GPU: arguments, results and errors as `linattest.impls.covariance_contract.recurrent`.

    q, k [B, T, H, K] of one dtype: float32, bfloat16 or float16, K at most 256; lam, cov_g, weight [B, T, H] of that
    dtype or float32; `initial_state` a CovState of float32 tensors. Returns q~ [B, T, H, K] in q's dtype and the final
    state (None unless `output_final_state`). `cu_seqlens` [N + 1] int32 or int64, with B = 1. Any strides, no copies of
    q and k. Gradients: of all inputs and of the state; those of float16 inputs by float32 kernels.

    `validate` checks values too (lam, cov_g, weight, count, offsets), which waits for the GPU. Without it a value out
    of its domain gives the right result or one that is not finite.

    Raises TypeError or ValueError (naming the argument) for wrong types, dtypes (float64 too), shapes, devices, widths;
    RuntimeError on a CPU outside of Triton's interpreter.
    """
    sizes = _check(q, k, lam, cov_g, weight, validate)
    N = launch.check_packing(cu_seqlens, sizes, validate=validate)
    arguments.check_flag("output_final_state", output_final_state)
    state = check_state(initial_state, N, sizes, q, validate=validate)
    q_clean, *final = CHUNKS(q, k, lam, cov_g, weight, *state, cu_seqlens)
    return q_clean, CovState(*final) if output_final_state else None


def step(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    *,
    cov_g: Tensor | None = None,
    weight: Tensor | None = None,
    initial_state: CovState | None = None,
    validate: bool = False,
) -> tuple[Tensor, CovState]:
    """One decode token ([B, 1, H, *]): (q~, new state); the state passed in is not modified. Errors as `chunk`."""
    return _checked_step(q, q, k, lam, cov_g, weight, initial_state, validate)


def wide_step(
    q: Tensor, k: Tensor, lam: Tensor, *, cov_g: Tensor | None = None, weight: Tensor | None = None,
    initial_state: CovState | None = None, validate: bool = False,
) -> tuple[Tensor, CovState]:  # fmt: skip
    """`step`, but q~ is float32: for what reads with it, which need not round it in between."""
    return _checked_step(q.float(), q, k, lam, cov_g, weight, initial_state, validate)


def _checked_step(
    wide: Tensor, q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None,
    initial_state: CovState | None, validate: bool,
) -> tuple[Tensor, CovState]:  # fmt: skip
    """q~ in the dtype of `wide`, which is q."""
    sizes = _check(q, k, lam, cov_g, weight, validate)
    arguments.check_one_token(sizes.T)
    state = check_state(initial_state, sizes.B, sizes, q, validate=validate)
    q_clean, *final = STEP(wide, k, lam, cov_g, weight, *state)
    return q_clean, CovState(*final)


def _check(q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, validate: bool) -> Sizes:
    B, T, H, K = arguments.check_rank("q", q).shape
    arguments.check_same("k", k, (B, T, H, K), "q's shape [B, T, H, K]", q)
    arguments.check_widths(H=H, K=K)
    launch.check_dtype(q)
    sizes = Sizes(B, T, H, H, K, K)
    launch.check_widths(sizes)
    check_rates(lam, cov_g, weight, q, validate=validate)
    return sizes


def check_rates(lam: Any, cov_g: Any, weight: Any, q: Tensor, *, validate: bool) -> None:
    """lam, cov_g and weight [B, T, H] (the last two may be None) for a checked q; values only if `validate`."""
    arguments.check_flag("validate", validate)
    values = {
        "lam": (lam, arguments.check_finite_values),
        "cov_g": (cov_g, arguments.check_gate_values),
        "weight": (weight, arguments.check_non_negative_values),
    }
    for name, (x, check_values) in values.items():
        if x is not None or name == "lam":
            arguments.check_per_head(name, x, {"[B, T, H]": q.shape[:3]}, q)
            if validate:
                check_values(name, x)


def check_state(
    state: Any, N: int, sizes: Sizes, like: Tensor, *, validate: bool, name: str = "initial_state"
) -> tuple[Tensor | None, ...]:
    """The four tensors of a CovState for N sequences, contiguous; four times None for None."""
    if state is None:
        return (None,) * 4
    H, K = sizes.H, sizes.K
    arguments.check_state_tuple(name, state, CovState)
    shapes = ((N, H), "[N, H]"), ((N, H, K), "[N, H, K]"), ((N, H, K), "[N, H, K]"), ((N, H, K, K), "[N, H, K, K]")
    for part, x, (shape, text) in zip(CovState._fields, state, shapes, strict=True):
        arguments.check_state(f"{name}.{part}", x, shape, text, like)
    if validate:
        arguments.check_non_negative_values(f"{name}.count", state[0])
    return tuple(x.contiguous() for x in state)


TOKENS = {2: 32, 4: 16}
"""Tokens in a chunk of `outputs`, by bytes of an element of q: what registers hold beside the scatter."""


# --- all tokens ----------------------------------------------------------------------------------------------


def _forward(
    q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, count: Tensor | None,
    reference: Tensor | None, mean: Tensor | None, scatter: Tensor | None, cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H, K = q.shape
    cut = launch.layout(cu_seqlens, Sizes(B, T, H, H, K, K), configs.segment_length(T), q.device)
    size = covariance_scan.record(K)
    records = q.new_empty(cut.segments, H, size, dtype=torch.float32)
    final = _fresh_state(q, cut.N)
    o = launch.output(q, q.shape, zero=cut.packed)
    qs, ks, ls, os = map(launch.strides, (q, k, lam, o))
    gs, ws = (launch.strides(lam if x is None else x) for x in (cov_g, weight))
    shape = {"K": K, "BK": launch.width(K), "RECORD": size, "PACKED": cut.packed}
    common = shape | {
        "C": CHUNK, "LENGTH": cut.length, "STAGE": launch.stage(q.dtype), "PRECISION": launch.INPUT_PRECISION[q.dtype],
        "FORGET": cov_g is not None, "WEIGHTED": weight is not None,
    }  # fmt: skip
    kind = "covariance_states" if cov_g is None else "covariance_states_forgetting"
    config = configs.choose(kind, q.device, q.dtype, K, K)
    launch.run(
        covariance_scan.states, cut.segments * H * -(-K // config.block), k, cov_g, weight, records, ks, gs, ws,
        cut.table, (T, cut.each, H), config=config, BV=config.block, **common,
    )  # fmt: skip
    rows = max(1, 1024 // launch.width(K))
    launch.run(
        covariance_scan.scan, cut.N * H * -(-K // rows), records, count, reference, mean, scatter, *final, cut.first,
        cut.each, H, config=Config(rows, 4, 4), ROWS=rows, HAS_INITIAL=count is not None, **shape,
    )  # fmt: skip
    config = configs.choose("covariance_outputs", q.device, q.dtype, K, K)
    launch.run(
        covariance_outputs.outputs, cut.segments * H * -(-K // config.block), q, k, lam, cov_g, weight, o, records,
        qs, ks, ls, gs, ws, os, cut.table, (T, cut.each, H), config=config, BV=config.block,
        **{**common, "C": TOKENS[q.element_size()]},
    )  # fmt: skip
    return launch.rounded(o, q.dtype), *final, records


def _fresh_state(q: Tensor, N: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    H, K = q.shape[2:]
    count, reference, mean, scatter = (
        q.new_empty(N, H, *shape, dtype=torch.float32) for shape in ((), (K,), (K,), (K, K))
    )
    return count, reference, mean, scatter


def _backward(
    q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, count: Tensor | None,
    reference: Tensor | None, mean: Tensor | None, scatter: Tensor | None, cu_seqlens: Tensor | None,
    records: Tensor, do: Tensor | None, dcount: Tensor | None, dreference: Tensor | None, dmean: Tensor | None,
    dscatter: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    inputs = (q, k, lam, cov_g, weight, count, reference, mean, scatter)
    return covariance_backward.gradients(inputs, cu_seqlens, records, (do, dcount, dreference, dmean, dscatter))  # type: ignore[return-value]


CHUNKS = Operation("covariance_contract", _forward, _backward, tensors=9, public=5)


# --- one token -----------------------------------------------------------------------------------------------


def _step(
    q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, count: Tensor | None,
    reference: Tensor | None, mean: Tensor | None, scatter: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, _, H, K = q.shape
    final, o = _fresh_state(q, B), launch.output(q, q.shape, zero=False)
    config = configs.choose("covariance_step", q.device, torch.float32, K, K)
    strides = tuple(launch.strides(lam if x is None else x) for x in (q, k, lam, cov_g, weight, o))
    launch.run(
        covariance_decode.covariance_step, B * H * -(-K // config.block), q, k, lam, cov_g, weight, o, count,
        reference, mean, scatter, final, strides, H, config=config, K=K, BK=launch.width(K), ROWS=config.block,
        HAS_STATE=count is not None, FORGET=cov_g is not None, WEIGHTED=weight is not None,
    )  # fmt: skip
    return launch.rounded(o, q.dtype), *final


def _step_backward(
    q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, count: Tensor | None,
    reference: Tensor | None, mean: Tensor | None, scatter: Tensor | None, do: Tensor | None,
    dcount: Tensor | None, dreference: Tensor | None, dmean: Tensor | None, dscatter: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    inputs = (q, k, lam, cov_g, weight, count, reference, mean, scatter)
    # in float32, as the step itself: nothing is rounded to the inputs' type on the way
    wide = tuple(None if x is None else x.float() for x in inputs)
    *_, records = _forward(*wide, None)  # type: ignore[arg-type]
    upstream = (None if do is None else do.float(), dcount, dreference, dmean, dscatter)
    found = covariance_backward.gradients(wide, None, records, upstream)
    return tuple(d if x is None else d.to(x.dtype) for x, d in zip(inputs, found, strict=True))  # type: ignore[return-value]


STEP = Operation("covariance_contract_step", _step, _step_backward, tensors=9, public=5)
