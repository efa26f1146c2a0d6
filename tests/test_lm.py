"""The language model: padding is invisible, decoding is the whole forward, generation is greedy, the loss is a mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linattest.impls import lm
from linattest.impls.layer_operands import LEVEL_WEIGHTS
from linattest.impls.lm import CausalLM, LMConfig

OPTIONS: dict[str, dict[str, Any]] = {
    "log_linear": {"max_length": 32},
    "vla": {"conv_size": 3},
    "gla": {"conv_size": 2},
}
EVERY = pytest.mark.parametrize("name", lm.LAYERS)
LEFT, RIGHT, INSIDE = [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1]
MASK = torch.tensor([LEFT, RIGHT, INSIDE, [0, 1, 0, 0, 0, 0]])


def make(name: str = "vla", dtype: torch.dtype = torch.float32, **fields: Any) -> CausalLM:
    torch.manual_seed(0)
    fields = {"layer_options": {"chunk_size": 4, **OPTIONS.get(name, {})}, "max_positions": 24, **fields}
    model = CausalLM(LMConfig(11, 12, 2, 2, layer=name, **fields), dtype=dtype)
    with torch.no_grad():  # at N(0, 0.02) every logit is nearly the same
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def ids(B: int, T: int, seed: int = 1) -> Tensor:
    return torch.randint(11, (B, T), generator=torch.Generator().manual_seed(seed))


@EVERY
def test_pads_of_any_value_leave_every_bit_of_a_row(name):
    """Ids at pads are out of range; a mask that is not handed on changes the logits."""
    model, tokens, live = make(name), ids(4, 6), MASK.bool()
    logits = model(torch.where(live, tokens, -7), attention_mask=MASK).logits
    plain = model(tokens).logits
    assert bool((logits[~live] == 0).all())
    for b, rows in enumerate(live):
        assert torch.equal(logits[b, rows], model(tokens[b, rows][None]).logits[0]), f"row {b}"
    assert not torch.allclose(plain[0, live[0]], logits[0, live[0]], rtol=1e-3)


@EVERY
def test_prefill_then_decode_has_the_logits_of_the_whole_forward(name):
    """Float64: rounding is near 1e-15, a lost cache or position changes logits by more than 1e-3."""
    model, prompt, rest, live = make(name, torch.float64), ids(4, 6), ids(4, 5, seed=2), MASK.bool()
    pieces = [model(prompt, attention_mask=MASK, use_cache=True)]
    for tokens in (rest[:, :1], rest[:, 1:2], rest[:, 2:]):
        pieces.append(model(tokens, cache=pieces[-1].cache, use_cache=True))
    got = torch.cat([piece.logits for piece in pieces[1:]], 1)
    for b in range(4):
        whole = model(torch.cat([prompt[b, live[b]], rest[b]])[None]).logits[0, -5:]
        assert (got[b] - whole).abs().max() <= 1e-9 * whole.abs().max(), f"row {b}"
    stale = model(rest[:, :1], cache=pieces[1].cache).logits[:, 0]
    assert not torch.allclose(stale, got[:, 0], rtol=1e-3), "a cache one token too old or new would not show"


@EVERY
def test_greedy_generation_is_the_argmax_over_whole_forwards(name):
    model, prompt = make(name), ids(4, 6)
    new = model.generate(prompt, attention_mask=MASK, max_new_tokens=6)
    assert new.shape == (4, 6) and new.dtype == torch.int64
    assert torch.equal(new, model.generate(prompt, attention_mask=MASK, max_new_tokens=6))
    for b, rows in enumerate(MASK.bool()):
        history = prompt[b, rows]
        for token in new[b]:
            assert int(model(history[None]).logits[0, -1].argmax()) == int(token), f"row {b}"
            history = torch.cat([history, token[None]])


def test_sampling_follows_its_generator_and_its_temperature():
    model, prompt = make(), ids(64, 3)

    def sample(seed: int, temperature: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.generate(prompt, max_new_tokens=3, temperature=temperature, generator=generator)

    assert torch.equal(sample(1, 1.0), sample(1, 1.0)) and not torch.equal(sample(1, 1.0), sample(2, 1.0))
    assert torch.equal(sample(1, 1e-6), model.generate(prompt, max_new_tokens=3))
    assert model.generate(prompt, max_new_tokens=0).shape == (64, 0)


def test_the_loss_is_the_mean_over_the_labels_that_count():
    model, tokens, labels = make(), ids(4, 6), ids(4, 6, seed=3)
    labels[:, ::2] = lm.IGNORED
    logits, loss, _ = model(tokens, attention_mask=MASK, labels=labels)
    counted = (labels != lm.IGNORED) & MASK.bool()
    assert counted.any() and loss is not None
    torch.testing.assert_close(loss, F.cross_entropy(logits[counted], labels[counted]))
    nothing = model(tokens, labels=torch.full_like(tokens, lm.IGNORED)).loss
    assert nothing is not None and nothing.item() == 0 and nothing.requires_grad


@EVERY
def test_a_few_steps_learn_a_fixed_sequence(name):
    """Every layer trains: the loss on one permutation falls by a factor of ten."""
    torch.manual_seed(0)
    model = CausalLM(LMConfig(11, 12, 1, 2, layer=name, layer_options=OPTIONS.get(name, {})))
    tokens = torch.randperm(11)[None]
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(30):
        loss = model(tokens[:, :-1], labels=tokens[:, 1:]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10, losses[::10]


def test_a_state_dict_carries_every_bit_and_a_tied_head_is_one_tensor():
    tied, other = make(), make(norm="rms", tie_embeddings=False)
    assert tied.head.weight is tied.embedding.weight and other.head.weight is not other.embedding.weight
    copy = CausalLM(tied.config)
    copy.load_state_dict(tied.state_dict())
    assert copy.head.weight is copy.embedding.weight
    assert torch.equal(copy(ids(2, 5)).logits, tied(ids(2, 5)).logits)
    assert len(list(other.parameters())) == len(list(make(norm="rms").parameters())) + 1


@pytest.mark.parametrize("kind", LEVEL_WEIGHTS)
def test_the_models_own_start_keeps_that_of_the_level_weights(kind):
    torch.manual_seed(0)
    options = {"max_length": 16, "level_weights": kind}
    model = CausalLM(LMConfig(11, 12, 1, 2, layer="log_linear", layer_options=options))
    layer: Any = model.blocks[0].layer
    weights = layer.operands.weights
    wanted = LEVEL_WEIGHTS[kind](12, 2, 5)
    model.apply(lm.initialise)
    for key, value in weights.state_dict().items():
        if key not in ("features.weight", "w1"):  # these are random
            assert torch.equal(value, wanted.state_dict()[key]), key
    assert 0 < model.head.weight.std() < 0.03


def test_positions_end_where_the_configuration_says():
    model = make(max_positions=5)
    _, _, cache = model(ids(2, 4), attention_mask=torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]), use_cache=True)
    model(ids(2, 1), cache=cache)
    with pytest.raises(ValueError, match="token at position 5, expected less than max_positions = 5"):
        model(ids(2, 2), cache=cache)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: LMConfig(11, 12, 2, 2, layer="mamba"), ValueError, "layer is 'mamba', expected one of: 'softmax'"),
        (lambda: LMConfig(11, 12, 0, 2), ValueError, "num_layers is 0, expected at least 1"),
        (lambda: LMConfig(11, 12, 2, 2, mlp_ratio=0), ValueError, "mlp_ratio is 0"),
        (lambda: make()(ids(2, 3).float()), TypeError, "input_ids is torch.float32"),
        (lambda: make()(ids(2, 3)[0]), ValueError, r"input_ids has shape \[3\], expected 2 dimensions"),
        (lambda: make()(ids(2, 3) + 20), ValueError, "input_ids holds [23]., expected 0 to 10"),
        (lambda: make()(ids(2, 3), labels=ids(2, 2)), ValueError, r"labels has shape \[2, 2\]"),
        (lambda: make()(ids(2, 3), labels=ids(2, 3) + 11), ValueError, "labels holds"),
        (lambda: make()(ids(2, 3), cache=()), TypeError, "cache is a tuple"),
        (lambda: make().generate(ids(2, 0), max_new_tokens=1), ValueError, "input_ids row 0 has no live token"),
        (lambda: make().generate(ids(2, 3), max_new_tokens=-1), ValueError, "max_new_tokens is -1"),
        (lambda: make().generate(ids(2, 3), max_new_tokens=1, temperature=-1.0), ValueError, "temperature is -1.0"),
    ],
)
def test_a_wrong_argument_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
