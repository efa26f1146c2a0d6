"""Processes that share a GPU: what each may take; one whose GPU died ends, instead of failing all that follows."""

from __future__ import annotations

import threading

import pytest
import torch

from linattest.verify import devices, gpu_share


class Exit(BaseException):
    pass


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU that answers, and the parts of its memory that were asked for."""
    asked: list[float] = []
    monkeypatch.setattr(devices, "missing", lambda _device: "")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, _index: asked.append(part))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return asked


def dead(*_: object) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_workers_take_their_share_and_one_alone_all_of_it(parts: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_share.claim("cpu")
    assert parts == []
    gpu_share.claim("cuda")
    monkeypatch.setattr(gpu_share, "_workers", 10)
    gpu_share.claim("cuda:1")
    with gpu_share.alone("cuda:1"):
        assert parts[-1] == 1
    assert parts == [1, gpu_share.MEMORY / 10, 1, gpu_share.MEMORY / 10]


def test_what_does_not_fit_in_a_share_is_done_again_by_one_worker_at_a_time(
    parts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = threading.Lock()

    def needs_all() -> str:
        if parts[-1:] != [1]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return f"alone: {turn.locked()}"

    def too_large() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):  # there is no one else: nothing could be gained
        gpu_share.with_room("cuda:0", needs_all)
    monkeypatch.setattr(gpu_share, "_workers", 10)
    monkeypatch.setattr(gpu_share, "_turn", turn)
    assert gpu_share.with_room("cuda:0", needs_all) == "alone: True"
    assert parts == [1, gpu_share.MEMORY / 10] and not turn.locked()
    with pytest.raises(torch.OutOfMemoryError):
        gpu_share.with_room("cuda:0", too_large)


def test_a_worker_whose_gpu_is_dead_ends_and_a_single_process_says_so(
    parts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(code: int) -> None:
        assert code == gpu_share.DEAD
        raise Exit

    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    monkeypatch.setattr(torch.cuda, "empty_cache", dead)
    monkeypatch.setattr(gpu_share.os, "_exit", leave)
    gpu_share.release()  # what was judged before is kept
    with pytest.raises(RuntimeError, match="illegal memory access"):
        gpu_share.claim("cuda")
    monkeypatch.setattr(gpu_share, "_workers", 3)
    with pytest.raises(Exit):
        gpu_share.claim("cuda")
    assert parts == []
