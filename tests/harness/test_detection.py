"""The measure can see: faults of known size turn red through ``examine``, and the same code without them does not."""

import dataclasses
from typing import Any

import pytest
import torch

from linattest.impls import vla
from linattest.impls.vla import VLAState
from linattest.verify import registry
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record
from linattest.verify.spec import FEATURES, Variant
from linattest.verify.tolerance import THRESHOLD

VLA = registry.operator("vla")
Result = tuple[torch.Tensor, Any]

recurrent: Any = vla.recurrent

DENSE = Structure(T=37, K=8, V=6, H=2, initial_state=True)
PACKED = Structure(T=20, K=4, V=3, H=2, cu_seqlens=(0, 7, 7, 18), initial_state=True)


def unfaulted(*x: torch.Tensor, **given: Any) -> Result:
    return recurrent(*x, **given)


def wide(*x: torch.Tensor, **given: Any) -> Result:
    """The right answer before its last rounding."""
    return recurrent(*(y if y.dtype == torch.float64 else y.float() for y in x), **given)


def token_by_token(dtype: torch.dtype, x: tuple[torch.Tensor, ...], given: dict[str, Any]) -> Result:
    """Decode with the state kept in a narrow type between tokens."""
    state, rows = given.pop("initial_state"), []
    del given["output_final_state"]
    for t in range(x[0].shape[1]):
        o, state = vla.step(*(y[:, t : t + 1] for y in x), initial_state=state, **given)
        state = VLAState(*(y.to(dtype).to(y.dtype) for y in state))
        rows.append(o)
    return torch.cat(rows, 1), state


def state_in_bfloat16(*x: torch.Tensor, **given: Any) -> Result:
    return token_by_token(torch.bfloat16, x, given)


def state_in_float16(*x: torch.Tensor, **given: Any) -> Result:
    return token_by_token(torch.float16, x, given)


def output_up_a_hundredth(*x: torch.Tensor, **given: Any) -> Result:
    o, state = wide(*x, **given)
    return (1.01 * o).to(x[0].dtype), state


def values_up_a_hundredth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, **given: Any) -> Result:
    o, state = wide(q, k, 1.01 * v.float(), u, **given)
    return o.to(q.dtype), state


def ridge_doubled(*x: torch.Tensor, lam0: Any, **given: Any) -> Result:
    return recurrent(*x, lam0=2 * lam0, **given)


def ridge_up_a_thousandth(*x: torch.Tensor, lam0: Any, **given: Any) -> Result:
    return recurrent(*x, lam0=1.001 * lam0, **given)


def zeros(*x: torch.Tensor, **given: Any) -> Result:
    o, state = recurrent(*x, **given)
    return 0 * o, VLAState(*(0 * y for y in state))


def one_nan(*x: torch.Tensor, **given: Any) -> Result:
    o, state = recurrent(*x, **given)
    hole = torch.zeros_like(o)
    hole[0, 5, 1, 2] = torch.nan
    return o + hole, state


def initial_state_dropped(*x: torch.Tensor, initial_state: Any, **given: Any) -> Result:
    return recurrent(*x, **given)


def tail_mask_dropped(*x: torch.Tensor, **given: Any) -> Result:
    """The rows that fill the last chunk, copies of the first token, join the final state."""
    T = x[0].shape[1]
    o, state = recurrent(*(torch.cat([y, y[:, :1].expand(-1, -T % 64, -1, -1)], 1) for y in x), **given)
    return o[:, :T], state


def normaliser_one_token_late(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, **given: Any
) -> Result:
    o, state = wide(q, k, v, u, **(given | {"normalizer": False}))
    z = given["initial_state"][2][:, None] + k.to(o.dtype).cumsum(1) - k.to(o.dtype)
    return (o / (z * q.to(o.dtype)).sum(-1, keepdim=True)).to(q.dtype), state


def heads_swapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, **given: Any) -> Result:
    return recurrent(q, k, v, u.flip(2), **given)


def key_gradient_cut(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, **given: Any) -> Result:
    return recurrent(q, k.detach(), v, u, **given)


def ridge_gradient_cut(*x: torch.Tensor, lam0: Any, **given: Any) -> Result:
    return recurrent(*x, lam0=lam0.detach() if isinstance(lam0, torch.Tensor) else lam0, **given)


