"""The delta scan's forward in Triton against float64; small, since Triton interprets it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linattest.impls import delta_scan as impl
from linattest.kernels import delta_scan
from linattest.kernels.delta_scan import Operands

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDINGS = {torch.float32: 2.0**-21, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Bound of a relative error of norms: eight roundings of an operand (tf32x3, bfloat16, tf32)."""

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # 0 * -inf that a mask discards


def inputs(T: int, *, B: int = 1, H: int = 1, HV: int = 1, K: int = 5, V: int = 3, apart: bool = False,
           dtype: torch.dtype = torch.float32) -> Operands:  # fmt: skip
    """Unit keys, one of them zero, beta up to 2, one gate -inf; `apart` gives a write key of its own."""
    torch.manual_seed(T)
    q, k, w = (torch.nn.functional.normalize(torch.randn(B, T, h, K), dim=-1) for h in (H, H, HV))
    v, g, beta = torch.randn(B, T, HV, V), -torch.rand(B, T, HV) / 5, 2 * torch.rand(B, T, HV)
    g[:, T // 2 : T // 2 + 1] = -torch.inf
    k[:, T // 3 : T // 3 + 1] = 0.0
    q, k, w, v = (x.to(DEVICE, dtype) for x in (q, k, w, v))
    return Operands(q, k, w if apart else None, v, g.to(DEVICE), None if apart else beta.to(DEVICE))


def states(x: Operands, N: int) -> Tensor:
    return torch.randn(N, x.v.shape[2], x.q.shape[3], x.v.shape[3]).to(DEVICE)


def found(x: Operands, state: Tensor | None, offsets: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    o, final, _ = delta_scan.forward(x, -0.3, state, offsets, output_final_state=True, **options)
    assert final is not None
    return o, final


def wanted(x: Operands, state: Tensor | None, offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """In float64, from the inputs as they were rounded."""
    HV = x.v.shape[2]
    erase = x.erase.double().repeat_interleave(HV // x.erase.shape[2], dim=2)
    beta = 1.0 if x.beta is None else x.beta.double()[..., None]
    write = x.write.double() if x.write is not None else beta * erase
    g = None if x.g is None else x.g.double()
    first = None if state is None else state.double()
    o, final = impl.recurrent(
        x.q.double(), erase, write, x.v.double(), g, scale=-0.3, initial_state=first, output_final_state=True,
        cu_seqlens=offsets,
    )  # fmt: skip
    assert final is not None
    return o, final


def error(x: Tensor, y: Tensor) -> float:
    assert x.shape == y.shape
    return float((x.double() - y).norm() / y.norm().clamp_min(1e-30))


def agree(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor], dtype: torch.dtype = torch.float32) -> None:
    assert x[0].dtype == dtype and x[1].dtype == torch.float32
    assert error(x[0], y[0]) <= ROUNDINGS[dtype] and error(x[1], y[1]) <= ROUNDINGS[dtype]


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("apart", [False, True], ids=["beta", "write"])
def test_outputs_and_states_are_those_of_float64(dtype: torch.dtype, apart: bool):
    x = inputs(70, H=1, HV=2, apart=apart, dtype=dtype)
    state = states(x, 1)
    agree(found(x, state), wanted(x, state), dtype)


def test_packed_sequences_are_alone_and_rows_behind_the_last_are_zero():
    x, offsets = inputs(80, H=2, HV=4), torch.tensor([0, 0, 3, 70, 70], device=DEVICE)
    state = states(x, 4)
    o, final = found(x, state, offsets)
    agree((o, final), wanted(x, state, offsets))
    assert bool((o[:, 70:] == 0).all())
    assert torch.equal(final[0], state[0]), "an empty sequence passes its state through"


@pytest.mark.parametrize("given", [False, True], ids=["from nothing", "from a state"])
def test_several_segments_with_views_as_they_lie(given: bool):
    x = inputs(520, B=2, K=3, V=2)
    x = x._replace(v=x.v.transpose(0, 1).contiguous().transpose(0, 1))
    state = states(x, 2) if given else None
    agree(found(x, state), wanted(x, state))


def test_without_gates_and_one_token():
    for T in (1, 17):
        x = inputs(T, K=1, V=1)._replace(g=None)
        state = states(x, 1)
        agree(found(x, state), wanted(x, state))


def test_no_tokens_give_no_outputs_and_the_state_as_it_was():
    x = inputs(0)
    state = states(x, 1)
    o, final = found(x, state)
    assert o.shape == (1, 0, 1, 3) and torch.equal(final, state)


def test_a_second_plane_holds_more_digits_than_one():
    x = inputs(70, dtype=torch.bfloat16)
    state = states(x, 1)
    final = wanted(x, state)[1]
    assert error(found(x, state, planes=2)[1], final) < error(found(x, state, planes=1)[1], final)


def test_nan_in_one_head_stays_there():
    x = inputs(70, HV=2)
    x.v[0, 5, 0, 0] = torch.nan
    o, final = found(x, None)
    assert (
        bool(o[:, 5:, 0, 0].isnan().any()) and bool(o[:, :, 1].isfinite().all()) and bool(final[:, 1].isfinite().all())
    )


@pytest.mark.parametrize("fault", ["an inverse without its lower blocks", "writes that do not fade"])
def test_a_fault_in_what_a_chunk_stores_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Such a kernel is far outside the bound, so the bound says something."""
    invert = delta_scan._invert  # pyright: ignore[reportPrivateUsage]

    def faulty(x: Operands, saved: delta_scan.Saved, *rest: Any) -> None:
        invert(x, saved, *rest)
        if fault == "writes that do not fade":
            saved.factors[..., 1] = 1.0
        else:
            block = torch.arange(saved.tm.shape[1], device=DEVICE) % 64 // 16
            lower = block[:, None] != torch.arange(64, device=DEVICE)[None, :] // 16
            saved.tm.masked_fill_(lower[None, :, None], 0.0)

    monkeypatch.setattr(delta_scan, "_invert", faulty)
    x = inputs(70)
    state = states(x, 1)
    assert max(map(error, found(x, state), wanted(x, state))) > 1000 * ROUNDINGS[torch.float32]
