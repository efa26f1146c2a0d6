"""What layers are made of: the short convolution's window, gates, what each operator is given, errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattest.impls import ccq, gated_delta_net, layer_parts, layers, vla
from linattest.impls.layer_operands import MambaGate
from linattest.impls.layers import LayerCache


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Clamped(layer_parts.ShortConvolution):
    """The reported fault: a short piece lands where it would if the window started at its first token."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, new = super().forward(x, cache)
        return y, new if cache is None else torch.cat([x, cache[:, x.shape[1] :]], 1)[:, : self.size]


def check_window(kind: type[layer_parts.ShortConvolution]) -> None:
    """R12, weights 0, one token: dx0 = dht[3]; dh0[w] = dht[w - 1] for w = 1, 2, 3; dh0[0] = 0."""
    conv = kind(1, 4, dtype=torch.float64)
    nn.init.zeros_(conv.weight)
    x, cache, slope = (draw(1, T, 1, seed=T).requires_grad_() for T in (1, 4, 4))
    _, new = conv(x, cache)
    dx, dcache = torch.autograd.grad(new, (x, cache), slope)
    assert torch.equal(dx[0, 0], slope[0, 3]), "dx0"
    assert torch.equal(dcache[0, 1:], slope[0, :3]) and dcache[0, 0] == 0, "dh0"


