"""Presets for other people's implementations: which function is which operator, and how it wants its arguments.

``fla`` is flash-linear-attention (the package fla-core, extra ``peers``). Its ``naive`` modules are plain PyTorch and
run anywhere; its kernels are Triton and need a GPU.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from linattest.verify.spec import DTYPES, FEATURES
from linattest.verify.subject import Subject

NARROW = ("float32", "bfloat16", "float16")
"""What a reference that casts to float32 can be right in."""

PLAIN = tuple(sorted(FEATURES - {"packed", "grouped"}))


@dataclass(frozen=True)
class Preset:
    """A peer's function: its name here, how to call it, what to know of it, and whether it needs a GPU."""

    name: str
    subject: Subject
    known: tuple[str, ...] = ()
    gpu: bool = False


FLOAT32 = "computes in float32 throughout, so float64 is not tried"
FIXED_SCALE = "the scale is K**-0.5, no argument"


def _naive(name: str, operator: str, path: str, *known: str, **description: object) -> Preset:
    given = {"dtypes": NARROW, "supports": PLAIN, **description}
    casts = () if "dtypes" in description else (FLOAT32,)
    return Preset(name, Subject(function=f"fla.ops.{path}", operator=operator, **given), (*casts, *known))  # type: ignore[arg-type]


def _kernel(name: str, operator: str, path: str, **description: object) -> Preset:
    given = {"dtypes": NARROW, "device": "cuda", "contiguous": True, **description}
    return Preset(name, Subject(function=f"fla.ops.{path}", operator=operator, **given), gpu=True)  # type: ignore[arg-type]


IPLR = {"k": "write", "beta": "write", "alpha": "-erase"}
"""S (I + alpha beta^T) + v k^T is the delta scan with alpha = -erase and beta = k = write."""

FLA = (
    _naive(
        "gla-recurrent",
        "gla",
        "gla.naive:naive_recurrent_gla",
        FIXED_SCALE,
        rename={"gk": "g"},
        only={"gate": "channel"},
    ),
    _naive("simple-gla-recurrent", "gla", "simple_gla.naive:naive_recurrent_simple_gla", only={"gate": "head"}),
    _naive("simple-gla-chunk", "gla", "simple_gla.naive:naive_chunk_simple_gla", only={"gate": "head"}, any_dtype=True),
    _naive(
        "simple-gla-parallel",
        "gla",
        "simple_gla.naive:naive_parallel_simple_gla",
        only={"gate": "head"},
        any_dtype=True,
    ),
    _naive(
        "delta-net-recurrent", "delta_net", "delta_rule.naive:delta_rule_recurrence", FIXED_SCALE, layout="head-first"
    ),
    _naive(
        "delta-net-chunk",
        "delta_net",
        "delta_rule.naive:delta_rule_chunkwise",
        FIXED_SCALE,
        "T must be a multiple of its chunk, 32",
        layout="head-first",
        multiple=32,
        dtypes=("float32",),
    ),
    _naive(
        "gated-delta-net-recurrent",
        "gated_delta_net",
        "gated_delta_rule.naive:naive_recurrent_gated_delta_rule",
        any_dtype=True,
    ),
    _naive(
        "gated-delta-net-chunk",
        "gated_delta_net",
        "gated_delta_rule.naive:naive_chunk_gated_delta_rule",
        any_dtype=True,
    ),
    _naive(
        "log-linear",
        "log_linear",
        "log_linear_attn.naive:naive_log_linear_attn",
        "computes in the dtype of its inputs; has no delta transition and no state",
        rename={"level_scales": "level_weights"},
        only={"delta": False},
        supports=(*PLAIN, "grouped"),
        dtypes=DTYPES,
    ),
    _naive(
        "iplr-recurrent",
        "delta_scan",
        "generalized_delta_rule.iplr.naive:iplr_recurrence",
        FIXED_SCALE,
        "float32 alone: the gradient of write is a sum over k and beta, each rounded to the narrow dtype",
        layout="head-first",
        rename=IPLR,
        drop=("g",),
        dtypes=("float32",),
    ),
    _naive(
        "iplr-chunk",
        "delta_scan",
        "generalized_delta_rule.iplr.naive:iplr_chunkwise",
        FIXED_SCALE,
        "T must be a multiple of its chunk, 32",
        layout="head-first",
        rename=IPLR,
        drop=("g",),
        multiple=32,
        dtypes=("float32",),
    ),
    _kernel("gla-kernel", "gla", "gla:chunk_gla", only={"gate": "channel"}),
    _kernel("simple-gla-kernel", "gla", "simple_gla:chunk_simple_gla", only={"gate": "head"}),
    _kernel("delta-net-kernel", "delta_net", "delta_rule:chunk_delta_rule"),
    _kernel("gated-delta-net-kernel", "gated_delta_net", "gated_delta_rule:chunk_gated_delta_rule"),
    _kernel(
        "log-linear-kernel",
        "log_linear",
        "log_linear_attn:chunk_log_linear_attn",
        rename={"level_scales": "level_weights"},
        only={"delta": False},
        supports=("gradient", "grouped", "packed"),
    ),
    _kernel(
        "iplr-kernel",
        "delta_scan",
        "generalized_delta_rule.iplr:chunk_iplr_delta_rule",
        rename={"k": "write", "b": "write", "a": "-erase"},
        drop=("g",),
    ),
)

PEERS: dict[str, tuple[Preset, ...]] = {"fla": FLA}

PACKAGES = {"fla": ("fla", "fla-core")}
"""The module of a peer and the package that has it."""


def missing(peer: str) -> str:
    """The package to install for a peer; empty if it is there."""
    module, package = PACKAGES[peer]
    return "" if importlib.util.find_spec(module) else package


def runnable(preset: Preset) -> bool:
    """Whether this machine has what it needs."""
    import torch  # the only one here that needs it

    return not preset.gpu or torch.cuda.is_available()


def named(peer: str, names: list[str]) -> tuple[Preset, ...]:
    """The presets of these names, of an operator or of a beginning ("gla"), in order; all if there are none.

    Raises:
        KeyError: a name that fits none; the message lists the known ones.
    """
    presets = PEERS[peer]
    for name in names:
        if not any(fits(preset, name) for preset in presets):
            raise KeyError(f"no preset {name!r} of {peer}; known: {', '.join(preset.name for preset in presets)}")
    return tuple(preset for preset in presets if not names or any(fits(preset, name) for name in names))


def fits(preset: Preset, name: str) -> bool:
    """Whether a name chooses a preset: its own, or its operator's."""
    return name in (preset.name, preset.subject.operator)
