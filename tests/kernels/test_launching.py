"""What the launcher adds to Triton: binaries found again, and the variables that they are compiled under."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
import triton.language as tl

from linattest.kernels import building, launch, library
from linattest.kernels.launch import Config


class Kernel:
    """Stands for a Triton kernel: a build is counted, and what it was made of and launched with is kept."""

    arg_names = ("x", "strides", "n", "sizes", "scale", "STAGE", "C")

    def __init__(self) -> None:
        self.builds: list[tuple[Any, ...]] = []
        self.launches: list[tuple[Any, ...]] = []

    def warmup(self, *args: Any, grid: tuple[int, ...], **constants: Any) -> Any:
        self.builds.append((grid, args, constants, os.environ.get("DISABLE_MMA_V3"), threading.current_thread()))
        return Binary(self)


class Binary:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.kernel.launches.append((grid, args))


def start(
    kernel: Kernel, x: torch.Tensor, *, n: int = 32, strides: tuple[int, ...] = (64, 1), T: int = 7, C: int = 64
) -> None:
    constants = {"C": C, "STAGE": tl.bfloat16}
    building.start(kernel, 5, (x, strides, n, (T, 16), 0.5), constants, Config(0, 4, 1), 0)


def test_a_binary_is_found_again_and_gets_its_constants_in_the_order_of_the_signature() -> None:
    kernel, x = Kernel(), torch.empty(64)
    start(kernel, x)
    start(kernel, x, n=48, strides=(128, 1), T=9)
    assert [build[1:3] for build in kernel.builds] == [
        ((x, (64, 1), 32, (3, 3), 0.5),
         {"C": 64, "STAGE": tl.bfloat16, "num_warps": 4, "num_stages": 1, "enable_fp_fusion": True})
    ]  # fmt: skip
    assert kernel.launches == [
        ((5, 1, 1), (x, (64, 1), 32, (7, 16), 0.5, tl.bfloat16, 64)),
        ((5, 1, 1), (x, (128, 1), 48, (9, 16), 0.5, tl.bfloat16, 64)),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"n": 33}, {"n": 1}, {"n": 2**31}, {"T": 2**31}, {"T": 1}, {"T": 48}, {"strides": (64, 2)},
        {"strides": (65, 1)}, {"C": 32}, {"x": torch.empty(64, dtype=torch.bfloat16)}, {"x": torch.empty(65)[1:]},
    ],
    ids=["odd", "one", "wide", "many", "one token", "whole sixteens", "stride", "odd stride", "constant", "dtype",
         "misaligned"],
)  # fmt: skip
def test_what_triton_specialises_on_is_another_binary(other: dict[str, Any]) -> None:
    kernel, x = Kernel(), torch.empty(64)
    start(kernel, x)
    start(kernel, other.pop("x", x), **other)
    assert len(kernel.builds) == 2


@pytest.mark.parametrize(
    "built", [({"STAGE": tl.float32, "BV": 32}, 4, None, "1"), ({"PRECISION": "tf32x3", "R": 16}, 4, True, "1"),
              ({"STAGE": tl.float32, "BV": 64}, 8, None, None), ({"BV": 32}, 4, None, "1"),
              ({"BV": 32}, 4, True, None), ({"BV": 32, "BK": 128}, 8, True, None), ({"BK": 16}, 4, True, "1"),
              ({"BV": 64}, 8, None, None),
              ({"BV": 32}, 4, False, "1"), ({"BV": 64}, 4, False, "1")], ids=str,
)  # fmt: skip
def test_narrow_products_do_without_warpgroup_instructions_where_those_go_wrong(
    built: tuple[dict[str, Any], int, bool | None, str | None],
) -> None:
    kernel, (constants, warps, warpgroups, variable) = Kernel(), built
    constants = {"C": 64, "STAGE": tl.bfloat16} | constants
    config = Config(0, warps, 1, warpgroups=warpgroups)
    building.start(kernel, 5, (torch.empty(64), (1,), 1, (9, 9), 0.5), constants, config, 0)
    assert [build[3] for build in kernel.builds] == [variable]
    assert "DISABLE_MMA_V3" not in os.environ


def test_a_variable_that_was_set_is_set_again_after_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_MMA_V3", "0")
    kernel, constants = Kernel(), {"C": 64, "STAGE": tl.float32, "BV": 16}
    building.start(kernel, 5, (torch.empty(64), (1,), 1, (9, 9), 0.5), constants, Config(0, 4, 1), 0)
    assert kernel.builds[0][3] == "1"
    assert os.environ["DISABLE_MMA_V3"] == "0"


def test_strides_are_made_once_and_their_kind_is_what_their_numbers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "ROOM", 2)
    x = torch.empty(2, 48, 3, 16)
    strides = launch.strides(x)
    assert strides is launch.strides(x.clone())
    assert building._kind(strides) == building._kind((48 * 48, 48, 16, 1)) != building._kind((48 * 48, 48, 16, 2))
    for n in range(3, 9):  # others, until it is forgotten
        launch.strides(torch.empty(2, n, 3, 16))
    assert id(strides) not in building._known
    assert building._kind(launch.strides(x)) == building._kind(strides)


def run_beside(kernels: list[Kernel], x: torch.Tensor) -> None:
    """An operation of three kernels, the last of which is built under a variable of its own."""
    for kernel, width in zip(kernels, (64, 64, 16), strict=True):
        constants = {"C": 64, "STAGE": tl.bfloat16, "BV": width}
        launched = building.Launch(kernel, (5,), (x, (64, 1), 8, (9, 1), 0.5), constants, Config(0, 4, 1))
        if building.here.recorder is not None:
            building.here.recorder.append(launched)
        else:
            building.start(kernel, 5, launched.args, constants, launched.config, 0)


def test_what_an_operation_will_need_is_built_at_once_when_something_is_missing() -> None:
    kernels, x, operation = [Kernel(), Kernel(), Kernel()], torch.empty(64), building.watched(run_beside)
    operation(kernels, x)
    assert [len(kernel.builds) for kernel in kernels] == [1, 1, 1] == [len(kernel.launches) for kernel in kernels]
    assert [kernel.builds[0][3] for kernel in kernels] == [None, None, "1"]
    assert all(kernel.builds[0][4] is not threading.main_thread() for kernel in kernels)
    operation(kernels, x)
    assert [len(kernel.builds) for kernel in kernels] == [1, 1, 1]


def test_what_fails_ahead_is_built_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, x = [Kernel(), Kernel(), Kernel()], torch.empty(64)
    rightly = kernels[1].warmup

    def fails_in_threads(*args: Any, **given: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no room")
        return rightly(*args, **given)

    monkeypatch.setattr(kernels[1], "warmup", fails_in_threads)
    building.watched(run_beside)(kernels, x)
    assert kernels[1].builds[0][4] is threading.main_thread() and len(kernels[1].launches) == 1
    assert kernels[2].builds[0][4] is not threading.main_thread()


def test_launches_of_another_thread_are_not_recorded() -> None:
    with building.recording() as launches:
        other = threading.Thread(target=start, args=(kernel := Kernel(), torch.empty(64)))
        other.start()
        other.join()
    assert launches == [] and len(kernel.launches) == 1


@pytest.mark.parametrize(
    ("shape", "strides", "copied"),
    [((2, 70, 3, 16), (3360, 48, 16, 1), False), ((2, 70, 3, 16), (1 << 40, 48, 16, 1), False),
     ((1, 12, 1, 8), (1 << 31, 195225786, 8, 1), True), ((1, 2, 1, 8), (1, 195225786, 8, 1), False),
     ((1, 9000, 1, 8), (1, 1 << 22, 8, 1), True), ((1, 9000, 1, 8), (1, 1 << 21, 8, 1), False),
     ((1, 4, 1, 8), (1, 1, 1, 1 << 28), True),
     ((1, 12, 1), (1, 195225786, 1), True), ((1 << 40,), (1,), False)],
    ids=str,
)  # fmt: skip
def test_inputs_whose_chunks_32_bits_cannot_count_are_copied(
    shape: tuple[int, ...], strides: tuple[int, ...], copied: bool
) -> None:
    x = torch.empty_strided(shape, strides, device="meta")
    assert (library.near(x) is not x) == copied
    assert library.near(x).is_contiguous() or not copied
