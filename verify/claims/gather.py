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

LONGEST = 300
"""Characters of the reason why a proof does not stand."""

SHOWN = {
    "state-norm": "|S_T|_F",
    "jacobian": "|X J|/|X| for the kept direction X, a lower bound of the norm |J|_2 of one token's Jacobian",
    "product": "|X J|/|X| for the kept direction X, a lower bound of the norm |J|_2 of the product of all Jacobians",
}
"""What a witness of each objective is replayed for, to all its digits."""


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
    if why := next((found.evidence[x] for x in ("changed", "twin", "error", "skipped") if x in found.evidence), ""):
        values["why"] = why if len(why) <= LONGEST else f"{why[:LONGEST]} ... (linattest prove {found.id})"
    return Evidence(
        kind="proof", text=f"{found.id}: {found.statement} [{found.assumptions}]", values=values, where=where,
        stands=found.stands, lacks=found.method if found.status == "skipped" else "",
    )  # fmt: skip


def witness(name: str, digits: int = DIGITS) -> Evidence:
    """A kept witness, computed again by the oracle at ``digits`` digits from its tensors, within its bounds."""
    path = ROOT / WITNESSES / f"{name}.safetensors"
    where = f"{WITNESSES}/{path.name}"
    if not path.is_file():
        return Evidence(kind="witness", text=f"the witness file {path.name} is missing", where=where, stands=False)
    try:
        kept = load(path)
        found = replay(kept, digits)
    except ValueError as error:
        why = str(error).replace(str(path), path.name)
        return Evidence(kind="witness", text=why, where=where, stands=False)
    w, s = kept.witness, kept.witness.case.structure
    what = (
        f"{w.case.operator} at d = {s.K}, T = {s.T} replayed: {SHOWN[w.objective]}; float64 inputs taken as exact, "
        "lam0 = the double nearest 0.1, keys divided by their length again"
    )
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
