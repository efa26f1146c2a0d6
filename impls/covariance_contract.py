"""The covariance contraction: each query loses its component along the running covariance of the keys.

Definition, per head; lam any number, cov_g <= 0 the log of forgetting (default 0), weight w >= 0 (default 1):

    W'_t = exp(cov_g_t) W_{t-1},    W_t = W'_t + w_t,       d_t = x_t - m_{t-1},    x_t = k_t - reference
    m_t = m_{t-1} + (w_t / W_t) d_t,                        P_t = exp(cov_g_t) P_{t-1} + (w_t W'_t / W_t) d_t d_t^T
    Sigma_t = P_t / W_t,                                    q~_t = q_t - lam_t Sigma_t q_t    (q_t itself if lam_t = 0)

The state is W (count), the reference, m (mean, relative to the reference) and P (scatter), read as (P + P^T)/2. An
empty state (W = 0) has m = 0 and Sigma = 0, and the first key with a weight becomes its reference: keys far from the
origin lose no digits, since neither k nor its mean is squared before their difference. In exact arithmetic
Sigma_t = sum_s w_s(t) (k_s - mu_t)(k_s - mu_t)^T / W_t with the forgotten weights w_s(t) = w_s exp(cov_g_{s+1} + ...
+ cov_g_t), W_t their sum and mu_t their mean.

Chunk form. W and W m are decayed running sums of w and w x, so they come first; then every d_t is known, and P_t q_t is
linear attention with keys d and values (w W'/W) d: sums of terms w >= 0 or d d^T >= 0, which do not cancel.

At W_t = 0 the stated subgradient is: the weight of a token that leaves the state empty counts towards W alone, as if
its key were the reference to come. (Its own key cannot matter: the state keeps no trace of it.)

Sources: [CCQ], section 2 (mu, Sigma and the contraction); [Welford62] and [West79] for the weighted recursion;
[ChanGolubLeVeque83] for shifted data. Weights, forgetting and the reference are ours.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls import arguments, decay_scan, features, linear


class CovState(NamedTuple):
    """count [N, H], reference [N, H, K], mean [N, H, K] (relative to the reference), scatter [N, H, K, K]."""

    count: Tensor
    reference: Tensor
    mean: Tensor
    scatter: Tensor


def recurrent(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    *,
    cov_g: Tensor | None = None,
    weight: Tensor | None = None,
    initial_state: CovState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, CovState | None]:
    """Token loop: the definition above, in float64 whatever the inputs.

    q, k [B, T, H, K] of one dtype: float64, float32, bfloat16 or float16; lam, cov_g, weight [B, T, H], in q's dtype or
    float32 (cov_g None: nothing is forgotten; weight None: 1). `initial_state` is a CovState, float32 (float64 for
    float64 inputs), N = B or the number of packed sequences. Returns q~ [B, T, H, K] in q's dtype, bit by bit q where
    lam = 0, and the final state (None unless `output_final_state`).

    Raises TypeError or ValueError (naming the argument) for wrong dtypes, shapes, devices, a positive or NaN cov_g, a
    negative weight or count, a weight, count or lam that is not finite, bad offsets. Source: module docstring.
    """
    return _run(recurrent_core, q, k, lam, cov_g, weight, initial_state, output_final_state, cu_seqlens)


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
    chunk_size: int = 64,
) -> tuple[Tensor, CovState | None]:
    """Chunk-parallel form (module docstring); arguments and errors as in `recurrent`.

    `chunk_size` is a power of two.
    """
    core = functools.partial(chunk_core, chunk_size=arguments.check_chunk_size(chunk_size))
    return _run(core, q, k, lam, cov_g, weight, initial_state, output_final_state, cu_seqlens)


def step(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    *,
    cov_g: Tensor | None = None,
    weight: Tensor | None = None,
    initial_state: CovState | None = None,
) -> tuple[Tensor, CovState]:
    """One decode token ([B, 1, H, *]): (q~, new state); the state passed in is not modified. Errors as `recurrent`."""
    arguments.check_rank("q", q)
    arguments.check_one_token(q.shape[1])
    q_clean, state = recurrent(
        q, k, lam, cov_g=cov_g, weight=weight, initial_state=initial_state, output_final_state=True
    )
    assert state is not None
    return q_clean, state


@features.full_precision
def _run(core, q, k, lam, cov_g, weight, initial_state, output_final_state, cu_seqlens):
    """Check, widen, run each sequence, round once."""
    B, T, H, K = arguments.check_rank("q", q).shape
    arguments.check_same("k", k, (B, T, H, K), "q's shape [B, T, H, K]", q)
    arguments.check_widths(H=H, K=K)
    check_arguments(lam, cov_g, weight, q)
    arguments.check_flag("output_final_state", output_final_state)
    offsets = arguments.check_cu_seqlens(cu_seqlens, B, T)
    if initial_state is not None:
        check_state(initial_state, B if offsets is None else len(offsets) - 1, H, K, q)
    given = {"q": q, "k": k, "lam": lam, "cov_g": cov_g, "weight": weight}
    inputs = {name: features.heads_first(x) for name, x in given.items() if x is not None}

    def named(*parts: Any) -> tuple[Tensor, CovState]:
        *tensors, state = parts
        here = dict(zip(inputs, tensors, strict=True))
        return core(**{"cov_g": None, "weight": None, **here}, state=state)

    state = features.to_state(initial_state, features.WIDE)
    state = CovState(*state) if state is not None else None
    q_clean, state = features.over_sequences(named, list(inputs.values()), state, offsets)
    final = features.to_state(state, arguments.compute_dtype(q.dtype)) if output_final_state else None
    return features.tokens_first(q_clean, q.dtype), final


def check_arguments(lam: object, cov_g: object, weight: object, q: Tensor) -> None:
    """lam, cov_g and weight (the last two may be None) for a checked q [B, T, H, K]; reads values."""
    shapes: dict[str, Sequence[int]] = {"[B, T, H]": q.shape[:3]}
    arguments.check_finite_values("lam", arguments.check_per_head("lam", lam, shapes, q))
    if cov_g is not None:
        arguments.check_gate_values("cov_g", arguments.check_per_head("cov_g", cov_g, shapes, q))
    if weight is not None:
        arguments.check_non_negative_values("weight", arguments.check_per_head("weight", weight, shapes, q))


def check_state(state: object, N: int, H: int, K: int, like: Tensor, name: str = "initial_state") -> None:
    """A CovState for N sequences and inputs of the dtype of `like`; `name` is what errors call it."""
    arguments.check_state_tuple(name, state, CovState)
    count, reference, mean, scatter = state  # type: ignore[misc]
    arguments.check_state(f"{name}.count", count, (N, H), "[N, H]", like)
    arguments.check_non_negative_values(f"{name}.count", count)
    arguments.check_state(f"{name}.reference", reference, (N, H, K), "[N, H, K]", like)
    arguments.check_state(f"{name}.mean", mean, (N, H, K), "[N, H, K]", like)
    arguments.check_state(f"{name}.scatter", scatter, (N, H, K, K), "[N, H, K, K]", like)


# --- cores: heads-first WIDE tensors --------------------------------------------------------------------------


def recurrent_core(
    q: Tensor, k: Tensor, lam: Tensor, cov_g: Tensor | None, weight: Tensor | None, state: CovState | None
) -> tuple[Tensor, CovState]:
    """q, k [B, H, T, K]; lam, cov_g, weight [B, H, T] (the last two may be None), state of WIDE tensors or None."""
    start = empty_state(q) if state is None else state
    if q.shape[2] == 0:  # no token, no reading: the state passes through
        return q, start
    W, reference, m, P = start.count[..., None], start.reference, start.mean, symmetric(start.scatter)
    w_all = torch.ones_like(lam) if weight is None else weight
    counts = cov_g is None and weight is None  # then W is a count, and one rounding gives it
    outputs = []
    for t in range(q.shape[2]):
        key, w = k[:, :, t], w_all[:, :, t, None]
        renewed = (W == 0) & (w > 0)
        reference, m = torch.where(renewed, key, reference), torch.where(W == 0, 0, m)
        if cov_g is not None:
            decay = cov_g[:, :, t, None].exp()
            W, P = decay * W, decay.unsqueeze(-1) * P
        kept, W = W, (start.count[..., None] + (t + 1) if counts else W + w)
        empty = W == 0
        total = torch.where(empty, 1, W)  # a divisor: what it divides is masked or 0 where it is not W
        x = key - reference
        d = torch.where(empty, 0, x - m)
        # from the heavier side: m + d loses x's last digits and all of m's gradient where w is most of W
        m = torch.where(w <= kept, m, x) + torch.where(w <= kept, w, -kept) / total * d
        P = P + (w * (kept / total)).unsqueeze(-1) * (d.unsqueeze(-1) * d.unsqueeze(-2))
        outputs.append(contract(q[:, :, t], lam[:, :, t, None], (P @ q[:, :, t, :, None]).squeeze(-1), empty, total))
    m = torch.where(W == 0, 0, m)
    return torch.stack(outputs, 2), CovState(W.squeeze(-1), reference, m, P)


def empty_state(k: Tensor) -> CovState:
    """The state before any key: zeros, for heads-first k [B, H, T, K]."""
    B, H, _, K = k.shape
    return CovState(k.new_zeros(B, H), k.new_zeros(B, H, K), k.new_zeros(B, H, K), k.new_zeros(B, H, K, K))


def symmetric(P: Tensor) -> Tensor:
    """(P + P^T)/2 of each matrix."""
    return (P + P.mT) / 2


def contract(q: Tensor, lam: Tensor, Pq: Tensor, empty: Tensor, total: Tensor) -> Tensor:
    """q~ = q - lam Sigma q from P q [..., K], with `total` = W where the state is not `empty` [..., 1]."""
    return _Contract.apply(q, lam, torch.where(empty, 0, Pq / total))


class _Contract(torch.autograd.Function):
    """where(lam = 0, q, q - lam p), with the gradient of q - lam p: `where` would cut lam's off at 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        ctx.save_for_backward(lam, p)
        return torch.where(lam == 0, q, q - lam * p)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lam, p = ctx.saved_tensors  # plain operations: differentiable again
        return upstream, -(upstream * p).sum(-1, keepdim=True), -lam * upstream


