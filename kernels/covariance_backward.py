"""The covariance contraction's gradients: what is launched.

A walk without the scatter finds what each token did to the mean (covariance_prepare.py); the scatter is a gated linear
attention of that, and its two walks are those of decay_scan.py; then come the gradients of a chunk, from the states at
its ends (covariance_gradients.py), and a reversed scan from those of the differences to those of the keys
(covariance_adjoint.py). Of the forward pass the segments' records are kept, and nothing of the size of q.

Source: the chunk form of `linattest.impls.covariance_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.impls.arguments import Sizes
from linattest.kernels import (
    configs,
    covariance_adjoint,
    covariance_gradients,
    covariance_prepare,
    covariance_scan,
    launch,
)
from linattest.kernels.decay import Scan
from linattest.kernels.launch import CHUNK, Config, Layout

Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


class Prepared(NamedTuple):
    """q', d and v [B, T, H, K], numbers of tokens [PLANES, B, H, T], S at segments' starts [segments, H, K, K]."""

    turned: Tensor
    deltas: Tensor
    values: Tensor
    planes: Tensor
    edges: Tensor

    @property
    def gates(self) -> Tensor:
        """log f as [B, T, H]."""
        return self.planes[0].transpose(1, 2)


def gradients(
    inputs: Sequence[Tensor | None], cu_seqlens: Tensor | None, records: Tensor, upstream: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Gradients of q, k, lam, cov_g, weight and the state's four tensors (empty for None), in their dtypes.

    `records`: what the forward pass kept, [segments, H, covariance_scan.record(K)]. `upstream`: the gradients of q~ and
    of the final state's four tensors, each may be None.
    """
    q, k, lam, cov_g, weight, *state = inputs
    assert q is not None and k is not None and lam is not None
    B, T, H, K = q.shape
    # float16 would overflow where keys differ by more than it holds
    kind = torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32
    sizes = Sizes(B, T, H, H, K, K)
    scan = Scan(sizes, launch.layout(cu_seqlens, sizes, configs.segment_length(T), q.device), kind)
    do, *ends = upstream
    do = torch.zeros_like(q) if do is None else do
    final = _final(q, scan.cut, ends)
    if T == 0:
        given = (q, k, lam, cov_g, weight)
        return (*(q.new_empty(0) if x is None else torch.zeros_like(x) for x in given), *_passed(q, state, final))
    tokens: Inputs = (q, k, lam, cov_g, weight)
    prepared = _prepare(tokens, records, scan)
    dstate = None if final is None else _scaled(final, prepared, scan.cut)
    upper, dscatter = scan.edges(prepared.turned, do, prepared.gates, dstate, 1.0, reversed_=True)
    dq, dlam, dd = _chunks(tokens, do, prepared, upper, cu_seqlens, scan)
    dk, dg, dw, parts = _adjoint(tokens, dd, prepared, state[0], final, scan)
    found = (dq, dk, dlam, dg, dw)
    results = tuple(
        q.new_empty(0) if x is None or y is None else launch.rounded(y, x.dtype)
        for x, y in zip(tokens, found, strict=True)
    )
    if state[0] is None:
        return (*results, *_passed(q, state, final))
    return (*results, *parts, _scatter_gradient(dscatter, state[0], final, scan.cut))


def _final(q: Tensor, cut: Layout, ends: Sequence[Tensor | None]) -> tuple[Tensor, ...] | None:
    """The final state's gradients, zeros for those that are missing; None if all are."""
    if all(x is None for x in ends):
        return None
    H, K = q.shape[2:]
    shapes = ((), (K,), (K,), (K, K))
    return tuple(
        q.new_zeros(cut.N, H, *shape, dtype=torch.float32) if x is None else x.contiguous()
        for x, shape in zip(ends, shapes, strict=True)
    )


