"""The scalar functions of the Triton kernels, as a process of its own: Triton reads TRITON_INTERPRET when it starts.

``python -m linattest.proofs_checks.exhaustive.kernel_run DEVICE FOLDER`` reads FOLDER/KIND.npy (float64, exact in the
16-bit type KIND) and writes FOLDER/KIND-NAME.npy for each function.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

NAMES = ("exp", "reciprocal")
KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
BLOCK = 1024


@triton.jit
def apply(x_ptr: Any, y_ptr: Any, n: Any, RECIPROCAL: tl.constexpr, BLOCK: tl.constexpr):
    """As the kernels do: widened to float32, one function, rounded to the type of the output."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1.0).to(tl.float32)
    y = 1.0 / tl.maximum(x, 2e-38) if RECIPROCAL else tl.exp(x)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=i < n)


def main(device: str, folder: Path) -> None:
    """Every input of every kind that lies in the folder."""
    for path in (path for path in sorted(folder.glob("*.npy")) if path.stem in KINDS):
        x = torch.from_numpy(np.load(path)).to(KINDS[path.stem]).to(device)
        for name in NAMES:
            y = torch.empty_like(x)
            with np.errstate(over="ignore"):  # what is beyond the type becomes infinite, as it should
                apply[(triton.cdiv(len(x), BLOCK),)](x, y, len(x), RECIPROCAL=name == "reciprocal", BLOCK=BLOCK)
            np.save(folder / f"{path.stem}-{name}.npy", y.double().cpu().numpy())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