def test_the_window_of_a_short_piece_has_the_reported_right_gradients():
    check_window(layer_parts.ShortConvolution)
    with pytest.raises(AssertionError, match="dx0"):
        check_window(Clamped)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_a_convolution_in_pieces_of_one_and_two_tokens_is_the_whole(size):
    conv = layer_parts.ShortConvolution(3, size, dtype=torch.float64)
    x, start = draw(2, 8, 3).requires_grad_(), draw(2, size, 3).requires_grad_()

    def pieces(x: Tensor, cache: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
        outputs = []
        for rows in x.split(lengths, 1):
            y, cache = conv(rows, cache)
            outputs.append(y)
        return torch.cat(outputs, 1), cache

    whole = conv(x, start)
    for got, wanted in zip(pieces(x, start, [1, 2, 1, 1, 2, 1]), whole, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-15, atol=0)
    reference = F.conv1d(torch.cat([start, x], 1).mT[:, :, 1:], conv.weight[:, None], groups=3).mT
    torch.testing.assert_close(whole[0], F.silu(reference), rtol=1e-13, atol=1e-15)
    assert torch.autograd.gradcheck(lambda x, start: pieces(x, start, [1, 2, 1, 1, 2, 1]), (x, start), rtol=1e-7)


def test_a_mamba_gate_survives_a_huge_rate_beside_a_tiny_step():
    """A_log = 100, pre-activation -200: the decay is exp(-3.72e-44) = 1, not exp(-inf * 0)."""
    gate = MambaGate(layer_parts.Widths(1, 1, 1, 1, 1))
    with torch.no_grad():
        gate.A_log.fill_(100)
        gate.dt_bias.fill_(-200)
    g = gate(torch.zeros(1, 1, 1))
    assert -4e-44 < g.item() < -3e-44 and torch.exp(g).item() == 1


# --- what operators are given ------------------------------------------------------------------------------------


def heads(layer: layers.Layer, x: Tensor) -> list[Tensor]:
    """q, k, v by the projections' matrices."""
    p, (_, H, HV, K, V) = layer.projections, layer.widths
    return [
        (x @ m.weight.mT).unflatten(-1, s) for m, s in ((p.q_proj, (H, K)), (p.k_proj, (H, K)), (p.v_proj, (HV, V)))
    ]


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def vla_from_the_paper(layer: Any, x: Tensor) -> Tensor:
    (q, k, v), made = heads(layer, x), layer.operands
    u = unit(k @ made.u_proj.weight.mT) / 6**0.5
    return vla.recurrent(F.elu(q) + 1, F.elu(k) + 1, v, u, lam0=F.softplus(made.raw_lam0))[0]


def ccq_from_the_paper(layer: Any, x: Tensor) -> Tensor:
    (q, k, v), made = heads(layer, x), layer.operands
    g = F.logsigmoid(x @ made.backbone.gate.proj[0].weight.mT + made.backbone.gate.proj[0].bias) / 16
    lam = torch.sigmoid(torch.einsum("bthk,hk->bth", q, made.w_lam) + made.b_lam)
    return ccq.recurrent(q, k, v, lam, backbone="gla", g=g)[0]


def gated_delta_net_from_the_paper(layer: Any, x: Tensor) -> Tensor:
    (q, k, v), made = heads(layer, x), layer.operands
    g = -made.gate.A_log.exp() * F.softplus(x @ made.gate.proj.weight.mT + made.gate.dt_bias)
    return gated_delta_net.recurrent(unit(q), unit(k), v, g, torch.sigmoid(x @ made.beta_proj.weight.mT))[0]


@pytest.mark.parametrize(
    "make, expected",
    [
        (functools.partial(layers.VLA, learn_lam0=True, lam0=0.3), vla_from_the_paper),
        (functools.partial(layers.CCQ, backbone="gla", backbone_options={"gate": "head"}), ccq_from_the_paper),
        (layers.GatedDeltaNet, gated_delta_net_from_the_paper),
    ],
)
def test_operators_are_given_what_the_papers_say(make: Callable[..., layers.Layer], expected: Any):
    torch.manual_seed(0)
    layer, x = make(12, 2, dtype=torch.float64), draw(2, 9, 12)
    wanted = expected(layer, x).flatten(-2) @ layer.out_proj.weight.mT
    torch.testing.assert_close(layer(x)[0], wanted, rtol=1e-10, atol=1e-12)


def test_a_learned_lam0_starts_at_its_value():
    for lam0 in (1e-3, 0.1, 1.0, 30.0):
        made = layers.VLA(4, 2, lam0=lam0, learn_lam0=True, dtype=torch.float64).operands
        torch.testing.assert_close(
            made.options()["lam0"], torch.full((2,), lam0, dtype=torch.float64), rtol=1e-13, atol=0
        )


@pytest.mark.parametrize("kind", ["mlp_softplus", "mlp_softmax"])
@pytest.mark.parametrize("delta", [False, True])
def test_initialising_every_matrix_again_leaves_the_level_weights_alone(kind, delta):
    """The public MQAR script re-initialises every Linear, and thereby loses the start of lambda."""
    torch.manual_seed(0)
    layer, x = layers.LogLinear(12, 2, max_length=16, level_weights=kind, delta=delta), draw(2, 9, 12).float()
    weights: Any = layer.operands.weights
    before = weights(x)
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=3.0)
    assert torch.equal(weights(x), before) and before.shape == (2, 9, 2, 5)


