"""What holds for a penalty inverse and for the memory written with it (VLA, propositions 1 and 2, corrected).

Let M_t = lam0 I + sum u u^T, A_t = M_t^{-1}, k^ the unit key, a^ = A k^/|A k^|, c = a^ . k^.

* A_t is symmetric positive definite and A_t M_t = I.
* J = I - k^ a^^T (acting on rows of S) has spectral norm (1 + sqrt(5 - 4c))/2, not 1; in the energy norm
  s M_t s^T its norm is exactly 1 (width >= 2), since M - J M J^T = ((2 - c)/|A k^|) k^ k^^T.
* Certificate: B_t = sqrt(1 + u_t^T A_{t-1} u_t) B_{t-1} + |v_t| sqrt(c_t/|A_t k^_t|), starting from
  sqrt(tr(S_0 M_0 S_0^T)), bounds the memory: |S_t|_F <= B_t / sqrt(lam_min(M_t)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from linattest.verify.inputs import Batch
from linattest.verify.measure import compare
from linattest.verify.probe import Finding, Probe
from linattest.verify.spec import Property
from linattest.verify.subjects import run
from linattest.verify.tolerance import THRESHOLD

Array = NDArray[np.float64]


def inverse(probe: Probe) -> Iterator[Finding]:
    """Recover A_t column by column by solving for unit vectors, and check what defines it."""
    batch, s = probe.batch, probe.batch.case.structure
    if s.T == 0 or s.K > 16 or batch.cu_seqlens is not None:
        return
    wide = _unit_columns(batch)
    columns = probe.run(wide)["o"].double().numpy()  # [K, T, H, K], column i of A_t in row i
    if batch.case.dtype not in ("float64", "float32"):
        return  # a column rounded to half precision says nothing about A
    kappa = probe.sensitivity(wide).kappa("o")
    u = batch.tensors["u"].double().numpy()[0]
    lam0 = float(batch.options["lam0"] or 0)
    for h in range(s.H):
        m = lam0 * np.eye(s.K) + (0 if batch.state is None else _symmetric(batch.state["M"][0, h]))
        for t in range(s.T):
            m = m + np.outer(u[t, h], u[t, h])
            a, slack = columns[:, t, h, :].T, kappa[:, t, h, :].T
            where = f"head {h}, token {t}"
            allowed = THRESHOLD * float((slack + slack.T).max() + probe.roundoff * np.abs(a).max())
            yield probe.within(float(np.abs(a - a.T).max()), allowed, f"{where}: asymmetry of A")
            bound = THRESHOLD * (slack + probe.roundoff * np.abs(a)) @ np.abs(m)
            excess = float((np.abs(a @ m - np.eye(s.K)) / bound).max())
            yield probe.within(excess, 1.0, f"{where}: |A M - I| over its bound")
            least = float(np.linalg.eigvalsh((a + a.T) / 2).min())
            yield probe.holds(-least, 0.0, f"{where}: minus the least eigenvalue of A")


def _unit_columns(batch: Batch) -> Batch:
    """Row i of the new batch solves for the unit vector e_i, with the u of row 0."""
    s = batch.case.structure
    eye = torch.eye(s.K, dtype=batch.tensors["x"].dtype).view(s.K, 1, 1, s.K)
    tensors = {
        "x": eye.expand(s.K, s.T, s.H, s.K).contiguous(),
        "u": batch.tensors["u"][:1].expand(s.K, s.T, s.H, s.K).contiguous(),
    }
    state = None if batch.state is None else {k: x[:1].repeat(s.K, 1, 1, 1) for k, x in batch.state.items()}
    case = msgspec.structs.replace(batch.case, structure=msgspec.structs.replace(s, B=s.K, layout="contiguous"))
    cotangents = {"o": torch.zeros_like(tensors["x"])}
    return Batch(case, tensors, state, batch.options, cotangents)


def _symmetric(x: torch.Tensor) -> Array:
    a = x.double().numpy()
    return (a + a.T) / 2


@dataclass(frozen=True)
class _Step:
    """The geometry of one write, in float64 from the inputs alone."""

    m: Array
    key: Array
    direction: Array
    gain: float
    c: float
    growth: float


def _walk(batch: Batch, row: int, head: int) -> Iterator[_Step]:
    """The steps of one row and head. Zero keys write nothing: their direction is zero."""
    k = batch.tensors["k"].double().numpy()[row, :, head]
    u = batch.tensors["u"].double().numpy()[row, :, head]
    width = k.shape[-1]
    m = float(batch.options["lam0"] or 0) * np.eye(width)
    if batch.state is not None:
        m = m + _symmetric(batch.state["M"][row, head])
    for t in range(len(k)):
        growth = 1 + float(u[t] @ np.linalg.solve(m, u[t]))
        m = m + np.outer(u[t], u[t])
        size = float(np.linalg.norm(k[t]))
        key = k[t] / size if size else k[t]
        raw = np.linalg.solve(m, key)
        gain = float(np.linalg.norm(raw))
        direction = raw / gain if gain else raw
        yield _Step(m, key, direction, gain, float(direction @ key), growth)


def bounded_state(probe: Probe) -> Iterator[Finding]:
    """|S_t|_F never exceeds the certificate, at every chunk edge and at the end."""
    batch, s = probe.batch, probe.batch.case.structure
    if batch.options["gain"] != "unit" or batch.cu_seqlens is not None:
        return
    points = sorted({1, 2, s.T // 2, 64, s.T} & set(range(1, s.T + 1)))
    norms = {t: probe.run(_prefix(batch, t))["state.S"].double().norm(dim=(-2, -1)).numpy() for t in points}
    v = batch.tensors["v"].double().numpy()
    for b in range(s.B):
        for h in range(s.H):
            energy = 0.0
            if batch.state is not None:
                m0 = float(batch.options["lam0"] or 0) * np.eye(s.K) + _symmetric(batch.state["M"][b, h])
                s0 = batch.state["S"][b, h].double().numpy()
                energy = float(np.sqrt(np.trace(s0.T @ m0 @ s0)))
            for t, step in enumerate(_walk(batch, b, h), start=1):
                write = np.sqrt(step.c / step.gain) if step.gain else 0.0
                energy = np.sqrt(step.growth) * energy + float(np.linalg.norm(v[b, t - 1, h])) * write
                if t in norms:
                    bound = energy / np.sqrt(np.linalg.eigvalsh(step.m).min())
                    slack = 1 + THRESHOLD * probe.roundoff * s.T
                    yield probe.holds(float(norms[t][b, h]), slack * bound, f"|S| after {t} tokens, row {b}, head {h}")


def _prefix(batch: Batch, length: int) -> Batch:
    structure = msgspec.structs.replace(batch.case.structure, T=length)
    tensors = {name: x[:, :length] for name, x in batch.tensors.items()}
    return batch.with_(case=msgspec.structs.replace(batch.case, structure=structure), tensors=tensors)


def _jacobians(probe: Probe) -> Iterator[tuple[str, Array, _Step]]:
    """(where, J, step): the transition as the implementation applies it, read off with S = I and v = 0."""
    batch, s = probe.batch, probe.batch.case.structure
    if batch.options["gain"] != "unit" or s.T == 0 or batch.cu_seqlens is not None:
        return
    wide = torch.float64 if batch.case.dtype == "float64" else torch.float32
    for t in sorted({0, s.T // 2, s.T - 1}):
        tensors = {name: x[:, t : t + 1].contiguous() for name, x in batch.tensors.items()}
        tensors["v"] = torch.zeros(*tensors["k"].shape, dtype=tensors["v"].dtype)
        u = batch.tensors["u"][:, :t].double()
        m = torch.einsum("bthi,bthj->bhij", u, u)
        if batch.state is not None:
            m = m + (batch.state["M"] + batch.state["M"].transpose(-1, -2)).double() / 2
        eye = torch.eye(s.K, dtype=wide).expand(s.B, s.H, s.K, s.K).contiguous()
        state = {"S": eye, "M": m.to(wide), "z": torch.ones(s.B, s.H, s.K, dtype=wide)}
        case = msgspec.structs.replace(batch.case, structure=msgspec.structs.replace(s, T=1, V=s.K, initial_state=True))
        one = Batch(case, tensors, state, batch.options, {})
        final = probe.run(one)["state.S"].double().numpy()
        for b in range(s.B):
            for h in range(s.H):
                yield f"token {t}, row {b}, head {h}", final[b, h].T, next(_walk(one, b, h))


def energy_norm(probe: Probe) -> Iterator[Finding]:
    """M - J M J^T equals ((2 - c)/|A k^|) k^ k^^T: the energy norm of J is exactly 1."""
    for where, j, step in _jacobians(probe):
        gain = (2 - step.c) / step.gain if step.gain else 0.0
        error = np.abs(step.m - j @ step.m @ j.T - gain * np.outer(step.key, step.key)).max()
        condition = np.linalg.cond(step.m)
        allowed = THRESHOLD * probe.roundoff * condition * np.abs(step.m).max() * max(1.0, np.linalg.norm(j, 2) ** 2)
        yield probe.within(float(error), float(allowed), f"{where}: energy identity")
        root = np.linalg.cholesky(step.m)
        norm = np.linalg.norm(np.linalg.solve(root, j @ root), 2)
        if len(step.key) > 1:
            bound = THRESHOLD * probe.roundoff * condition
            yield probe.within(abs(float(norm) - 1), float(bound), f"{where}: energy norm of J minus 1")


def spectral_norm(probe: Probe) -> Iterator[Finding]:
    """|J|_2 = (1 + sqrt(5 - 4c))/2 (1 - c in width 1), whatever the paper's proposition 2 says."""
    for where, j, step in _jacobians(probe):
        if not step.gain:
            continue
        expected = (1 + np.sqrt(5 - 4 * step.c)) / 2 if len(step.key) > 1 else abs(1 - step.c)
        allowed = THRESHOLD * probe.roundoff * np.linalg.cond(step.m)
        error = abs(float(np.linalg.norm(j, 2)) - float(expected))
        yield probe.within(error, float(allowed), f"{where}: spectral norm of J against sigma(c)")


