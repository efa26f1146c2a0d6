"""What holds for a query contracted by the covariance of the keys, and for a memory read with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from linattest.verify.inputs import Batch, resolve_options
from linattest.verify.measure import compare
from linattest.verify.probe import Finding, Probe
from linattest.verify.spec import Property
from linattest.verify.subjects import Outcome
from linattest.verify.tolerance import THRESHOLD

Function = Callable[..., Any]


def contracts_nothing(probe: Probe) -> Iterator[Finding]:
    """lam = 0 gives back the query, whatever the keys."""
    batch = probe.batch
    still = batch.with_(tensors={**batch.tensors, "lam": torch.zeros_like(batch.tensors["lam"])})
    live = slice(0, batch.case.structure.sequences[-1][2] if batch.cu_seqlens is not None else None)
    yield probe.same_bits(probe.run(still)["o"][:, live], batch.tensors["q"][:, live], "q~ for lam = 0")


def sigma(probe: Probe) -> Iterator[Finding]:
    """Sigma_T, recovered column by column from unit queries of lam = 1, is symmetric and positive semi-definite."""
    batch, s = probe.batch, probe.batch.case.structure
    if s.T == 0 or s.K > 16 or batch.cu_seqlens is not None or batch.case.dtype not in ("float64", "float32"):
        return  # a column rounded to half precision says nothing about Sigma
    columns = _unit_queries(batch)
    got = probe.run(columns)["o"].double().numpy()[:, -1]  # [K, H, K]
    slack = THRESHOLD * (probe.sensitivity(columns).kappa("o")[:, -1] + probe.roundoff * np.abs(got))
    for h in range(s.H):
        covariance, loose = np.eye(s.K) - got[:, h].T, slack[:, h].T
        asymmetry = np.abs(covariance - covariance.T) - (loose + loose.T)
        yield probe.holds(float(asymmetry.max()), 0.0, f"head {h}: asymmetry of Sigma beyond its rounding")
        least = float(np.linalg.eigvalsh((covariance + covariance.T) / 2).min())
        yield probe.holds(-least, float(np.linalg.norm(loose)), f"head {h}: minus the least eigenvalue of Sigma")


def _unit_queries(batch: Batch) -> Batch:
    """Row i of the new batch asks with e_i and lam = 1, over the keys of row 0."""
    s = batch.case.structure
    eye = torch.eye(s.K, dtype=batch.tensors["q"].dtype).view(s.K, 1, 1, s.K)
    tensors = {name: x[:1].expand(s.K, *x.shape[1:]).contiguous() for name, x in batch.tensors.items()}
    tensors |= {"q": eye.expand(s.K, s.T, s.H, s.K).contiguous(), "lam": torch.ones_like(tensors["lam"])}
    state = (
        None if batch.state is None else {k: x[:1].repeat(s.K, *[1] * (x.dim() - 1)) for k, x in batch.state.items()}
    )
    case = msgspec.structs.replace(batch.case, structure=msgspec.structs.replace(s, B=s.K, layout="contiguous"))
    return Batch(case, tensors, state, batch.options, {"o": torch.zeros_like(tensors["q"])})


def any_order(probe: Probe) -> Iterator[Finding]:
    """Without forgetting, the last output does not depend on the order of the keys before it."""
    batch, s = probe.batch, probe.batch.case.structure
    if s.T < 3 or batch.options["forgetting"] or batch.cu_seqlens is not None:
        return
    order = torch.arange(s.T - 2, -1, -1).tolist() + [s.T - 1]
    moved = {name: x[:, order] for name, x in batch.tensors.items()}
    wanted = probe.wanted["o"].rows(slice(s.T - 1, s.T))
    last = probe.run(batch.with_(tensors=moved))["o"][:, -1:]
    verdict = compare("o", last, wanted, batch.case.dtype, probe.roundoff)
    yield Finding(verdict.ratio, f"last output for keys in reverse order: {verdict.message()}")


# --- on a backbone ---------------------------------------------------------------------------------------------


def _backbone(probe: Probe) -> Outcome:
    """The backbone's variant of the same name (its chunk form, if it has none), on the same tensors."""
    batch = probe.batch
    other = probe.operators[str(batch.options["backbone"])]
    name = next((v.name for v in other.variants if v.name == probe.variant.name), "chunk")
    known = {x.name for x in other.options}
    given = {k: v for k, v in batch.options.items() if k in known and v is not None}
    options = resolve_options(other, given)  # type: ignore[arg-type]
    tensors = {x.name: batch.tensors[x.name] for x in other.inputs_of(options)}
    states = {x.name for x in other.states_of(options)}
    state = None if batch.state is None else {k: x for k, x in batch.state.items() if k in states}
    case = msgspec.structs.replace(batch.case, operator=other.name, options={})
    alone = Batch(case, tensors, state, options, {}, batch.cu_seqlens)
    return probe.run(alone, variant=other.variant(name), operator=other)


