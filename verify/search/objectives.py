"""What a search drives up, in float64 with gradients and again from the definition in any number context.

``state-norm``  |S_T|_F, the Frobenius norm of the final memory.
``jacobian``    the largest spectral norm of a one-token Jacobian dS_t/dS_{t-1}.
``product``     the spectral norm of the product of all of them, dS_T/dS_0.

Memories here are affine in the memory before, so a Jacobian is read off by starting from basis memories. In high
precision one direction X is enough: |F(X) - F(0)| / |X| is a value that the norm attains or exceeds. That F is affine
is measured there (``bend``), not assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from linattest.verify.numbers import Context, Number
from linattest.verify.oracle import Head, convert, heads, numbers_of
from linattest.verify.search.domain import InfeasibleError, Space, Tensors
from linattest.verify.subjects import blank_state, call


@dataclass(frozen=True)
class Probe:
    """Where a Jacobian's norm is attained: the token (None: all of them) and a memory ``[K, V]`` that it stretches."""

    token: int | None = None
    direction: torch.Tensor | None = None


LARGE = 2.0**300
"""Length of the memories from which Jacobians are read off: beside it, what is written from nothing is nothing, so a
product that has decayed to 1e-60 keeps its digits. A power of 2 rounds nothing, and F is affine."""

Measure = Callable[[Space, Tensors], torch.Tensor]
Exact = Callable[[Context, Space, Tensors, Probe], Number]


@dataclass(frozen=True)
class Objective:
    """A number to drive up: in words, in float64 for ``R`` inputs at once (``[R]``), and exactly for one.

    ``usual`` is what it is compared with, and why.
    """

    name: str
    words: str
    measure: Measure
    probe: Callable[[Space, Tensors], Probe]
    exact: Exact
    usual: Callable[[Space], tuple[float, str]]


def memory_of(space: Space, objective: str) -> str:
    """The name of the memory. Raises ``InfeasibleError`` for an operator that has none of this kind."""
    memory = space.memory
    if memory is None:
        raise InfeasibleError(f"{space.operator.name!r} keeps no memory, so {objective} is not defined for it")
    if objective != "state-norm" and memory.domain != "state":
        raise InfeasibleError(
            f"the memory of {space.operator.name!r} is in {memory.domain}, expected one matrix a head for {objective}"
        )
    return memory.name


def _run(space: Space, tensors: Tensors, state: Tensors | None = None) -> Tensors:
    """The final state of the reference, differentiable."""
    batch = space.batch(tensors).with_(state=state)
    return call(space.operator, space.operator.variant(space.operator.reference), batch)[1]


def state_norm(space: Space, tensors: Tensors) -> torch.Tensor:
    """|S_T|_F of every input, ``[R]``."""
    return _run(space, tensors)[memory_of(space, "state-norm")].flatten(1).norm(dim=1)


def _blank(space: Space, rows: int) -> Tensors:
    blank = blank_state(space.operator, space.batch({}), one=True)
    return {name: x.repeat(rows, *[1] * (x.dim() - 1)) for name, x in blank.items()}


def _columns(space: Space, tensors: Tensors, state: Tensors, name: str) -> tuple[torch.Tensor, Tensors]:
    """Jacobians ``[R, K V, K V]`` (row i: the image of basis memory i) and the state after, from blank memory."""
    size, starts = space.K * space.V, next(iter(tensors.values())).shape[0]
    basis = torch.cat([torch.zeros(1, size), torch.eye(size)]).double().view(size + 1, 1, space.K, space.V)

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(size + 1, dim=0)

    wide = {key: spread(x) for key, x in state.items()}
    wide[name] = LARGE * basis.repeat(starts, 1, 1, 1)
    final = _run(space, {key: spread(x) for key, x in tensors.items()}, wide)
    images = final[name].reshape(starts, size + 1, size)
    return (images[:, 1:] - images[:, :1]) / LARGE, {key: x[:: size + 1] for key, x in final.items()}


def jacobians(space: Space, tensors: Tensors) -> torch.Tensor:
    """dS_t/dS_{t-1} of every token, ``[R, T, K V, K V]``, as maps of rows (x -> x J)."""
    name = memory_of(space, "jacobian")
    state, found = _blank(space, next(iter(tensors.values())).shape[0]), []
    for t in range(space.T):
        j, state = _columns(space, {key: x[:, t : t + 1] for key, x in tensors.items()}, state, name)
        found.append(j)
    return torch.stack(found, dim=1)


def jacobian_norm(space: Space, tensors: Tensors) -> torch.Tensor:
    """The largest spectral norm of a one-token Jacobian, ``[R]``."""
    return torch.linalg.matrix_norm(jacobians(space, tensors), 2).amax(dim=1)


def product(space: Space, tensors: Tensors) -> torch.Tensor:
    """dS_T/dS_0, ``[R, K V, K V]``."""
    name = memory_of(space, "product")
    return _columns(space, tensors, _blank(space, next(iter(tensors.values())).shape[0]), name)[0]


def product_norm(space: Space, tensors: Tensors) -> torch.Tensor:
    """The spectral norm of dS_T/dS_0, ``[R]``."""
    return torch.linalg.matrix_norm(product(space, tensors), 2)


