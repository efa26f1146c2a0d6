"""What the cases share: which variants a test runs on, uniform inputs, and how a result is judged.

A test that takes ``operator`` and ``variant`` runs on every variant of ours in the registry; the mark ``where(keep=f)``
keeps the pairs for which ``f(operator, variant)`` holds, ``f`` reading the record and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest
import torch

from linattest.verify import registry
from linattest.verify.examine import Examination, runs
from linattest.verify.inputs import Batch, Case, Scalar, Structure, build
from linattest.verify.measure import Wanted, compare
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import run
from linattest.verify.tolerance import accumulation, unit_roundoff

Make = Callable[..., Batch]
Judge = Callable[..., None]
SameBits = Callable[..., None]

OURS = [(o, v) for o in registry.OPERATORS for v in o.variants if v.function.startswith("linattest.impls.")]


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "where(keep=predicate): run on the (operator, variant) pairs for which it holds")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every pair that its ``where`` markers keep; a test kept from all of them is an error."""
    if "operator" not in metafunc.fixturenames:
        return
    markers = list(metafunc.definition.iter_markers("where"))
    kept = [pair for pair in OURS if all(marker.kwargs["keep"](*pair) for marker in markers)]
    assert kept, f"{metafunc.definition.nodeid}: no registered operator has what the case needs"
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("operator, variant", [pytest.param(o, v, id=f"{o.name}-{v.name}") for o, v in kept])
    else:
        alone = {o.name: o for o, _ in kept}
        metafunc.parametrize("operator", [pytest.param(o, id=name) for name, o in alone.items()])


@pytest.fixture(scope="session")
def make() -> Make:
    """Random tensors of the operator's domains: ``make(operator, T=5, K=3, V=2, dtype="float32", ...)``.

    Sizes go to the structure, ``options``, ``dtype``, ``family`` and ``seed`` to the case.
    """

    def of(
        operator: Operator,
        *,
        dtype: str = "float32",
        family: str = "random",
        seed: int = 0,
        options: Mapping[str, Scalar] | None = None,
        **sizes: object,
    ) -> Batch:
        structure = Structure(**sizes)  # type: ignore[arg-type]
        case = Case(
            operator=operator.name,
            structure=structure,
            dtype=dtype,
            family=family,
            seed=seed,
            options=dict(options or {}),
        )
        return build(operator, case)

    return of


@pytest.fixture(scope="session")
def uniform(make: Make) -> Make:
    """The reports' notation: keys and queries are the first unit vector, values 1, beta 1, gates 0.

    An operator with erase keys gets zero ones, which makes it a plain (gated) sum. ``fill`` sets inputs by name: a
    number for all, or a tensor that is broadcast.
    """

    def of(operator: Operator, *, fill: Mapping[str, float | torch.Tensor] | None = None, **sizes: object) -> Batch:
        batch = make(operator, **sizes)
        tensors: dict[str, torch.Tensor] = {}
        for x in operator.inputs_of(batch.options):
            value = torch.zeros_like(batch.tensors[x.name])
            if x.shape.endswith(" K") and x.name != "erase":
                value[..., 0] = 1
            elif x.domain != "log_gate" and x.name != "erase":
                value.fill_(1)
            if fill is not None and x.name in fill:
                value[...] = fill[x.name]
            tensors[x.name] = value
        cotangents = {name: torch.zeros_like(x) for name, x in batch.cotangents.items()}
        return batch.with_(tensors=tensors, cotangents=cotangents)

    return of


@pytest.fixture(scope="session")
def judge() -> Judge:
    """Hold results to the harness's budget: outputs and states against the oracle, gradients against the float64
    reference. ``judge(operator, batch, backward=True)`` runs every variant that takes the batch.

    ``obtain(variant)`` replaces that run: it returns named values, or None where the variant has none to offer.
    """

    def of(
        operator: Operator,
        batch: Batch,
        obtain: Callable[[Variant], Mapping[str, torch.Tensor] | None] | None = None,
        *,
        backward: bool = False,
    ) -> None:
        case = msgspec.structs.replace(batch.case, gradient=backward)
        examination = Examination(operator, batch.with_(case=case))
        roundoff = unit_roundoff(accumulation(case.dtype))
        known = [*examination.truth.hi, *(name for name in examination.sensitivity.values if name.startswith("d "))]
        judged = 0
        for variant in (v for o, v in OURS if o is operator and runs(o, v, case)):
            values = obtain(variant) if obtain else run(operator, variant, batch, backward=backward).values
            for name in values or {}:
                assert name in known, f"{variant.name} gives {name}; known: {known}"
                wanted = examination.wanted(name, variant)
                verdict = compare(name, values[name], wanted, examination.dtype_of(name), roundoff)
                assert verdict.passed, f"{variant.name} on {case.describe()}: {verdict.message()}"
                judged += 1
        assert judged, "no variant gave anything to judge"

    return of


@pytest.fixture(scope="session")
def near() -> Judge:
    """``near(name, got, exact, kappa, dtype)``: the measure with an exact value and an unavoidable error of our own."""

    def of(name: str, got: torch.Tensor, exact: torch.Tensor, kappa: torch.Tensor, dtype: str) -> None:
        hi, zero = exact.double().numpy(), torch.zeros_like(exact, dtype=torch.float64).numpy()
        wanted = Wanted(hi, zero, kappa.double().numpy(), zero, 2)
        verdict = compare(name, got, wanted, dtype, unit_roundoff(accumulation(dtype)))
        assert verdict.passed, verdict.message()

    return of


@pytest.fixture(scope="session")
def same_bits() -> SameBits:
    """``same_bits(got, wanted, what)``: equal values, dtype and shape; NaN equals NaN."""

    def of(got: torch.Tensor, wanted: torch.Tensor, what: str = "") -> None:
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, f"{what}: {got.shape}, {got.dtype}"
        same = (got == wanted) | (got.isnan() & wanted.isnan())
        if not bool(same.all()):
            place = tuple((~same).nonzero()[0].tolist())
            raise AssertionError(
                f"{what}{list(place)}: {int((~same).sum())} of {same.numel()} differ, "
                f"got {got[place].item()!r}, wanted {wanted[place].item()!r}"
            )

    return of