def delta_net(probe: Probe) -> Iterator[Finding]:
    """With lam0 -> infinity the write direction is the key: DeltaNet with unit keys and beta = 1."""
    batch = probe.batch
    if batch.cu_seqlens is not None:
        return
    other = probe.operators["delta_net"]
    limit = batch.with_(options={**batch.options, "lam0": 2.0**60, "gain": "unit", "normalizer": False})
    k = batch.tensors["k"].double()
    size = k.norm(dim=-1, keepdim=True)
    key = torch.where(size > 0, k / size.clamp_min(torch.finfo(torch.float64).tiny), 0)
    tensors = {
        "q": batch.tensors["q"].double(), "k": key, "v": batch.tensors["v"].double(),
        "beta": torch.ones(key.shape[:-1], dtype=torch.float64),
    }  # fmt: skip
    case = msgspec.structs.replace(batch.case, operator=other.name, dtype="float64", options={"scale": 1.0})
    state = None if batch.state is None else {"S": batch.state["S"].double()}
    exact = run(other, other.variant(other.reference), Batch(case, tensors, state, {"scale": 1.0}, {}))["o"].numpy()
    wanted = probe.against(limit, "o", exact)
    verdict = compare("o", probe.run(limit)["o"], wanted, batch.case.dtype, probe.roundoff)
    yield Finding(verdict.ratio, f"lam0 = 2^60 against DeltaNet, beta = 1: {verdict.message()}")


INVERSE = Property(name="inverse", statement="A_t is symmetric positive definite and A_t M_t = I", check=inverse)
BOUNDED_STATE = Property(
    name="bounded-state", statement="|S_t|_F <= B_t / sqrt(lam_min(M_t)), the certificate", check=bounded_state,
    needs=frozenset({"state"}),
)  # fmt: skip
ENERGY_NORM = Property(
    name="energy-norm", statement="the transition has energy norm exactly 1", check=energy_norm,
    needs=frozenset({"state"}),
)  # fmt: skip
SPECTRAL_NORM = Property(
    name="spectral-norm", statement="the transition has spectral norm (1 + sqrt(5 - 4c))/2", check=spectral_norm,
    needs=frozenset({"state"}),
)  # fmt: skip
DELTA_NET = Property(
    name="delta-net-limit", statement="lam0 -> infinity gives DeltaNet with unit keys and beta = 1", check=delta_net
)
