"""What the launcher adds to Triton: binaries found again, and the variables that they are compiled under."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import triton.language as tl

from linattest.kernels import launch, library
from linattest.kernels.launch import Config


class Kernel:
    """Stands for a Triton kernel: a build is counted, and what it was made of and launched with is kept."""

    arg_names = ("x", "strides", "n", "scale", "STAGE", "C")

    def __init__(self) -> None:
        self.builds: list[tuple[Any, ...]] = []
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def build(*args: Any, **constants: Any) -> Any:
            self.builds.append((grid, args, constants, os.environ.get("DISABLE_MMA_V3")))
            return Binary(self)

        return build


class Binary:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.kernel.launches.append((grid, args))


def start(kernel: Kernel, x: torch.Tensor, *, n: int = 32, strides: tuple[int, ...] = (64, 1), C: int = 64) -> None:
    constants = {"C": C, "STAGE": tl.bfloat16}
    launch._launch(kernel, 5, (x, strides, n, 0.5), constants, Config(0, 4, 1), 0)


def test_a_binary_is_found_again_and_gets_its_constants_in_the_order_of_the_signature() -> None:
    kernel, x = Kernel(), torch.empty(64)
    start(kernel, x)
    start(kernel, x, n=48, strides=(128, 1))
    assert len(kernel.builds) == 1
    assert kernel.launches == [((5, 1, 1), (x, (128, 1), 48, 0.5, tl.bfloat16, 64))]


@pytest.mark.parametrize(
    "other",
    [
        {"n": 33}, {"n": 1}, {"n": 2**31}, {"strides": (64, 2)}, {"strides": (65, 1)}, {"C": 32},
        {"x": torch.empty(64, dtype=torch.bfloat16)}, {"x": torch.empty(65)[1:]},
    ],
    ids=["odd", "one", "wide", "stride", "odd stride", "constant", "dtype", "misaligned"],
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
    launch._launch(kernel, 5, (torch.empty(64), (1,), 1, 0.5), constants, config, 0)
    assert [build[3] for build in kernel.builds] == [variable]
    assert "DISABLE_MMA_V3" not in os.environ


def test_a_variable_that_was_set_is_set_again_after_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_MMA_V3", "0")
    kernel, constants = Kernel(), {"C": 64, "STAGE": tl.float32, "BV": 16}
    launch._launch(kernel, 5, (torch.empty(64), (1,), 1, 0.5), constants, Config(0, 4, 1), 0)
    assert kernel.builds[0][3] == "1"
    assert os.environ["DISABLE_MMA_V3"] == "0"


def test_strides_are_made_once_and_their_kind_is_what_their_numbers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ROOM", 2)
    x = torch.empty(2, 48, 3, 16)
    strides = launch.strides(x)
    assert strides is launch.strides(x.clone())
    assert launch._kind(strides) == launch._kind((48 * 48, 48, 16, 1)) != launch._kind((48 * 48, 48, 16, 2))
    for n in range(3, 9):  # others, until it is forgotten
        launch.strides(torch.empty(2, n, 3, 16))
    assert id(strides) not in launch._known
    assert launch._kind(launch.strides(x)) == launch._kind(strides)


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
