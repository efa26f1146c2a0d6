"""Every statement that is checked by machine, and running them. The list of modules is written out."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from linattest.proofs_checks.proof import Method, Proof, Statement, prove


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
    except Exception as error:
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
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            for future in as_completed([pool.submit(_prove, module, i) for module, i, _ in tasks]):
                keep(future.result())
    return sorted(proofs.values(), key=lambda proof: order[proof.id])


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
