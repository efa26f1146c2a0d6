"""Rules that read a fault from the place of the wrong tokens: the future, a chunk's tail or edge, a sequence's end."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from linattest.verify.evidence import Diagnosis, Evidence, Look
from linattest.verify.inputs import Batch

CHUNKS = (16, 32, 64, 128)
"""Chunk lengths that kernels have."""

CUTS = (13, 37, 61)
"""Tokens from which the inputs change; no two leave the same remainder by any chunk length."""


def late(e: Evidence) -> Diagnosis | None:
    """Each token has the answer of its neighbour."""
    look = e.base
    if look.error or "o" not in look.bad or look.got["o"].shape != look.exact["o"].shape:
        return None
    got, exact, slack = (x["o"] for x in (look.got, look.exact, look.slack))
    for words, ours, other in (
        ("late: token t has the answer of t - 1", slice(1, None), slice(None, -1)),
        ("early: token t has the answer of t + 1", slice(None, -1), slice(1, None)),
    ):
        if (np.abs(got[:, ours] - exact[:, other]) <= slack[:, other]).all():
            return Diagnosis(
                rule="late", fault=f"the output comes one token {words}",
                evidence=f"that holds for all {got.shape[1] - 1} tokens that have such a neighbour, within rounding",
                suggestion="store row t of the output at t: an index, or a cat with a row of zeros, is off by one",
            )  # fmt: skip
    return None


def future(e: Evidence) -> Diagnosis | None:
    """Outputs move when later tokens change."""
    batch, moved = e.base.batch, dict[int, int]()
    if e.base.error or e.base.got["o"].shape != e.base.exact["o"].shape:
        return None
    other, size = e.sibling(batch), 0.0
    for cut in (c for c in CUTS if c < batch.case.structure.T):
        tensors = {k: torch.cat([x[:, :cut], other.tensors[k][:, cut:]], 1) for k, x in batch.tensors.items()}
        after = e.look(e.changed(batch, **tensors))
        if after.error:
            return None
        before, now = e.base.got["o"][:, :cut], after.got["o"][:, :cut]
        if not (np.isfinite(before).all() and np.isfinite(now).all()):
            return None
        gap = np.abs(now - before)
        if gap.any():
            moved[cut] = int(np.nonzero(gap.any(axis=(0, 2, 3)))[0][0])
            size = max(size, float(np.max(gap)) / float(np.max(np.abs(e.base.exact["o"]))))
    if not moved:
        return None
    chunk = next((c for c in CHUNKS if all(first // c == cut // c for cut, first in moved.items())), None)
    small = not e.base.bad
    return Diagnosis(
        rule="future", fault="it is not causal: outputs depend on later tokens"
        + (f" (inside a chunk of {chunk})" if chunk else ""),
        evidence="; ".join(f"a change from token {cut} on moves token {first}" for cut, first in moved.items())
        + f", by up to {size:.2g} of the largest output",
        suggestion=(
            "the values are right, so later tokens cancel but for rounding: anchor the decay at no later token"
            if small
            else "mask the upper triangle (s <= t) before the scores are used, in each chunk"
        ),
    )  # fmt: skip


def _gap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance, element by element; NaN is no distance from NaN."""
    return np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))