def chunk_core(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    cov_g: Tensor | None,
    weight: Tensor | None,
    state: CovState | None,
    *,
    chunk_size: int = 64,
) -> tuple[Tensor, CovState]:
    """As `recurrent_core`, chunk-parallel: three linear attentions, of w, of w x and of d."""
    start = empty_state(q) if state is None else state
    if q.shape[2] == 0:
        return q, start
    scan = linear.chunk_core if cov_g is None else functools.partial(_gated, g=cov_g)
    scan = functools.partial(scan, chunk_size=chunk_size)
    one = q.new_ones(*q.shape[:3], 1)
    w = one if weight is None else weight.unsqueeze(-1)

    count = start.count[..., None, None]
    W, _ = scan(one, one, w, S=count)
    before = _shifted(count, W)
    empty = W == 0
    total = torch.where(empty, 1, W)

    x, reference, correction = _relative(k, (before == 0) & (w > 0), start.reference)
    m_start = torch.where(count == 0, 0, start.mean.unsqueeze(2))
    sums, _ = scan(one, one, torch.where(empty, 0, w * x), S=count * m_start)
    m = torch.where(empty, 0, sums / total)

    d = torch.where(empty, 0, x - _shifted(m_start, m))
    kept = before if cov_g is None else cov_g.unsqueeze(-1).exp() * before
    Pq, P = scan(q, d, w * (kept / total) * d, S=symmetric(start.scatter))
    q_clean = contract(q, lam.unsqueeze(-1), Pq, empty, total)
    m_end = m[:, :, -1] + torch.where(empty[:, :, -1], 0, correction)
    return q_clean, CovState(W[:, :, -1, 0], reference, m_end, symmetric(P))


