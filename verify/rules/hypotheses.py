"""Rules that name a fault by its answer: the output is what the reference gives when it makes that very mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import torch

from linattest.verify.evidence import Arrays, Diagnosis, Evidence, Look
from linattest.verify.inputs import Batch
from linattest.verify.tolerance import TORCH_DTYPES


def constant(look: Look, name: str = "o") -> float | None:
    """The factor by which an output is off, if it is one and the same everywhere (and not 1)."""
    if name not in look.bad or look.got[name].shape != look.exact[name].shape:
        return None
    got, exact = look.got[name], look.exact[name]
    square = float(np.sum(exact * exact))
    if not square or not np.isfinite(got).all():
        return None
    factor = float(np.sum(got * exact)) / square
    fits = np.abs(got - factor * exact) <= (1 + abs(factor)) * look.slack[name]
    told_apart = np.abs((factor - 1) * exact) > 4 * look.slack[name]
    return factor if factor and bool(fits.all() and told_apart.any()) else None


def in_words(factor: float, width: int) -> str:
    """A factor, and what it may be."""
    known = {
        "sqrt(K)": width**0.5, "K**-0.5": width**-0.5, "K": float(width), "1/K": 1 / width, "ln 2": math.log(2),
        "1/ln 2": 1 / math.log(2),
    }  # fmt: skip
    name = next((name for name, x in known.items() if math.isclose(abs(factor), x, rel_tol=1e-3)), "")
    return f"{factor:.7g}" + (f" = {'-' if factor < 0 else ''}{name}" if name else "")


def scale(e: Evidence) -> Diagnosis | None:
    """One factor everywhere."""
    first, second = constant(e.base), constant(e.look(K=25))
    if first is None:
        return None
    words = in_words(first, 16)
    advice = "the output is scaled by a constant factor that does not belong there"
    if second is not None and not math.isclose(first, second, rel_tol=1e-3):
        known = {
            (4.0, 5.0): "the factor K**-0.5 (scale) is missing",
            (0.25, 0.2): "the factor K**-0.5 is applied twice",
        }
        advice = next(
            (x for pair, x in known.items() if np.allclose((first, second), pair, rtol=1e-3)),
            "the scale depends on K in another way than K**-0.5",
        )  # fmt: skip
    more = f", {in_words(second, 25)} for K = 25" if second is not None else ""
    states = [name for name in e.base.got if name.startswith("state.")]
    right = "; the final state is right" if states and not set(states) & set(e.base.bad) else ""
    fault = "wrong scale: every output is off by one and the same factor"
    T = e.base.batch.case.structure.T
    if fine := [n for n, look in e.lengths.items() if n < T and not look.off]:
        fault = f"wrong scale of long sequences alone: every output for T = {T} is off by one and the same factor"
        right += f"; all outputs for T = {max(fine)} are right"
        advice = f"what changes between T = {max(fine)} and {T}"
    return Diagnosis(
        rule="scale", fault=fault,
        evidence=f"o is {words} times the exact output for K = 16{more}{right}",
        suggestion=advice + ("" if fine else "; if it is a convention of yours, fix it with --set scale=..."),
    )  # fmt: skip


def ignored(e: Evidence) -> Diagnosis | None:
    """An input without effect."""
    batch = e.base.batch
    if not e.base.error and not np.isfinite(e.base.got["o"]).any():
        return None  # what is NaN everywhere does not show what it is made of
    for name, other in e.sibling(batch).tensors.items():
        changed = e.changed(batch, **{name: other})
        after = e.look(changed)
        if after.error or e.base.error or not after.off:
            continue
        if all(np.array_equal(after.got[x], e.base.got[x], equal_nan=True) for x in after.got):
            gate = e.domain(name) == "log_gate"
            return Diagnosis(
                rule="ignored", fault=f"{name} is not applied" + (": the gate has no effect" if gate else ""),
                evidence=f"other values of {name} leave every bit of the outputs, which should move by "
                f"{float(np.max(np.abs(after.exact['o'] - e.base.exact['o']))):.3g}",
                suggestion=f"look where {name} should enter; if the function has it under another name: --map",
            )  # fmt: skip
    return None


def gate(e: Evidence) -> Diagnosis | None:
    """A gate in another unit."""
    batch = e.base.batch
    units = {
        math.log(2): ("the gate is applied in base 2 (exp2 of a natural log)", "multiply g by 1/ln 2 before exp2"),
        1 / math.log(2): ("the gate is times 1/ln 2, then applied by exp", "use exp2, or leave the factor out"),
        2.0: ("the gate is applied twice", "count where exp(g) enters between two tokens"),
        0.5: ("the gate is applied by half", "check the exponent"),
        0.0: ("the gate is not applied", "multiply the state by exp(g) before the token is added"),
    }  # fmt: skip
    for name, x in batch.tensors.items():
        if e.domain(name) != "log_gate":
            continue
        for factor, (fault, advice) in units.items():
            if e.explains(e.base, e.exact(e.changed(batch, **{name: _times(x, factor)}))):
                return Diagnosis(
                    rule="gate", fault=fault, suggestion=advice,
                    evidence=f"o is the exact output for {factor:.6g} {name} within its rounding, and off by "
                    f"{e.base.relative():.2g} of the largest for {name}",
                )  # fmt: skip
    return None


def triangle(e: Evidence) -> Diagnosis | None:
    """The own token missing or twice, the decay on the wrong side of it."""
    for fault, advice, answer in _sides(e):
        if e.explains(e.base, {"o": answer}):
            return Diagnosis(
                rule="triangle", fault=fault, suggestion=advice,
                evidence=f"o is that answer within its rounding; it is off by {e.base.relative():.2g} of the largest",
            )  # fmt: skip
    return None


def _sides(e: Evidence) -> Iterator[tuple[str, str, np.ndarray]]:
    """(fault, advice, the output that it gives), made by runs in which only some tokens read or write."""
    batch, look = e.base.batch, e.base
    if look.error or batch.case.structure.T < 3:
        return
    gates = [name for name in batch.tensors if e.domain(name) == "log_gate"]
    reads = {name: x if name == "q" else torch.zeros_like(x) for name, x in batch.tensors.items()}
    writes, both = dict(batch.tensors), slice(1, None, 2)
    if not np.isfinite(look.got["o"]).all() or "q" not in reads:
        return
    control = e.exact(_interleave(batch, writes, reads))["o"][:, both]
    if not np.allclose(control, look.exact["o"], rtol=1e-9, atol=1e-12):
        return  # a token that writes nothing is not neutral here
    before = e.exact(_interleave(batch, reads, writes))["o"][:, ::2]
    closed = {name: torch.zeros_like(batch.tensors[name]) for name in gates}
    decayed = {name: batch.tensors[name] for name in gates}
    apart = e.exact(_interleave(batch, reads | decayed, writes | closed))["o"][:, ::2]
    mask = "the mask is strict (s < t) where the own token belongs in (s <= t)"
    yield "the own token is missing: outputs read the state before the token is added", mask, apart
    yield (
        "the own token is counted twice",
        "the diagonal is in both the intra-chunk part and another: make one of the masks strict",
        2 * look.exact["o"] - apart,
    )
    if not gates:
        return
    yield (
        "outputs read the state of the token before, neither decayed nor with the own token (off by one)",
        "read after the update: first decay, then add, then read", before,
    )  # fmt: skip
    late = e.exact(_interleave(batch, writes | closed, reads | decayed))["o"][:, both]
    yield (
        "the decay is applied after the token is added, so a token's own gate decays itself",
        "decay the state first: S = exp(g) S + k v^T; the sum over (s, t] leaves s out", late,
    )  # fmt: skip
    shifted = {name: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) for name, x in decayed.items()}
    yield (
        "the gate comes one token late: token t is decayed by the gate of t - 1",
        "the decay from s to t is the sum over (s, t], t included: an exclusive sum where an inclusive one belongs",
        e.exact(e.changed(batch, **shifted))["o"],
    )
    early = {name: torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1) for name, x in decayed.items()}
    yield (
        "the gate comes one token early: token t is decayed by the gate of t + 1",
        "the sum over (s, t] is shifted by one",
        e.exact(e.changed(batch, **early))["o"],
    )  # fmt: skip


def _interleave(batch: Batch, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> Batch:
    """A batch of twice the tokens, taken in turn from both."""
    structure = msgspec.structs.replace(batch.case.structure, T=2 * batch.case.structure.T)
    tensors = {k: torch.stack([x, second[k]], 2).flatten(1, 2) for k, x in first.items()}
    cotangents = {**batch.cotangents, "o": batch.cotangents["o"].repeat_interleave(2, 1)}
    case = msgspec.structs.replace(batch.case, structure=structure)
    return batch.with_(case=case, tensors=tensors, cotangents=cotangents)


def state_ignored(e: Evidence) -> Diagnosis | None:
    """The initial state has no effect on the output, or on the final state."""
    if not e.supports("state") or not e.operator.states:
        return None
    look = e.look(initial_state=True)
    if look.error or not look.bad or look.batch.state is None:
        return None
    without = e.exact(look.batch.with_(state=None))
    lost = [name for name in look.bad if e.explains(look, without, name)]
    if not lost:
        return None
    return Diagnosis(
        rule="state-ignored", fault=f"the initial state is ignored in {', '.join(lost)}",
        evidence=f"with an initial state, {', '.join(lost)} equals the exact answer without one; off by "
        f"{look.relative(lost[0]):.2g} of the largest",
        suggestion="start the recurrence from initial_state: add its decayed read to the first chunk too",
    )  # fmt: skip


def state_transposed(e: Evidence) -> Diagnosis | None:
    """[V, K] where [K, V] is due."""
    if not e.supports("state") or not e.operator.states:
        return None
    turned: list[str] = []
    for name, x in e.base.exact.items():
        if name.startswith("state.") and x.ndim >= 4 and name in e.base.bad:
            swapped: Arrays = {name: np.swapaxes(x, -1, -2)}
            turned += ["final"] * e.explains(e.base, swapped, name)
    look = e.look(initial_state=True)
    if not look.error and look.batch.state is not None and "o" in look.bad:
        other = {k: x.mT.contiguous() if x.dim() >= 4 else x for k, x in look.batch.state.items()}
        turned += ["initial"] * e.explains(look, e.exact(look.batch.with_(state=other)))
    if not turned:
        return None
    said = e.subject.transpose_state
    return Diagnosis(
        rule="state-transposed",
        fault=f"the {' and the '.join(dict.fromkeys(turned))} state is transposed: "
        + ("[K, V], and --transpose-state says [V, K]" if said else "[V, K] for [K, V]"),
        evidence="for K = V = 16 the transposed state is right to its rounding, the state itself is not",
        suggestion="states are [N, HV, K, V]; "
        + ("leave out --transpose-state" if said else "--transpose-state accepts [N, HV, V, K] throughout"),
    )  # fmt: skip


def state_narrow(e: Evidence) -> Diagnosis | None:
    """A state that holds only numbers of a narrow type."""
    for name, x in e.base.got.items():
        if not name.startswith("state.") or name not in e.base.bad or e.base.error:
            continue
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        for narrow in ("bfloat16", "float16"):
            if bool((tensor.to(TORCH_DTYPES[narrow]).double() == tensor).all()) and bool(tensor.any()):
                return Diagnosis(
                    rule="state-narrow", fault=f"the final state is kept in {narrow}",
                    evidence=f"all {x.size} entries of {name} are {narrow} numbers; its largest error is "
                    f"{e.base.relative(name):.2g} of the largest entry",
                    suggestion="keep the state in float32 (float64 for float64 inputs), between chunks too",
                )  # fmt: skip
    return None


def heads(e: Evidence) -> Diagnosis | None:
    """Value head h reads key head h % H instead of h // (HV / H)."""
    look = e.axes.get("grouped heads")
    if look is None or look.error or not look.bad:
        return None
    s = look.batch.case.structure
    order = [h % s.H for h in range(s.H * s.group)]
    grouped = {x.name for x in e.operator.inputs_of(look.batch.options) if not x.per_value_head}
    tensors = {k: x[:, :, order] if k in grouped else x for k, x in look.batch.tensors.items()}
    structure = msgspec.structs.replace(s, H=s.H * s.group, group=1)
    case = msgspec.structs.replace(look.batch.case, structure=structure)
    if not e.explains(look, e.exact(look.batch.with_(case=case, tensors=tensors))):
        return None
    return Diagnosis(
        rule="heads", fault="value heads read the wrong key head: h % H instead of h // (HV / H)",
        evidence=f"with {s.H} key heads and {s.H * s.group} value heads, o equals the exact output for that mapping",
        suggestion="repeat each key head HV / H times in a row (repeat_interleave, not repeat)",
    )  # fmt: skip


def _times(x: torch.Tensor, factor: float) -> torch.Tensor:
    """A gate in float64 times a factor: -inf times 0 is a gate that is not there."""
    return torch.where(x == 0, 0.0, x.double() * factor) if factor else torch.zeros_like(x, dtype=torch.float64)
