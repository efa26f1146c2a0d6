"""A step that a CUDA graph can hold: it asks nothing of the device; and what stands in for a graph replays it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from linattest.impls import arguments
from linattest.kernels import launch
from linattest.verify.experiments import models, stepping
from linattest.verify.experiments.recipe import Model, Shape, Training
from linattest.verify.experiments.tasks import TRAIN, Mqar, generator

TASK = Mqar(pairs=2, vocab_size=16)
SHAPE = Shape(hidden_size=16, num_heads=2, num_layers=1, options={"output_norm": "layer", "conv_size": 2})
WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::masked_select"}


class Asked(TorchDispatchMode):
    """Which operations were run that look at values, or whose result's size does."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        by_mask = name == "aten::index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        if name in WAITING or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def without_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels do not run, as in a capture (nor their interpreter, which reads values)."""
    with monkeypatch.context() as m:
        m.setattr(launch, "run", lambda *_, **__: None)
        yield


def model_and_batch(model: Model, backend: str) -> tuple[Any, Tensor, Tensor]:
    drawn = TASK.draw(generator(0, TRAIN), 4)
    made = models.build(model, SHAPE, TASK.vocab_size, TASK.tokens, seed=0, backend=backend)
    return made, torch.from_numpy(drawn.tokens), torch.from_numpy(drawn.targets)


def asked_by(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a step of training asks of the device, but for the optimiser's move (torch's own, `capturable` on a GPU)."""
    made, ids, labels = model_and_batch(model, "triton")
    moved = stepping.optimiser(made, Training(steps=2), device="cpu")
    monkeypatch.setattr(moved, "step", lambda: None)
    stepper = stepping.Stepper(made, moved, 1.0, captures=False)
    with without_launches(monkeypatch), Asked() as asked:
        stepper.step(ids, labels, 0.0)
    return asked.found


LEVELS: dict[str, Any] = {"level_weights": "mlp_softplus"}
MODELS = [
    *(Model(name=layer, layer=layer) for layer in ("softmax", "linear", "delta_net", "gated_delta_net", "gla", "vla")),
    *(Model(name=f"ccq-{b}", layer="ccq", options={"backbone": b}) for b in ("gla", "gated_delta_net")),
    *(Model(name=f"levels-{n}", layer="log_linear", options={"level_weights": n}) for n in ("linear", "mlp_softmax")),
    Model(name="fixed", layer="log_linear", options=LEVELS, freeze=("*.operands.weights.w1", "*.operands.weights.w2")),
    Model(name="channel_gate", layer="gated_delta_net", variant="channel_gate"),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_a_step_on_kernels_asks_nothing_of_the_device(monkeypatch: pytest.MonkeyPatch, model: Model):
    """What would wait for values cannot be captured. While a graph is captured, nothing is checked by value."""
    monkeypatch.setattr(arguments, "readable", lambda _: False)
    assert asked_by(model, monkeypatch) == []


def test_what_asks_is_seen(monkeypatch: pytest.MonkeyPatch):
    """The planted fault: ids checked by value in a capture, too."""
    assert "aten::_local_scalar_dense" in asked_by(MODELS[1], monkeypatch)


class Recorded:
    """Stands in for a CUDA graph: a replay takes the step that was recorded, on what is in its inputs by then."""

    def __init__(self, stepper: stepping.Stepper, ids: Tensor, labels: Tensor) -> None:
        self.stepper, self.inside, self.loss = stepper, (ids.clone(), labels.clone()), torch.zeros(())

    def replay(self) -> None:
        self.loss.copy_(self.stepper._move(*self.inside))


def losses(monkeypatch: pytest.MonkeyPatch, captures: bool, forget: int | None = None) -> list[Tensor]:
    """Of eight steps, on other rows each."""
    made, _, _ = model_and_batch(MODELS[0], "chunk")
    given = Training(steps=8)

    def capture(self: stepping.Stepper, *batch: Tensor) -> None:
        recorded = Recorded(self, *batch)
        held = [*recorded.inside, recorded.loss]
        if forget is not None:
            held[forget] = held[forget].clone()  # the planted fault: what is copied is not what the step reads
        self.graph, self.held = recorded, tuple(held)  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(stepping.Stepper, "_capture", capture)
    stepper = stepping.Stepper(made, stepping.optimiser(made, given, device="cpu"), 1.0, captures=captures)
    found: list[Tensor] = []
    for n in range(8):
        drawn = TASK.draw(generator(0, TRAIN, n), 4)
        found.append(stepper.step(torch.from_numpy(drawn.tokens), torch.from_numpy(drawn.targets), 0.01 / (n + 1)))
    assert (stepper.graph is not None) == captures
    return found


def test_a_replayed_step_is_the_step(monkeypatch: pytest.MonkeyPatch):
    """Other rows and another rate every step; losses that were returned stay what they were."""
    plain, replayed = (losses(monkeypatch, captures) for captures in (False, True))
    assert torch.equal(torch.stack(plain), torch.stack(replayed)) and len({float(x) for x in plain}) == 8


@pytest.mark.parametrize("forget", [0, 1, 2], ids=["ids", "labels", "loss"])
def test_a_replay_on_old_rows_is_seen(monkeypatch: pytest.MonkeyPatch, forget: int):
    plain, replayed = losses(monkeypatch, False), losses(monkeypatch, True, forget)
    assert torch.equal(torch.stack(plain[:4]), torch.stack(replayed[:4])) == (forget < 2)
    assert not torch.equal(torch.stack(plain), torch.stack(replayed))
