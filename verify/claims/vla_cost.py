"""What VLA costs: multiply-adds beside linear attention's, the depth of its scan, the size of its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from linattest.impls import linear, vla
from linattest.impls.associative_scan import exclusive_scan
from linattest.impls.features import WIDE
from linattest.verify import registry
from linattest.verify.claims.verdicts import Evidence, Verdict, counted, measured, supported
from linattest.verify.claims.vla_penalty import inputs
from linattest.verify.complexity import MULTIPLY_ADDS, growth
from linattest.verify.examine import Examination, verdicts
from linattest.verify.inputs import Case, Structure, build
from linattest.verify.subjects import run
from linattest.verify.tolerance import THRESHOLD


def cost(lengths: tuple[int, ...] = (256, 512, 1024)) -> Verdict:
    """The paper's "about 5 times": the update alone, the whole token, and what our forms do."""
    update, token = ({d: _formulas(d, read) for d in (32, 64, 128)} for read in (False, True))
    run_ratio = {d: _loop("vla", d) / _loop("linear", d) for d in (32, 64)}
    chunked = {d: _per_token("vla", lengths, d) / _per_token("linear", lengths, d) for d in (16, 32)}
    return supported(
        counted(
            "multiply-adds of the update alone, VLA's formulas over linear attention's, by width: 5",
            all(round(x) == 5 for x in update.values()), ratios=update,
        ),
        counted("with reading and the normaliser, which both have: 3", True, ratios=token),
        counted("counted from the token loops (Sherman-Morrison form)", True, where="impls/vla.py", ratios=run_ratio),
        counted("counted from the chunk forms", True, where="impls/vla.py", ratios=chunked),
    )  # fmt: skip


def _formulas(d: int, read: bool) -> float:
    penalty = 2 * d * d + d  # z = A u, A -= z z^T / (1 + u . z)
    memory = 3 * d * d + 4 * d  # A k and its length, S k, S += (v - S k) a^T, |k|
    both = d * d + 2 * d if read else 0  # S q, z . q
    return (penalty + memory + both) / (d * d + both)


def _loop(name: str, d: int, T: int = 16) -> float:
    k, u, v = inputs(1, T, d, seed=0)
    with FlopCounterMode(display=False, custom_mapping=MULTIPLY_ADDS) as counter:
        if name == "vla":
            vla.recurrent(k, k, v, u, inverse="sherman-morrison")
        else:
            linear.recurrent(k, k, v)
    return counter.get_total_flops() / 2 / T


def _per_token(name: str, lengths: tuple[int, ...], d: int) -> float:
    operator = registry.operator(name)
    found = growth(operator, operator.variant("chunk"), lengths=lengths, width=d)
    return found.per_token[max(lengths)]


def scan(lengths: tuple[int, ...] = (1, 16, 64, 65)) -> Verdict:
    """The parallel scan against the oracle, and how many levels of combining it takes."""
    operator = registry.operator("vla")
    variant = operator.variant("scan")
    ratios: list[float] = []
    for T in lengths:
        for dtype in ("float64", "float32"):
            case = Case(operator="vla", structure=Structure(T=T, K=8, V=8), dtype=dtype, gradient=False)
            examination = Examination(operator, build(operator, case))
            outcome = run(operator, variant, examination.batch.copy())
            ratios += [v.ratio for v in verdicts(examination, variant, "forward", outcome)]
    depths = {n: _depth(n) for n in (2, 4, 16, 64, 256)}
    bound = {n: 2 * n.bit_length() for n in depths}
    return supported(
        measured("error ratio of `scan` against the oracle, T = 1 to 65", [max(ratios)], at_most=THRESHOLD),
        measured("|scan - recurrent| / |recurrent| in float64, T = 1024", _apart(1024), at_most=1e-9),
        counted(
            "batched combinations, one after another, for N chunks: about 2 log2 N",
            all(depths[n] <= bound[n] for n in depths),
            where="impls/associative_scan.py", depths=depths,
        ),
    )  # fmt: skip


def _apart(T: int, d: int = 8, seeds: int = 4) -> np.ndarray:
    k, u, v = inputs(seeds, T, d, seed=T)
    both = [f(k, k, v, u)[0] for f in (vla.scan, vla.recurrent)]
    apart, whole = ((x**2).sum((1, 2, 3)).sqrt() for x in (both[0] - both[1], both[1]))
    return (apart / whole).numpy()


def _depth(n: int) -> int:
    calls = 0

    def combine(first: Any, second: Any) -> Any:
        nonlocal calls
        calls += 1
        return vla.compose(first, second)

    eye = torch.eye(2, dtype=WIDE)
    elements = (eye.expand(1, n, 2, 2).contiguous(), torch.zeros(1, n, 2, 2, dtype=WIDE))
    exclusive_scan(combine, elements, (eye.expand(1, 2, 2), torch.zeros(1, 2, 2, dtype=WIDE)))
    return calls


def constant_memory(lengths: tuple[int, ...] = (1, 16, 256, 4096), d: int = 16) -> Verdict:
    """Numbers a head keeps after T tokens: the same for every T."""
    sizes = {T: _state_size(T, d) for T in lengths}
    return supported(_same("numbers that VLA's decoding state holds, by T", sizes))


def _state_size(T: int, d: int) -> int:
    k, u, v = inputs(1, T, d, seed=T)
    _, state = vla.chunk(k, k, v, u, output_final_state=True)
    assert state is not None
    return sum(x.numel() for x in state)


def _same(text: str, sizes: dict[int, int]) -> Evidence:
    return counted(text, len(set(sizes.values())) == 1, numbers=sizes)
