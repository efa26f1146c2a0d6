"""Foreign subjects under our calling convention: other people's kernels on our inputs."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, backend: str
) -> tuple[torch.Tensor, None]:
    """PyTorch's causal ``scaled_dot_product_attention`` on one backend.

    Args:
        q, k: ``[B, T, H, K]``; v: ``[B, T, H, V]`` (the flash backend wants V = K).
        backend: "math" or "flash" (CPU has these two), "efficient", "cudnn".

    Raises:
        RuntimeError: PyTorch's own, when the backend cannot run these inputs.
    """
    with sdpa_kernel(BACKENDS[backend]):
        # the flash backend wants a dense last axis
        heads_first = [x.contiguous().transpose(1, 2) for x in (q, k, v)]
        o = scaled_dot_product_attention(heads_first[0], heads_first[1], heads_first[2], is_causal=True, scale=scale)
    return o.transpose(1, 2), None
