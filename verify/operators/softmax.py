"""softmax: causal softmax attention, the baseline every linear operator is compared with.

    o_t = sum_{s<=t} exp(scale q_t . k_s) v_s / sum_{s<=t} exp(scale q_t . k_s)

Our variants are the definition and a blockwise online form; the ``sdpa-*`` variants are PyTorch's own
CPU backends of ``scaled_dot_product_attention``, judged as they are. Source: Vaswani et al. 2017.

    symbol   shape            domain
    q, k     [B, T, H, K]     any
    v        [B, T, HV, V]    any
"""

from __future__ import annotations

from typing import Any

from linattest.verify.numbers import Context
from linattest.verify.spec import FEATURES, Input, Limitation, Operator, Option, Staged, Variant, ours


def oracle(ctx: Context, head: Any) -> tuple[list[Any], dict[str, Any]]:
    """The definition, from the scores of one query at a time. Balls need no shift by the maximum."""
    scale = head.options["scale"]
    rows: list[Any] = []
    for t, q in enumerate(head.q):
        weights = [ctx.exp(ctx.dot(q, k) * scale) for k in head.k[: t + 1]]
        total = sum(weights[1:], weights[0])
        o = ctx.zeros(head.V)
        for weight, v in zip(weights, head.v, strict=False):
            o = o + v * weight
        rows.append(o * (1 / total))
    return rows, {}


LOW = ("bfloat16", "float16")

SOFTMAX_OPERANDS = Staged(
    name="probabilities and their gradients in the input dtype",
    function="linattest.verify.staging:softmax_operands",
    dtypes=LOW,
)
"""The flash backend feeds P (and, backward, dS) to low-precision matrix products, and keeps o rounded."""

OPERATOR = Operator(
    name="softmax",
    title="Softmax attention",
    inputs=(
        Input(name="q", shape="B T H K", domain="real"),
        Input(name="k", shape="B T H K", domain="real"),
        Input(name="v", shape="B T HV V", domain="real"),
    ),
    output="B T HV V",
    oracle=oracle,
    # No `states`: the cache is the keys and values themselves, as many as there were tokens. It holds no number that
    # was computed, so that there is nothing to compare, and no shape in the letters of a `State`, whose size is fixed.
    # What it is for is judged all the same: `step` carries it from token to token, and its outputs are the whole's.
    options=(Option(name="scale", default=None, derived="K**-0.5"),),
    grid=({}, {"scale": 1.0}, {"scale": 0.05}),
    families=("random", "duplicate", "coherent", "zeros", "tiny", "subnormal", "captured"),
    variants=(
        *ours("softmax", "recurrent", "chunk", "step", supports=FEATURES - {"state"}),
        Variant(
            name="sdpa-math",
            function="linattest.verify.adapters:sdpa",
            options={"backend": "math"},
            supports=frozenset({"gradient", "rectangular"}),
        ),
        Variant(
            name="sdpa-flash",
            function="linattest.verify.adapters:sdpa",
            options={"backend": "flash"},
            supports=frozenset({"gradient"}),
            staged=(SOFTMAX_OPERANDS,),
        ),
    ),
    limitations=(
        Limitation(
            variant="step",
            dtypes=LOW,
            directions=("gradient",),
            why="the cache holds keys and values in the input dtype, in which autograd adds up what each later "
            "token contributes to their gradients",
        ),
        Limitation(
            variant="sdpa-math",
            directions=("property",),
            properties=("nan-contained",),
            why="PyTorch's math backend adds the mask to the scores and multiplies all values: NaN in a later key or "
            "value reaches earlier outputs",
        ),
        Limitation(
            variant="sdpa-math",
            dtypes=("float32",),
            directions=("property",),
            properties=("batch-invariance",),
            local=True,
            why="PyTorch's math backend multiplies all rows of a batch at once, and on some processors (seen on AMD's) "
            "the last bit of a row's gradient is another one than in a batch of one",
        ),
        *(
            Limitation(
                variant=variant,
                directions=("property",),
                properties=("autocast",),
                why="under autocast, PyTorch's function computes and answers in autocast's type, as documented",
            )
            for variant in ("sdpa-math", "sdpa-flash")
        ),
        Limitation(
            variant="sdpa-flash",
            dtypes=("float32", "float16"),
            families=("tiny",),
            directions=("gradient",),
            most=1e7,
            rare=True,
            why="PyTorch's flash backward leaves the rounding of tiny differences where the exact one is nearly 0: "
            "in float16 a whole subnormal step, 6e-8, where 1e-9 is exact (1.2e6 unavoidable errors were seen)",
        ),
        Limitation(
            variant="sdpa-flash",
            dtypes=("float16",),
            families=("zeros", "captured"),
            directions=("gradient",),
            most=1e4,
            rare=True,
            why="PyTorch's flash backward adds float16 gradients up in float16",
        ),
        Limitation(
            variant="sdpa-flash",
            directions=("property",),
            properties=("nan-contained",),
            why="PyTorch's CPU flash kernel answers a NaN query with finite numbers",
        ),
    ),
    reading=("impls/softmax.py", "verify/adapters.py"),
)
