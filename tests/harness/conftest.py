"""A record of claims, with every verdict and figure, for tests of what is made of one."""

from contextlib import AbstractContextManager, nullcontext

import pytest

from linattest.verify.claims import dependence, figures, ledger
from linattest.verify.claims.record import Claims, Figure, Outcome, collect
from linattest.verify.claims.verdicts import WORDS, counted, exact, measured, reason
from linattest.verify.executors import InProcess, Local, local_executor


@pytest.fixture
def claims_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker claims are computed in this process, where a test may have replaced something, and faster."""

    def executor(workers: int) -> AbstractContextManager[InProcess | Local]:
        return nullcontext(InProcess()) if workers == 1 else local_executor(workers)

    monkeypatch.setattr(ledger, "local_executor", executor)


@pytest.fixture(scope="session")
def claims_record() -> Claims:
    """Every row of the ledger with its recorded verdict, evidence of every kind, and the three figures, small."""
    made: dict[str, Figure] = {
        "figures:sigma_curve": figures.sigma_curve(points=11, seeds=1, T=8),
        "figures:state_norms": figures.state_norms((8, 16), steps=2, longer=(32,), seeds=2),
        "figures:contraction_region": figures.contraction_region(points=9),
    }
    evidence = (
        exact("two tokens and a text with <b>markup</b>", True, -1, value="7/2"),
        reason("instead: a nearby statement that_has_a_word_longer_than_any_column_is_wide_and_more_of_it"),
        measured("a figure", [1.0, 1.1, 0.9], where="impls/vla.py"),
        counted("what is counted", True, by={"vla": 1}),
    )
    outcomes = [
        Outcome(
            id=row.id, paper=row.paper, statement=row.statement, where=row.where, scope=row.scope,
            verdict=row.expected, expected=row.expected, evidence=evidence, sources=(names := dependence.sources(row)),
            hash=dependence.row_hash(row, names), figure=made.get(row.figure or ""), seconds=0.1,
        )
        for row in ledger.read()
    ]  # fmt: skip
    assert {o.verdict for o in outcomes} == set(WORDS)
    return collect(outcomes, 1.5)
