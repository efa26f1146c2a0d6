"""One training run: a model, a task, a learning rate and a seed, advanced from checkpoint to checkpoint.

Everything that a step reads is a function of the run's settings and the step's number (rows, learning rate), or in the
checkpoint (parameters, the optimiser's moments), so that on a CPU the curve has the same bits whenever it is
interrupted, and however often. Checkpoints are written between steps, under another name first. Their name has a hash
of the settings and of the sources that train this model: what other sources began is begun anew, and so is what is
damaged.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from linattest.verify import devices
from linattest.verify.experiments import models, probes, stepping
from linattest.verify.experiments.recipe import Model, Shape, Training
from linattest.verify.experiments.solvers import checked
from linattest.verify.experiments.tasks import TEST, TRAIN, VALIDATION, Drawn, Task, Text, generator
from linattest.verify.sources import hash_of

CHECKED_ROWS = 8
"""So many rows of every task are answered by a lookup table before a run begins."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, on what, and how: ``tests`` has the task itself too, under its name ``task``."""

    model: Model
    shape: Shape
    training: Training
    task: str
    tests: dict[str, Task]
    longest: int
    learning_rate: float
    seed: int
    device: str = "cpu"
    backend: str = "chunk"
    probe: bool = False

    @property
    def name(self) -> str:
        """The run in words."""
        return f"{self.model.name} on {self.task}, lr {self.learning_rate:g}, seed {self.seed}"

    @property
    def key(self) -> str:
        """A hash of all that the result depends on, but the machine."""
        sources = hash_of(__name__, *models.modules(self.model, self.shape, self.backend))
        made_by = f"{sources} {torch.__version__}".encode()
        tests: dict[str, Any] = {name: task.anywhere for name, task in self.tests.items()}
        model = msgspec.structs.replace(self.model, about="")  # words
        told = msgspec.structs.replace(self, tests=tests, model=model)
        return hashlib.sha256(msgspec.json.encode(told) + made_by).hexdigest()[:20]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a curve. ``loss``: mean over the steps since the last point, ``None`` at step 0 or if not finite.

    ``accuracy``, ``nats``: on validation rows; ``nats`` (``Score.nats``) of a text alone.
    """

    step: int
    loss: float | None
    accuracy: float
    nats: float | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Right answers of all that was asked, and rows with nothing but right answers of all rows.

    ``loss``: sum over what was asked of the answer's negative log likelihood, in nats; ``None`` in older results.
    """

    right: int
    asked: int
    exact: int
    rows: int
    loss: float | None = None

    @property
    def nats(self) -> float:
        """Mean negative log likelihood of what was asked, natural logarithm; NaN where it was not summed."""
        return math.nan if self.loss is None else self.loss / self.asked


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is. ``stopped``: why it ended before its last step. ``scores``: by test, when it is done."""

    step: int
    done: bool
    curve: tuple[Point, ...]
    seconds: float
    stopped: str = ""
    failed: bool = False
    parameters: int = 0
    scores: dict[str, Score] = {}
    probes: dict[str, Any] = {}


# --- one run -----------------------------------------------------------------------------------------------------


class Trainer:
    """Model, optimiser and curve between two checkpoints."""

    def __init__(self, run: Run, checkpoint: Path) -> None:
        self.run, self.checkpoint, self.fresh = run, checkpoint, True
        self.task, self.given = run.tests[run.task], run.training
        self.model = models.build(
            run.model, run.shape, self.task.vocab_size, run.longest, seed=run.seed, backend=run.backend
        ).to(run.device)
        self.optimiser = stepping.optimiser(self.model, self.given, device=run.device)
        captures = run.backend == "triton" and devices.kind(run.device) == "cuda"
        self.stepper = stepping.Stepper(self.model, self.optimiser, self.given.clip, captures=captures)
        self.rows = None
        if self.given.sequences is not None:
            self.rows = self.task.draw(generator(run.seed, TRAIN), self.given.sequences)
        self.at, self.sum, self.count, self.seconds, self.stopped = 0, 0.0, 0, 0.0, ""
        self.curve: list[Point] = []
        self.begun = time.perf_counter()
        if (state := state_of(checkpoint, run.device)) is not None:
            self._load(state)
        else:
            for task in run.tests.values():
                checked(task, task.draw(generator(run.seed, TRAIN), CHECKED_ROWS))
            self._evaluate()

    @property
    def done(self) -> bool:
        return bool(self.stopped) or self.at >= self.given.steps

    def step(self) -> None:
        """One update, and a point of the curve where one is due."""
        self.fresh = False
        ids, _, labels = _tensors(self._batch(), self.run.device)
        loss = self.stepper.step(ids, labels, self.run.learning_rate * factor(self.at, self.given))
        self.at, self.sum, self.count = self.at + 1, self.sum + loss.double(), self.count + 1
        if self.at % self.given.evaluate_every == 0 or self.at == self.given.steps:
            self._evaluate()

    def _batch(self) -> Drawn:
        """The rows of the next step, a function of its number."""
        size = self.given.batch
        if self.rows is None:
            return self.task.draw(generator(self.run.seed, TRAIN, self.at + 1), size)
        epoch, place = divmod(self.at, len(self.rows.tokens) // size)
        order = generator(self.run.seed, TRAIN, epoch + 1).permutation(len(self.rows.tokens))
        return Drawn(*(x[order[place * size : (place + 1) * size]] for x in self.rows))

    def _evaluate(self) -> None:
        """A point of the curve, on validation rows; a loss that is not finite ends the run, or ``stop_at`` reached."""
        score = self._score(self.task, VALIDATION, self.given.validation_rows)
        loss = float(self.sum) / self.count if self.count else None
        finite = loss is None or math.isfinite(loss)
        accuracy, nats = score.right / score.asked, score.nats if isinstance(self.task, Text) else None
        self.curve.append(Point(step=self.at, loss=loss if finite else None, accuracy=accuracy, nats=nats))
        self.sum, self.count = 0.0, 0
        if not finite:
            self.stopped = f"the loss is {loss} at step {self.at}"
        elif self.given.stop_at is not None and accuracy >= self.given.stop_at and self.at < self.given.steps:
            self.stopped = f"accuracy {accuracy:.4f} at step {self.at}, to be reached: {self.given.stop_at:g}"

    @torch.no_grad()
    def _score(self, task: Task, stream: int, rows: int) -> Score:
        self.model.eval()
        drawn, right, exact, lost = task.draw(generator(self.run.seed, stream), rows), 0, 0, 0.0
        for start in range(0, rows, self.given.batch):
            part = Drawn(*(x[start : start + self.given.batch] for x in drawn))
            made = self.model(*_tensors(part, self.run.device))
            assert made.loss is not None
            lost += float(made.loss) * int(part.mask.sum())  # the loss is the mean over what is asked
            guess = made.logits.argmax(-1).cpu().numpy()
            hits = (guess == part.targets) | ~part.mask
            right += int((hits & part.mask).sum())
            exact += int(hits.all(1).sum())
        return Score(right=right, asked=int(drawn.mask.sum()), exact=exact, rows=rows, loss=lost)

    def progress(self) -> Progress:
        """What there is to tell; with the scores of every test, on rows never seen before, when all is done."""
        failed = bool(self.curve) and self.curve[-1].loss is None and self.at > 0
        scores: dict[str, Score] = {}
        seen: dict[str, Any] = {}
        if self.done and not failed:
            scores = {n: self._score(task, TEST, self.given.test_rows) for n, task in self.run.tests.items()}
            if self.run.probe:
                drawn = self.task.draw(generator(self.run.seed, TEST), min(self.given.test_rows, probes.MOST_ROWS))
                seen = probes.level_weights(self.model, self.task, drawn.tokens, self.run.device)
        return Progress(
            step=self.at, done=self.done, curve=tuple(self.curve), stopped=self.stopped, failed=failed,
            seconds=round(self.seconds + time.perf_counter() - self.begun, 3), scores=scores, probes=seen,
            parameters=sum(p.numel() for p in self.model.parameters()),
        )  # fmt: skip

    # --- checkpoints ---

    def keep(self, folder: Path) -> Progress:
        """What there is to tell, written down: as a result if it is done, else as a checkpoint, whole or not at all."""
        progress, partial = self.progress(), folder / f"{self.run.key}.partial"
        folder.mkdir(parents=True, exist_ok=True)
        if progress.done:
            partial.write_bytes(msgspec.json.encode(progress))
            os.replace(partial, folder / f"{self.run.key}.json")
            self.checkpoint.unlink(missing_ok=True)
        else:
            torch.save(self._state(), partial)
            os.replace(partial, self.checkpoint)
        return progress

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(),
            "at": self.at, "sum": float(self.sum), "count": self.count,
            "seconds": self.seconds + time.perf_counter() - self.begun,
            "curve": msgspec.json.encode(self.curve).decode(),
        }  # fmt: skip

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.at, self.sum, self.count, self.seconds = (state[x] for x in ("at", "sum", "count", "seconds"))
        self.curve = state["curve"]


PARTS = ("model", "optimiser", "at", "sum", "count", "seconds", "curve")


def state_of(checkpoint: Path, device: str) -> dict[str, Any] | None:
    """What a checkpoint holds; ``None`` without one, and of one that cannot be decoded, so that its run begins anew.

    Raises ``OSError`` for one that cannot be read: that says nothing of what it holds.
    """
    if not checkpoint.exists():
        return None
    content = io.BytesIO(checkpoint.read_bytes())  # by itself: torch raises OSError for a file that was cut off, too
    try:
        state = torch.load(content, map_location=device, weights_only=True)
        found = {name: state[name] for name in PARTS}
        return found | {"curve": msgspec.json.decode(found["curve"], type=list[Point])}
    except torch.OutOfMemoryError:  # says nothing of it either
        raise
    except Exception:  # an archive, a pickle and JSON each have errors of their own
        return None


def finished(path: Path) -> Progress | None:
    """A result that was written; ``None`` without one, and of one that cannot be decoded."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Progress)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _tensors(drawn: Drawn, device: str) -> tuple[Tensor, None, Tensor]:
    """input_ids, no attention mask, labels; on a GPU without waiting for what it is at."""
    tokens, targets = (torch.from_numpy(np.ascontiguousarray(x)) for x in drawn[:2])
    if devices.kind(device) == "cuda":
        tokens, targets = tokens.pin_memory(), targets.pin_memory()
    return tokens.to(device, non_blocking=True), None, targets.to(device, non_blocking=True)


def factor(step: int, given: Training) -> float:
    """What the learning rate of a step (from 0) is multiplied by: up to 1 over the warm-up, then down a half cosine."""
    if step < given.warmup:
        return (step + 1) / given.warmup
    if given.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - given.warmup) / max(1, given.steps - given.warmup)))
