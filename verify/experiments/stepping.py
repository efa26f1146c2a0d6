"""One step of training: loss, gradients, clipping, the optimiser's move; on a GPU replayed as one CUDA graph.

A small model's step is hundreds of launches that take the host longer than the device. So after a few steps as they
are (kernels are compiled, the optimiser makes its moments), the step is captured, and from then on replayed on what
is copied into its inputs. That needs a step that looks at no value on the way, which most PyTorch forms do: with
backend "triton" a model is made of kernels, and of PyTorch forms only where they look at none (`models`). The learning
rate is a tensor there, set before every step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from linattest.impls.lm import CausalLM
from linattest.verify.experiments.recipe import Training

EAGER_STEPS = 3
"""Steps before the capture, which are steps of the training like any others."""


def optimiser(model: nn.Module, given: Training, *, device: str) -> Optimizer:
    """Adam or AdamW on what is not frozen; on a GPU one whose step can be captured."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    kind = Adam if given.optimiser == "adam" else AdamW
    if torch.device(device).type != "cuda":
        return kind(parameters, lr=0.0, weight_decay=given.weight_decay)
    return kind(parameters, lr=torch.zeros((), device=device), weight_decay=given.weight_decay, capturable=True)


def lane(device: str) -> AbstractContextManager[Any]:
    """Where a run's work goes, to be entered any number of times: on a GPU a stream of its own, first to last.

    (Backward runs where forward ran, and a capture wants both on one stream.)
    """
    if torch.device(device).type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))


class Stepper:
    """Steps of a model; ``captures``: as a CUDA graph once ``EAGER_STEPS`` are done. Shapes are the same every step."""

    def __init__(self, model: CausalLM, moved: Optimizer, clip: float | None, *, captures: bool) -> None:
        self.model, self.moved, self.clip = model, moved, clip
        self.left = EAGER_STEPS if captures else -1
        self.graph: torch.cuda.CUDAGraph | None = None
        self.held: tuple[Tensor, Tensor, Tensor] | None = None

    def step(self, ids: Tensor, labels: Tensor, rate: float) -> Tensor:
        """Move the parameters once; the loss before it, a scalar (on a GPU not waited for).

        ids, labels: int64 [B, T] on the model's device. ``rate``: the learning rate.
        """
        for group in self.moved.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.left:
            self.left -= self.left > 0
            return self._move(ids, labels)
        if self.graph is None or self.held is None:
            self._capture(ids, labels)
            assert self.graph is not None and self.held is not None
        for inside, given in zip(self.held, (ids, labels), strict=False):
            inside.copy_(given)
        self.graph.replay()
        return self.held[2].clone()  # the next replay writes over it

    def _move(self, ids: Tensor, labels: Tensor) -> Tensor:
        self.model.train()
        loss = self.model(ids, None, labels).loss
        assert loss is not None
        self.moved.zero_grad()
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.moved.step()
        return loss.detach()

    def _capture(self, ids: Tensor, labels: Tensor) -> None:
        """Record a step without taking it: a capture runs nothing on the device."""
        inside = ids.clone(), labels.clone()
        self.moved.zero_grad()  # gradients of the capture's own memory, not of a step before it
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream(ids.device)):
            self.held = (*inside, self._move(*inside))