def _stretched(space: Space, j: torch.Tensor) -> torch.Tensor:
    """The unit memory that a Jacobian stretches most."""
    return torch.linalg.svd(j).U[:, 0].reshape(space.K, space.V).contiguous()


def _probe_jacobian(space: Space, tensors: Tensors) -> Probe:
    found = jacobians(space, tensors)[0]
    token = int(torch.linalg.matrix_norm(found, 2).argmax())
    return Probe(token, _stretched(space, found[token]))


def _probe_product(space: Space, tensors: Tensors) -> Probe:
    return Probe(None, _stretched(space, product(space, tensors)[0]))


def _norm(ctx: Context, xs: list[Number]) -> Number:
    return ctx.sqrt(sum((x * x for x in xs), ctx.number(0.0)))


def _head(ctx: Context, space: Space, tensors: Tensors) -> Head:
    """The one head of one input, from a blank state."""
    batch = space.batch(tensors).with_(state=_blank(space, 1))
    return next(heads(space.operator, batch, ctx))[2]


def _tokens(head: Head, start: int, stop: int) -> Head:
    return replace(head, inputs={name: rows[start:stop] for name, rows in head.inputs.items()}, T=stop - start)


def exact_state_norm(ctx: Context, space: Space, tensors: Tensors, probe: Probe) -> Number:
    """|S_T|_F by the oracle."""
    batch = space.batch(tensors)
    final = space.operator.oracle(ctx, next(heads(space.operator, batch, ctx))[2])[1]
    return _norm(ctx, numbers_of(ctx, final[memory_of(space, "state-norm")]))


def exact_stretch(ctx: Context, space: Space, tensors: Tensors, probe: Probe) -> Number:
    """|F(X) - F(0)| / |X| by the oracle: F the update by one token or by all, X the direction times ``LARGE``."""
    assert probe.direction is not None
    moved = _norm(ctx, _difference(_image(ctx, space, tensors, probe, 1), _image(ctx, space, tensors, probe, 0)))
    return moved / _norm(ctx, [ctx.number(LARGE * x) for x in probe.direction.reshape(-1).tolist()])


def bend(ctx: Context, space: Space, tensors: Tensors, probe: Probe) -> Number:
    """How far F is from affine along X: |F(2X) - 2 F(X) + F(0)| / |F(X) - F(0)|, by the oracle in mpmath."""
    zero, one, two = (_image(ctx, space, tensors, probe, factor) for factor in (0, 1, 2))
    once, again = _difference(one, zero), _difference(two, one)
    moved = _norm(ctx, once)
    return _norm(ctx, _difference(again, once)) / moved if moved else moved


def _difference(xs: list[Number], ys: list[Number]) -> list[Number]:
    return [x - y for x, y in zip(xs, ys, strict=True)]


def _image(ctx: Context, space: Space, tensors: Tensors, probe: Probe, factor: int) -> list[Number]:
    assert probe.direction is not None
    name, oracle = memory_of(space, "jacobian"), space.operator.oracle
    head = _head(ctx, space, tensors)
    if probe.token is not None:
        before = oracle(ctx, _tokens(head, 0, probe.token))[1] if probe.token else head.state
        head = replace(_tokens(head, probe.token, probe.token + 1), state=before)
    assert head.state is not None
    memory = convert(ctx, (factor * LARGE * probe.direction).numpy())
    return numbers_of(ctx, oracle(ctx, replace(head, state={**head.state, name: memory}))[1][name])


def _nowhere(space: Space, tensors: Tensors) -> Probe:
    return Probe()


def _sum_of_writes(space: Space) -> tuple[float, str]:
    return float(space.T), "what a plain sum of T writes of length 1 reaches at most"


def _no_growth(space: Space) -> tuple[float, str]:
    return 1.0, "an update that amplifies no memory"


OBJECTIVES: dict[str, Objective] = {
    x.name: x
    for x in (
        Objective(
            "state-norm", "Frobenius norm of the final memory", state_norm, _nowhere, exact_state_norm, _sum_of_writes
        ),
        Objective(
            "jacobian", "largest spectral norm of a one-token Jacobian dS_t/dS_{t-1}", jacobian_norm, _probe_jacobian,
            exact_stretch, _no_growth,
        ),
        Objective(
            "product", "spectral norm of dS_T/dS_0, the product of all Jacobians", product_norm, _probe_product,
            exact_stretch, _no_growth,
        ),
    )
}  # fmt: skip
"""Objectives that ascent can follow, by name."""


def growth(space: Space, tensors: Tensors, points: int = 8) -> list[tuple[int, float]]:
    """(t, |S_t|_F) at lengths from T/4 to T."""
    lengths = sorted({max(1, round(space.T * (1 + 3 * i / (points - 1)) / 4)) for i in range(points)})
    with torch.no_grad():
        return [
            (t, float(state_norm(replace(space, T=t), {k: x[:, :t] for k, x in tensors.items()})[0])) for t in lengths
        ]


def exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of log |S_t| over log t by least squares; ``None`` where there are too few points."""
    pairs: list[Any] = [(float(t), x) for t, x in points if x > 0]
    if len(pairs) < 3:
        return None
    t, x = (torch.tensor(column, dtype=torch.float64).log() for column in zip(*pairs, strict=True))
    return float(((t - t.mean()) * (x - x.mean())).sum() / ((t - t.mean()) ** 2).sum())
