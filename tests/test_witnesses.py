"""Every input that a search has found and kept shows today what it showed then, to the last of 60 digits."""

from pathlib import Path

import pytest
import torch

from linattest.impls.layer_operands import Penalised
from linattest.impls.layer_parts import Widths
from linattest.verify import registry
from linattest.verify.examine import Examination, planned, verdicts
from linattest.verify.probe import Probe
from linattest.verify.search.confirm import DIGITS
from linattest.verify.search.witness import Kept, load, replay, space_of
from linattest.verify.subjects import run
from linattest.verify.tolerance import THRESHOLD

FOLDER = Path(__file__).parent / "cases" / "witnesses"
FILES = sorted(FOLDER.glob("*.safetensors"))
FAR = 1e-12
"""Relative; the replay itself asks for forty digits."""


KEPT = {path.stem: load(path) for path in FILES}


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest) -> Kept:
    return KEPT[request.param]


def test_witness_stands(kept: Kept):
    result = replay(kept, DIGITS)
    assert result.stands, result.why
    assert result.value == pytest.approx(kept.witness.value, rel=FAR)
    assert result.exact is not None and result.exact.digits == DIGITS


@pytest.mark.parametrize(("objective", "least"), [("state-norm", 100), ("jacobian", 1.5), ("product", 10)])
def test_bounded_inputs_of_64_tokens_at_width_4_are_known_that_exceed(objective: str, least: float):
    found = [
        w.exact for w in (x.witness for x in KEPT.values())
        if (w.case.operator, w.objective, w.tie) == ("vla", objective, "tied")
        and (w.case.structure.T, w.case.structure.K, w.case.options) == (64, 4, {})
    ]  # fmt: skip
    assert found and all(exact is not None and float(exact) > least for exact in found)


@pytest.mark.parametrize("kept", [name for name, x in KEPT.items() if x.witness.tie == "tied"], indirect=True)
def test_layer_makes_the_operator_s_inputs_from_the_raw_keys(kept: Kept):
    """Up to the length of keys, which the operator divides out: the bounds are those of the layer, not only ours."""
    free, width = kept.tensors["free"], kept.witness.case.structure.K
    layer = Penalised(Widths(D=width, H=1, HV=1, K=width, V=width), dtype=torch.float64)
    with torch.no_grad():
        layer.u_proj.weight.copy_(free["u"][0])
        made = layer(free["k"], free["q"], free["k"], kept.tensors["input"]["v"])
    for name in ("k", "u"):
        length = made[name].norm(dim=-1, keepdim=True) if name == "k" else 1
        torch.testing.assert_close(made[name] / length, kept.tensors["input"][name], rtol=0, atol=FAR)


def test_every_variant_is_accurate_on_it(kept: Kept):
    space, operator = space_of(kept.witness), registry.operator(kept.witness.case.operator)
    examination = Examination(operator, space.batch(kept.tensors["input"]))
    judged = [
        (variant.name, verdict)
        for variant, direction, _ in planned(operator, examination.batch.case)
        for verdict in verdicts(examination, variant, direction, run(operator, variant, examination.batch.copy()))
    ]
    assert {name for name, _ in judged} == {variant.name for variant in operator.variants if not variant.kernel}
    assert all(verdict.passed for _, verdict in judged), [v.message() for _, v in judged if not v.passed]


def test_what_the_operator_s_page_says_holds_on_it(kept: Kept):
    """Among it, for VLA, the certificate that bounds every memory, and the norms that replace proposition 2."""
    space, operator = space_of(kept.witness), registry.operator(kept.witness.case.operator)
    batch, variant = space.batch(kept.tensors["input"]), operator.variant(operator.reference)
    examination = Examination(operator, batch)
    wanted = {name: examination.wanted(name, variant) for name in examination.outputs}
    for tried in operator.properties:
        findings = list(tried.check(Probe(operator, variant, batch.copy(), wanted, registry.BY_NAME)))
        assert findings and all(found.ratio <= THRESHOLD for found in findings), (tried.name, findings)