def _passed(q: Tensor, state: Sequence[Tensor | None], final: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    """The initial state's gradients where no token is: the final one's."""
    own = [None] * 4 if final is None else final
    return tuple(
        q.new_empty(0) if x is None else torch.zeros_like(x) if y is None else y.clone()
        for x, y in zip(state, own, strict=True)
    )


def _constants(scan: Scan, config: Config) -> dict[str, Any]:
    constants = scan.constants(config)
    del constants["V"]
    return constants


def _prepare(tokens: Inputs, records: Tensor, scan: Scan) -> Prepared:
    q, k, lam, cov_g, weight = tokens
    B, T, H, _, K, _ = scan.sizes
    kind = torch.float32 if launch.INTERPRETED else scan.dtype
    turned, deltas, values = (q.new_empty(B, T, H, K, dtype=kind) for _ in range(3))
    planes = q.new_empty(covariance_prepare.PLANES, B, H, T, dtype=torch.float32)
    edges = q.new_empty(scan.cut.segments, H, K, K, dtype=torch.float32)
    config = configs.choose("covariance_prepare", q.device, scan.dtype, K, K)
    strides = (*map(launch.strides, (q, k, lam)), *(launch.strides(lam if x is None else x) for x in (cov_g, weight)))
    prepared = Prepared(turned, deltas, values, planes, edges)
    launch.run(
        covariance_prepare.prepare, scan.programs(config), q, k, lam, cov_g, weight, records, tuple(prepared),
        (*strides, launch.strides(turned)), scan.cut.table, (T, scan.cut.each, H, B * H * T), config=config,
        RECORD=covariance_scan.record(K), FORGET=cov_g is not None, WEIGHTED=weight is not None,
        **_constants(scan, config),
    )  # fmt: skip
    return prepared


def _chunks(
    tokens: Inputs, do: Tensor, prepared: Prepared, upper: Tensor, cu_seqlens: Tensor | None, scan: Scan
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dlam, and dd [B, T, H, K] float32; three planes are filled."""
    q, _, lam, _, _ = tokens
    B, T, H, _, K, _ = scan.sizes
    turned, deltas, values, planes, edges = prepared
    cut = launch.layout(cu_seqlens, scan.sizes, CHUNK, q.device)
    starts = scan.walk(deltas, values, prepared.gates, edges, cut.segments, 1.0, reversed_=False)
    ends = scan.walk(turned, do, prepared.gates, upper, cut.segments, 1.0, reversed_=True)
    dq, dlam = (launch.output(x, x.shape, zero=cut.packed) for x in (q, lam))
    dd = q.new_empty(B, T, H, K, dtype=torch.float32)
    config = configs.choose("covariance_gradients", q.device, scan.dtype, K, K)
    constants = _constants(scan, config)
    del constants["LENGTH"], constants["BK"]
    constants["BX"] = min(launch.width(K), 128 if scan.dtype == torch.bfloat16 else 32)
    strides = tuple(map(launch.strides, (q, lam, do, turned, prepared.gates, dq, dlam)))
    launch.run(
        covariance_gradients.gradients, cut.segments * H, q, lam, do, turned, deltas, planes, starts, ends, dq, dlam,
        dd, strides, cut.table, (T, cut.each, H, B * H * T), config=config, **constants,
    )  # fmt: skip
    return dq, dlam, dd


def _adjoint(
    tokens: Inputs, dd: Tensor, prepared: Prepared, count: Tensor | None, final: tuple[Tensor, ...] | None, scan: Scan
) -> tuple[Tensor, Tensor | None, Tensor | None, tuple[Tensor, ...]]:
    """dk, dg, dw, and the gradients of the initial count, reference and mean (empty if there is none)."""
    _, k, lam, cov_g, weight = tokens
    B, T, H, _, K, _ = scan.sizes
    cut, size = scan.cut, covariance_adjoint.record(K)
    records = k.new_empty(cut.segments, H, size, dtype=torch.float32)
    config = configs.choose("covariance_adjoint", k.device, scan.dtype, K, K)
    constants = _constants(scan, config)
    del constants["BV"]
    constants |= {"RECORD": size, "HAS_FINAL": final is not None, "C": config.block}
    device_sizes = (T, cut.each, H, B * H * T)
    launch.run(
        covariance_adjoint.local, cut.segments * H, dd, prepared.deltas, prepared.planes, records, cut.first,
        launch.strides(dd), cut.table, device_sizes, config=config, **constants,
    )  # fmt: skip
    parts = () if count is None else tuple(k.new_empty(cut.N, H, *s, dtype=torch.float32) for s in ((), (K,), (K,)))
    launch.run(
        covariance_adjoint.scan, cut.N * H, records, cut.first, count, (None,) * 3 if final is None else final[:3],
        parts or (None,) * 3, cut.each, H, config=Config(0, 1, 2), K=K, BK=launch.width(K), RECORD=size,
        PACKED=cut.packed, HAS_FINAL=final is not None,
    )  # fmt: skip
    dk, dg, dw = (None if x is None else launch.output(x, x.shape, zero=cut.packed) for x in (k, cov_g, weight))
    assert dk is not None
    strides = tuple(launch.strides(lam if x is None else x) for x in (dd, dk, dg, dw))
    launch.run(
        covariance_adjoint.finish, cut.segments * H, dd, prepared.deltas, prepared.planes, records, (dk, dg, dw),
        cut.first, strides, cut.table, device_sizes, config=config, **constants,
    )  # fmt: skip
    return dk, dg, dw, parts


# --- the scatter's gradients --------------------------------------------------------------------------------------


def _some(cut: Layout) -> Tensor | None:
    """Whether each packed sequence has tokens [N]."""
    return None if cut.first is None else cut.first.diff() > 0


def _mirrored(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _scaled(final: tuple[Tensor, ...], prepared: Prepared, cut: Layout) -> Tensor:
    """The gradient of the last S of each sequence [N, H, K, K]: a scatter is W times that, W being a number here."""
    counts = prepared.planes[covariance_prepare.COUNT.value].abs()  # [B, H, T]
    if cut.table is None or cut.first is None:
        last = counts[:, :, -1]
    else:
        ends = cut.table[:, 2][(cut.first[1:] - 1).clamp_(min=0)].long()  # [N]
        last = counts[0].index_select(1, (ends - 1).clamp_(min=0)).T  # [N, H]
    return _mirrored(final[3]) * torch.where(last == 0, 1, last)[..., None, None]


def _scatter_gradient(dS: Tensor, count: Tensor, final: tuple[Tensor, ...] | None, cut: Layout) -> Tensor:
    """The gradient of the initial scatter from that of the first S; a sequence without tokens hands its own on."""
    found = _mirrored(dS) / torch.where(count < covariance_scan.LEAST.value, 1, count)[..., None, None]
    some = _some(cut)
    if some is None:
        return found
    own = torch.zeros_like(found) if final is None else final[3]
    return torch.where(some[:, None, None, None], found, own)
