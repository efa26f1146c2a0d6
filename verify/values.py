"""Value families: what numbers an operator is fed, by the domain of each input.

A family names what it stresses. Values are drawn in float64; ``inputs.build`` quantises them. Hypothesis
draws only the family and a seed, never elements, so that shrinking works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

import linattest

Array = NDArray[np.float64]

_CAPTURED = Path(linattest.__file__).parent / "verify" / "data" / "captured_minilm.safetensors"

KEYS = frozenset({"feature", "unit", "unit_feature", "direction"})
"""Domains of key-like vectors, which the structured families shape."""


@dataclass(frozen=True)
class Drawn:
    """What a draw may depend on: sizes, dtype (for ranges) and the family."""

    sizes: dict[str, int]
    dtype: str
    family: str


def phi(x: Array) -> Array:
    """ELU + 1, without the cancellation of ``elu(x) + 1`` below -16."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def normalise(x: Array) -> Array:
    """Rows of length 1; zero rows stay zero."""
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def _psd(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """What a sum of u u^T may look like: symmetric positive semi-definite, of rank K // 2."""
    k = shape[-1]
    x = rng.standard_normal((*shape[:-1], max(k // 2, 1))) / np.sqrt(k)
    return x @ np.swapaxes(x, -1, -2)


def _log_gate(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Log-gates <= 0: half mild, a quarter exactly 0 (gate 1), a quarter strong."""
    kind = rng.random(shape)
    mild = -np.logaddexp(0, rng.standard_normal(shape)) / 4
    return np.where(kind < 0.5, mild, np.where(kind < 0.75, 0.0, -8 * rng.random(shape)))


POSITIONS = (0, 1, 5, 63, 64, 70, 127)
"""How many tokens a Fenwick state may have seen: next to none, and around the edge of a chunk."""


def _scatter(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """The scatter of a handful of vectors about their mean."""
    return 8 * _psd(shape, rng)


def _weight(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Observation weights in [0, 2), a quarter of them exactly 0."""
    return np.where(rng.random(shape) < 0.25, 0.0, 2 * rng.random(shape))


def _rate(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Numbers in (0, 1), one in eight exactly 0."""
    return np.where(rng.random(shape) < 0.125, 0.0, rng.random(shape))


def _width(shape: tuple[int, ...]) -> float:
    return float(np.sqrt(max(shape[-1], 1)))


FINITE = frozenset({"log_gate", "beta", "level", "rate", "weight"})
"""Domains of inputs that refuse NaN and infinity (a log-gate of -inf is legal)."""

DOMAINS: dict[str, Callable[[tuple[int, ...], np.random.Generator], Array]] = {
    "real": lambda shape, rng: rng.standard_normal(shape),
    "feature": lambda shape, rng: phi(rng.standard_normal(shape)),
    "unit": lambda shape, rng: normalise(rng.standard_normal(shape)),
    "unit_feature": lambda shape, rng: normalise(phi(rng.standard_normal(shape))),
    "direction": lambda shape, rng: normalise(rng.standard_normal(shape)) / _width(shape),
    "beta": lambda shape, rng: 2 * rng.random(shape),
    "log_gate": _log_gate,
    "psd": _psd,
    "state": lambda shape, rng: rng.standard_normal(shape) / 2,
    "feature_sum": lambda shape, rng: 3 * phi(rng.standard_normal(shape)),
    "buckets": lambda shape, rng: rng.standard_normal(shape) / 2,
    "position": lambda shape, rng: rng.choice(POSITIONS, shape),
    "level": lambda shape, rng: np.logaddexp(0, rng.standard_normal(shape)),
    "rate": _rate,
    "weight": _weight,
    "scatter": _scatter,
    "location": lambda shape, rng: rng.standard_normal(shape) / 2,
    "count": lambda shape, rng: 1 + 8 * rng.random(shape),
}
"""How a plain random value of each domain is drawn."""


def draw(drawn: Drawn, name: str, domain: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Values for one tensor.

    Raises:
        ValueError: an unknown domain or family, listing the known ones.
    """
    if domain not in DOMAINS:
        raise ValueError(f"domain={domain!r} of {name!r}, expected one of {sorted(DOMAINS)}")
    if drawn.family not in FAMILIES:
        raise ValueError(f"family={drawn.family!r}, expected one of {sorted(FAMILIES)}")
    values = DOMAINS[domain](shape, rng)
    if not values.size or name.startswith(("d ", "state.")):
        return values
    return FAMILIES[drawn.family](drawn, name, domain, values, rng)


def _keep(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """random: independent draws."""
    return x


def _duplicate(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """duplicate: every key is one of three, the same three for all tokens of a head."""
    if domain not in KEYS or name == "q":
        return x
    pick = np.random.Generator(np.random.PCG64(x.shape[1])).integers(0, min(3, x.shape[1]), x.shape[1])
    return x[:, pick]


def _coherent(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """coherent: keys within 5% of one direction."""
    if domain not in KEYS or name == "q":
        return x
    return x[:, :1] + 0.05 * (x - x[:, :1])


def _orthogonal(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """orthogonal: keys are unit coordinate vectors in turn, so that many products are exactly 0."""
    if domain not in KEYS or name == "q":
        return x
    basis = np.eye(x.shape[-1])[np.arange(x.shape[1]) % x.shape[-1]]
    scale = 1 / _width(x.shape) if domain == "direction" else 1.0
    return np.broadcast_to(scale * basis[None, :, None, :], x.shape).copy()


def _one_direction(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """one_direction: every key is the first coordinate vector: the worst condition a penalty can have."""
    if domain not in KEYS or name == "q":
        return x
    values = np.zeros_like(x)
    values[..., 0] = 1 / _width(x.shape) if domain == "direction" else 1.0
    return values


def _strong_penalty(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """strong_penalty: three penalty directions, 256 times as long: too much for a rank-one update of an inverse."""
    return 256 * _duplicate(drawn, name, domain, x, rng) if domain == "direction" else x


def _far(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """far: keys around a mean 2^10 times their spread (a difference of two moments would lose it)."""
    return x + 1024.0 if domain in KEYS and name != "q" else x


def _fading(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """fading: every gate e^-25, and weight for one token in eight: what is remembered falls by e^-200 between them."""
    seldom = (np.arange(x.shape[1]) % 8 == 0).reshape((1, -1) + (1,) * (x.ndim - 2))
    return {"log_gate": np.full_like(x, -25.0), "weight": seldom + 0 * x}.get(domain, x)


def _resets(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """resets: one log-gate in five is -inf, with which the state starts anew (a channel of it, under such a gate)."""
    return np.where(rng.random(x.shape) < 0.2, -np.inf, x) if domain == "log_gate" else x


def _zeros(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """zeros: a third of the tokens have zero keys and values, the first one included."""
    dead = np.arange(x.shape[1]) % 3 == 0
    live = ~dead.reshape((1, -1) + (1,) * (x.ndim - 2))
    return np.where(live, x, 0.0) if domain in KEYS | {"real"} and name != "q" else x


def _scaled(exponents: dict[str, int]) -> Callable[[Drawn, str, str, Array, np.random.Generator], Array]:
    def apply(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
        return x * 2.0 ** exponents.get(drawn.dtype, exponents["float32"]) if domain in {"feature", "real"} else x

    return apply


def _subnormal(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """subnormal: every other value v is a few of the smallest numbers of its dtype, the rest ordinary."""
    exponent = {"float64": -1060, "float32": -141, "bfloat16": -129, "float16": -20}[drawn.dtype]
    scale = np.where(np.arange(x.shape[1]) % 2, 1.0, 2.0**exponent)
    return x * scale.reshape((1, -1) + (1,) * (x.ndim - 2)) if name == "v" else x


def _captured(drawn: Drawn, name: str, domain: str, x: Array, rng: np.random.Generator) -> Array:
    """captured: q, k, v of a pretrained encoder's attention layers on real text (data/README.md)."""
    role = {"q": "q", "v": "v"}.get(name, "k")
    if domain not in KEYS | {"real"}:
        return x
    tensors = captured()
    layers = sorted({key.split(".")[0] for key in tensors})
    raw = tensors[f"{layers[x.shape[0] % len(layers)]}.{role}"].astype(np.float64)
    length, heads, width = raw.shape
    if x.shape[1] > length or x.shape[-1] > width:
        raise ValueError(f"shape={x.shape} of {name!r}, captured holds T <= {length} and width <= {width}")
    rows = np.stack([raw[: x.shape[1], [h % heads for h in range(x.shape[2])], : x.shape[-1]]] * x.shape[0])
    if domain == "direction":
        return normalise(rows @ rng.standard_normal((x.shape[-1], x.shape[-1]))) / _width(x.shape)
    shapes = {"feature": phi, "unit": normalise, "unit_feature": lambda y: normalise(phi(y))}
    return shapes.get(domain, lambda y: y)(rows)


@cache
def captured() -> dict[str, NDArray[np.float32]]:
    """The captured tensors, ``layer<i>.q`` and so on, each ``[T, heads, width]``."""
    return load(_CAPTURED.read_bytes())


FAMILIES: dict[str, Callable[[Drawn, str, str, Array, np.random.Generator], Array]] = {
    "random": _keep,
    "duplicate": _duplicate,
    "coherent": _coherent,
    "orthogonal": _orthogonal,
    "one_direction": _one_direction,
    "far": _far,
    "fading": _fading,
    "resets": _resets,
    "zeros": _zeros,
    "tiny": _scaled({"float32": -40, "float16": -10}),
    "huge": _scaled({"float32": 20, "float16": 4}),
    "subnormal": _subnormal,
    "strong_penalty": _strong_penalty,
    "captured": _captured,
}
"""Value families by name."""