def test_autocast_runs_a_float32_layer():
    layer, x = layers.GatedDeltaNet(12, 2, conv_size=2, output_norm="rms"), draw(2, 9, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, cache = layer(x, use_cache=True)
        z, _ = layer(x[:, :1], cache=cache)
    assert y.dtype == z.dtype == torch.bfloat16
    assert (y - layer(x)[0]).abs().max() <= 10 * 2**-9 * layer(x)[0].abs().max()  # some ten roundings to 8 bits


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: layers.VLA(12, 2, backend="cuda"), ValueError, "backend is 'cuda', expected one of: 'recurrent'"),
        (lambda: layers.VLA(12, 2, num_value_heads=4), ValueError, "num_value_heads has HV = 4 heads, expected H = 2"),
        (lambda: layers.VLA(12, 2, lam0=0.0), ValueError, "lam0 is 0.0, expected a finite number > 0"),
        (lambda: layers.GLA(12, 5), ValueError, "hidden_size is 12, expected a multiple of num_heads = 5"),
        (lambda: layers.GLA(12, 2, gate="token"), ValueError, "gate is 'token', expected one of"),
        (lambda: layers.GLA(12, 2, num_value_heads=3), ValueError, "num_value_heads has HV = 3 heads"),
        (lambda: layers.GLA(12.0, 2), TypeError, "hidden_size is 12.0"),  # type: ignore[arg-type]
        (lambda: layers.GLA(12, 2, conv_size=0), ValueError, "conv_size is 0, expected at least 1"),
        (lambda: layers.GLA(12, 2, chunk_size=3), ValueError, "chunk_size is 3, expected a power of two"),
        (lambda: layers.GLA(12, 2, output_norm="batch"), ValueError, "output_norm is 'batch'"),
        (lambda: layers.CCQ(12, 2, backbone="softmax"), ValueError, "backbone is 'softmax', expected one of"),
        (lambda: layers.CCQ(12, 2, backbone="linear", backbone_options={"gate": "head"}), TypeError, "'gate'"),
        (lambda: layers.LogLinear(12, 2, max_length=0), ValueError, "max_length is 0, expected at least 1"),
        (lambda: layers.LogLinear(12, 2, max_length=8, level_weights="one"), ValueError, "level_weights is 'one'"),
    ],
)
def test_a_wrong_constructor_argument_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_backend_without_its_kernel_is_named(monkeypatch):
    monkeypatch.setattr(layers.GLA, "operator", "nosuch")
    with pytest.raises(ValueError, match="backend is 'triton', but there is no linattest.kernels.nosuch"):
        layers.GLA(12, 2, backend="triton")


X, ONES = torch.zeros(2, 3, 12), torch.ones(2, 3)
CACHE = LayerCache(torch.zeros(1, 2, 6, 6), torch.zeros(1, 4, 36))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"hidden_states": X[0]}, ValueError, r"hidden_states has shape \[3, 12\], expected 3 dimensions"),
        (
            {"hidden_states": X[..., :5]},
            ValueError,
            r"shape \[2, 3, 5\], expected \[B, T, hidden_size\]",
        ),
        ({"hidden_states": X.double()}, TypeError, "hidden_states has dtype torch.float64, expected torch.float32"),
        ({"attention_mask": ONES}, TypeError, "attention_mask has dtype torch.float32"),
        ({"attention_mask": ONES.int() * 2}, ValueError, "attention_mask holds 2"),
        ({"attention_mask": ONES[:, :2].bool()}, ValueError, r"attention_mask has shape \[2, 2\]"),
        ({"attention_mask": ONES.bool(), "cu_seqlens": torch.tensor([0, 3])}, ValueError, "cu_seqlens is given beside"),
        ({"cu_seqlens": torch.tensor([0, 3])}, ValueError, "B = 2, expected B = 1 with cu_seqlens"),
        ({"cache": ()}, TypeError, "cache is a tuple, expected the LayerCache"),
        ({"cache": CACHE._replace(conv=None)}, ValueError, "cache.conv is a NoneType"),
        ({"cache": CACHE}, ValueError, "cache.state has 1 rows, expected N = 2"),
        (
            {"cache": LayerCache(torch.zeros(2, 2, 6, 6), torch.zeros(2, 3, 36))},
            ValueError,
            r"cache.conv has shape \[2, 3, 36\]",
        ),
        ({"cache": CACHE._replace(state=None)}, ValueError, "cache.state is None"),
        ({"use_cache": 1}, TypeError, "use_cache is 1"),
    ],
)
def test_a_wrong_argument_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        layers.DeltaNet(12, 2, conv_size=4)(**{"hidden_states": X, **arguments})


def test_a_sequence_longer_than_max_length_is_refused():
    layer = layers.LogLinear(12, 2, max_length=8)
    _, cache = layer(X, use_cache=True)
    with pytest.raises(ValueError, match="hidden_states has 6 tokens for row 0 after 3 .* max_length = 8"):
        layer(torch.zeros(2, 6, 12), cache=cache)