def tail(e: Evidence) -> Diagnosis | None:
    """Wrong exactly when the last chunk is short, and there alone."""
    if not any(look.bad for look in e.lengths.values()):
        return None
    for chunk in CHUNKS:
        bad = {T: look for T, look in e.lengths.items() if look.bad}
        short = {T for T in e.lengths if T % chunk}
        right = [T for T in e.lengths if T % chunk == 0]
        inside = all(not look.tokens or look.tokens[0] >= T // chunk * chunk for T, look in bad.items())
        if not right or set(bad) - short or not inside or 2 * len(bad) < len(short):
            continue
        T, look = max(bad.items())
        outputs = ", ".join(look.bad)
        tokens = f", its tokens {look.tokens[0]} to {look.tokens[-1]} alone" if look.tokens else ", no token of o"
        return Diagnosis(
            rule="tail", fault=f"the tail of a short last chunk is not masked (chunks of {chunk})",
            evidence=f"{len(bad)} of {len(short)} lengths T that {chunk} does not divide are wrong and none that it "
            f"does; T = {T}: wrong in {outputs}{tokens}",
            suggestion=f"mask rows >= T of the last chunk (T mod {chunk} of its {chunk} rows are live): load 0 for "
            "keys and values, and no decay past the end",
        )  # fmt: skip
    return None


def boundary(e: Evidence) -> Diagnosis | None:
    """Right up to the first chunk edge, wrong from there on."""
    firsts = {T: look.tokens[0] for T, look in e.lengths.items() if look.tokens}
    edges = set(firsts.values())
    if len(edges) != 1:
        return None
    edge = edges.pop()
    return _from_token(e, edge, max(firsts), len(firsts)) if edge in CHUNKS else None


def onset(e: Evidence) -> Diagnosis | None:
    """Right up to some token, wrong from there on, whatever the length: where no rule names more."""
    firsts = {T: look.tokens[0] for T, look in e.lengths.items() if look.tokens}
    edges = set(firsts.values())
    if len(firsts) < 2 or len(edges) != 1 or min(edges) < 2:
        return None
    return _from_token(e, edges.pop(), max(firsts), len(firsts))


def _from_token(e: Evidence, edge: int, T: int, count: int) -> Diagnosis:
    words, advice = _what_is_read(e, e.lengths[T], edge)
    chunk = f"often what the first chunk of {edge} hands over"
    if not words:
        words = chunk if edge in CHUNKS else f"often a window or chunk of {edge} tokens, or a limit of a size"
    if not advice:
        state = "the state between chunks: its decay by the whole chunk, and the read of it by the next"
        advice = state if e.operator.states else f"the sum over tokens before t - {edge}, and what merges blocks"
    return Diagnosis(
        rule="boundary" if edge in CHUNKS else "onset",
        fault=f"right before token {edge}, wrong from there on: {words}",
        evidence=f"right for every token before {edge}; wrong from token {edge} on for each of the {count} "
        f"longer lengths tried, by {e.lengths[T].relative():.2g} of the largest at T = {T}",
        suggestion=advice,
    )  # fmt: skip


def _what_is_read(e: Evidence, look: Look, edge: int) -> tuple[str, str]:
    """Which earlier tokens alone make the output, in words, and what to look at; empty if it is neither."""
    last = look.batch.case.structure.T - 1
    tokens = sorted({edge, (edge + last) // 2, last})
    if all(_made_of(e, look, t - edge + 1, t) for t in tokens):
        return (
            f"token t reads the last {edge} tokens alone",
            f"a window: a sliding mask, or a cache of {edge} tokens; every token up to t belongs in",
        )
    if all(_made_of(e, look, t // edge * edge, t) for t in tokens):
        return (
            f"each chunk of {edge} tokens starts from nothing",
            "what a chunk hands to the next is lost: the final state" if e.operator.states
            else "earlier blocks are left out: loop over all of them, and merge their sums",
        )  # fmt: skip
    return "", ""


def _made_of(e: Evidence, look: Look, first: int, t: int) -> bool:
    """Whether the output of token t is that of a sequence which starts at token ``first``, from an empty state."""
    batch, part = look.batch, slice(first, t + 1)
    structure = msgspec.structs.replace(batch.case.structure, T=t + 1 - first)
    cotangents = {**batch.cotangents, "o": batch.cotangents["o"][:, part]}
    exact = e.exact(
        batch.with_(
            case=msgspec.structs.replace(batch.case, structure=structure), cotangents=cotangents,
            tensors={name: x[:, part] for name, x in batch.tensors.items()},
        )
    )["o"][:, -1]  # fmt: skip
    return bool((np.abs(look.got["o"][:, t] - exact) <= look.slack["o"][:, t]).all())


def packed(e: Evidence) -> Diagnosis | None:
    """Sequences of a pack see each other."""
    if "packed sequences" not in e.axes or e.base.bad:
        return None
    batch = e.batch(cu_seqlens=(0, 20, 45, 70))
    look = e.look(batch)
    if look.error:
        return None
    other = e.sibling(batch)
    tensors = {k: torch.cat([other.tensors[k][:, :20], x[:, 20:]], 1) for k, x in batch.tensors.items()}
    after = e.look(e.changed(batch, **tensors))
    gap = _gap(after.got["o"], look.got["o"])[:, 20:] if not after.error else np.zeros((1, 1, 1, 1))
    if gap.any():
        first = 20 + int(np.nonzero(gap.any(axis=(0, 2, 3)))[0][0])
        whole = _as_one(e, batch)
        same = "; o equals the exact output of one sequence without boundaries" if e.explains(look, whole) else ""
        return Diagnosis(
            rule="packed", fault="packed sequences leak: the first one's tokens move the outputs of the next",
            evidence=f"for cu_seqlens [0, 20, 45, 70], other values before token 20 move token {first} by "
            f"{float(np.max(gap)):.3g}{same}",
            suggestion="start each sequence of cu_seqlens from its own state (and its own position)",
        )  # fmt: skip
    return _rows_past_the_end(e.axes["packed sequences"])


def _as_one(e: Evidence, batch: Batch) -> dict[str, np.ndarray]:
    structure = msgspec.structs.replace(batch.case.structure, cu_seqlens=None)
    case = msgspec.structs.replace(batch.case, structure=structure)
    return e.exact(batch.with_(case=case, cu_seqlens=None))


def _rows_past_the_end(look: Look) -> Diagnosis | None:
    cu_seqlens = look.batch.case.structure.cu_seqlens
    if cu_seqlens is None or not look.tokens or look.tokens[0] < cu_seqlens[-1]:
        return None
    return Diagnosis(
        rule="packed-rest", fault="rows past the last packed sequence are not 0",
        evidence=f"for cu_seqlens {list(cu_seqlens)}, tokens {look.tokens[0]} to {look.tokens[-1]} alone are wrong",
        suggestion="write 0 to the rows that no sequence covers, or allocate the output with zeros",
    )  # fmt: skip
