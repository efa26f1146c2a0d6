"""Reported faults of kernels: what a graph captures, 32-bit addresses, tiles, bfloat16 in the interpreter.

Without a GPU Triton interprets the kernels: their semantics are tested, a compiler's faults are not.
"""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

from linattest.impls import gla as impl
from linattest.kernels import blocks, building, configs, gla, launch
from linattest.kernels.launch import Config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # what a mask discards


def test_offsets_of_packed_sequences_are_not_read_on_the_host():
    """A graph that has captured a read of the device would replay the offsets of its capture (or could not be made)."""
    with FakeTensorMode(), building.recording() as launches:  # a fake tensor has no values: reading one raises
        q, k, v = (torch.empty(1, 8, 2, 4, device=DEVICE) for _ in range(3))
        g, offsets = torch.empty(1, 8, 2, device=DEVICE), torch.empty(4, dtype=torch.int64, device=DEVICE)
        gla.chunk(q, k, v, g, cu_seqlens=offsets, output_final_state=True)
        with pytest.raises(Exception, match="_local_scalar_dense"):
            gla.chunk(q, k, v, g, cu_seqlens=offsets, validate=True)
    assert len(launches) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_graph_of_eight_slots_with_three_empty_replays_the_live_rows():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 2, 16, device=DEVICE) for _ in range(3))
    g, state = -torch.rand(1, 8, 2, device=DEVICE), torch.randn(8, 2, 16, 16, device=DEVICE)
    offsets = torch.arange(9, device=DEVICE)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        gla.chunk(q, k, v, g, initial_state=state, cu_seqlens=offsets, output_final_state=True)
    with torch.cuda.graph(graph):
        o, final = gla.chunk(q, k, v, g, initial_state=state, cu_seqlens=offsets, output_final_state=True)
    offsets.copy_(torch.tensor([0, 1, 2, 3, 4, 5, 5, 5, 5]))
    wanted = gla.chunk(q, k, v, g, initial_state=state, cu_seqlens=offsets, output_final_state=True)
    for _ in range(2):
        o.fill_(torch.nan)
        graph.replay()
        assert torch.equal(o, wanted[0]) and bool((o[:, 5:] == 0).all())
        assert final is not None and wanted[1] is not None
        assert torch.equal(final, wanted[1]) and torch.equal(final[5:], state[5:])


@triton.jit
def _address(out, strides, b, h, t):
    tl.store(out + tl.arange(0, 1), blocks.at(tl.zeros([1], tl.int64), strides, b, h, t))


@pytest.mark.parametrize(
    ("B", "T", "H", "K"),
    [(16, 17476, 64, 128), (16, 17477, 64, 128), (2, 262144, 64, 128), (1, 1 << 26, 1, 256)],
)
def test_an_address_beyond_31_bits_is_exact(B: int, T: int, H: int, K: int):
    out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    strides = (T * H * K, H * K, K, 1)
    _address[(1,)](out, strides, B - 1, H - 1, T - 1)
    assert int(out) == (B * T * H - 1) * K


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("channel", [False, True], ids=["head", "channel"])
def test_every_tile_gives_the_right_outputs_and_gradients(block: int, channel: bool, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(block)
    T, K, V = 70, 20, 33
    xs = [torch.randn(1, T, 1, n).to(DEVICE).requires_grad_() for n in (K, K, V)]
    g = (-torch.rand(1, T, 1, K) if channel else -torch.rand(1, T, 1)).to(DEVICE).requires_grad_()
    monkeypatch.setattr(configs, "choose", lambda kernel, *rest: Config(block, 4, 2))
    found, wanted = [], []
    for function, answers in ((gla.chunk, found), (impl.chunk, wanted)):
        o, _ = function(xs[0], xs[1], xs[2], g)
        answers += [o.detach(), *torch.autograd.grad(o.square().sum(), (*xs, g))]
    for x, y in zip(found, wanted, strict=True):
        assert float((x - y).double().norm()) <= 2.0**-20 * float(y.double().norm())  # sixteen roundings of float32


@triton.jit
def _product(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    where = i[:, None] * N + i[None, :]
    product = blocks.dot(tl.load(a + where), tl.load(b + where), "tf32")  # type: ignore[arg-type]
    tl.store(out + where, product)


@triton.jit
def _rounded(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, blocks.operand(tl.load(x + i), tl.bfloat16).to(tl.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_product_of_small_integers_is_exact_in_either_mode(dtype: torch.dtype):
    torch.manual_seed(0)
    a, b = (torch.randint(-2, 3, (16, 16)).to(DEVICE, dtype) for _ in range(2))
    out = torch.full((16, 16), torch.nan, device=DEVICE)
    _product[(1,)](a, b, out, N=16)  # type: ignore[arg-type]
    assert torch.equal(out.double(), a.double() @ b.double())


def test_an_operand_is_rounded_to_nearest_even_in_either_mode():
    torch.manual_seed(0)
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 0.0, torch.inf, -torch.inf, torch.nan, 1e-40])
    x = torch.cat([ties, torch.randn(1016)]).to(DEVICE)
    out = torch.empty_like(x)
    _rounded[(1,)](x, out, N=1024)  # type: ignore[arg-type]
    assert torch.equal(out.nan_to_num(7.0), x.bfloat16().float().nan_to_num(7.0))


def test_tensors_of_a_cpu_are_refused_without_the_interpreter(monkeypatch: pytest.MonkeyPatch):
    """No number of the interpreter is taken for a GPU's."""
    xs: list[Any] = [torch.randn(1, 2, 1, 3) for _ in range(3)]
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(RuntimeError, match="kernels run on a GPU, or in Triton's interpreter if TRITON_INTERPRET=1"):
        gla.chunk(xs[0], xs[1], xs[2], -torch.rand(1, 2, 1))
