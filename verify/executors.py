"""Where jobs run: processes of this machine, or the workers of a dask cluster.

Both are ``concurrent.futures.Executor``s with a ``width`` (how many jobs to have under way at once). Every worker
computes with one thread, so that a number does not depend on where it was computed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from linattest.verify import gpu_share
from linattest.verify.environment import source_hash

ANSWER_SECONDS = 5.0
"""How long a scheduler, and then its first worker, may take to answer."""

LOST_SECONDS = 30.0
"""How long a cluster may be without scheduler or workers before a campaign gives it up."""

POLL_SECONDS = 2.0
"""How often a cluster is asked whether it is still there."""


class InProcess(Executor):
    """Runs every job at once, in this process: for a function that no other process can import, and for tests."""

    def __init__(self, width: float = float("inf")) -> None:
        self.width = width

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The finished future of the call."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Unavailable(RuntimeError):
    """The environment lacks the executor that was asked for; the message says what to do."""


# --- this machine ------------------------------------------------------------------------------------------------


class Local(Executor):
    """One process a worker. A pool that lost a process is replaced when the next job comes."""

    def __init__(self, workers: int) -> None:
        self.width = workers
        self._pool = self._fresh()

    def _fresh(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self.width, mp_context=context, initializer=_start_worker, initargs=(self.width, context.Lock())
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As ``Executor.submit``. Processes start here, deaf to Ctrl-C: the parent decides what it means."""
        with _deaf():
            try:
                return self._pool.submit(fn, *args, **kwargs)
            except BrokenProcessPool:
                self._pool = self._fresh()
                return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``Executor.shutdown``."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def abandon(self) -> None:
        """Stop now: what runs is ended, not waited for, since its records are lost either way."""
        for process in list((getattr(self._pool, "_processes", None) or {}).values()):
            process.terminate()
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def local_executor(workers: int) -> Iterator[Local]:
    """One process a worker, one thread each. Leaving it by an exception drops what has not started."""
    pool = Local(workers)
    try:
        yield pool
    except BaseException:
        pool.abandon()
        raise
    pool.shutdown()


def default_workers() -> int:
    """One for each core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _deaf() -> Iterator[None]:
    """SIGINT waits meanwhile; what a process inherits while it starts, it keeps."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(workers: int, turn: AbstractContextManager[bool]) -> None:
    gpu_share.among(workers, turn)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for its next job for ever."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


# --- a cluster ---------------------------------------------------------------------------------------------------


class Cluster(Executor):
    """The workers of a dask scheduler. A job whose worker dies is given to others by the scheduler (thrice at most)."""

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self._inner = client.get_executor(pure=False)
        self._workers = dict[str, int]()
        self._asked, self._seen = 0.0, time.monotonic()
        self.trouble()

    @property
    def width(self) -> int:
        """Two jobs a worker: one runs, one is on its way."""
        return 2 * max(len(self._workers), 1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As ``Executor.submit``."""
        return self._inner.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``Executor.shutdown``; without ``wait`` what runs is cancelled too."""
        self._inner.shutdown(wait=wait and not cancel_futures)

    def trouble(self) -> str:
        """Why nothing more can come of it, "" while all is well. Asks at most every two seconds."""
        now = time.monotonic()
        if now - self._asked < POLL_SECONDS:
            return ""
        self._asked = now
        running = self._client.status == "running"
        if running and (workers := self._client.nthreads()):
            self._workers, self._seen = workers, now
        if self._client.status == "closed" or now - self._seen > LOST_SECONDS:
            return f"{self._address} has lost its {'workers' if running else 'scheduler'}"
        return ""


@contextmanager
def cluster_executor(address: str, timeout: float = ANSWER_SECONDS) -> Iterator[Cluster]:
    """The workers of the scheduler at an address such as "tcp://host:8786".

    Raises:
        Unavailable: distributed is not installed, nobody answers, there are no workers, or they would not
            compute what this process would (other sources, several threads).
        ValueError: not an address.
    """
    if "://" not in address:
        raise ValueError(f"{address!r} is no address, expected one such as tcp://host:8786")
    try:
        from distributed import Client
    except ImportError as error:
        raise Unavailable("distributed is not installed: pip install 'linattest[cluster]'") from error
    try:
        client = Client(address, timeout=timeout, set_as_default=False)
    except OSError as error:  # TimeoutError is one
        raise Unavailable(f"no dask scheduler answers at {address} within {timeout:g} s") from error
    with client:
        _check_workers(client, address, timeout)
        executor = Cluster(client, address)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)


def _check_workers(client: Any, address: str, timeout: float) -> None:
    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise Unavailable(f"the scheduler at {address} has no workers: dask worker {address} --nthreads 1") from error
    several = {worker: threads for worker, threads in client.nthreads().items() if threads != 1}
    if several:
        worker, threads = min(several.items())
        raise Unavailable(
            f"worker {worker} has {threads} threads, expected 1 (the oracle's precision is a setting of the whole "
            f"process): dask worker {address} --nthreads 1 --nworkers {threads}"
        )
    for worker, theirs in sorted(client.run(source_hash, on_error="return").items()):
        if isinstance(theirs, BaseException):
            raise Unavailable(f"worker {worker} has no linattest: {type(theirs).__name__}: {theirs}")
        check_sources(theirs, source_hash(), f"worker {worker}")


def check_sources(theirs: str, ours: str, where: str) -> None:
    """Refuse a worker whose records would be of other sources than the campaign's."""
    if theirs != ours:
        raise Unavailable(
            f"{where} runs other sources (hash {theirs}) than this process (hash {ours}): install the same"
        )


@contextmanager
def open_executor(address: str | None, workers: int) -> Iterator[Local | Cluster]:
    """The cluster at an address, or this machine's processes without one."""
    with cluster_executor(address) if address else local_executor(workers) as executor:
        yield executor


def abandon(executor: Executor) -> None:
    """Stop now, whatever runs."""
    if isinstance(executor, Local):
        executor.abandon()
    else:
        executor.shutdown(wait=False, cancel_futures=True)
