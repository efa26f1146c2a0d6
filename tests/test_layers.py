"""The layers: padding is invisible, caches carry everything on, parameters are where they should be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from linattest.impls import layer_operands, layer_parts, layers
from linattest.impls.layers import Layer, LayerCache

D, H = 12, 2
GROUPED = {"num_value_heads": 4, "value_dim": 3}
MAKERS: dict[str, Callable[..., Layer]] = {
    "softmax": functools.partial(layers.Softmax, D, H, **GROUPED),
    "linear": functools.partial(layers.LinearAttention, D, H, **GROUPED),
    "linear-sum": functools.partial(layers.LinearAttention, D, H, normalizer=False),
    "delta_net": functools.partial(layers.DeltaNet, D, H, **GROUPED),
    "gla-channel": functools.partial(layers.GLA, D, H),
    "gla-head": functools.partial(layers.GLA, D, H, gate="head", **GROUPED),
    "gated_delta_net": functools.partial(layers.GatedDeltaNet, D, H, **GROUPED, output_norm="rms"),
    "vla": functools.partial(layers.VLA, D, H, output_norm="layer"),
    "vla-learned": functools.partial(layers.VLA, D, H, learn_lam0=True, lam0=1.5, value_dim=3),
    **{
        f"ccq-{name}": functools.partial(layers.CCQ, D, H, backbone=name, **({} if name == "vla" else GROUPED))
        for name in layer_operands.BACKBONES
    },
    **{
        f"log_linear-{name}{'-delta' * delta}": functools.partial(
            layers.LogLinear, D, H, max_length=40, level_weights=name, delta=delta, **GROUPED
        )
        for name in layer_operands.LEVEL_WEIGHTS
        for delta in (False, True)
    },
}
EVERY = pytest.mark.parametrize("name", MAKERS)
CONV = pytest.mark.parametrize("conv_size", [None, 4], ids=["plain", "conv"])
LEFT, RIGHT, INSIDE, NONE = [0, 0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0, 1], [0] * 7
MASK = torch.tensor([LEFT, NONE, RIGHT, INSIDE, [1] * 7, [0, 0, 0, 0, 1, 0, 0]])


def make(name: str, seed: int = 0, **options: Any) -> Layer:
    """A layer in which no parameter is left at a special start such as 0."""
    torch.manual_seed(seed)
    layer = MAKERS[name](**{"chunk_size": 4, **options})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return layer


def draw(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors(cache: Any) -> list[Tensor]:
    return [x for x in tree_leaves(cache) if isinstance(x, Tensor)]


def check_padding(layer: Layer, run: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`run(x, mask)` has the bits of `layer` on each row's live tokens alone, forward and backward; 0 elsewhere."""
    x, up, live = draw(*MASK.shape, D), draw(*MASK.shape, D, seed=2), MASK.bool()
    padded = torch.where(live[..., None], x, torch.nan).requires_grad_()
    y = run(padded, MASK)
    (slope,) = torch.autograd.grad(y, padded, up)
    for b, rows in enumerate(live):
        alone = x[b, rows][None].requires_grad_()
        z, _ = layer(alone)
        assert torch.equal(y[b, rows], z[0]), f"row {b} sees its pads"
        assert torch.equal(slope[b, rows], torch.autograd.grad(z, alone, up[b, rows][None])[0][0]), f"gradient, row {b}"
    assert bool((y[~live] == 0).all()), "output at a pad"
    assert bool((slope[~live] == 0).all()), "gradient at a pad"


@EVERY
@pytest.mark.parametrize("backend, conv_size", [("chunk", None), ("chunk", 4), ("recurrent", 4)])
def test_rows_with_nan_pads_have_the_bits_of_rows_without(name, conv_size, backend):
    layer = make(name, conv_size=conv_size, backend=backend)
    check_padding(layer, lambda x, mask: layer(x, attention_mask=mask)[0])


@EVERY
def test_the_padding_check_catches_leaks(name, monkeypatch):
    """Pads that run as zeros instead of not at all; and a convolution that runs over the whole pack."""
    layer = make(name, conv_size=4)

    def zeros(x: Tensor, mask: Tensor) -> Tensor:
        live = mask.bool()[..., None]
        return layer(torch.where(live, x, 0))[0] * live

    with pytest.raises(AssertionError, match="sees its pads"):
        check_padding(layer, zeros)
    monkeypatch.setattr(layer_parts, "each_sequence", lambda function, offsets, *inputs: [function(0, *inputs)])
    with pytest.raises(AssertionError, match="sees its pads|gradient"):
        check_padding(layer, lambda x, mask: layer(x, attention_mask=mask)[0])


