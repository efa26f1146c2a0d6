"""What the cases share: which variants a test runs on, uniform inputs, and how a result is judged.

A test that takes ``operator`` and ``variant`` runs on every variant of ours in the registry; the mark ``where(keep=f)``
keeps the pairs for which ``f(operator, variant)`` holds, ``under(keep=f)`` the options for which
``f(operator, options)`` does, ``f`` reading the record and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
import torch

from linattest.verify import grids, registry
from linattest.verify.devices import home, place
from linattest.verify.examine import Examination, runs
from linattest.verify.inputs import Batch, Case, Scalar, Structure, build, resolve_options
from linattest.verify.measure import Wanted, compare
from linattest.verify.signature import Input
from linattest.verify.spec import Operator, Variant
from linattest.verify.subjects import Outcome, run
from linattest.verify.tolerance import accumulation, unit_roundoff

Make = Callable[..., Batch]
Judge = Callable[..., None]
SameBits = Callable[..., None]

KERNELS = {"gla", "gated_delta_net", "covariance_contract"}
"""Operators whose kernels the cases run on too where there is a GPU, or with LINATTEST_CASES=kernels (the interpreter,
for hours): of the three kinds that there are, one each."""

ON_KERNELS = torch.cuda.is_available() or os.environ.get("LINATTEST_CASES") == "kernels"


def ours(operator: Operator, variant: Variant) -> bool:
    """Whether a case runs on a variant."""
    if variant.kernel:
        return ON_KERNELS and operator.name in KERNELS
    return variant.function.startswith("linattest.impls.")


OURS = [(o, v) for o in registry.OPERATORS for v in o.variants if ours(o, v)]


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers."""
    config.addinivalue_line("markers", "where(keep=predicate): run on the (operator, variant) pairs for which it holds")
    config.addinivalue_line("markers", "under(keep=predicate): run where it holds of (operator, resolved options)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on all that its markers keep; a test kept from everything is an error.

    A test with ``setting`` runs under every option setting of the grid, otherwise under the defaults; one with ``gate``
    takes each log-gate input in turn.
    """
    names = [name for name in ("operator", "variant", "setting", "gate") if name in metafunc.fixturenames]
    if not names:
        return
    where, under = ([m.kwargs["keep"] for m in metafunc.definition.iter_markers(name)] for name in ("where", "under"))
    rows: dict[str, tuple[object, ...]] = {}
    for o, v in (pair for pair in OURS if all(keep(*pair) for keep in where)):
        for setting in grids.settings(o) if "setting" in names else [{}]:
            options = resolve_options(o, setting)
            if not all(keep(o, options) for keep in under):
                continue
            gates = [x for x in o.inputs_of(options) if x.domain == "log_gate"] if "gate" in names else [None]
            for gate in gates:
                values = {"operator": o, "variant": v, "setting": setting, "gate": gate}
                words = [o.name, v.name if "variant" in names else "", *(f"{k}={x}" for k, x in setting.items())]
                words.append(gate.name if gate else "")
                rows["-".join(word for word in words if word)] = tuple(values[name] for name in names)
    assert rows, f"{metafunc.definition.nodeid}: no registered operator has what the case needs"
    metafunc.parametrize(", ".join(names), [pytest.param(*row, id=name) for name, row in rows.items()])


def run_anywhere(operator: Operator, variant: Variant, batch: Batch, **more: Any) -> Outcome:
    """``subjects.run``, kernels on the GPU if there is one."""
    if variant.kernel and batch.case.dtype == "float64":
        pytest.skip("a kernel takes no float64: launch.check_dtype says so")
    if not (variant.kernel and torch.cuda.is_available()):
        return run(operator, variant, batch, **more)
    return home(run(operator, variant, place(batch.copy(), "cuda"), **more))


@pytest.fixture(autouse=True)
def kernels_run_where_they_can(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test module's ``run`` takes kernels too."""
    if hasattr(request.module, "run"):
        monkeypatch.setattr(request.module, "run", run_anywhere)


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
    number for all, or a tensor that is broadcast (a number a head to all its channels).
    """

    def of(operator: Operator, *, fill: Mapping[str, float | torch.Tensor] | None = None, **sizes: object) -> Batch:
        batch = make(operator, **sizes)
        tensors: dict[str, torch.Tensor] = {}
        for x in operator.inputs_of(batch.options):
            value = torch.zeros_like(batch.tensors[x.name])
            if x.domain != "log_gate" and x.name != "erase":
                (value[..., 0] if x.shape.endswith(" K") else value).fill_(1)
            if fill is not None and x.name in fill:
                given = torch.as_tensor(fill[x.name], dtype=value.dtype)
                value[...] = given.unsqueeze(-1) if given.dim() == value.dim() - 1 else given
            tensors[x.name] = value
        cotangents = {name: torch.zeros_like(x) for name, x in batch.cotangents.items()}
        return batch.with_(tensors=tensors, cotangents=cotangents)

    return of


@pytest.fixture(scope="session")
def gated_sum(uniform: Make) -> Callable[..., tuple[Batch, str]]:
    """The plain gated sum, sum_{s <= t} exp(g_{s+1} + .. + g_t), and the name of the value that is one.

    That is the output with scale 1 or, if the gate acts on the statistics of keys, their count (at the end). Where beta
    corrects what is stored under a key, each token has a key of its own, and queries read them all, unless ``K`` is
    given. All gates are ``g``.
    """

    def of(
        operator: Operator, setting: Mapping[str, Scalar], gate: Input, *, T: int, g: object, K: int = 0, **more: Any
    ) -> tuple[Batch, str]:
        options = resolve_options(operator, setting)
        inputs, states = operator.inputs_of(options), operator.states_of(options)
        fill = {x.name: g for x in inputs if x.domain == "log_gate"} | more.pop("fill", {})
        if not K and any(x.domain == "beta" for x in inputs):
            K, fill = T, {**fill, "q": 1.0, "k": torch.eye(T).view(1, T, 1, T)}
            fill |= {x.name: 0.0 for x in inputs if x.domain == "rate"}  # such keys vary: leave queries alone
        one = {**setting, "scale": 1.0} if "scale" in options else setting
        batch = uniform(operator, T=T, K=K or 2, V=1, options=one, fill=fill, **more)
        per_head = gate.shape.removeprefix("B T")
        counts = [x.name for x in states if x.domain == "count" and x.shape.removeprefix("N") == per_head]
        return batch, f"state.{counts[0]}" if counts else "o"

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
            values = obtain(variant) if obtain else run_anywhere(operator, variant, batch, backward=backward).values
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