def _gated(q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, S: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
    return decay_scan.chunk_core(q, k, v, g, S, chunk_size=chunk_size)


def _shifted(first: Tensor, x: Tensor) -> Tensor:
    """`first` [B, H, 1, D] and all rows of x [B, H, T, D] but the last: what each token finds."""
    return torch.cat([first, x[:, :, :-1]], 2)


def _relative(k: Tensor, renewed: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys relative to the reference in force, the last reference, and a zero that carries its gradient to the mean.

    k [B, H, T, K]; `renewed` [B, H, T, 1] marks the keys that become the reference; reference [B, H, K] is the first.
    What a renewed reference is moved by, the keys and means relative to it are moved by too, and their differences
    not at all: its gradient to everything but the last mean is 0, and is not computed as a sum of T terms.
    """
    times = torch.arange(k.shape[2], device=k.device).unsqueeze(-1)
    latest = torch.where(renewed, times, -1).cummax(2).values
    index = latest.clamp(min=0).expand(k.shape)
    x = k - torch.where(latest < 0, reference.unsqueeze(2), k.detach().gather(2, index))
    renewed_at_all, last = latest[:, :, -1] >= 0, k.gather(2, index[:, :, -1:]).squeeze(2)
    correction = torch.where(renewed_at_all, last.detach() - last, 0)
    return x, torch.where(renewed_at_all, last, reference), correction