def check_decoding(layer: Layer, forget: Callable[[LayerCache], LayerCache] = lambda cache: cache) -> None:
    """Pieces of several sizes, some padded, equal each row's whole; float64, so that only a fault is larger than 1e-9.

    (Rounding is near 1e-15 here; a lost state or a shifted window changes outputs by more than 1e-4.)
    """
    masks = [MASK, None, None, torch.tensor([[1], [0], [1], [0], [1], [1]]), None, MASK[:, 2:5]]
    pieces = [draw(6, T, D, seed=10 + T, dtype=torch.float64) for T in (7, 1, 1, 1, 2, 3)]
    cache, outputs = None, []
    for x, mask in zip(pieces, masks, strict=True):
        before = [x.clone() for x in tensors(cache)]
        y, new = layer(x, attention_mask=mask, cache=cache, use_cache=True)
        for old, copy in zip(tensors(cache), before, strict=True):
            assert torch.equal(old, copy), "a cache was modified"
        outputs.append(y)
        cache = forget(new)
    live = [
        torch.ones(x.shape[:2], dtype=torch.bool) if m is None else m.bool() for x, m in zip(pieces, masks, strict=True)
    ]
    for b in range(6):
        whole, _ = layer(torch.cat([x[b, rows[b]] for x, rows in zip(pieces, live, strict=True)])[None])
        parts = torch.cat([y[b, rows[b]] for y, rows in zip(outputs, live, strict=True)])
        assert (whole[0] - parts).abs().max() <= 1e-9 * whole.abs().max(), f"row {b}"


@EVERY
@CONV
def test_prefill_then_decode_is_the_whole_forward(name, conv_size):
    check_decoding(make(name, conv_size=conv_size, dtype=torch.float64))


@EVERY
def test_the_decoding_check_catches_a_lost_state_and_a_lost_window(name):
    layer = make(name, conv_size=3, dtype=torch.float64)
    for forget in (
        lambda cache: cache._replace(state=emptied(cache.state)),
        lambda cache: cache._replace(conv=cache.conv.roll(1, 1)),
    ):
        with pytest.raises(AssertionError, match="row"):
            check_decoding(layer, forget)


def emptied(state):
    """The state with nothing in it: a memory that was lost on the way."""
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    return type(state)(*map(emptied, state))


@EVERY
def test_decode_memory_is_constant_but_for_softmax(name):
    layer, cache, sizes = make(name, conv_size=3), None, []
    for t in range(9):
        _, cache = layer(draw(2, 1, D, seed=t), cache=cache, use_cache=True)
        sizes.append(sum(x.numel() for x in tensors(cache)))
    assert len(set(sizes)) == (9 if name == "softmax" else 1)


@EVERY
def test_a_state_dict_carries_every_bit_and_a_seed_fixes_them(name):
    layer, other, x = make(name, conv_size=2), make(name, seed=1, conv_size=2), draw(2, 5, D)
    assert not torch.equal(layer(x)[0], other(x)[0])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x)[0], other(x)[0])
    assert torch.equal(layer(x)[0], make(name, conv_size=2)(x)[0])


@EVERY
def test_every_parameter_has_a_gradient(name):
    layer = make(name, conv_size=2)
    layer(draw(2, 9, D))[0].square().sum().backward()
    unused = [key for key, p in layer.named_parameters() if p.grad is None or not bool((p.grad != 0).any())]
    assert not unused, unused


@EVERY
def test_a_bfloat16_layer_runs_pads_and_decodes(name):
    layer, x = make(name, conv_size=2).to(torch.bfloat16), draw(6, 7, D, dtype=torch.bfloat16)
    y, cache = layer(x, attention_mask=MASK, use_cache=True)
    z, _ = layer(x[:, :1], cache=cache)
    assert y.dtype == z.dtype == torch.bfloat16 and bool(y.isfinite().all() and z.isfinite().all())
    if name != "softmax":
        assert all(part.dtype in (torch.float32, torch.int64) for part in tensors(cache.state))
    wide = make(name, conv_size=2, dtype=torch.float64)
    wide.load_state_dict(layer.state_dict())
    exact = wide(x.double(), attention_mask=MASK)[0]
    # some ten roundings to 8 bits between input and output, each 2^-9 of the largest entry
    assert (y - exact).abs().max() <= 10 * 2**-9 * exact.abs().max()


def test_packed_sequences_are_each_by_itself_and_rows_beyond_are_zero():
    layer, x = make("vla", conv_size=3), draw(1, 9, D)
    y, cache = layer(x, cu_seqlens=torch.tensor([0, 2, 2, 7]), use_cache=True)
    assert torch.equal(y[:, 2:7], layer(x[:, 2:7].clone())[0]) and bool((y[:, 7:] == 0).all())
    again, kept = layer(x[:, :0], cu_seqlens=torch.tensor([0, 0, 0, 0]), cache=cache, use_cache=True)
    assert again.shape == (1, 0, D)
    assert all(torch.equal(a, b) for a, b in zip(tensors(cache), tensors(kept), strict=True))
