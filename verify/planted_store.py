"""The fault that a memory checker must see: a kernel that writes one element behind the end of its tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _behind(x, N: tl.constexpr):  # pyright: ignore[reportMissingParameterType]
    tl.store(x + tl.arange(0, N) + 1, tl.zeros([N], tl.float32))


def write_behind(device: str) -> None:
    """Write elements 1 to 128 of a tensor of 128, whose memory ends there (no caching allocator: see `sanitizer`)."""
    x = torch.zeros(128, device=device)
    _behind[(1,)](x, 128)  # pyright: ignore[reportArgumentType]
    torch.cuda.synchronize(device)