def value_gradient_up_a_hundredth(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, **given: Any
) -> Result:
    v = v.clone()
    if v.requires_grad:
        v.register_hook(lambda g: (1.01 * g.double()).to(g.dtype))
    return recurrent(q, k, v, u, **given)


def final_penalty_with_ridge(*x: torch.Tensor, lam0: Any, **given: Any) -> Result:
    o, state = recurrent(*x, lam0=lam0, **given)
    return o, state._replace(M=state.M + lam0 * torch.eye(state.M.shape[-1], dtype=state.M.dtype))


def packs_leak(*x: torch.Tensor, cu_seqlens: torch.Tensor, initial_state: VLAState, **given: Any) -> Result:
    """Each sequence after the first starts from the state its neighbour left."""
    rows, finals = [], [VLAState(*(y[:1] for y in initial_state))]
    offsets = cu_seqlens.tolist()
    for a, b in zip(offsets, offsets[1:], strict=False):
        o, state = recurrent(*(y[:, a:b] for y in x), initial_state=finals[-1], **given)
        rows.append(o)
        finals.append(state)
    o = torch.cat([*rows, torch.zeros_like(x[2][:, offsets[-1] :])], 1)
    return o, VLAState(*(torch.cat(parts) for parts in zip(*finals[1:], strict=True)))


FAULTS = {
    "bfloat16": {
        state_in_bfloat16: {"o", "state.S"},
        state_in_float16: {"o", "state.S"},
        output_up_a_hundredth: {"o"},
        values_up_a_hundredth: {"o", "state.S"},
        ridge_doubled: {"o", "d k"},
        zeros: {"o", "state.z", "d q"},
        one_nan: {"o"},
        normaliser_one_token_late: {"o"},
        heads_swapped: {"o", "d u"},
        key_gradient_cut: {"d k"},
        value_gradient_up_a_hundredth: {"d v"},
    },
    "float32": {
        ridge_up_a_thousandth: {"o", "d u"},
        initial_state_dropped: {"o", "state.S", "d state.S"},
        tail_mask_dropped: {"state.S", "state.M", "state.z"},
        ridge_gradient_cut: {"d lam0"},
        final_penalty_with_ridge: {"state.M"},
        packs_leak: {"o", "state.M"},
    },
}
"""By dtype: a fault, and the outputs and gradients of which each must be out of its budget."""

ROWS = [(dtype, fault, seen) for dtype, faults in FAULTS.items() for fault, seen in faults.items()]


def examined(dtype: str, structure: Structure, *functions: Any) -> dict[str, list[Record]]:
    """The records of these functions, judged as variants of the operator on one case."""
    variants = tuple(
        Variant(name=f.__name__, function=f"{__name__}:{f.__name__}", supports=FEATURES - {"grouped"})
        for f in functions
    )
    operator = dataclasses.replace(VLA, variants=(VLA.variant(VLA.reference), *variants), limitations=())
    case = Case(operator=VLA.name, structure=structure, dtype=dtype, seed=11)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BY_NAME, VLA.name, operator)
        records = examine(Job(case), tuple(variant.name for variant in variants))
    return {v.name: [r for r in records if r.variant == v.name] for v in variants}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Record]]:
    """Every fault's records."""
    records: dict[str, list[Record]] = {}
    for dtype, faults in FAULTS.items():
        records |= examined(dtype, DENSE, *(f for f in faults if f is not packs_leak))
    return records | examined("float32", PACKED, packs_leak)


@pytest.mark.parametrize(
    ("dtype", "fault", "seen"), ROWS, ids=[f"{dtype}-{fault.__name__}" for dtype, fault, _ in ROWS]
)
def test_fault_is_seen(dtype: str, fault: Any, seen: set[str], found: dict[str, list[Record]]):
    records = found[fault.__name__]
    assert [r.status for r in records if r.status == "error"] == [], records
    assert all(r.case.dtype == dtype for r in records)
    ratios = {name: ratio for record in records for name, ratio in record.ratios.items()}
    for name in seen:
        ratio = ratios[name]
        assert ratio is None or ratio > THRESHOLD, f"{name}: {ratio}"
    assert any(record.failed for record in records)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("structure", [DENSE, PACKED], ids=["dense", "packed"])
def test_without_a_fault_nothing_is_seen(dtype: str, structure: Structure):
    (records,) = examined(dtype, structure, unfaulted).values()
    assert {r.direction for r in records} == {"forward", "gradient"}
    assert [r.message for r in records if r.failed] == []
