"""Small launches of every kernel, with nothing computed beside them: what a tool that is slow by a hundred times runs.

``python -m linattest.verify.small_calls --device cuda [--quick] [--planted] [OPERATOR]...`` prints how many calls it
made. It is a process of its own, so that the tool (`sanitizer`) sees no more than that.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from linattest.verify import registry
from linattest.verify.devices import place
from linattest.verify.inputs import Case, Structure, build, resolve_options
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import run

STRUCTURES = (
    Structure(T=130, K=64, V=64, H=2),
    Structure(T=70, K=7, V=5, H=2, B=2),
    Structure(T=90, K=33, V=20, H=1, cu_seqlens=(0, 30, 30, 75), initial_state=True),
)
"""More than two chunks; sizes that fill no tile; packed, with an empty sequence and rows behind the last."""

DTYPES = ("bfloat16", "float32", "float16")


def calls(operator: Operator, *, quick: bool = False) -> Iterator[tuple[Variant, Case]]:
    """What is run of an operator; ``quick``: two settings, two structures, bfloat16."""
    for variant in operator.variants:
        for options in operator.grid[: 2 if quick else None]:
            if not variant.kernel or not variant.takes(resolve_options(operator, options)):
                continue
            for structure in STRUCTURES[: 2 if quick else None]:
                if variant.kind == "step" and structure.cu_seqlens:
                    continue
                for dtype in DTYPES[: 1 if quick else None]:
                    yield variant, Case(operator=operator.name, structure=structure, dtype=dtype, options=options)


def make(operators: Sequence[Operator], device: str, *, quick: bool = False) -> int:
    """Make the calls, forward and backward (one token at a time too), and say how many there were."""
    count = 0
    for operator in operators:
        for variant, case in calls(operator, quick=quick):
            run(operator, variant, place(build(operator, case), device), backward=True)
            count += 1
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return count


def main() -> None:
    """The command of the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--planted", action="store_true", help="write behind the end of a tensor, and nothing else")
    given = parser.parse_args()
    if given.planted:
        from linattest.verify.planted_store import write_behind

        write_behind(given.device)
        return
    operators = [registry.operator(name) for name in given.operators] or list(registry.OPERATORS)
    print(f"{make(operators, given.device, quick=given.quick)} calls")


if __name__ == "__main__":
    main()