def is_its_backbone(probe: Probe) -> Iterator[Finding]:
    """lam = 0 reads the backbone's memory with the query itself."""
    batch = probe.batch
    still = batch.with_(tensors={**batch.tensors, "lam": torch.zeros_like(batch.tensors["lam"])})
    yield probe.same_bits(probe.run(still)["o"], _backbone(probe)["o"], f"lam = 0 against {batch.options['backbone']}")


def memory_untouched(probe: Probe) -> Iterator[Finding]:
    """Only the read changes: what is kept is what the backbone keeps."""
    alone = _backbone(probe)
    for name in (name for name in alone.values if name.startswith("state.")):
        yield probe.same_bits(probe.outcome[name], alone[name], f"{name} against {probe.batch.options['backbone']}")


# --- planted faults ----------------------------------------------------------------------------------------------


def contracts_a_little(right: Function) -> Function:
    """lam is never quite 0."""

    def wrong(q: torch.Tensor, k: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        *between, lam = x
        return right(q, k, *between, lam + 1e-2, **given)

    return wrong


def mean_forgotten(right: Function) -> Function:
    """The second moment in place of the covariance: the mean is not subtracted."""

    def wrong(q: torch.Tensor, k: torch.Tensor, lam: torch.Tensor, **given: Any) -> Any:
        o, state = right(q, k, lam, **given)
        mean = k.double().cumsum(1) / torch.arange(1, k.shape[1] + 1).view(1, -1, 1, 1)
        extra = lam[..., None] * mean * (mean * q.double()).sum(-1, keepdim=True)
        return (o.double() - 0.5 * extra * torch.arange(k.shape[1]).view(1, -1, 1, 1)).to(o.dtype), state

    return wrong


def sign_flipped(right: Function) -> Function:
    """q + lam Sigma q: Sigma would be negative."""

    def wrong(q: torch.Tensor, k: torch.Tensor, lam: torch.Tensor, **given: Any) -> Any:
        return right(q, k, -lam, **given)

    return wrong


def keeps_the_clean_query(right: Function) -> Function:
    """The memory takes part in the contraction."""

    def wrong(*x: torch.Tensor, **given: Any) -> Any:
        o, (covariance, memory) = right(*x, **given)
        scaled = memory * 1.01 if isinstance(memory, torch.Tensor) else tuple(part * 1.01 for part in memory)
        return o, (covariance, scaled)

    return wrong


CONTRACTS_NOTHING = Property(
    name="contracts-nothing", statement="lam = 0 gives back the query, bitwise", check=contracts_nothing,
    faults=(contracts_a_little,),
)  # fmt: skip
SIGMA = Property(
    name="sigma", statement="the covariance is symmetric and positive semi-definite", check=sigma,
    faults=(sign_flipped,),
)  # fmt: skip
ANY_ORDER = Property(
    name="any-order", statement="without forgetting the order of earlier keys does not matter", check=any_order,
    faults=(mean_forgotten,),
)  # fmt: skip
IS_ITS_BACKBONE = Property(
    name="is-its-backbone", statement="lam = 0 is the backbone, bitwise", check=is_its_backbone,
    faults=(contracts_a_little,),
)  # fmt: skip
MEMORY_UNTOUCHED = Property(
    name="memory-untouched", statement="the backbone's state is the same with and without contraction, bitwise",
    check=memory_untouched, needs=frozenset({"state"}), faults=(keeps_the_clean_query,),
)  # fmt: skip
