"""A verdict is stale when anything that it came of is another: shared files, a user's own, the row, and it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.claims import dependence, ledger
from linattest.verify.claims.ledger import LedgerError
from linattest.verify.claims.record import Claims
from linattest.verify.claims.verdicts import Evidence
from linattest.verify.environment import ROOT

ROWS = {row.id: row for row in ledger.read()}
COQ = (Evidence(kind="proof", text="p", where="proofs_checks/coq/certificate.v"),)
pytestmark = pytest.mark.usefixtures("claims_here")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


def edited(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every file is as it is but one."""
    read = dependence.content
    monkeypatch.setattr(dependence, "content", lambda x: b"edited" if x == name else read(x))


SHARED = {
    "vla.bounded-state": (
        "proofs_checks/coq/forms.v", "proofs_checks/coq/theorems.py", "proofs_checks/coq/compiler.py",
        "proofs_checks/coq/types.toml", "proofs_checks/symbolic/algebra.py", "proofs_checks/pins.toml",
        "proofs_checks/pins.py", "proofs_checks/proof.py", "proofs_checks/enclosures/balls.py",
        "verify/claims/verdicts.py", "verify/claims/gather.py", "verify/claims/exact.py", "verify/claims/ledger.py",
        "verify/claims/record.py", "verify/claims/vla_penalty.py", "verify/search/objectives.py", "verify/numbers.py",
        "impls/ridge_chunk.py", "verify/operators/vla.py",
    ),
    "ccq.contraction": ("proofs_checks/smt/solver.py", "verify/claims/figures.py", "impls/covariance_contract.py"),
}  # fmt: skip


@pytest.mark.parametrize(("identity", "name"), [(x, name) for x, names in SHARED.items() for name in names])
def test_a_shared_file_that_is_another_makes_its_verdicts_stale(
    identity: str, name: str, claims_record: Claims, monkeypatch: pytest.MonkeyPatch
):
    assert (ROOT / name).is_file()
    (before,) = (o for o in claims_record.claims if o.id == identity)
    names = dependence.sources(ROWS[identity], COQ)
    outcome = msgspec.structs.replace(before, sources=names, hash=dependence.row_hash(ROWS[identity], names))
    assert ledger.outdated([outcome]) == []
    edited(monkeypatch, name)
    assert ledger.outdated([outcome]) == [identity]


def test_what_a_verdict_does_not_come_of_leaves_it_alone(claims_record: Claims, monkeypatch: pytest.MonkeyPatch):
    for name in ("impls/softmax.py", "verify/claims/levels.py", "proofs_checks/smt/fenwick.py"):
        assert name not in dependence.sources(ROWS["vla.shrinking"])
        edited(monkeypatch, name)
    assert "vla.shrinking" not in ledger.outdated(claims_record.claims)


def test_a_row_that_is_gone_makes_its_verdict_stale(claims_record: Claims):
    gone = msgspec.structs.replace(claims_record.claims[0], id="vla.gone")
    assert ledger.outdated([gone]) == ["vla.gone"]


def test_files_that_import_each_other_are_read_once(tmp_path: Path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.py").write_text(f"def f():\n    from {other} import x\n    import numpy\n")
    (tmp_path / "broken.py").write_text("def (")
    a, b, broken = (str(tmp_path / f"{name}.py") for name in ("a", "b", "broken"))
    assert dependence.closure([a, broken, str(tmp_path / "none.py")]) == [a, broken, b]


# --- a user's ----------------------------------------------------------------------------------------------------

OWN = """
import {beside}
from linattest.impls import linear
from linattest.verify.claims.ledger import claim
from linattest.verify.claims.verdicts import counted, supported

@claim("mine.small", statement="One is one.", expected="supported")
def small():
    return supported(counted("n", {beside}.ONE == 1))
"""


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A ledger whose check imports a file beside it; names that no other test's modules have."""
    stem = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"beside_{stem}.py").write_text("ONE = 1\n")
    (tmp_path / f"{stem}.py").write_text(OWN.replace("{beside}", f"beside_{stem}"))
    return tmp_path / f"{stem}.py"


@pytest.mark.parametrize("changed", ["the file", "what it imports", "nothing", "gone"])
def test_a_user_s_verdict_is_stale_when_its_file_or_what_that_imports_is_another(
    own: Path, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    record, page = tmp_path / "claims.json", tmp_path / "page.html"
    assert run("claims", "--ledger", own.name, "--workers", "1", "--output", record).exit_code == 0
    files = {"the file": own, "what it imports": own.with_name(f"beside_{own.name}")}
    if changed in files:
        files[changed].write_text(files[changed].read_text() + "\n# edited\n")
    elif changed == "gone":
        own.unlink()
    (there := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(there)
    result = run("report", "--claims", record, "--html", page)
    assert result.exit_code == (0 if changed == "nothing" else 3)
    assert ("STALE: 1 of 1 verdict" in result.stderr) == (changed != "nothing")
    assert ("Stale:" in page.read_text()) == (changed != "nothing")


def test_a_verdict_of_the_package_is_stale_for_a_user_too(own: Path, monkeypatch: pytest.MonkeyPatch):
    (outcome,) = ledger.run(ledger.read([own]), workers=1)
    assert "impls/linear.py" in outcome.sources and ledger.outdated([outcome]) == []
    edited(monkeypatch, "impls/linear.py")
    assert ledger.outdated([outcome]) == ["mine.small"]


def test_a_row_of_a_user_s_toml_is_stale_when_the_file_is_another(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text('[[claim]]\nid = "mine.a"\nstatement = "S."\nexpected = "untested"\nreason = "r"\n')
    found = ledger.run(ledger.read([path]), workers=1)
    assert ledger.outdated(found) == []
    path.write_text(path.read_text().replace("S.", "T."))
    assert ledger.outdated(found) == ["mine.a"]


def test_an_id_of_ours_is_refused_in_a_user_s_ledger(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text('[[claim]]\nid = "vla.minimiser"\nstatement = "S."\nexpected = "untested"\nreason = "r"\n')
    with pytest.raises(LedgerError, match=r"'vla.minimiser' is a claim of the papers \(vla.toml\) already; give"):
        ledger.read([path])
    result = run("claims", "--ledger", path)
    assert result.exit_code == 2 and "vla.minimiser" in result.stderr
    assert len(ledger.read([ledger.FOLDER / "vla.toml"])) > 20, "our own file is no user's"


# --- the report --------------------------------------------------------------------------------------------------


def test_a_difference_weighs_more_than_what_is_stale(claims_record: Claims, tmp_path: Path):
    first, second, *rest = claims_record.claims
    stale = msgspec.structs.replace(first, hash="0" * 16)
    differs = msgspec.structs.replace(second, verdict=None, error="E: planted")
    for claims, code in (([stale, second, *rest], 3), ([stale, differs, *rest], 1), ([first, second, *rest], 0)):
        found = msgspec.structs.replace(claims_record, claims=claims)
        path = tmp_path / "claims.json"
        path.write_text(json.dumps(found.to_json(), allow_nan=False))
        result = run("report", "--claims", path, "--html", tmp_path / "page.html")
        assert result.exit_code == code and (first.id in result.stderr) == (code != 0)
