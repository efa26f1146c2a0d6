"""ridge_solve: solve against a growing penalty matrix, once a token.

    M_t = M_{t-1} + u_t u_t^T            y_t = (lam0 I + M_t)^{-1} x_t

``M_{-1}`` is the initial state, read as (M + M^T)/2, or 0. Used by VLA (x = the normalised key), by VLA's
backward, and, with x = u, by recursive least squares. Source: VLA paper, sections 2.2 and 2.3.

    symbol   shape           domain
    x        [B, T, H, K]    any
    u        [B, T, H, K]    any; VLA's directions have length 1/sqrt(K)
    lam0     scalar or [H]   > 0
    M        [N, H, K, K]    state, without lam0 I
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.properties.penalty import INVERSE
from linattest.verify.spec import FEATURES, Input, Limitation, Operator, Option, State, kernels, ours


def penalty(ctx: Context, head: Any) -> Any:
    """The initial M: the symmetric part of the state, or zero. Without a token it passes through as it is."""
    if head.state is None:
        return ctx.zeros(head.K, head.K)
    stored = head.state["M"]
    if head.T == 0:
        return stored
    return (stored + ctx.transpose(stored)) * (1 / ctx.number(2))


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The recurrence with the inverse carried along by the Sherman-Morrison formula.

    In exact arithmetic this is ``definition``, at O(K^2) a token instead of O(K^3); a test compares the two.
    """
    lam0 = head.options["lam0"]
    m = penalty(ctx, head)
    # the inverse of a multiple of the identity needs no elimination (mpmath's is slow)
    inverse = ctx.identity(head.K) * (1 / lam0)
    if head.state is not None:
        inverse = ctx.inverse(m + ctx.identity(head.K) * lam0)
    rows: list[Any] = []
    for x, u in zip(head.x, head.u, strict=True):
        z = inverse * u
        inverse = inverse - ctx.outer(z, z * (1 / (1 + ctx.dot(u, z))))
        rows.append(inverse * x)
    return rows, {"M": m + ctx.gram(head.u, head.K)}


def definition(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The same, inverting lam0 I + M_t anew at each token."""
    m = penalty(ctx, head)
    rows: list[Any] = []
    for x, u in zip(head.x, head.u, strict=True):
        m = m + ctx.outer(u, u)
        rows.append(ctx.inverse(m + ctx.identity(head.K) * head.options["lam0"]) * x)
    return rows, {"M": m}


ROUNDED_PENALTY = tuple(
    Limitation(
        variant=variant,
        dtypes=("float32", "bfloat16", "float16"),
        families=("strong_penalty",),
        why="the state M is handed over in float32: once its rounding is larger than lam0 (M above 2^24 lam0), lam0 I "
        "+ M may not be positive definite, and the tokens after it are NaN",
    )
    for variant in ("step", "triton-step")
)
"""Of every decode step that carries a penalty matrix."""

OPERATOR = Operator(
    name="ridge_solve",
    title="Running ridge solve (primitive)",
    inputs=(
        Input(name="x", shape="B T H K", domain="unit"),
        Input(name="u", shape="B T H K", domain="direction"),
    ),
    output="B T H K",
    oracle=oracle,
    states=(State(name="M", shape="N H K K", domain="psd"),),
    options=(Option(name="lam0", default=0.1, differentiable=True),),
    grid=({}, {"lam0": 1e-3}, {"lam0": 10.0}),
    families=("random", "duplicate", "coherent", "orthogonal", "one_direction", "zeros", "captured", "strong_penalty"),
    variants=(
        *ours("ridge_solve", "recurrent", "chunk", "step", supports=FEATURES - {"grouped"}),
        *kernels("ridge_solve", supports=FEATURES - {"grouped"}),
    ),
    properties=(INVERSE,),
    limitations=ROUNDED_PENALTY,
    reading=("impls/ridge_solve.py", "kernels/ridge_rule.py", "verify/properties/penalty.py"),
)
