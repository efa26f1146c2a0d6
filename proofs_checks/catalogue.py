"""Every statement that is checked by machine, and running them. The list of modules is written out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import cast

from linattest.proofs_checks import pins
from linattest.proofs_checks.proof import Method, Proof, Statement, prove
from linattest.verify.executors import local_executor


@dataclass(frozen=True)
class Module:
    """A module with ``STATEMENTS``, the method it uses, and the package without which it cannot be imported."""

    name: str
    method: Method
    needs: str


MODULES = (
    Module("smt.jacobian", "smt", "z3"),
    Module("smt.kantorovich", "smt", "z3"),
    Module("smt.fenwick", "smt", "z3"),
    Module("smt.sums", "smt", "z3"),
    Module("smt.bounds", "smt", "z3"),
    Module("symbolic.penalty", "symbolic", "sympy"),
    Module("symbolic.covariance", "symbolic", "sympy"),
    Module("symbolic.weights", "symbolic", "sympy"),
    Module("enclosures.constants", "enclosure", "flint"),
    Module("enclosures.witnesses", "enclosure", "flint"),
    Module("exhaustive.functions", "exhaustive", "flint"),
    Module("exhaustive.kernels", "exhaustive", "triton"),
    Module("coq.theorems", "coq", "fcntl"),  # without coqc each of its statements is skipped
)


class BrokenError(Exception):
    """A module of statements is gone or cannot be imported, though its tool is installed."""


def statements(module: Module) -> tuple[Statement, ...]:
    """The statements of a module.

    Raises:
        ImportError: the package it needs is not installed.
        BrokenError: it cannot be imported for another reason.
    """
    importlib.import_module(module.needs)
    try:
        return importlib.import_module(f"linattest.proofs_checks.{module.name}").STATEMENTS
    except (Exception, SystemExit) as error:
        raise BrokenError(f"{type(error).__name__}: {error}") from error


def absent(module: Module, why: Exception) -> Proof:
    """What stands for a module without statements, and is no pass: skipped without its tool, else unknown."""
    skipped = isinstance(why, ImportError)
    evidence = {"skipped": f"{module.needs} is not installed"} if skipped else {"error": str(why)}
    return Proof(
        id=module.name, statement=f"the statements of proofs_checks/{module.name.replace('.', '/')}.py",
        assumptions=f"needs the package {module.needs}", method=module.method,
        status="skipped" if skipped else "unknown", twin="", twin_status="skipped" if skipped else "unknown",
        seconds=0.0, tool="", evidence=evidence,
    )  # fmt: skip


def run(
    wanted: Callable[[str, Method], bool], workers: int, progress: Callable[[Proof], None] = lambda _: None
) -> list[Proof]:
    """Check every wanted statement (by id and method), in this process or in ``workers`` others.

    The proofs are in the order of the catalogue.
    A module that cannot be imported is among them whatever is wanted: nobody knows which statements it had.
    """
    proofs: dict[str, Proof] = {}
    tasks: list[tuple[Module, int, str]] = []
    for module in MODULES:
        try:
            found = statements(module)
        except (ImportError, BrokenError) as error:
            if isinstance(error, BrokenError) or wanted(module.name, module.method):
                proofs[module.name] = absent(module, error)
            continue
        for i, statement in enumerate(found):
            if wanted(statement.id, statement.method):
                tasks.append((module, i, statement.id))

    def keep(proof: Proof) -> None:
        proofs[proof.id] = proof
        progress(proof)

    order = {identity: n for n, identity in enumerate([*proofs, *(identity for *_, identity in tasks)])}
    if workers == 1:
        for module, i, _ in tasks:
            keep(_prove(module, i))
    else:
        with local_executor(workers) as pool:  # whose processes end with this one, however it ends
            for future in as_completed([pool.submit(_prove, module, i) for module, i, _ in tasks]):
                keep(future.result())
    return [*sorted(proofs.values(), key=lambda proof: order[proof.id]), *gone(wanted)]


def gone(wanted: Callable[[str, Method], bool] = lambda *_: True) -> list[Proof]:
    """What stands for every pinned statement that no module has any more, and is no pass.

    Those of a method whose modules cannot all be imported may be in one of these, for which ``absent`` stands.
    """
    known, hidden = set[str](), set[str]()
    for module in MODULES:
        try:
            known |= {statement.id for statement in statements(module)}
        except (ImportError, BrokenError):
            hidden.add(module.method)
    lost = {x: pin for x, pin in pins.read().items() if x not in known and pin.method not in hidden}
    return [_gone(x, pin) for x, pin in lost.items() if wanted(x, cast(Method, pin.method))]


def _gone(identity: str, pin: pins.Pin) -> Proof:
    return Proof(
        id=identity, statement=pin.statement, assumptions=pin.assumptions, method=cast(Method, pin.method),
        status="changed", twin=pin.twin, twin_status="unknown", seconds=0.0, tool="",
        evidence={"changed": pins.gone(identity)}, asked=pin.asked, twin_asked=pin.twin_asked,
    )  # fmt: skip


def _prove(module: Module, index: int) -> Proof:
    return prove(statements(module)[index])


def broken() -> list[str]:
    """The modules that are gone or cannot be imported, though their tool is installed."""
    found: list[str] = []
    for module in MODULES:
        try:
            statements(module)
        except ImportError:
            continue
        except BrokenError:
            found.append(module.name)
    return found


def known_ids() -> Iterable[str]:
    """The ids of every statement whose tool is installed."""
    for module in MODULES:
        try:
            yield from (statement.id for statement in statements(module))
        except (ImportError, BrokenError):
            yield module.name
