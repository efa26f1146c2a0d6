"""Many runs side by side, each from slice to slice of time; results of all.

A worker is a process with one thread. On a GPU, which a model of this size does not fill, it has several runs at once.
With one worker everything runs in this process. What a slice reached is in its checkpoint, so an interruption loses at
most a slice.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from linattest.verify.executors import InProcess, local_executor
from linattest.verify.experiments.advancing import advance_all
from linattest.verify.experiments.recipe import Trained
from linattest.verify.experiments.tasks import Text
from linattest.verify.experiments.text import Source
from linattest.verify.experiments.training import Progress, Run

SLICE_SECONDS = 20.0
TRIES = 2
"""How often a run may be there when a worker's process dies, before it is held to be the reason."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run and how it went. ``error``: what it raised, and then no progress."""

    model: str
    task: str
    learning_rate: float
    seed: int
    progress: Progress | None = None
    error: str = ""

    @property
    def whole(self) -> bool:
        """Whether there is a result: it ended as it was to."""
        return self.progress is not None and self.progress.done and not self.progress.failed

    @property
    def trouble(self) -> str:
        """Why there is no result, "" if there is one."""
        if self.whole:
            return ""
        why = self.error or (self.progress.stopped if self.progress else "") or "not done"
        return f"{self.model} on {self.task}, lr {self.learning_rate:g}, seed {self.seed}: {why}"


def outcome(run: Run, progress: Progress | None, error: str = "") -> Outcome:
    """Of a run."""
    return Outcome(
        model=run.model.name, task=run.task, learning_rate=run.learning_rate, seed=run.seed,
        progress=progress, error=error,
    )  # fmt: skip


def runs_of(
    recipe: Trained, seeds: int, *, device: str = "cpu", backend: str = "chunk", text: Source | None = None
) -> list[Run]:
    """Every model on every task at every learning rate, seeds outermost: the first seed is whole first.

    ``text`` is what tasks of text read; without it they cannot be drawn. Raises ``TextError`` if it is too short.
    """
    tasks, tests = (
        {name: task.reading(text) if text and isinstance(task, Text) else task for name, task in given.items()}
        for given in (recipe.tasks, recipe.tests)
    )
    return [
        Run(
            model=model, shape=recipe.shape, training=recipe.training, task=name, tests={name: task, **tests},
            longest=recipe.longest, learning_rate=rate, seed=seed, device=device, backend=backend, probe=recipe.probe,
        )
        for seed in range(seeds)
        for name, task in tasks.items()
        for model in recipe.models
        for rate in recipe.training.learning_rates
    ]  # fmt: skip


def train_all(
    runs: Sequence[Run], folder: Path, workers: int, told: Callable[[Run, Progress], Any] = lambda *_: None,
    *, seconds: float = SLICE_SECONDS, lanes: int = 1,
) -> list[Outcome]:  # fmt: skip
    """Train all runs to their ends, from their checkpoints in ``folder``; outcomes in the order of the runs.

    ``lanes``: how many a worker works on at once. A run that raises has its error as outcome, and the others go on.
    ``told`` hears of every slice.
    """
    outcomes: dict[int, Outcome] = {}
    waiting, died = deque(range(len(runs))), dict.fromkeys(range(len(runs)), 0)
    under_way: dict[Future[list[Progress | str]], list[int]] = {}
    with nullcontext(InProcess()) if workers == 1 else local_executor(workers) as pool:
        while waiting or under_way:
            while waiting and len(under_way) < workers:
                group = _next_group(waiting, died, lanes)
                under_way[pool.submit(advance_all, [runs[n] for n in group], folder, seconds)] = group
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                group = under_way.pop(future)
                for n, found in zip(group, _received(future, len(group)), strict=True):
                    if isinstance(found, Progress):
                        told(runs[n], found)
                        if found.done:
                            outcomes[n] = outcome(runs[n], found)
                        else:  # before those that have not begun: what is interrupted has whole runs
                            waiting.appendleft(n)
                    elif found is None and died[n] + 1 < TRIES:
                        died[n] += 1
                        waiting.append(n)
                    else:
                        outcomes[n] = outcome(
                            runs[n], None, found or "its process ended (a crash of native code, or killed)"
                        )
    return [outcomes[n] for n in range(len(runs))]


def _next_group(waiting: deque[int], died: dict[int, int], lanes: int) -> list[int]:
    """Up to ``lanes`` runs, taken off ``waiting``; one whose process died goes alone: it may be the reason."""
    group = [waiting.popleft()]
    while not died[group[0]] and waiting and len(group) < lanes and not died[waiting[0]]:
        group.append(waiting.popleft())
    return group


def _received(future: Future[list[Progress | str]], count: int) -> Sequence[Progress | str | None]:
    """What a slice gave each run; its error in words; ``None`` if its process died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return [None] * count
    except Exception as error:
        return [f"{type(error).__name__}: {error}"] * count


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, which a scheduler sends before it kills, is meanwhile the ``KeyboardInterrupt`` that Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers are the main thread's
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
