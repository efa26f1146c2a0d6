"""A user's function whose matrix products have operands of the input type: wrong, unless ``--operands`` says so."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from typer.testing import CliRunner

import linattest.verify.check as checking
import linattest.verify.commands.judging as command
from linattest.verify import registry
from linattest.verify.check import check
from linattest.verify.cli import app
from linattest.verify.executors import InProcess
from linattest.verify.given import operands_of
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.operators.softmax import SOFTMAX_OPERANDS
from linattest.verify.pytest_plugin import linattest_cases
from linattest.verify.spec import OPERANDS
from linattest.verify.staging import softmax_operands

Tensor = torch.Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """PyTorch's own, as a user calls it."""
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


def attend_louder(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """The same, with a factor in bfloat16 that does not belong there."""
    o = attend(q, k, v, scale)
    return o * 1.03125 if q.dtype == torch.bfloat16 else o


def linear(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """Linear attention whose scores meet the values in bfloat16, as on a tensor core."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    factor = float(q.shape[-1] ** -0.5 if scale is None else scale)
    scores = torch.einsum("bthk,bshk->bhts", q.to(wide), k.to(wide)).tril()
    if q.dtype == torch.bfloat16:
        scores = scores.to(q.dtype).to(wide)
    return (factor * torch.einsum("bhts,bshv->bthv", scores, v.to(wide))).to(q.dtype)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads in bfloat16, and one input in float32, judged in this process."""

    def grid(operator: Any, **_: Any) -> list[Job]:
        return [
            Job(Case(operator=operator.name, structure=Structure(T=T, K=8, V=8, H=2, group=2), dtype=dtype, seed=2))
            for T, dtype in ((33, "bfloat16"), (9, "bfloat16"), (9, "float32"))
        ]

    monkeypatch.setattr(checking, "grid", grid)
    monkeypatch.setattr(checking, "besides", lambda *_: [])
    monkeypatch.setattr(command, "local_executor", lambda _: nullcontext(InProcess()))


@pytest.mark.usefixtures("few")
def test_the_command_names_the_option_and_takes_it(tmp_path: Path):
    line = ["check", f"{__file__}:attend", "--as", "softmax", "--failures", str(tmp_path)]
    without = CliRunner().invoke(app, line)
    page = re.sub(r"\s+", " ", without.stdout)
    assert without.exit_code == 1, page
    assert "1. operands of its matrix products are rounded to the type, in bfloat16 alone" in page
    assert "if that is meant, as on a tensor core: --operands" in page and "2. " not in page
    with_it = CliRunner().invoke(app, [*line, "--operands"])
    assert with_it.exit_code == 0, with_it.stdout
    assert "note: operands of matrix products may be rounded" in with_it.stdout


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("operator", ["softmax", "linear"])
def test_the_terms_are_those_of_our_own_kernels(operator: str):
    function, terms = {"softmax": (attend, (SOFTMAX_OPERANDS,)), "linear": (linear, OPERANDS)}[operator]
    assert operands_of(operator) == terms
    wrong, right = check(function, operator), check(function, operator, operands=True)
    assert [found.rule for found in wrong.diagnoses] == ["operands"] and not wrong.passed
    assert right.passed, str(right)


@pytest.mark.usefixtures("few")
def test_a_factor_is_wrong_with_the_terms_too_and_is_no_operand():
    without, with_them = check(attend_louder, "softmax"), check(attend_louder, "softmax", operands=True)
    for result in (without, with_them):
        assert not result.passed and "operands" not in [found.rule for found in result.diagnoses], str(result)


@pytest.mark.usefixtures("few")
def test_the_pytest_plugin_takes_it_too():
    for operands in (False, True):
        found = linattest_cases("softmax", attend, operands=operands).args[1]
        failed = 0
        for case in found:
            try:
                case()
            except AssertionError as error:
                failed += 1
                assert "--operands" in str(error) or not operands
        assert bool(failed) is not operands


def test_terms_of_softmax_know_packs_and_grouped_heads():
    operator = registry.operator("softmax")
    structure = Structure(T=9, K=4, V=4, H=2, group=2, cu_seqlens=(0, 4, 7))
    packed = build(operator, Case(operator="softmax", structure=structure, dtype="bfloat16", seed=1))
    found = softmax_operands(operator, packed, True)
    assert {name: x.most.shape[2] for name, x in found.items()} == {"o": 4, "d q": 2, "d k": 2, "d v": 4}
    most = found["o"].most
    assert np.isfinite(most).all() and not most[:, 7:].any() and most[:, 1:4].any()
    first = np.abs(packed.tensors["v"][:, 4].double().numpy()) * 2 * 2.0**-8
    assert np.allclose(most[:, 4], first)  # the first of its sequence sees itself alone, with weight 1
