"""What the launcher adds to Triton: binaries found again, and the variables that they are compiled under."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import triton.language as tl

from linattest.kernels import launch
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


def test_products_of_float32_operands_are_compiled_without_warpgroup_instructions() -> None:
    kernel, x = Kernel(), torch.empty(64)
    for stage in (tl.float32, tl.bfloat16):
        launch._launch(kernel, 5, (x, (1,), 1, 0.5), {"C": 64, "STAGE": stage}, Config(0, 4, 1), 0)
    assert [build[3] for build in kernel.builds] == ["1", None]
    assert "DISABLE_MMA_V3" not in os.environ


def test_a_variable_that_was_set_is_set_again_after_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_MMA_V3", "0")
    kernel = Kernel()
    launch._launch(kernel, 5, (torch.empty(64), (1,), 1, 0.5), {"C": 64, "STAGE": tl.float32}, Config(0, 4, 1), 0)
    assert kernel.builds[0][3] == "1"
    assert os.environ["DISABLE_MMA_V3"] == "0"
