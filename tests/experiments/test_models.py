"""The models of recipes: the papers' departures are what they are said to be, and nothing else differs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from linattest.impls import delta_scan, linear, vla
from linattest.impls.layers import GatedDeltaNet, Layer, LogLinear
from linattest.impls.lm import CausalLM
from linattest.verify.experiments.models import ChannelGate, build
from linattest.verify.experiments.recipe import Model, Shape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = Shape(hidden_size=8, num_heads=2, num_layers=1, options={"output_norm": "layer"})


def made(layer: str, seed: int = 0, **fields: Any) -> CausalLM:
    return build(Model(name="planted", layer=layer, **fields), SHAPE, 16, 12, seed=seed)


def test_a_seed_makes_the_same_parameters_and_leaves_torchs_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = made("vla"), made("vla"), made("vla", seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize(("lam0", "same"), [(1e12, True), (0.1, False)])
def test_vla_behind_a_huge_ridge_is_the_delta_rule_on_its_features(lam0: float, same: bool):
    torch.manual_seed(0)
    q, k, v, u = (torch.rand(2, 9, 2, 4) + 0.1 for _ in range(4))
    o, _ = vla.chunk(q, k, v, u, lam0=lam0)
    unit = k / k.norm(dim=-1, keepdim=True)
    rule, _ = delta_scan.recurrent(q, unit, unit, v, scale=1.0)
    sums, _ = linear.recurrent(q, k, torch.ones_like(v), scale=1.0, normalizer=False)  # z . q, in every channel
    torch.testing.assert_close(o, rule / sums) if same else assert_far(o, rule / sums)


def assert_far(a: torch.Tensor, b: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("conv", [False, 3])
def test_the_papers_deltanet_decays_channels_and_has_no_beta(conv: int | bool):
    """The layer against its definition, a loop over tokens on one row: S = diag(gate) S, S += (v - S k) k^T."""
    model = made("gated_delta_net", variant="channel_gate", options={"conv_size": conv}).double()
    (layer,) = (m for m in model.modules() if isinstance(m, GatedDeltaNet))
    assert isinstance(layer.operands, ChannelGate)
    seen: dict[str, torch.Tensor] = {}
    layer.out_proj.register_forward_hook(lambda _m, given, _o: seen.update(before=given[0]))
    x = torch.randn(1, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer(x)
    (q, k, v), _ = layer.projections(x, None)  # q, k [1, T, 2, 4], v [1, T, 8, 1]
    gate = torch.sigmoid(layer.operands.gate(x)).unflatten(-1, (2, 4))[0]
    q, k = (y[0] / y[0].norm(dim=-1, keepdim=True) for y in (q, k))
    v, S, rows = v[0, :, :, 0].unflatten(-1, (2, 4)), torch.zeros(2, 4, 4, dtype=torch.float64), []
    for t in range(7):
        S = gate[t, :, :, None] * S
        S = S + (v[t] - (S @ k[t, :, :, None])[..., 0])[:, :, None] * k[t, :, None]
        rows.append((S @ q[t, :, :, None])[..., 0] * 4**-0.5)
    norm = torch.nn.functional.layer_norm(torch.stack(rows), (4,))
    torch.testing.assert_close(seen["before"][0], norm.flatten(1))


def test_its_kernel_is_the_same_model():
    options = {"conv_size": 3}
    chunk, kernel = (
        build(Model(name="x", layer="gated_delta_net", variant="channel_gate", options=options), SHAPE, 16, 12, seed=0,
              backend=backend)
        for backend in ("chunk", "triton")
    )  # fmt: skip
    kernel.to(DEVICE)
    ids = torch.randint(16, (2, 9), generator=torch.Generator().manual_seed(0))
    found = kernel(ids.to(DEVICE), None, ids.to(DEVICE))
    wanted = chunk(ids, None, ids)
    torch.testing.assert_close(found.logits.cpu(), wanted.logits)
    for loss in (found.loss, wanted.loss):
        loss.backward()
    for a, b in zip(kernel.parameters(), chunk.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert float((a.grad.cpu() - b.grad).norm()) <= 30 * 2.0**-24 * float(b.grad.norm())


def weights_of(model: CausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The level weights [B, T, HV, L] of the only layer."""
    (layer,) = (m for m in model.modules() if isinstance(m, LogLinear))
    seen: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        seen.append(output)

    layer.get_submodule("operands.weights").register_forward_hook(keep)
    model(ids)
    return seen[0].detach()


def test_level_weights_start_alike_unless_the_public_script_starts_them_anew():
    ids = torch.arange(12).reshape(2, 6)
    options = {"level_weights": "mlp_softplus", "level_options": {"hidden_bias": True}}
    ours, theirs = (
        weights_of(made("log_linear", options=options, variant=x), ids) for x in ("", "reinitialised_levels")
    )
    torch.testing.assert_close(ours, torch.full_like(ours, math.log1p(math.exp(0.54))))
    assert ours.unique().numel() == 1 < theirs.unique().numel()
    assert bool((theirs < ours).all())  # about softplus(0) = 0.69


def test_frozen_parameters_get_no_gradient_and_a_pattern_must_match():
    frozen = ("*.operands.weights.w1", "*.operands.weights.w2")
    model = made("log_linear", options={"level_weights": "mlp_softplus"}, freeze=frozen)
    still = {name.rsplit(".", 1)[1] for name, p in model.named_parameters() if not p.requires_grad}
    assert still == {"w1", "w2"}
    with pytest.raises(
        ValueError, match="planted: freeze has '\\*.w3', which matches no parameter of embedding.weight"
    ):
        made("log_linear", freeze=("*.w3",))


def test_a_layer_without_a_kernel_keeps_its_form():
    plain = {"normalizer": False}
    for layer, options, backend in (("softmax", {}, "chunk"), ("linear", {}, "chunk"), ("linear", plain, "triton")):
        model = build(Model(name="x", layer=layer, options=options), SHAPE, 16, 12, seed=0, backend="triton")
        assert {m.backend for m in model.modules() if isinstance(m, Layer)} == {backend}


def test_false_takes_off_what_the_shape_has():
    shape = Shape(hidden_size=8, num_heads=2, num_layers=1, options={"conv_size": 4})
    for option, count in (({}, 1), ({"conv_size": False}, 0)):
        model = build(Model(name="x", layer="gla", options=option), shape, 16, 12, seed=0)
        assert sum("conv" in name for name, _ in model.named_parameters()) == count


BAD = [
    ({"layer": "vlaa"}, "layer is 'vlaa'"),
    ({"layer": "vla", "options": {"lam": 1}}, "layer_options of layer 'vla'"),
    ({"layer": "vla", "variant": "channel_gate"}, "layer is 'vla', expected 'gated_delta_net'"),
    ({"layer": "vla", "variant": "reinitialised_levels"}, "has no level weights of an MLP"),
]


@pytest.mark.parametrize(("fields", "said"), BAD, ids=[said for _, said in BAD])
def test_a_model_that_cannot_be_is_named(fields: dict[str, Any], said: str):
    with pytest.raises((ValueError, TypeError), match=said):
        made(**fields)
