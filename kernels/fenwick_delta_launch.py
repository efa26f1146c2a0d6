"""What a Fenwick scan with the gated-delta transition launches (public functions: log_linear.py).

Forward: `delta_inverse.inverses` and `.reads` (what needs no state), `fenwick_delta.leaves` (each chunk's map), one
`.join` a height of the tree, `.outputs`, and `fenwick_delta_final.final_state` if it is asked for. For float32 the maps
and what is read are made by `fenwick_delta_exact.tokens` and `.writes`, the final state by `.final_walk`.

Backward: `leaves` again, `fenwick_delta_upstream.rows`, then `.walks` and `.collect` for each height of the tree, and
`fenwick_delta_backward.pairs` and `.ends`; `fenwick_delta_upstream.inner` after a state.

Memory is linear in T: 2 C numbers a token and head in the staging type, and a map [K + V, K] a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattest.kernels import (
    configs,
    delta_inverse,
    delta_rule,
    fenwick_delta,
    fenwick_delta_backward,
    fenwick_delta_exact,
    fenwick_delta_final,
    fenwick_delta_upstream,
    launch,
)
from linattest.kernels.delta_rule import precision
from linattest.kernels.fenwick_launch import Operands, Start, constants, initial_gradient
from linattest.kernels.fenwick_layout import LOG, Cut, cut
from linattest.kernels.launch import CHUNK, Config


class Saved(NamedTuple):
    """What a backward takes: of chunks tm, reads and factors (see delta_rule.py), of nodes N, B and c."""

    tm: Tensor
    reads: Tensor
    factors: Tensor
    maps: Tensor
    writes: Tensor
    keeps: Tensor


def forward(
    x: Operands, beta: Tensor, start: Start, cu_seqlens: Tensor | None, scale: float, *, output_final_state: bool
) -> tuple[Tensor, Tensor, Saved]:
    """o [B, T, HV, V] in v's dtype, the state's S behind the call [N, L, HV, K, V], empty if not asked for, and what
    a backward takes. beta [B, T, HV]; arguments are checked before."""
    _, T, H, HV, K, V = x.sizes
    where = cut(cu_seqlens, start.position, x.sizes, x.L, x.q.device, 1)
    chunks, q = where.chunks, x.q
    saved = _stateless(x, beta, where, scale)
    exact = _exact(x, beta, start, saved, where, scale)
    config = configs.choose("fenwick_join", q.device, q.dtype, K, V)
    for height in range(1, len(where.heights) - 1):  # none of the last is whole
        group = where.heights[height]
        launch.run(
            fenwick_delta.join, group.count * HV, saved.maps, saved.writes, saved.keeps, start.S, where.spans,
            (group.table, chunks.first), (T, group.each, chunks.each, HV, x.L), height, config=config,
            **constants(x, config, where),
        )  # fmt: skip
    o = launch.output(x.v, x.v.shape, zero=where.mode == 1)
    config = configs.choose("fenwick_delta_outputs", q.device, q.dtype, K, V)
    made, tree = saved[:3], saved[3:]
    inputs = (q, x.k) if exact is None else exact
    places, sizes = (chunks.table, chunks.first), (T, chunks.each, HV, HV // H, x.L)
    parts = 1 if q.dtype == torch.bfloat16 else 4  # float32 operands of a whole chunk do not fit in registers
    launch.run(
        fenwick_delta.outputs, chunks.count * HV * parts * -(-V // config.block), o, inputs, x.v, x.lam, made,
        tree, start.S, where.spans, (*delta_rule.strides(o, x.v, x.lam), delta_rule.strides(*inputs, *made)), places,
        sizes, scale, config=config, ROWS=CHUNK // parts, EXACT=exact is not None, **constants(x, config, where),
    )  # fmt: skip
    final = q.new_empty((where.N if output_final_state else 0, x.L, HV, K, V), dtype=torch.float32)
    if output_final_state:
        _final_state(x, beta, start, saved, where, final)
    return launch.rounded(o, x.v.dtype), final, saved


def _final_state(x: Operands, beta: Tensor, start: Start, saved: Saved, where: Cut, final: Tensor) -> None:
    """Fill `final`: bucket by bucket, carried through nodes, or token by token where float32's digits are wanted."""
    _, T, H, HV, K, V = x.sizes
    exact = x.q.dtype == torch.float32
    config = configs.choose("fenwick_step" if exact else "fenwick_join", x.q.device, x.q.dtype, K, V)
    places, sizes = (where.chunks.table, where.chunks.first), (T, where.chunks.each, HV, HV // H, x.L)
    programs = where.N * HV * x.L * -(-V // config.block)
    if exact:
        inputs = (x.k, x.v, x.g, beta)
        launch.run(
            fenwick_delta_final.final_walk, programs, final, inputs, saved.writes, start.S, where.spans,
            tuple(map(launch.strides, inputs)), places, sizes, config=config, **constants(x, config, where),
        )  # fmt: skip
    else:
        launch.run(
            fenwick_delta_final.final_state, programs, final, x.k, x.v, saved.tm, saved.factors, saved[3:], start.S,
            where.spans, delta_rule.strides(x.k, x.v, saved.tm, saved.factors), places, sizes, config=config,
            **constants(x, config, where),
        )  # fmt: skip


def _stateless(x: Operands, beta: Tensor, where: Cut, scale: float) -> Saved:
    """Room for all that is saved, with tm, reads and factors filled."""
    B, T, H, HV, K, V = x.sizes
    chunks, q, G = where.chunks, x.q, HV // H
    saved = Saved(
        q.new_empty(B, T, HV, CHUNK, dtype=x.kind), q.new_empty(B, T, HV, CHUNK, dtype=x.kind),
        q.new_empty(B, T, HV, 2, dtype=torch.float32), q.new_empty(chunks.count, HV, K, K, dtype=x.kind),
        q.new_empty(chunks.count, HV, V, K, dtype=torch.float32), q.new_empty(chunks.count, HV, dtype=torch.float32),
    )  # fmt: skip
    product, packed = launch.INPUT_PRECISION[q.dtype], where.mode
    launch.run(
        delta_inverse.inverses, chunks.count * HV, saved.tm, saved.factors, x.k, None, x.g, beta,
        delta_rule.strides(saved.tm, saved.factors, x.k, None, x.g, beta), chunks.table, (T, chunks.each, HV, G, G),
        config=Config(0, 1, 2), K=K, BLOCK=min(32, launch.width(K)), C=CHUNK, R=CHUNK // 4, PLANES=1, PRODUCT=product,
        PRECISION=precision(q.dtype, 1), PACKED=packed,
    )  # fmt: skip
    launch.run(
        delta_inverse.reads, chunks.count * HV, saved.reads, q, x.k, x.g, beta,
        delta_rule.strides(saved.reads, q, x.k, x.g, beta), chunks.table, (T, chunks.each, HV, G, G), scale,
        config=Config(0, 4, 1), K=K, BLOCK=min(launch.width(K), 256 // q.element_size()), C=CHUNK, PLANES=1,
        PRECISION=product, PACKED=packed,
    )  # fmt: skip
    return saved


def _exact(
    x: Operands, beta: Tensor, start: Start, saved: Saved, where: Cut, scale: float
) -> tuple[Tensor, Tensor] | None:
    """Fill maps, writes and keeps with those of chunks; R [B, T, HV, K] and M [B, T, HV, C] where they were made token
    by token, as for float32."""
    if x.q.dtype != torch.float32:
        _leaves(x, start, saved, where)
        return None
    B, T, H, HV, K, V = x.sizes
    q, chunks = x.q, where.chunks
    r, m, y = (q.new_empty(B, T, HV, n, dtype=torch.float32) for n in (K, CHUNK, K))
    config = Config(16, 4, 1)
    inputs = (q, x.k, x.g, beta)
    launch.run(
        fenwick_delta_exact.tokens, chunks.count * HV * (launch.width(K) + CHUNK) // config.block, r, m, y, saved.maps,
        saved.keeps, inputs, delta_rule.strides(r, m, y, *inputs), chunks.table, (T, chunks.each, HV, HV // H), scale,
        config=config, **constants(x, config, where),
    )  # fmt: skip
    config = configs.choose("fenwick_leaves", q.device, q.dtype, K, V)
    launch.run(
        fenwick_delta_exact.writes, chunks.count * HV * -(-V // config.block), saved.writes, x.v, y, saved.maps,
        saved.keeps, start.S, where.spans, delta_rule.strides(x.v, y), chunks.table, (T, chunks.each, HV, x.L),
        config=config, **constants(x, config, where),
    )  # fmt: skip
    return r, m


def _leaves(x: Operands, start: Start, saved: Saved, where: Cut) -> None:
    """Fill maps, writes and keeps with those of chunks."""
    _, T, H, HV, K, V = x.sizes
    chunks = where.chunks
    config = configs.choose("fenwick_leaves", x.q.device, x.q.dtype, K, V)
    launch.run(
        fenwick_delta.leaves, chunks.count * HV * (-(-K // config.block) - (-V // config.block)), saved.maps,
        saved.writes, saved.keeps, x.k, x.v, saved.tm, saved.factors, start.S, where.spans,
        delta_rule.strides(x.k, x.v, saved.tm, saved.factors), chunks.table, (T, chunks.each, HV, HV // H, x.L),
        config=config, **constants(x, config, where),
    )  # fmt: skip


# --- backward ------------------------------------------------------------------------------------------------


class _Backward(NamedTuple):
    """What the launches of a backward share."""

    x: Operands
    beta: Tensor
    start: Start
    saved: Saved
    do: Tensor
    dfinal: Tensor | None
    where: Cut
    scale: float

    @property
    def places(self) -> tuple[Tensor | None, Tensor | None]:
        return self.where.chunks.table, self.where.chunks.first

    def constants(self, kernel: str) -> dict[str, Any]:
        """Of a kernel, with its `config`."""
        config = configs.choose(kernel, self.x.q.device, self.x.q.dtype, self.x.sizes.K, self.x.sizes.V)
        return {"config": config, **constants(self.x, config, self.where)}


class _Upstream(NamedTuple):
    """Gradients of what a chunk writes and does to a state, and of its reads; gradients of weights above a chunk's
    levels, and of those of a state's buckets inside the first chunk; M, where it was made token by token."""

    upper: Tensor
    dp: Tensor
    dr: Tensor
    dlam: Tensor
    of_levels: Tensor | None
    m: Tensor | None


def backward(
    x: Operands, beta: Tensor, start: Start, cu_seqlens: Tensor | None, scale: float, saved: Saved, do: Tensor | None,
    dfinal: Tensor | None,
) -> tuple[Operands, Tensor, Tensor]:  # fmt: skip
    """Gradients of the operands and of beta, in their dtypes, and of the state's S before the call (empty without one).

    The first five arguments are the forward's, `saved` what it kept, do [B, T, HV, V] in v's dtype, dfinal
    [N, L, HV, K, V] float32; None is zero.
    """
    where = cut(cu_seqlens, start.position, x.sizes, x.L, x.q.device, 1)
    do = torch.zeros_like(x.v) if do is None else do
    dfinal = None if dfinal is None else dfinal.contiguous()
    call = _Backward(x, beta, start, saved, do, dfinal, where, scale)
    dinitial = None if start.S is None else initial_gradient(start, where, dfinal)
    upstream = _upstream(call, dinitial)
    found, dbeta = _gradients(call, upstream)
    return found, dbeta, x.q.new_empty(0) if dinitial is None else dinitial


def _upstream(call: _Backward, dinitial: Tensor | None) -> _Upstream:
    """All heights of the tree, from the highest down."""
    x, where = call.x, call.where
    B, T, H, HV, K, V = x.sizes
    count, q = where.chunks.count, x.q
    leaves = call.saved._replace(maps=torch.empty_like(call.saved.maps), keeps=torch.empty_like(call.saved.keeps))
    leaves = leaves._replace(writes=torch.empty_like(call.saved.writes))
    exact = _exact(x, call.beta, call.start, leaves, where, call.scale)  # again: the tree has those of nodes
    r, m = (q.new_empty(B, T, HV, K, dtype=x.kind), None) if exact is None else exact
    if exact is None:
        made = call.saved[:3]
        launch.run(
            fenwick_delta_upstream.rows, count * HV, r, (q, x.k), made,
            (launch.strides(r), delta_rule.strides(q, x.k, *made)), where.chunks.table,
            (T, where.chunks.each, HV, HV // H), call.scale, **call.constants("fenwick_join"),
        )  # fmt: skip
    carried, behind = (q.new_empty(count, HV, V, K, dtype=x.kind) for _turn in range(2))
    found = _Upstream(
        leaves.writes.zero_(), q.new_zeros(count, HV, K, K, dtype=torch.float32),
        q.new_zeros(B, T, HV, K, dtype=torch.float32), launch.output(x.lam, x.lam.shape, zero=True), None, m,
    )  # fmt: skip
    inputs, strides = (r, call.do, x.lam), tuple(map(launch.strides, (r, call.do, x.lam)))
    heights = range(len(where.heights) - 2, -1, -1)
    starts = q.new_empty(len(heights) if dinitial is not None else 0, where.N, HV, V, K, dtype=torch.float32)
    # maps of 256 channels in tf32 are so large that there is no room for a second stage
    roomy = "_roomy" if launch.width(K) * launch.stage(q.dtype).primitive_bitwidth > fenwick_delta.ROOM.value else ""
    walked = call.constants(f"fenwick_delta_walks{roomy}")
    for j in heights:
        pairs = where.heights[j + 1]
        launch.run(
            fenwick_delta_upstream.walks, pairs.count * HV * 2 * -(-V // walked["BV"]), carried, behind,
            None if dinitial is None else starts[j], (leaves.maps, leaves.keeps), call.saved.writes, inputs,
            (call.start.S, call.dfinal), where.spans, strides, (pairs.table, where.chunks.first),
            (T, pairs.each, where.chunks.each, HV, x.L), j, **walked,
        )  # fmt: skip
        launch.run(
            fenwick_delta_upstream.collect, count * HV, *found[:4], carried, behind, inputs, where.spans,
            (launch.strides(found.dr), launch.strides(found.dlam), *strides), where.chunks.table,
            (T, where.chunks.each, HV, x.L), j, **call.constants("fenwick_delta_collect"),
        )  # fmt: skip
    if dinitial is None:
        return found
    _whole_buckets(dinitial, starts, call)
    of_levels = q.new_zeros(where.N, HV, CHUNK, 8, dtype=torch.float32)
    launch.run(
        fenwick_delta_upstream.inner, where.N * HV, dinitial, of_levels, found.upper, found.dp, found.dr,
        (leaves.maps, leaves.keeps), inputs, (call.start.S, call.dfinal), where.spans,
        (launch.strides(found.dr), *strides), call.places, (T, where.chunks.each, HV, x.L),
        **call.constants("fenwick_delta_collect"),
    )  # fmt: skip
    return found._replace(of_levels=of_levels)


def _whole_buckets(dinitial: Tensor, starts: Tensor, call: _Backward) -> None:
    """Gradients of a state's buckets of whole chunks, into `dinitial`: X_j of each, and of the nodes that it is in."""
    spans = call.where.spans
    assert spans is not None
    chunk, some = spans[:, 1] >> LOG, spans[:, 2] > spans[:, 1]
    above = torch.zeros_like(starts[0])
    for j in range(starts.shape[0] - 1, -1, -1):
        held = ((chunk >> j) & 1 == 1)[:, None, None, None]
        if LOG + j + 1 < call.x.L:
            own = torch.where(held & some[:, None, None, None], (starts[j] + above).mT, dinitial[:, LOG + j + 1])
            dinitial[:, LOG + j + 1] = own
        above = above + torch.where(held, 0.0, starts[j])


def _gradients(call: _Backward, upstream: _Upstream) -> tuple[Operands, Tensor]:
    """Gradients of the operands and of beta, from those of what leaves a chunk."""
    x, where, saved = call.x, call.where, call.saved
    B, T, H, HV, K, V = x.sizes
    q, chunks, zero = x.q, where.chunks, where.mode == 1

    def room(width: int | None, dtype: torch.dtype) -> Tensor:
        return q.new_empty((B, T, HV) if width is None else (B, T, HV, width), dtype=dtype)

    y, dy, da, dm = room(K, x.kind), room(K, x.kind), room(CHUNK, x.kind), room(CHUNK, x.kind)
    crossing, made = room(None, torch.float32), saved[:3]
    shared, sizes = (y, dy, da, dm, crossing), (T, chunks.each, HV, HV // H, x.L)
    inputs = (x.k, x.v, x.g, x.lam, call.beta, call.do)
    options = call.constants("fenwick_delta_gradients")
    launch.run(
        fenwick_delta_backward.pairs, chunks.count * HV, (*shared, upstream.dlam), inputs, made, *upstream[:3],
        (call.dfinal, upstream.of_levels, upstream.m, call.scale), where.spans,
        delta_rule.strides(*shared, upstream.dlam, *inputs, *made, upstream.dr, upstream.m), chunks.table, sizes,
        **options,
    )  # fmt: skip
    dq, dk = (launch.output(q, (B, T, HV, K), zero=zero, wide=HV > H) for _turn in range(2))
    dv, dg, dbeta = (launch.output(y, y.shape, zero=zero) for y in (x.v, x.g, call.beta))
    results, inputs = (dq, dk, dv, dg, dbeta), (q, x.k, x.g, x.lam, call.beta, call.do)
    launch.run(
        fenwick_delta_backward.ends, chunks.count * HV, results, inputs, made, shared, *upstream[:3],
        (call.dfinal, call.scale), where.spans,
        tuple(map(launch.strides, (*results, *inputs, *made, *shared, upstream.dr))), chunks.table, sizes, **options,
    )  # fmt: skip
    dq, dk = (launch.over_groups(z, H, q.dtype) for z in (dq, dk))
    rest = (launch.rounded(z, of.dtype) for z, of in ((dv, x.v), (dg, x.g), (upstream.dlam, x.lam)))
    return Operands(dq, dk, *rest), launch.rounded(dbeta, call.beta.dtype)
