"""Presets of peers: they import, fit their operators, and those for a GPU say so where there is none."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from linattest.verify import adapters, peers, registry
from linattest.verify.cli import app
from linattest.verify.commands import judging as command
from linattest.verify.peers import FLA, Preset

HERE = importlib.util.find_spec("fla") is not None
needs_fla = pytest.mark.skipif(not HERE, reason="needs fla-core (extra `peers`)")


def test_presets_name_operators_and_their_arguments():
    assert len({preset.name for preset in FLA}) == len(FLA)
    for preset in FLA:
        operator = registry.operator(preset.subject.operator)
        ours = {x.name for x in operator.inputs}
        assert {x.removeprefix("-") for x in preset.subject.rename.values()} <= ours
        assert set(preset.subject.only) <= {option.name for option in operator.options}
    assert {preset.subject.operator for preset in FLA if not preset.gpu} == {
        "gla", "delta_net", "gated_delta_net", "log_linear", "delta_scan",
    }  # fmt: skip


@needs_fla
def test_every_preset_fits_the_signature_of_its_function():
    """In a process of its own: fla warns of much when it is imported, which is an error here."""
    code = (
        "from linattest.verify.given import operator_of\n"
        "from linattest.verify.peers import FLA\n"
        "for preset in FLA: operator_of(preset.subject)\n"
        "print(len(FLA))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == str(len(FLA)), done.stderr
    assert "not supported on current platform" not in done.stderr


def test_kernels_without_a_gpu_are_not_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "missing", lambda _: "")
    monkeypatch.setattr(command, "runnable", lambda preset: not preset.gpu)
    result = CliRunner().invoke(app, ["check", "--peer", "fla", "gla-kernel"])
    assert result.exit_code == 3 and "gla-kernel (fla.ops.gla:chunk_gla) needs a GPU" in result.stdout


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "missing", lambda _: "fla-core")
    result = CliRunner().invoke(app, ["check", "--peer", "fla"])
    assert result.exit_code == 3 and "pip install fla-core" in result.stdout


def test_a_name_chooses_a_preset_or_all_of_an_operator():
    def names(*given: str) -> list[Preset]:
        return list(peers.named("fla", list(given)))

    assert [x.name for x in names("log-linear")] == ["log-linear"]
    assert len(names("gla")) == sum(x.subject.operator == "gla" for x in FLA) > 1


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_an_empty_sequence_does_not_reach_a_backend_that_may_refuse_it(backend: str, monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("No available kernel")  # as torch 2.11 says of the flash backend

    monkeypatch.setattr(adapters, "scaled_dot_product_attention", refuses)
    q, k, v = (torch.zeros(2, 0, 3, 4, requires_grad=True) for _ in range(3))
    o, state = adapters.sdpa(q, k, v, backend=backend)
    assert o.shape == (2, 0, 3, 4) and state is None
    o.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in (q, k, v))
    with pytest.raises(RuntimeError, match="No available kernel"):
        adapters.sdpa(*(torch.zeros(1, 2, 1, 4) for _ in range(3)), backend=backend)
