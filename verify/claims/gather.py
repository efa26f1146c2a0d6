"""Evidence that others made: machine proofs run again, witnesses replayed, both by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from linattest.proofs_checks import catalogue
from linattest.proofs_checks.proof import Proof, Statement, prove
from linattest.verify.claims.verdicts import Evidence, reason
from linattest.verify.environment import ROOT
from linattest.verify.search.confirm import DIGITS
from linattest.verify.search.witness import load, replay

WITNESSES = "verify/data/witnesses"
"""Folder of the witnesses that come with the package, from its root."""


def proof(identity: str) -> Evidence:
    """The statement of that id, checked now (not Coq's). It stands if it is proved and its falsified twin rejected."""
    return _look_up(identity, coq=False)


def proofs(*identities: str) -> list[Evidence]:
    """Several statements."""
    return [proof(identity) for identity in identities]


def in_coq(*identities: str, needed: bool = True) -> list[Evidence]:
    """Coq's statements of these ids, for every width and length.

    Where Coq is not installed a reason stands for them, and with ``needed`` the verdict claims less.
    """
    found = [_look_up(identity, coq=True) for identity in identities]
    if any(e.lacks for e in found):
        return [
            reason(
                f"not checked for every width or length, for want of Coq: {', '.join(identities)}",
                lacks="coq" if needed else "",
            )
        ]
    return found


def _look_up(identity: str, *, coq: bool) -> Evidence:
    lacks, broken = "", list[str]()
    for module in catalogue.MODULES:
        if (module.method == "coq") != coq:
            continue
        try:
            statements = catalogue.statements(module)
        except ImportError:
            lacks = lacks or module.needs
            continue
        except catalogue.BrokenError as error:
            broken.append(f"{module.name}: {error}")
            continue
        for statement in statements:
            if statement.id == identity:
                return _evidence(_checked(statement), f"proofs_checks/{module.name.replace('.', '/')}.py")
    return Evidence(
        kind="proof",
        text=f"{identity}: there is no such statement" + (f" ({'; '.join(broken)})" if broken else ""),
        values={"status": "missing"},
        stands=False,
        lacks=lacks,
    )


@cache
def _checked(statement: Statement) -> Proof:
    return prove(statement)


def _evidence(found: Proof, where: str) -> Evidence:
    if found.method == "coq" and "theorem" in found.evidence:
        where = f"proofs_checks/coq/{found.evidence['theorem'].partition(':')[0]}"
    values = {"method": found.method, "status": found.status, "twin": found.twin_status, "tool": found.tool}
    return Evidence(
        kind="proof", text=f"{found.id}: {found.statement} [{found.assumptions}]", values=values, where=where,
        stands=found.stands, lacks=found.method if found.status == "skipped" else "",
    )  # fmt: skip


def witness(name: str, digits: int = DIGITS) -> Evidence:
    """A kept witness, computed again by the oracle at ``digits`` digits from its tensors, within its bounds."""
    path = ROOT / WITNESSES / f"{name}.safetensors"
    where = f"{WITNESSES}/{path.name}"
    try:
        kept = load(path)
    except ValueError as error:
        return Evidence(kind="witness", text=str(error), where=where, stands=False)
    found = replay(kept, digits)
    w, s = kept.witness, kept.witness.case.structure
    what = f"{w.objective} of {w.case.operator} at d = {s.K}, T = {s.T}"
    if not found.stands or found.exact is None:
        return Evidence(kind="witness", text=f"{what}: {found.why}", where=where, stands=False)
    values = {
        "value": found.exact.text, "at_least": w.at_least, "radius": found.exact.radius, "bounds": list(w.bounds),
        "seed": w.case.seed,
    }  # fmt: skip
    return Evidence(kind="witness", text=what, values=values, where=where, digits=found.exact.digits)


def folder() -> Path:
    """Where the package's witnesses lie."""
    return ROOT / WITNESSES
