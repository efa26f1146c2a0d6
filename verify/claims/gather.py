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
    """The statement of that id, checked now. It stands if it is proved and its falsified twin rejected."""
    lacks = ""
    for module in catalogue.MODULES:
        where = f"proofs_checks/{module.name.replace('.', '/')}"
        try:
            statements = catalogue.statements(module)
        except ImportError as error:
            lacks = lacks or (module.needs if error.name == module.needs else "")
            continue
        for statement in statements:
            if statement.id == identity:
                return _evidence(_checked(statement), where)
    return Evidence(kind="proof", text=f"{identity}: there is no such statement", stands=False, lacks=lacks)


def proofs(*identities: str) -> list[Evidence]:
    """Several statements."""
    return [proof(identity) for identity in identities]


def every_width(*words: str) -> list[Evidence]:
    """Coq's statements whose ids hold one of these words; without Coq a reason that says what is not claimed."""
    found: list[Evidence] = []
    for module in catalogue.MODULES:
        if module.method != "coq":
            continue
        try:
            statements = catalogue.statements(module)
        except ImportError:
            continue
        chosen = [s for s in statements if any(word in s.id for word in words)]
        found += [_evidence(_checked(s), f"proofs_checks/{module.name.replace('.', '/')}") for s in chosen]
    absent = [e for e in found if e.lacks]
    if found and not absent:
        return found
    return [reason(f"no proof for every width was run ({', '.join(words)}): Coq is not installed", lacks="coq")]


@cache
def _checked(statement: Statement) -> Proof:
    return prove(statement)


def _evidence(found: Proof, where: str) -> Evidence:
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
